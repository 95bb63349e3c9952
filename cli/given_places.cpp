#include "cli/given_places.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "exporters/http_routes.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

std::string output_problem(const Arguments& arguments, OptionId id) {
  const std::string given = arguments.text(id);
  if (given.empty()) return "";
  const std::string path = absolute(given);
  const std::string folder = fs::path(path).parent_path();
  const bool exists = access(path.c_str(), F_OK) == 0;
  const bool has_bad_name = !exists && errno != ENOENT;  // too long, a file as a folder, links in a circle
  std::error_code error;
  const bool is_directory = fs::is_directory(path, error);
  const bool takes_directory = id == OptionId::kFileSd;  // a file in it for each run
  if (has_bad_name || (is_directory && !takes_directory) ||
      access((exists ? path : folder).c_str(), is_directory ? W_OK | X_OK : W_OK) != 0) {
    return std::string(option(id).flag) + ": " + given +
           " cannot be written; name a file in a directory you may write";
  }
  return "";
}

std::string flagged_problem(const Arguments& arguments) {
  const std::string path = absolute(arguments.text(OptionId::kSaveFlagged));
  if (path.empty()) return "";
  const bool is_there = mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
  std::error_code error;
  if (is_there && fs::is_directory(path, error) && access(path.c_str(), R_OK | W_OK | X_OK) == 0) return "";
  return std::string(option(OptionId::kSaveFlagged).flag) + ": " + path +
         " is no directory to write to; name one, or one to be made in a directory you may write";
}

std::string token_problem(const Arguments& arguments) {
  const std::string path = absolute(arguments.text(OptionId::kTokenFile));
  if (path.empty()) return "";
  struct stat status = {};
  std::string problem;
  read_token(path, &status, &problem);
  return problem.empty() ? "" : std::string(option(OptionId::kTokenFile).flag) + ": " + problem;
}

// A socket that is there already is the agent's affair: it takes away one that nobody listens on.
std::string socket_problem(const std::string& path) {
  struct stat there = {};
  const bool is_file = lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode);
  const std::string folder = fs::path(path).parent_path();
  return !is_file && access(folder.c_str(), W_OK | X_OK) == 0 ? ""
                                                              : "name a socket in a directory you may write";
}

// Whether this machine has the address, of either family; the port is the agent's affair.
template <class Address>
std::string bind_problem(const Address& address) {
  const int probe = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string problem;
  if (probe < 0 || bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    problem = std::string(std::strerror(errno)) + "; name an address of this machine, or 127.0.0.1";
  if (probe >= 0) close(probe);
  return problem;
}

std::string address_problem(const std::string& text) {
  sockaddr_storage address = {};
  auto* of_v4 = reinterpret_cast<sockaddr_in*>(&address);
  auto* of_v6 = reinterpret_cast<sockaddr_in6*>(&address);
  if (inet_pton(AF_INET, text.c_str(), &of_v4->sin_addr) == 1)
    address.ss_family = AF_INET;
  else if (inet_pton(AF_INET6, text.c_str(), &of_v6->sin6_addr) == 1)
    address.ss_family = AF_INET6;
  else
    return "";  // localhost
  return bind_problem(address);
}

}  // namespace

std::string absolute(const std::string& path) {
  std::error_code error;
  return path.empty() ? "" : fs::absolute(path, error).string();
}

std::string written_files_problem(const Arguments& arguments) {
  for (OptionId id : {OptionId::kSummary, OptionId::kRecord, OptionId::kFileSd})
    if (const std::string problem = output_problem(arguments, id); !problem.empty()) return problem;
  return flagged_problem(arguments);
}

std::string served_place_problem(const Arguments& arguments) {
  if (const std::string problem = token_problem(arguments); !problem.empty()) return problem;
  constexpr std::string_view kUnix = "unix:";
  const std::string place = arguments.text(OptionId::kBind);
  const std::string problem =
      place.starts_with(kUnix) ? socket_problem(place.substr(kUnix.size())) : address_problem(place);
  return problem.empty() ? "" : "--bind " + place + ": " + problem;
}

}  // namespace foreshock::cli
