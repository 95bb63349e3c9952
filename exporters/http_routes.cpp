#include "exporters/http_routes.h"

#include <algorithm>
#include <optional>

#include "exporters/status_page.h"

namespace foreshock {
namespace {

constexpr std::string_view kText = "text/plain; charset=utf-8";

std::shared_ptr<const std::string> shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t at = 0; at < text.size(); ++at) {
    const int high = text[at] == '%' && at + 2 < text.size() ? hex_digit(text[at + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[at + 2]) : -1;
    decoded += low >= 0 ? static_cast<char>(high * 16 + low) : text[at];
    if (low >= 0) at += 2;
  }
  return decoded;
}

// The state of one run, or of the agent where none is asked for.
HttpReply state(const HttpRequest& request, const std::shared_ptr<const Published>& published) {
  constexpr std::string_view kJson = "application/json";
  const std::string run = query_value(request.target, "run");
  if (run.empty()) return {200, kJson, std::shared_ptr<const std::string>(published, &published->state_json)};
  for (const auto& [label, text] : published->run_states)
    if (label == run) return {200, kJson, text};
  return refusal(404, "no such run");
}

// The thread that serves lives on when the one that judges hangs, on a disk say. Nothing if what that one has
// published is not older than `most`.
std::optional<HttpReply> refusal_of_age(const Published& published, std::chrono::seconds most) {
  const auto age = std::chrono::steady_clock::now() - published.made;
  if (age <= most) return std::nullopt;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(age).count();
  return refusal(503, "nothing new for " + std::to_string(seconds) + " s");
}

HttpReply health(const Published& published) {
  if (const auto refused = refusal_of_age(published, Published::kStaleAfter)) return *refused;
  return {published.healthy ? 200 : 503, kText, shared(published.health_text + "\n")};
}

}  // namespace

std::string query_value(std::string_view target, std::string_view key) {
  size_t at = target.find('?');
  while (at < target.size()) {
    const size_t end = std::min(target.find('&', at + 1), target.size());
    const std::string_view pair = target.substr(at + 1, end - at - 1);
    if (pair.size() > key.size() && pair.starts_with(key) && pair[key.size()] == '=')
      return percent_decoded(pair.substr(key.size() + 1));
    at = end;
  }
  return "";
}

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
  if (const auto refused = refusal_of_age(published, Published::kTooOldAfter)) return *refused;
  if (text_ == nullptr || rendered_ != published.metrics) {
    rendered_ = published.metrics;
    text_ = shared(rendered_ ? exposition(*rendered_) : "");
  }
  return {200, "text/plain; version=0.0.4; charset=utf-8", text_};
}

// Of one run, or of all where none is asked for. Only runs that have tables are kept: a client cannot fill
// the memory with names.
HttpReply HttpRoutes::history(const HttpRequest& request, const Published& published) {
  if (drawn_ != published.history) histories_.clear();
  drawn_ = published.history;
  const std::string run = query_value(request.target, "run");
  if (const auto known = histories_.find(run); known != histories_.end())
    return {200, "application/json", known->second};
  static const std::vector<HistoryTable> kNone;
  const std::vector<HistoryTable>& tables = drawn_ ? *drawn_ : kNone;
  auto text = shared(history_json(tables, run));
  const auto is_of_run = [&](const HistoryTable& table) { return table.run == run; };
  if (run.empty() || std::any_of(tables.begin(), tables.end(), is_of_run)) histories_[run] = text;
  return {200, "application/json", std::move(text)};
}

bool HttpRoutes::is_foreign(std::string_view host) const {
  return token_ == nullptr && !any_host_ && !is_loopback_host(host);
}

HttpReply HttpRoutes::answer(const HttpRequest& request, const std::shared_ptr<const Published>& published) {
  if (request.host.empty()) return refusal(400, "Host is missing");
  if (is_foreign(request.host)) return refusal(403, "ask for this page as 127.0.0.1 or localhost");
  if (request.method != "GET" && request.method != "HEAD") return refusal(405, "only GET and HEAD");
  if (request.has_body) return refusal(413, "no request body is taken");
  if (!request.target.starts_with('/')) return refusal(400, "the target must be a path");

  const std::string_view path = request.target.substr(0, request.target.find('?'));
  if (path == "/healthz") return health(*published);
  if (token_ != nullptr && !token_->admits(request.authorization))
    return refusal(401, "show the token: Authorization: Bearer TOKEN");
  if (path == "/metrics") return metrics(*published);
  if (path == "/api/v1/state") return state(request, published);
  if (path == "/api/v1/history") return history(request, *published);
  if (path == "/api/v1/targets")
    return {200, "application/json", std::shared_ptr<const std::string>(published, &published->targets_json)};
  if (path == "/") return {200, "text/html; charset=utf-8", shared(std::string(kPageHtml))};
  if (path == "/page.js") return {200, "text/javascript; charset=utf-8", shared(std::string(kPageJs))};
  if (path == "/page.css") return {200, "text/css; charset=utf-8", shared(std::string(kPageCss))};
  if (path == "/chart.js") return {200, "text/javascript; charset=utf-8", shared(std::string(kPageChart))};
  if (path == "/icon.svg") return {200, "image/svg+xml", shared(std::string(kPageIcon))};
  return refusal(404, "there are /, /metrics, /api/v1/state, /api/v1/history, /api/v1/targets and /healthz");
}

}  // namespace foreshock
