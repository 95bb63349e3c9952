// What the server answers, without any network: from a method, a Host and a target to a reply.
#ifndef FORESHOCK_EXPORTERS_HTTP_ROUTES_H_
#define FORESHOCK_EXPORTERS_HTTP_ROUTES_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "exporters/bearer_token.h"
#include "exporters/http_server.h"

namespace foreshock {

struct HttpRequest {
  std::string_view method, host, target;
  bool has_body = false;
  std::string_view authorization = {};
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

// The value of `key` in the target's query, percent-decoded; "" when absent.
std::string query_value(std::string_view target, std::string_view key);

// Thread-compatible. Keeps the text of the last snapshot and history, so that many requests for
// one state cost one rendering, and none where nobody asks.
class HttpRoutes {
 public:
  // Everything but /healthz wants this token from now on; null: nothing does.
  void require(std::unique_ptr<BearerToken> token) { token_ = std::move(token); }

  // For a socket, which no web page can reach.
  void take_any_host(bool any) { any_host_ = any; }

  // The reply shares what it can with `published` instead of copying it.
  HttpReply answer(const HttpRequest& request, const std::shared_ptr<const Published>& published);

 private:
  HttpReply metrics(const Published& published);
  HttpReply history(const HttpRequest& request, const Published& published);
  bool is_foreign(std::string_view host) const;

  std::unique_ptr<BearerToken> token_;
  bool any_host_ = false;
  std::shared_ptr<const Snapshot> rendered_;  // keeps the address from being used again
  std::shared_ptr<const std::string> text_;
  std::shared_ptr<const std::vector<HistoryTable>> drawn_;
  std::map<std::string, std::shared_ptr<const std::string>> histories_;  // by run; "": of all
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_ROUTES_H_
