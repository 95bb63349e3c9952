// Makes the replies of the HTTP server of the agent, the process that follows the trainers. http_server.h
// passes each request as a struct and sends the reply. The paths are /metrics (for Prometheus),
// /api/v1/state, /api/v1/history, /api/v1/targets, /healthz and the files of the status page, a web page of
// the agent's runs.
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

#include "exporters/metrics.h"

namespace foreshock {

// Values by step, for the charts of the status page; the body of /api/v1/history has a list of these tables.
// Point n of a column covers `steps_per_point` steps from first_step + n * steps_per_point on. NaN: unknown.
struct HistoryTable {
  std::string run;
  int64_t rank = 0;
  std::string layer;                            // "": values of the whole rank
  int64_t first_step = 0, steps_per_point = 1;  // steps_per_point > 1: a point combines several steps
  std::vector<std::pair<std::string_view, std::vector<float>>> columns;  // by name; names must be literals
};

// {"schema": 1, "tables": [{"run", "rank", "layer", "first_step", "steps_per_point", "columns": {name:
// [...]}}]} with the tables of `run` ("": all tables). Unknown values are null, numbers have five significant
// digits, and columns without a known value are left out.
std::string history_json(const std::vector<HistoryTable>& tables, std::string_view run = "");

// The state that the server serves. The agent publishes a new one every second. Immutable once published.
struct Published {
  std::shared_ptr<const Snapshot> metrics;  // of all series; null: /metrics is empty
  std::string state_json;                   // body of /api/v1/state
  bool healthy = true;                      // /healthz answers 200, else 503
  std::string health_text;                  // body of /healthz, one line
  std::shared_ptr<const std::vector<HistoryTable>> history = nullptr;  // null: /api/v1/history has no tables
  // Bodies of /api/v1/state?run=LABEL, by the label of the run. Several published states may share a text.
  std::vector<std::pair<std::string, std::shared_ptr<const std::string>>> run_states = {};
  std::string targets_json = "[]";  // body of /api/v1/targets, for Prometheus' HTTP service discovery
  std::chrono::steady_clock::time_point made = std::chrono::steady_clock::now();  // for the age of the state
  // /healthz answers 503 once the state is older than this.
  static constexpr std::chrono::seconds kUnhealthyAfter{30};
  // /metrics answers 503 once the state is older than this: with old values, a hung agent would look like a
  // training that stands still. Longer than kUnhealthyAfter, because a busy node makes the agent slow.
  static constexpr std::chrono::seconds kMetricsExpireAfter{120};
};

inline constexpr size_t kLeastTokenBytes = 16;
inline constexpr size_t kMostTokenBytes = 1024;

// The secret that a client must send: the first line of a file, read again when it changes. Not thread-safe.
class BearerToken {
 public:
  // The file must belong to root or to this user, and others must have no permission. Its group may read it
  // if root owns it, or if the group has the number of the owner. Its first line must have 16 to 1024 visible
  // ASCII characters. On failure returns null and sets *error.
  static std::unique_ptr<BearerToken> open(const std::string& path, std::string* error);

  // Whether the request has the token. `authorization`: the value of the Authorization header: "Bearer
  // TOKEN", or "Basic ..." with any user and the token as the password, which browsers can send. The time of
  // the call does not reveal how much of a wrong token is right. An unusable file admits no request.
  bool admits(std::string_view authorization);

 private:
  explicit BearerToken(std::string path) : path_(std::move(path)) {}
  void read_if_changed();

  const std::string path_;
  struct stat seen_ = {};  // status of the file when it was last read
  std::string token_;      // empty: no request is admitted
};

// Returns the token in a file and sets *status to that of the file. If the file cannot be used (the
// conditions are those of BearerToken::open()), returns "" and sets *error.
std::string read_token(const std::string& path, struct stat* status, std::string* error);

// Compares two strings in a time that depends only on their lengths. False if `expected` is empty.
bool equal_in_constant_time(std::string_view given, std::string_view expected);

struct HttpRequest {
  std::string_view method, host, target;  // host: the Host header; target: path and query, or a URL
  bool has_body = false;
  std::string_view authorization = {};  // the Authorization header
};

struct HttpReply {
  int status = 200;
  std::string_view content_type;
  std::shared_ptr<const std::string> body;
};

// True for 127.0.0.1, localhost (in any case) and [::1], with or without a port.
bool is_loopback_host(std::string_view host);

// A plain-text reply with the line `why`.
HttpReply refusal(int status, std::string_view why);

// The value of `key` in the target's query, percent-decoded; "" if there is none.
std::string query_value(std::string_view target, std::string_view key);

// Answers requests. The metrics, and the history of each run, are converted to text only on request. The text
// is kept until the agent publishes newer values. Not thread-safe.
class HttpRoutes {
 public:
  // Sets the token that all paths except /healthz require; null: no token is required.
  void require_token(std::unique_ptr<BearerToken> token) { token_ = std::move(token); }

  // Without a token, only requests whose Host header is a loopback name are admitted, which keeps foreign web
  // pages out. `any` true admits every Host header; use it for a Unix socket, which web pages cannot reach.
  void allow_any_host(bool any) { allows_any_host_ = any; }

  // The body of the reply may share memory with `published`, which is then kept alive.
  HttpReply answer(HttpRequest request, const std::shared_ptr<const Published>& published);

 private:
  HttpReply metrics(const Published& published);
  HttpReply history(const HttpRequest& request, const Published& published);
  bool is_foreign(std::string_view host) const;

  std::unique_ptr<BearerToken> token_;
  bool allows_any_host_ = false;
  // The source of metrics_text_, recognised by its address. Holding the pointer keeps the address unique.
  std::shared_ptr<const Snapshot> metrics_source_;
  std::shared_ptr<const std::string> metrics_text_;
  // The source of history_texts_, also recognised by its address.
  std::shared_ptr<const std::vector<HistoryTable>> history_source_;
  std::map<std::string, std::shared_ptr<const std::string>> history_texts_;  // by run; "": all runs
};

// The files of exporters/status_page/, embedded at build time.
extern const std::string_view kPageHtml;
extern const std::string_view kPageJs;
extern const std::string_view kPageCss;
extern const std::string_view kPageIcon;   // SVG
extern const std::string_view kPageChart;  // the chart library; empty if built without it

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_ROUTES_H_
