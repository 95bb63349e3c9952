// Makes the replies of the agent's HTTP server, without any network: from a method, a Host and a target to a
// status and a body. /metrics, /api/v1/state, /api/v1/history, /api/v1/targets, /healthz and the status page.
#ifndef FORESHOCK_EXPORTERS_HTTP_ROUTES_H_
#define FORESHOCK_EXPORTERS_HTTP_ROUTES_H_

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exporters/registry.h"

namespace foreshock {

// Values by step, for the charts of the status page: the body of /api/v1/history.
// Point n of every column stands for the steps [first_step + n * steps_per_point, ... + steps_per_point).
// NaN: unknown.
struct HistoryTable {
  std::string run;
  int64_t rank = 0;
  std::string layer;  // "": of the whole rank
  int64_t first_step = 0, steps_per_point = 1;
  std::vector<std::pair<std::string_view, std::vector<float>>> columns;  // names of static life
};

// {"schema": 1, "tables": [{"run", "rank", "layer", "first_step", "steps_per_point", "columns": {name:
// [...]}}]}; unknown is null, numbers have five digits, columns without any known value are left out. Of one
// `run`, or of all if that is empty.
std::string history_json(const std::vector<HistoryTable>& tables, std::string_view run = "");

// What the server shows until the next publish(). Immutable once published.
struct Published {
  std::shared_ptr<const Snapshot> metrics;                             // null: /metrics is empty
  std::string state_json;                                              // body of /api/v1/state
  bool healthy = true;                                                 // /healthz answers 200, else 503
  std::string health_text;                                             // one line
  std::shared_ptr<const std::vector<HistoryTable>> history = nullptr;  // null: /api/v1/history has no tables
  // Bodies of /api/v1/state?run=LABEL, by label. The same text may be published again and again.
  std::vector<std::pair<std::string, std::shared_ptr<const std::string>>> run_states = {};
  std::string targets_json = "[]";  // body of /api/v1/targets, for Prometheus' http_sd
  // When it was made: /healthz answers 503 once that is kStaleAfter ago, since the agent publishes every
  // second.
  std::chrono::steady_clock::time_point made = std::chrono::steady_clock::now();
  static constexpr std::chrono::seconds kStaleAfter{30};
  // So does /metrics later: on a busy node the agent may be slow, but what is older than this says that the
  // training stands still, and not that the agent does.
  static constexpr std::chrono::seconds kTooOldAfter{120};
};

inline constexpr size_t kLeastTokenBytes = 16;
inline constexpr size_t kMostTokenBytes = 1024;

// The secret that a client must show: the first line of a file, read again whenever the file changes.
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

// The files of exporters/status_page/, embedded at build time.
extern const std::string_view kPageHtml;
extern const std::string_view kPageJs;
extern const std::string_view kPageCss;
extern const std::string_view kPageIcon;   // SVG
extern const std::string_view kPageChart;  // the chart library; empty when built without

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_ROUTES_H_
