#include "exporters/bearer_token.h"

#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace foreshock {
namespace {

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size && a.st_mode == b.st_mode &&
         a.st_uid == b.st_uid && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec && a.st_ctim.tv_sec == b.st_ctim.tv_sec &&
         a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

std::string problem_of(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  if (status.st_uid != 0 && status.st_uid != geteuid()) return "belongs to another user; make it yours";
  if ((status.st_mode & 037) != 0) return "can be read by others; chmod 600 it";
  return "";
}

bool is_visible(char c) { return c > ' ' && c < '\x7f'; }

// True and the rest when `text` begins with this scheme and spaces.
bool has_scheme(std::string_view text, std::string_view scheme, std::string_view* rest) {
  if (text.size() <= scheme.size() || text[scheme.size()] != ' ' ||
      strncasecmp(text.data(), scheme.data(), scheme.size()) != 0)
    return false;
  *rest = text.substr(std::min(text.find_first_not_of(' ', scheme.size()), text.size()));
  return true;
}

// Stops at the first character that is no base64.
std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) break;
    bits = (bits << 6 | static_cast<unsigned>(digit)) & 0xffff;
    if ((count += 6) < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view expected) {
  volatile unsigned difference = given.size() != expected.size();
  for (size_t n = 0; n < given.size(); ++n) {
    const char other = expected.empty() ? '\0' : expected[n % expected.size()];
    difference = difference | static_cast<unsigned char>(given[n] ^ other);
  }
  return difference == 0 && !expected.empty();
}

std::string read_token(const std::string& path, struct stat* status, std::string* error) {
  const auto fail = [&](const std::string& why) {
    *error = "token file " + path + " " + why;
    return std::string();
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return fail(std::string("cannot be read: ") + std::strerror(errno));
  char text[kMostTokenBytes + 2];
  ssize_t length = -1;
  std::string problem = fstat(file, status) == 0 ? problem_of(*status) : "cannot be read";
  if (problem.empty() && (length = ::read(file, text, sizeof text)) < 0) problem = "cannot be read";
  close(file);
  if (!problem.empty()) return fail(problem);
  const char* const end = std::find(text, text + length, '\n');
  std::string token(text, static_cast<size_t>(end - text));
  if (token.size() < kLeastTokenBytes || token.size() > kMostTokenBytes ||
      !std::all_of(token.begin(), token.end(), is_visible))
    return fail("must hold one line of 16 to 1024 visible characters: head -c 24 /dev/urandom | base64");
  return token;
}

std::unique_ptr<BearerToken> BearerToken::open(const std::string& path, std::string* error) {
  std::unique_ptr<BearerToken> token(new BearerToken(path));
  token->token_ = read_token(path, &token->seen_, error);
  return token->token_.empty() ? nullptr : std::move(token);
}

void BearerToken::read_if_changed() {
  struct stat now = {};
  if (stat(path_.c_str(), &now) == 0 && is_same(now, seen_)) return;
  std::string error;
  seen_ = {};
  token_ = read_token(path_, &seen_, &error);
}

bool BearerToken::admits(std::string_view authorization) {
  read_if_changed();
  std::string_view given;
  if (has_scheme(authorization, "Bearer", &given)) return equal_in_constant_time(given, token_);
  if (!has_scheme(authorization, "Basic", &given)) return false;
  const std::string pair = from_base64(given);
  const size_t colon = pair.find(':');
  return colon != pair.npos && equal_in_constant_time(std::string_view(pair).substr(colon + 1), token_);
}

}  // namespace foreshock
