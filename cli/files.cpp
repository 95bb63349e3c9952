// Atomic writing and locking of files, and the limit on open files. A file is written under a temporary name
// in the directory of its target and renamed at the end; standard output and devices are written directly.
#include "cli/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "exporters/file_place.h"

namespace foreshock::cli {
namespace {

// Signals that end a process by default, except those of program errors (SIGSEGV, SIGABRT, ...).
constexpr std::array kEndingSignals = {SIGHUP,  SIGINT,  SIGQUIT, SIGPIPE, SIGTERM,
                                       SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU};

// Paths of the existing temporary files. Changed only while signals are blocked: a signal handler reads them.
std::vector<const char*> temporary_paths;

class SignalsBlocked {  // blocks all signals while it exists
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// The handler of the signals kEndingSignals. Removes all temporary files.
void remove_all_and_end(int number) {
  for (const char* path : temporary_paths) unlink(path);
  signal(number, SIG_DFL);
  raise(number);  // the signal is blocked here and ends the process when the handler returns
}

// Replaces the handler `from` of a signal by `to`. Other handlers and ignored signals (nohup) stay unchanged.
void replace_handler(int number, void (*from)(int), void (*to)(int)) {
  struct sigaction current_action {};
  if (sigaction(number, nullptr, &current_action) == 0 && current_action.sa_handler == from)
    signal(number, to);
}

void install_handlers() {
  for (const int number : kEndingSignals) replace_handler(number, SIG_DFL, remove_all_and_end);
  replace_handler(SIGXFSZ, SIG_DFL, SIG_IGN);  // a write beyond the limit on file size then fails with EFBIG
}

void remove_handlers() {  // SIGXFSZ stays ignored
  for (const int number : kEndingSignals) replace_handler(number, remove_all_and_end, SIG_DFL);
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

// Returns the descriptor of our standard output or error if `file` is the same file; else -1. If the file
// were opened by name, writing would start at offset 0 and overwrite what was printed before.
int standard_stream(const struct stat& file) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (fstat(stream, &own) == 0 && own.st_dev == file.st_dev && own.st_ino == file.st_ino) return stream;
  }
  return -1;
}

bool is_standard_output(const std::string& path) { return path.empty() || path == "-"; }

// Whether `path` is written to directly: a device, a pipe, or the file of our standard output or error.
bool is_stream(const std::string& path) {
  struct stat file {};
  if (is_standard_output(path)) return true;
  if (stat(path.c_str(), &file) != 0 || S_ISDIR(file.st_mode)) return false;
  return !S_ISREG(file.st_mode) || standard_stream(file) >= 0;
}

mode_t mode_of_new_file() {
  const mode_t mask = umask(0);  // the umask can be read only by setting it
  umask(mask);
  return 0666 & ~mask;
}

namespace fs = std::filesystem;

// Adds advice for the user to a problem of NewFiles; returns "" for "".
std::string with_advice(const std::string& problem) {
  return problem.empty() ? ""
                         : problem + "; none of the files is there: mend that, or choose another directory";
}

}  // namespace

UnfinishedFile::UnfinishedFile(const std::string& directory) : path_(directory + "/.foreshock-XXXXXX") {
  const SignalsBlocked blocked;
  descriptor_ = mkostemp(path_.data(), O_CLOEXEC);
  if (descriptor_ < 0) {
    path_.clear();
    return;
  }
  if (temporary_paths.empty()) install_handlers();
  temporary_paths.push_back(path_.c_str());
}

UnfinishedFile::~UnfinishedFile() {
  const SignalsBlocked blocked;
  if (path_.empty()) return;
  unlink(path_.c_str());
  forget();
}

bool UnfinishedFile::finish(const std::string& path) {
  const SignalsBlocked blocked;
  if (std::rename(path_.c_str(), path.c_str()) != 0) return false;
  forget();
  return true;
}

void UnfinishedFile::forget() {
  std::erase(temporary_paths, path_.c_str());  // compares addresses
  path_.clear();
  if (temporary_paths.empty()) remove_handlers();
}

std::string why_no_file(const std::string& path) {
  if (path.empty()) return "the file name is empty";
  if (is_standard_output(path)) return "";
  const FilePlace place(path);
  if (!place.refusal().empty()) return place.refusal();
  if (is_stream(path)) return "";
  const std::string &target = place.path(), directory = directory_of(target);
  struct stat info {};
  if (target.back() == '/' || (stat(target.c_str(), &info) == 0 && S_ISDIR(info.st_mode)))
    return "'" + path + "' is " + (target.back() == '/' ? "not a file name" : "a directory, not a file");
  if (access(directory.c_str(), W_OK) != 0)
    return "cannot write into " + directory + ": choose another place for " + path;
  return "";
}

WholeFile::WholeFile(const std::string& path) : path_(path), target_(path) {
  const int descriptor = is_stream(path) ? open_stream() : open_file();
  if (!problem_.empty()) return;
  file_ = descriptor < 0 ? nullptr : fdopen(descriptor, "wb");
  if (file_ != nullptr) return;
  // EINVAL: the standard stream was closed, and main() has put a read-only descriptor in its place.
  fail(descriptor >= 0 && errno == EINVAL ? std::strerror(EBADF) : std::strerror(errno));
  if (descriptor >= 0) ::close(descriptor);
}

WholeFile::~WholeFile() {
  if (file_ != nullptr) std::fclose(file_);
}

int WholeFile::open_stream() {
  struct stat info {};
  std::fflush(stdout);  // bytes that were printed earlier must come first
  if (is_standard_output(path_)) return dup(STDOUT_FILENO);
  const int own = stat(path_.c_str(), &info) == 0 ? standard_stream(info) : -1;
  if (own >= 0) return dup(own);
  const FilePlace place(path_);
  problem_ = place.refusal();
  return place.open(O_WRONLY);
}

int WholeFile::open_file() {
  const FilePlace place(path_);
  problem_ = place.refusal();
  if (!problem_.empty()) return -1;
  target_ = place.path();
  struct stat before {};
  const mode_t mode = stat(target_.c_str(), &before) == 0 ? before.st_mode & 0777 : mode_of_new_file();
  unfinished_.emplace(directory_of(target_));
  if (unfinished_->descriptor() >= 0) fchmod(unfinished_->descriptor(), mode);  // it was created with 0600
  return unfinished_->descriptor();
}

void WholeFile::fail(const std::string& why) {
  if (problem_.empty())  // the first problem is usually the cause of later ones
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

NewFiles::~NewFiles() {
  files_.clear();  // removes the temporary files
  std::error_code ignored;
  for (auto folder = created_folders_.rbegin(); folder != created_folders_.rend(); ++folder)
    fs::remove(*folder, ignored);  // only removes an empty folder
}

// Creates `folder` and its missing parents. Returns "" or an error.
std::string NewFiles::make_folders(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::exists(folder, error)) return "";
  if (std::string problem = make_folders(folder.parent_path()); !problem.empty()) return problem;
  if (fs::create_directory(folder, error)) created_folders_.push_back(folder);
  return error ? "cannot make " + folder.string() + ": " + error.message() : "";
}

std::string NewFiles::write(const std::string& name, std::string_view bytes) {
  auto file = files_.find(name);
  if (file == files_.end()) {
    const fs::path path = folder_ / name;
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path.string() + ": is there already; choose another directory";
    if (const std::string problem = make_folders(path.parent_path()); !problem.empty())
      return with_advice(problem);
    file = files_.try_emplace(name, path.string()).first;
  }
  file->second.write(bytes);
  return with_advice(file->second.problem());
}

// Closes all files before the first rename, since most errors, such as a full disk, occur by then.
std::string NewFiles::finish() {
  for (auto& [name, file] : files_) {
    file.close();
    if (!file.problem().empty()) return with_advice(file.problem());
  }
  std::vector<fs::path> renamed;
  for (auto& [name, file] : files_) {
    if (!file.finish().empty()) {
      std::error_code ignored;
      for (const fs::path& path : renamed) fs::remove(path, ignored);
      return with_advice(file.problem());
    }
    renamed.push_back(folder_ / name);
  }
  created_folders_.clear();  // so that the destructor keeps the folders
  return "";
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this != &other) {
    release();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

bool FileLock::try_lock(const std::string& path, int operation) {
  release();
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return false;
  if (flock(descriptor, operation | LOCK_NB) != 0) {
    close(descriptor);
    return false;
  }
  descriptor_ = descriptor;
  return true;
}

bool FileLock::lock_within(const std::string& path, int operation, int timeout_ms) {
  constexpr int kPauseMs = 10;
  for (int waited = 0;; waited += kPauseMs) {
    if (try_lock(path, operation)) return true;
    if (waited >= timeout_ms) return false;
    const timespec pause = {0, kPauseMs * 1000000};
    nanosleep(&pause, nullptr);
  }
}

void FileLock::release() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

bool is_locked(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) return false;  // else try_lock() would create the file
  FileLock probe;
  return !probe.try_lock(path, LOCK_SH);  // a file that cannot be opened counts as locked
}

void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace foreshock::cli
