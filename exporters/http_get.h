// A minimal HTTP client. Commands such as `foreshock status` read the state of an agent with it.
#ifndef FORESHOCK_EXPORTERS_HTTP_GET_H_
#define FORESHOCK_EXPORTERS_HTTP_GET_H_

#include <string>
#include <string_view>

namespace foreshock {

// Sends GET http://address:port<path>, where `path` begins with "/" and may have a query. `address` is
// numeric, or unix:PATH (then `port` is ignored); 0.0.0.0 and :: mean this machine. `token`, if not "", is
// sent as a bearer token. The call returns after about `timeout_ms` at the latest. If the status is 200,
// returns true and sets *body. Otherwise, or if the response has more than 64 MiB, returns false and sets
// *error to one line. Thread-safe.
bool http_get(const std::string& address, int port, const std::string& path, int timeout_ms,
              std::string* body, std::string* error, const std::string& token = "");

// Percent-encodes `text` for a value in the query or the fragment of a URL.
std::string percent_encoded(std::string_view text);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_GET_H_
