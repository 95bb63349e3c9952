// The HTTP server of the agent: sockets, connections and time limits. http_routes.h makes the replies.
#ifndef FORESHOCK_EXPORTERS_HTTP_SERVER_H_
#define FORESHOCK_EXPORTERS_HTTP_SERVER_H_

#include <memory>
#include <string>

#include "exporters/http_routes.h"

namespace foreshock {

// start() starts the server's thread, stop() joins it. A slow client cannot delay another one: all input and
// output is asynchronous, a request head must be complete within 1 s, the reply be sent within 4 s. Beyond
// 256 connections, the one that has been silent longest is closed. Only GET and HEAD are served.
//
// Without a token, a request to a loopback address whose Host header is not a loopback name is answered with
// 403. Otherwise a foreign web page could read the state through a domain name that resolves to 127.0.0.1.
class HttpServer {
 public:
  HttpServer();
  ~HttpServer();  // calls stop()

  // Binds and starts to serve. `address`: "localhost", a numeric address, or "unix:PATH" for a socket that
  // only this user can open (0600). `port` 0: any free port. If `port` is in use, the next free port up to
  // `last_port` is used; if all are in use, start() fails. With a `token_file` (its first line is the token),
  // all paths except /healthz require the token. An address that is neither loopback nor a socket requires a
  // `token_file`. On failure returns false and sets *error to one line.
  bool start(const std::string& address, int port, std::string* error, const std::string& token_file = "",
             int last_port = 0);

  // Valid after start().
  const std::string& address() const;  // as bound: numeric, or unix:PATH
  int port() const;                    // 0 for a socket
  // Address and port as a client writes them: 127.0.0.1:9847, [::1]:9847 or unix:PATH.
  std::string endpoint() const;

  // Replaces the state to serve. Any thread, also before start(). Never waits for a client.
  void publish(std::shared_ptr<const Published> published);

  // Closes every connection and ends the thread. May be called repeatedly.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_SERVER_H_
