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

}  // namespace

std::string why_no_file(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (path.empty() || path.back() == '/') return "'" + path + "' is no file name";
  if (access(directory.c_str(), W_OK) != 0)
    return "cannot write into " + directory + ": choose another place for " + path;
  return "";
}

std::string write_whole_file(const std::string& path, const std::string& content) {
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
