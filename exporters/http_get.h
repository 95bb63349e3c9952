// The smallest HTTP client that can read our own page.
#ifndef FORESHOCK_EXPORTERS_HTTP_GET_H_
#define FORESHOCK_EXPORTERS_HTTP_GET_H_

#include <string>
#include <string_view>

namespace foreshock {

// GET http://address:port/path. `address` is numeric, or unix:PATH (then `port` is not looked at); 0.0.0.0
// and
// :: stand for this machine. `token`, if any, is shown as a bearer token. The whole exchange takes at most
// about `timeout_ms`; a body of more than 64 MiB is refused. True: the status was 200 and *body holds the
// body. False: *error is one line. Thread-safe.
bool http_get(const std::string& address, int port, const std::string& path, int timeout_ms,
              std::string* body, std::string* error, const std::string& token = "");

// For a value in the query or the fragment of an address.
std::string percent_encoded(std::string_view text);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_GET_H_
