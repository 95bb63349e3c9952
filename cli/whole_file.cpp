#include "cli/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

namespace foreshock::cli {
namespace {

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

// Standard output or error, if that is what it is; else -1. What is opened anew by its name has a place of
// its own in a file, and what was printed before would be written over.
int standard_stream(const struct stat& at) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (fstat(stream, &own) == 0 && own.st_dev == at.st_dev && own.st_ino == at.st_ino) return stream;
  }
  return -1;
}

bool is_standard_output(const std::string& path) { return path.empty() || path == "-"; }

// Whether what stands at `path` is written to and not replaced.
bool is_stream(const std::string& path) {
  struct stat at {};
  if (is_standard_output(path)) return true;
  if (stat(path.c_str(), &at) != 0 || S_ISDIR(at.st_mode)) return false;
  return !S_ISREG(at.st_mode) || standard_stream(at) >= 0;
}

// A link that somebody else has laid where all may (/tmp): the kernel does not follow it either
// (fs.protected_symlinks).
bool is_trap(const struct stat& link, const std::string& directory) {
  struct stat at {};
  return link.st_uid != geteuid() && stat(directory.c_str(), &at) == 0 && link.st_uid != at.st_uid &&
         (at.st_mode & S_ISVTX) != 0 && (at.st_mode & S_IWOTH) != 0;
}

// Where a link leads to; nothing when it is none.
std::optional<std::string> next_of(const std::string& path, std::string* problem) {
  const int place = open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (place < 0) return std::nullopt;
  struct stat at {};
  std::array<char, PATH_MAX> text;
  const bool is_link = fstat(place, &at) == 0 && S_ISLNK(at.st_mode);
  const ssize_t length = is_link ? readlinkat(place, "", text.data(), text.size()) : -1;
  close(place);
  if (length < 0) return std::nullopt;
  if (is_trap(at, directory_of(path))) *problem = path + " is a link of somebody else: choose another place";
  const std::string to(text.data(), static_cast<size_t>(length));
  return to.starts_with('/') ? to : directory_of(path) + to;
}

// Where the links end that `path` may be the first of, whether anything stands there or not.
std::string end_of_links(const std::string& path, std::string* problem) {
  constexpr int kMost = 40;  // as many as the kernel follows
  std::string at = path;
  for (int n = 0; n < kMost && problem->empty(); ++n) {
    const std::optional<std::string> next = next_of(at, problem);
    if (!next) return at;
    at = *next;
  }
  if (problem->empty()) *problem = path + " is a link that leads nowhere: choose another place";
  return at;
}

mode_t usual_mode() {
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

}  // namespace

std::string why_no_file(const std::string& path) {
  if (path.empty()) return "'' is no file name";
  if (is_stream(path)) return "";
  std::string problem;
  const std::string target = end_of_links(path, &problem), directory = directory_of(target);
  if (!problem.empty()) return problem;
  struct stat at {};
  if (target.back() == '/' || (stat(target.c_str(), &at) == 0 && S_ISDIR(at.st_mode)))
    return "'" + path + "' is no file name" + (target.back() == '/' ? "" : " but a directory");
  if (access(directory.c_str(), W_OK) != 0)
    return "cannot write into " + directory + ": choose another place for " + path;
  return "";
}

WholeFile::WholeFile(const std::string& path) : path_(path), target_(path) {
  const int descriptor = is_stream(path) ? open_stream() : open_file();
  if (!problem_.empty()) return;
  file_ = descriptor < 0 ? nullptr : fdopen(descriptor, "wb");
  if (file_ != nullptr) return;
  // What holds the place of a stream that was closed is not open for writing.
  fail(descriptor >= 0 && errno == EINVAL ? std::strerror(EBADF) : std::strerror(errno));
  if (descriptor >= 0) ::close(descriptor);
}

WholeFile::~WholeFile() {
  if (file_ != nullptr) std::fclose(file_);
}

int WholeFile::open_stream() {
  struct stat at {};
  std::fflush(stdout);  // ours comes after what was printed
  if (is_standard_output(path_)) return dup(STDOUT_FILENO);
  const int own = stat(path_.c_str(), &at) == 0 ? standard_stream(at) : -1;
  return own >= 0 ? dup(own) : open(path_.c_str(), O_WRONLY | O_CLOEXEC);
}

int WholeFile::open_file() {
  target_ = end_of_links(path_, &problem_);
  if (!problem_.empty()) return -1;
  struct stat before {};
  const mode_t mode = stat(target_.c_str(), &before) == 0 ? before.st_mode & 0777 : usual_mode();
  unfinished_.emplace(directory_of(target_));
  if (unfinished_->descriptor() >= 0) fchmod(unfinished_->descriptor(), mode);
  return unfinished_->descriptor();
}

void WholeFile::fail(const std::string& why) {
  if (problem_.empty())
    problem_ = (is_standard_output(path_) ? "standard output" : "cannot write " + path_) + ": " + why;
}

void WholeFile::write(std::string_view bytes) {
  if (file_ != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
    fail(std::strerror(errno));
}

void WholeFile::close() {
  if (file_ != nullptr && std::fclose(file_) != 0) fail(std::strerror(errno));
  file_ = nullptr;
}

const std::string& WholeFile::finish() {
  close();
  if (problem_.empty() && unfinished_ && !unfinished_->finish(target_)) fail(std::strerror(errno));
  return problem_;
}

std::string write_whole_file(const std::string& path, std::string_view content) {
  WholeFile file(path);
  file.write(content);
  return file.finish();
}

}  // namespace foreshock::cli
