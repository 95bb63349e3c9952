#include "exporters/http_routes.h"

#include <algorithm>

#include "exporters/status_page.h"

namespace foreshock {
namespace {

constexpr std::string_view kText = "text/plain; charset=utf-8";

std::shared_ptr<const std::string> shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

bool is_loopback_host(std::string_view host) {
  for (std::string_view name : {"127.0.0.1", "localhost", "[::1]"}) {
    if (!host.starts_with(name)) continue;
    const std::string_view rest = host.substr(name.size());
    if (rest.empty()) return true;
    if (rest[0] != ':' || rest.size() > 6) continue;
    return std::all_of(rest.begin() + 1, rest.end(), [](char c) { return c >= '0' && c <= '9'; });
  }
  return false;
}

HttpReply refusal(int status, std::string_view why) {
  return {status, kText, shared(std::string(why) + "\n")};
}

HttpReply HttpRoutes::metrics(const Published& published) {
  if (text_ == nullptr || rendered_ != published.metrics) {
    rendered_ = published.metrics;
    text_ = shared(rendered_ ? exposition(*rendered_) : "");
  }
  return {200, "text/plain; version=0.0.4; charset=utf-8", text_};
}

HttpReply HttpRoutes::history(const Published& published) {
  if (history_ == nullptr || drawn_ != published.history) {
    drawn_ = published.history;
    history_ = shared(history_json(drawn_ ? *drawn_ : std::vector<HistoryTable>()));
  }
  return {200, "application/json", history_};
}

HttpReply HttpRoutes::answer(const HttpRequest& request, const std::shared_ptr<const Published>& published) {
  if (request.host.empty()) return refusal(400, "Host is missing");
  if (!is_loopback_host(request.host)) return refusal(403, "ask for this page as 127.0.0.1 or localhost");
  if (request.method != "GET" && request.method != "HEAD") return refusal(405, "only GET and HEAD");
  if (request.has_body) return refusal(413, "no request body is taken");
  if (!request.target.starts_with('/')) return refusal(400, "the target must be a path");

  const std::string_view path = request.target.substr(0, request.target.find('?'));
  if (path == "/metrics") return metrics(*published);
  if (path == "/api/v1/state")
    return {200, "application/json", std::shared_ptr<const std::string>(published, &published->state_json)};
  if (path == "/api/v1/history") return history(*published);
  if (path == "/healthz")
    return {published->healthy ? 200 : 503, kText, shared(published->health_text + "\n")};
  if (path == "/") return {200, "text/html; charset=utf-8", shared(std::string(kPageHtml))};
  if (path == "/page.js") return {200, "text/javascript; charset=utf-8", shared(std::string(kPageJs))};
  if (path == "/page.css") return {200, "text/css; charset=utf-8", shared(std::string(kPageCss))};
  if (path == "/chart.js") return {200, "text/javascript; charset=utf-8", shared(std::string(kPageChart))};
  if (path == "/icon.svg") return {200, "image/svg+xml", shared(std::string(kPageIcon))};
  return refusal(404, "there are /, /metrics, /api/v1/state, /api/v1/history and /healthz");
}

}  // namespace foreshock
