// What the server answers, without any network: from a method, a Host and a target to a reply.
#ifndef FORESHOCK_EXPORTERS_HTTP_ROUTES_H_
#define FORESHOCK_EXPORTERS_HTTP_ROUTES_H_

#include <memory>
#include <string>
#include <string_view>

#include "exporters/http_server.h"

namespace foreshock {

struct HttpRequest {
  std::string_view method, host, target;
  bool has_body = false;
};

struct HttpReply {
  int status = 200;
  std::string_view content_type;
  std::shared_ptr<const std::string> body;
};

// True for 127.0.0.1, localhost and [::1], with or without a port.
bool is_loopback_host(std::string_view host);

// A reply of one line that says what is wrong.
HttpReply refusal(int status, std::string_view why);

// Thread-compatible. Keeps the text of the last snapshot and history, so that many requests for
// one state cost one rendering, and none where nobody asks.
class HttpRoutes {
 public:
  // The reply shares what it can with `published` instead of copying it.
  HttpReply answer(const HttpRequest& request, const std::shared_ptr<const Published>& published);

 private:
  HttpReply metrics(const Published& published);
  HttpReply history(const Published& published);

  std::shared_ptr<const Snapshot> rendered_;  // keeps the address from being used again
  std::shared_ptr<const std::string> text_;
  std::shared_ptr<const std::vector<HistoryTable>> drawn_;
  std::shared_ptr<const std::string> history_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_ROUTES_H_
