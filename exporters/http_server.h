// The HTTP server of the agent: sockets, connections and time limits. http_routes.h makes the replies.
#ifndef FORESHOCK_EXPORTERS_HTTP_SERVER_H_
#define FORESHOCK_EXPORTERS_HTTP_SERVER_H_

#include <memory>
#include <string>

#include "exporters/http_routes.h"

namespace foreshock {

// One thread of its own, started by start(), joined by stop(). No client can hold up another: every exchange
// is asynchronous, a request head must be complete within 1 s, an exchange within 5 s, and of more than 256
// connections the one that has been silent longest is closed. GET and HEAD only.
//
// Without a token, a request to a loopback address whose Host is not a loopback name is answered with 403, so
// that a foreign web page cannot read the state through a name that it points at 127.0.0.1.
class HttpServer {
 public:
  HttpServer();
  ~HttpServer();  // stops
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds and starts to serve. `address`: "localhost", a numeric address, or "unix:PATH" for a socket that is
  // ours alone (0600). `port` 0: any free one. A port that is taken is an error, unless `last_port` is
  // larger: then the first free one up to that. With a `token_file` (BearerToken) everything but /healthz
  // wants the token; an address that is neither loopback nor a socket needs one. False: *error is one line.
  bool start(const std::string& address, int port, std::string* error, const std::string& token_file = "",
             int last_port = 0);

  // Valid after start().
  const std::string& address() const;  // as bound: numeric, or unix:PATH
  int port() const;                    // 0 for a socket
  // What a client types: 127.0.0.1:9847, [::1]:9847 or unix:PATH.
  std::string place() const;

  // Any thread, at any time, also before start(). Never waits for a client: one pointer changes hands.
  void publish(std::shared_ptr<const Published> published);

  // Closes every connection. Harmless twice.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_SERVER_H_
