// Checks requests to the agent's HTTP server (Host, token, method, path) and makes the replies.
#include "exporters/http_routes.h"

#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

namespace foreshock {
namespace {

// Whether two calls of stat(), which gave `a` and `b`, found the same file, unchanged in between.
bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size && a.st_mode == b.st_mode &&
         a.st_uid == b.st_uid && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec && a.st_ctim.tv_sec == b.st_ctim.tv_sec &&
         a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

// Why a file with this status cannot hold the token, the secret that clients must send; "" if it can.
std::string problem_of(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  if (status.st_uid != 0 && status.st_uid != geteuid()) return "belongs to another user; make it yours";
  // The group may read a file of root (an administrator's choice; Kubernetes mounts secrets so) and a file
  // whose group has the number of its owner (a group of one user). Any other group may be one that all users
  // share.
  const bool may_group_read = status.st_uid == 0 || status.st_gid == status.st_uid;
  if ((status.st_mode & (may_group_read ? 037 : 077)) != 0) return "is open to other users; chmod 600 it";
  return "";
}

bool is_visible(char c) { return c > ' ' && c < '\x7f'; }

bool starts_with_ignoring_case(std::string_view text, std::string_view begin) {
  return text.size() >= begin.size() && strncasecmp(text.data(), begin.data(), begin.size()) == 0;
}

// Whether the header value `text` begins with `scheme` and a space. If so, sets *rest to the text after them.
bool has_scheme(std::string_view text, std::string_view scheme, std::string_view* rest) {
  if (!starts_with_ignoring_case(text, scheme) || text.size() == scheme.size() || text[scheme.size()] != ' ')
    return false;
  *rest = text.substr(std::min(text.find_first_not_of(' ', scheme.size()), text.size()));
  return true;
}

// Decodes base64 up to the first character that does not belong to it.
std::string decode_base64_prefix(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) break;
    bits = (bits << 6 | static_cast<unsigned>(digit)) & 0xffff;
    count += 6;  // the low `count` bits (at most 13) are not in `bytes` yet
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view expected) {
  // The time must not reveal how many characters of a wrong token are right. `difference` is volatile, so
  // that the compiler cannot end the loop at the first difference.
  volatile unsigned difference = given.size() != expected.size();
  for (size_t n = 0; n < given.size(); ++n) {
    const char expected_char = expected.empty() ? '\0' : expected[n % expected.size()];
    difference = difference | static_cast<unsigned char>(given[n] ^ expected_char);
  }
  return difference == 0 && !expected.empty();
}

std::string read_token(const std::string& path, struct stat* status, std::string* error) {
  const auto fail = [&](const std::string& why) {
    *error = "token file " + path + " " + why;
    return std::string();
  };
  // O_NONBLOCK and O_NOCTTY are for a path that is a FIFO or a terminal, which problem_of() refuses below.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return fail(std::string("cannot be read: ") + std::strerror(errno));
  char text[kMostTokenBytes + 2];  // more than kMostTokenBytes, so that a longer line is recognised
  ssize_t length = -1;
  std::string problem = fstat(file, status) == 0 ? problem_of(*status) : "cannot be read";
  if (problem.empty()) {
    length = ::read(file, text, sizeof text);
    if (length < 0) problem = "cannot be read";
  }
  close(file);
  if (!problem.empty()) return fail(problem);
  const char* const end = std::find(text, text + length, '\n');
  std::string token(text, static_cast<size_t>(end - text));
  if (token.size() < kLeastTokenBytes || token.size() > kMostTokenBytes ||
      !std::all_of(token.begin(), token.end(), is_visible))
    return fail("must hold one line of 16 to 1024 visible characters: head -c 24 /dev/urandom | base64");
  return token;
}

std::unique_ptr<BearerToken> BearerToken::open(const std::string& path, std::string* error) {
  std::unique_ptr<BearerToken> token(new BearerToken(path));
  token->token_ = read_token(path, &token->seen_, error);
  return token->token_.empty() ? nullptr : std::move(token);
}

// If the changed file cannot be read, the token becomes empty, and admits() refuses every request.
void BearerToken::read_if_changed() {
  struct stat now = {};
  if (stat(path_.c_str(), &now) == 0 && is_same(now, seen_)) return;
  std::string error;
  seen_ = {};
  token_ = read_token(path_, &seen_, &error);
}

bool BearerToken::admits(std::string_view authorization) {
  read_if_changed();
  std::string_view given;
  if (has_scheme(authorization, "Bearer", &given)) return equal_in_constant_time(given, token_);
  if (!has_scheme(authorization, "Basic", &given)) return false;  // browsers send "Basic"
  const std::string pair = decode_base64_prefix(given);  // USER:PASSWORD, the password being the token
  const size_t colon = pair.find(':');
  return colon != pair.npos && equal_in_constant_time(std::string_view(pair).substr(colon + 1), token_);
}

namespace {

constexpr std::string_view kText = "text/plain; charset=utf-8";

std::shared_ptr<const std::string> shared_text(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

// Replaces each %XX by the byte with hexadecimal value XX. An invalid sequence stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t n = 0; n < text.size(); ++n) {
    unsigned byte = 0;
    const char* const digits = text.data() + n + 1;
    const bool is_encoded = text[n] == '%' && n + 2 < text.size() &&
                            std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    decoded += is_encoded ? static_cast<char>(byte) : text[n];
    if (is_encoded) n += 2;
  }
  return decoded;
}

// Replies with the JSON state of the run that the request names (`?run=LABEL`). Without a name, replies with
// `state_json`, the state of the run that the agent found last. The body shares memory with `published`, the
// state that the agent publishes every second.
HttpReply state(const HttpRequest& request, const std::shared_ptr<const Published>& published) {
  constexpr std::string_view kJson = "application/json";
  const std::string run = query_value(request.target, "run");
  if (run.empty()) return {200, kJson, std::shared_ptr<const std::string>(published, &published->state_json)};
  for (const auto& [label, text] : published->run_states)
    if (label == run) return {200, kJson, text};
  return refusal(404, "no such run");
}

// Returns a reply with status 503 if the published state is older than `max_age`, else nothing. The thread
// that publishes states may hang, on a disk for example, while the HTTP thread still answers.
std::optional<HttpReply> refusal_if_old(const Published& published, std::chrono::seconds max_age) {
  const auto age = std::chrono::steady_clock::now() - published.made;
  if (age <= max_age) return std::nullopt;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(age).count();
  return refusal(503, "nothing new for " + std::to_string(seconds) + " s");
}

HttpReply health(const Published& published) {
  if (const auto refused = refusal_if_old(published, Published::kUnhealthyAfter)) return *refused;
  return {published.healthy ? 200 : 503, kText, shared_text(published.health_text + "\n")};
}

}  // namespace

std::string query_value(std::string_view target, std::string_view key) {
  size_t separator = target.find('?');
  while (separator < target.size()) {
    const size_t end = std::min(target.find('&', separator + 1), target.size());
    const std::string_view pair = target.substr(separator + 1, end - separator - 1);
    if (pair.size() > key.size() && pair.starts_with(key) && pair[key.size()] == '=')
      return percent_decoded(pair.substr(key.size() + 1));
    separator = end;
  }
  return "";
}

bool is_loopback_host(std::string_view host) {
  for (std::string_view name : {"127.0.0.1", "localhost", "[::1]"}) {
    if (!starts_with_ignoring_case(host, name)) continue;
    const std::string_view rest = host.substr(name.size());
    if (rest.empty()) return true;
    if (rest[0] != ':' || rest.size() > 6) continue;  // a colon and at most 5 digits of a port
    return std::all_of(rest.begin() + 1, rest.end(), [](char c) { return c >= '0' && c <= '9'; });
  }
  return false;
}

HttpReply refusal(int status, std::string_view why) {
  return {status, kText, shared_text(std::string(why) + "\n")};
}

// The text of the metrics in Prometheus' format. It is made once for each snapshot of the metrics.
HttpReply HttpRoutes::metrics(const Published& published) {
  if (const auto refused = refusal_if_old(published, Published::kMetricsExpireAfter)) return *refused;
  if (metrics_text_ == nullptr || metrics_source_ != published.metrics) {
    metrics_source_ = published.metrics;
    metrics_text_ = shared_text(metrics_source_ ? exposition(*metrics_source_) : "");
  }
  return {200, "text/plain; version=0.0.4; charset=utf-8", metrics_text_};
}

// The history (tables of values by step) of the run that the request names; without a name, of all runs.
// Cached until it changes, but only for runs with tables, so that names in requests cannot fill the memory.
HttpReply HttpRoutes::history(const HttpRequest& request, const Published& published) {
  if (history_source_ != published.history) history_texts_.clear();
  history_source_ = published.history;
  const std::string run = query_value(request.target, "run");
  if (const auto cached = history_texts_.find(run); cached != history_texts_.end())
    return {200, "application/json", cached->second};
  static const std::vector<HistoryTable> kNoTables;
  const std::vector<HistoryTable>& tables = history_source_ ? *history_source_ : kNoTables;
  auto text = shared_text(history_json(tables, run));
  const auto is_of_run = [&](const HistoryTable& table) { return table.run == run; };
  if (run.empty() || std::any_of(tables.begin(), tables.end(), is_of_run)) history_texts_[run] = text;
  return {200, "application/json", std::move(text)};
}

// Whether the request may come from a foreign web page. A page that reaches this server through a domain name
// that resolves to 127.0.0.1 (DNS rebinding) sends that name as Host. With a token no check is needed, since
// a foreign page does not have the token.
bool HttpRoutes::is_foreign(std::string_view host) const {
  return token_ == nullptr && !allows_any_host_ && !is_loopback_host(host);
}

// A target may also be a URL ("http://localhost:9847/metrics"), whose host counts besides the Host header.
HttpReply HttpRoutes::answer(HttpRequest request, const std::shared_ptr<const Published>& published) {
  constexpr std::string_view kHttp = "http://";
  if (request.host.empty()) return refusal(400, "Host is missing");
  std::string_view host_in_target = request.host;
  if (starts_with_ignoring_case(request.target, kHttp)) {
    host_in_target = request.target.substr(kHttp.size());
    const size_t host_end = std::min(host_in_target.find_first_of("/?"), host_in_target.size());
    request.target = host_in_target.substr(host_end);
    host_in_target = host_in_target.substr(0, host_end);
    if (request.target.empty()) request.target = "/";
  }
  if (is_foreign(request.host) || is_foreign(host_in_target))
    return refusal(403, "ask for this page as 127.0.0.1 or localhost");
  if (request.method != "GET" && request.method != "HEAD") return refusal(405, "only GET and HEAD");
  if (request.has_body) return refusal(413, "no request body is taken");
  if (!request.target.starts_with('/')) return refusal(400, "the target must be a path or an http URL");

  const std::string_view path = request.target.substr(0, request.target.find('?'));
  if (path == "/healthz") return health(*published);  // needs no token, since health probes have none
  if (token_ != nullptr && !token_->admits(request.authorization))
    return refusal(401, "show the token: Authorization: Bearer TOKEN");
  if (path == "/metrics") return metrics(*published);
  if (path == "/api/v1/state") return state(request, published);
  if (path == "/api/v1/history") return history(request, *published);
  if (path == "/api/v1/targets")
    return {200, "application/json", std::shared_ptr<const std::string>(published, &published->targets_json)};
  if (path == "/") return {200, "text/html; charset=utf-8", shared_text(std::string(kPageHtml))};
  if (path == "/page.js") return {200, "text/javascript; charset=utf-8", shared_text(std::string(kPageJs))};
  if (path == "/page.css") return {200, "text/css; charset=utf-8", shared_text(std::string(kPageCss))};
  if (path == "/chart.js")
    return {200, "text/javascript; charset=utf-8", shared_text(std::string(kPageChart))};
  if (path == "/icon.svg") return {200, "image/svg+xml", shared_text(std::string(kPageIcon))};
  return refusal(404, "there are /, /metrics, /api/v1/state, /api/v1/history, /api/v1/targets and /healthz");
}

namespace {

// Appends `value` with five significant digits, which are enough for a chart. nlohmann's JSON library would
// write up to nine and take three times as long, which matters for a history of hundreds of thousands of
// numbers.
void append_number(float value, std::string* text) {
  if (!std::isfinite(value)) {  // JSON has neither NaN nor infinity
    *text += "null";
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 5);
  text->append(buffer, end.ptr);
}

// Returns `name` as a JSON string. Invalid UTF-8 is replaced.
std::string quoted(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append_column(std::string_view name, const std::vector<float>& values, std::string* text) {
  *text += '"' + std::string(name) + "\":[";
  for (size_t n = 0; n < values.size(); ++n) {
    if (n > 0) *text += ',';
    append_number(values[n], text);
  }
  *text += ']';
}

void append_table(const HistoryTable& table, std::string* text) {
  *text += "{\"run\":" + quoted(table.run) + ",\"rank\":" + std::to_string(table.rank) +
           ",\"layer\":" + (table.layer.empty() ? "null" : quoted(table.layer)) +
           ",\"first_step\":" + std::to_string(table.first_step) +
           ",\"steps_per_point\":" + std::to_string(table.steps_per_point) + ",\"columns\":{";
  bool first = true;
  for (const auto& [name, values] : table.columns) {
    if (std::none_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
      continue;
    if (!first) *text += ',';
    first = false;
    append_column(name, values, text);
  }
  *text += "}}";
}

}  // namespace

// `run` "" selects the tables of all runs.
std::string history_json(const std::vector<HistoryTable>& tables, std::string_view run) {
  std::string text = "{\"schema\":1,\"tables\":[";
  bool first = true;
  for (const HistoryTable& table : tables) {
    if (!run.empty() && table.run != run) continue;
    if (!first) text += ',';
    first = false;
    append_table(table, &text);
  }
  return text + "]}";
}

}  // namespace foreshock
