#include "cli/whole_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace foreshock::cli {
namespace {

// The temporary file must not outlive an interrupt, so the few milliseconds of writing are not interrupted.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

bool write_all(int file, const std::string& content) {
  for (size_t done = 0; done < content.size();) {
    const ssize_t wrote = write(file, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += static_cast<size_t>(wrote);
  }
  return true;
}

// Standard output or error, if that is what `path` leads to; else -1. What is opened anew by its name has a
// place of its own in a file, and what was printed before would be written over.
int standard_stream(const struct stat& at) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (fstat(stream, &own) == 0 && own.st_dev == at.st_dev && own.st_ino == at.st_ino) return stream;
  }
  return -1;
}

std::string write_stream(const std::string& path, const std::string& content) {
  struct stat at {};
  const int own = stat(path.c_str(), &at) == 0 ? standard_stream(at) : -1;
  std::fflush(stdout);  // ours comes after what was printed
  const int file = own >= 0 ? dup(own) : open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written = file >= 0 && write_all(file, content);
  const std::string problem = written ? "" : "cannot write " + path + ": " + std::strerror(errno);
  if (file >= 0) close(file);
  return problem;
}

}  // namespace

bool is_stream(const std::string& path) {
  struct stat at {};
  if (stat(path.c_str(), &at) != 0 || S_ISDIR(at.st_mode)) return false;
  return !S_ISREG(at.st_mode) || standard_stream(at) >= 0;
}

std::string why_no_file(const std::string& path) {
  if (is_stream(path)) return "";
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (path.empty() || path.back() == '/') return "'" + path + "' is no file name";
  if (access(directory.c_str(), W_OK) != 0)
    return "cannot write into " + directory + ": choose another place for " + path;
  return "";
}

std::string write_whole_file(const std::string& path, const std::string& content) {
  if (is_stream(path)) return write_stream(path, content);
  const SignalsHeld held;
  const auto failed = [&path] { return "cannot write " + path + ": " + std::strerror(errno); };
  std::string temporary = path + ".XXXXXX";
  const int file = mkstemp(temporary.data());
  if (file < 0) return failed();
  const mode_t mask = umask(0);
  umask(mask);
  const bool written = write_all(file, content) && fchmod(file, 0666 & ~mask) == 0;
  const bool closed = close(file) == 0;
  if (written && closed && std::rename(temporary.c_str(), path.c_str()) == 0) return "";
  const std::string problem = failed();
  unlink(temporary.c_str());
  return problem;
}

}  // namespace foreshock::cli
