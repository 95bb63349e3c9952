// An HTTP client over non-blocking sockets. Connecting, sending and receiving share one deadline.
#include "exporters/http_get.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace foreshock {
namespace {

constexpr size_t kMaxResponseBytes = 64 << 20;  // the agent's server sends no larger body (http_server.cpp)

class Socket {
 public:
  explicit Socket(int family) : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

using Clock = std::chrono::steady_clock;

// Waits until `fd` is ready for `events` (POLLIN, POLLOUT). Returns false at the deadline or on an error.
bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left_ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left_ms <= 0) return false;
    pollfd wanted{fd, events, 0};
    const int ready = poll(&wanted, 1, static_cast<int>(left_ms));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Parses `text`, a numeric address or unix:PATH, to a socket address of *length bytes in *storage. Returns
// false if the address or the port is invalid.
bool parse_address(const std::string& text, int port, sockaddr_storage* storage, socklen_t* length) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(storage);
  auto* local = reinterpret_cast<sockaddr_un*>(storage);
  *storage = {};
  if (text.starts_with("unix:")) {
    const std::string path = text.substr(5);
    if (path.size() >= sizeof local->sun_path) return false;
    local->sun_family = AF_UNIX;
    std::memcpy(local->sun_path, path.data(), path.size());
    *length = sizeof *local;
    return true;
  }
  if (port < 1 || port > 65535) return false;
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    *length = sizeof *v4;
    return true;
  }
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(static_cast<uint16_t>(port));
  *length = sizeof *v6;
  return inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1;
}

// Connects the socket `fd`. On failure returns false and sets errno.
bool connect_to(int fd, const sockaddr_storage& storage, socklen_t length, Clock::time_point deadline) {
  if (connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0) return true;
  if (errno != EINPROGRESS) return false;
  if (!wait_for(fd, POLLOUT, deadline)) {
    errno = ETIMEDOUT;
    return false;
  }
  int connect_error = 0;
  socklen_t size = sizeof connect_error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &connect_error, &size);
  errno = connect_error;
  return connect_error == 0;
}

// Sends `text`. Returns false on an error, or if the socket is not ready for more at the deadline.
bool send_all(int fd, const std::string& text, Clock::time_point deadline) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t n = send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n > 0) sent += static_cast<size_t>(n);
    if (n >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN || !wait_for(fd, POLLOUT, deadline)) return false;
  }
  return true;
}

// Reads until the server closes the connection. Returns false at the deadline, on an error, or if the
// response has more than kMaxResponseBytes.
bool receive_all(int fd, std::string* text, Clock::time_point deadline) {
  char piece[65536];
  while (text->size() <= kMaxResponseBytes && Clock::now() < deadline) {
    const ssize_t n = recv(fd, piece, sizeof piece, 0);
    if (n == 0) return true;
    if (n > 0) {
      text->append(piece, static_cast<size_t>(n));
    } else if (errno != EINTR && (errno != EAGAIN || !wait_for(fd, POLLIN, deadline))) {
      return false;
    }
  }
  return false;
}

}  // namespace

bool http_get(const std::string& address, int port, const std::string& path, int timeout_ms,
              std::string* body, std::string* error, const std::string& token) {
  const std::string server = address + (address.starts_with("unix:") ? "" : " port " + std::to_string(port));
  const auto fail = [&](const std::string& why) {
    *error = server + ": " + why;
    return false;
  };
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);

  sockaddr_storage storage;
  socklen_t length = 0;
  if (!parse_address(address, port, &storage, &length))
    return fail("not a numeric address and port, or unix:PATH");
  if (path.empty() || path[0] != '/' || path.find_first_of(" \r\n") != std::string::npos)
    return fail("not a path");

  const Socket socket(storage.ss_family);
  if (socket.fd() < 0 || !connect_to(socket.fd(), storage, length, deadline))
    return fail(std::strerror(errno));
  // A server does not send chunked responses to HTTP/1.0 requests, and "Connection: close" makes the server
  // close the connection after the response, on which receive_all() relies. The agent's server refuses most
  // other values of Host.
  const std::string authorization = token.empty() ? "" : "Authorization: Bearer " + token + "\r\n";
  const std::string request =
      "GET " + path + " HTTP/1.0\r\nHost: localhost\r\n" + authorization + "Connection: close\r\n\r\n";
  if (!send_all(socket.fd(), request, deadline)) return fail("the request could not be sent in time");
  std::string response;
  if (!receive_all(socket.fd(), &response, deadline)) return fail("no complete answer in time");

  constexpr size_t kStatusBegin = 9, kStatusEnd = 12;  // of the status code in "HTTP/1.1 200 OK"
  const size_t head_end = response.find("\r\n\r\n");
  if (!response.starts_with("HTTP/1.") || response.size() < kStatusEnd || head_end == std::string::npos)
    return fail("the answer is not HTTP");
  if (response.compare(kStatusBegin, 3, "200") != 0)
    return fail("answered " + response.substr(kStatusBegin, response.find("\r\n") - kStatusBegin));
  const size_t body_begin = head_end + 4;  // after "\r\n\r\n"
  constexpr std::string_view kContentLength = "\r\nContent-Length: ";
  const size_t length_at = response.find(kContentLength);  // npos without this header
  if (length_at < head_end) {
    const char* const length_text = response.c_str() + length_at + kContentLength.size();
    if (std::strtoull(length_text, nullptr, 10) != response.size() - body_begin)
      return fail("the answer ended early");
  }
  *body = response.substr(body_begin);
  return true;
}

std::string percent_encoded(std::string_view text) {
  constexpr std::string_view kUnreserved =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (kUnreserved.find(c) != kUnreserved.npos) {
      encoded += c;
    } else {
      encoded += '%';
      encoded += {kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return encoded;
}

}  // namespace foreshock
