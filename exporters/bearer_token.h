// The secret that a client must show: the first line of a file, read again whenever the file changes.
#ifndef FORESHOCK_EXPORTERS_BEARER_TOKEN_H_
#define FORESHOCK_EXPORTERS_BEARER_TOKEN_H_

#include <sys/stat.h>

#include <memory>
#include <string>
#include <string_view>

namespace foreshock {

inline constexpr size_t kLeastTokenBytes = 16;
inline constexpr size_t kMostTokenBytes = 1024;

// Thread-compatible.
class BearerToken {
 public:
  // Null: *error is one line. The file must be root's or ours, closed to others and not writable for its
  // group, and hold 16 to 1024 visible ASCII characters.
  static std::unique_ptr<BearerToken> open(const std::string& path, std::string* error);

  // `authorization`: the value of that header. Either "Bearer TOKEN" or "Basic ..." with any user and the
  // token as the password, which is what a browser can send. Takes as long for a wrong token as for the right
  // one. A file that has become unfit lets nobody in until it is fit again.
  bool admits(std::string_view authorization);

 private:
  explicit BearerToken(std::string path) : path_(std::move(path)) {}
  void read_if_changed();

  const std::string path_;
  struct stat seen_ = {};
  std::string token_;  // empty: nobody
};

// The token in a file fit for one; "" with *error set otherwise. *status is the file's.
std::string read_token(const std::string& path, struct stat* status, std::string* error);

// In a time that depends on the lengths alone.
bool equal_in_constant_time(std::string_view given, std::string_view expected);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_BEARER_TOKEN_H_
