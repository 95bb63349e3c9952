// The launcher's side of the protocol with the agent (agent_client.h). `foreshock run` is the launcher: it
// starts the user's command, and the agent, the process that follows the run and serves its page. One agent
// may serve several launchers of a run. They use files in the run directory: agent.json (the agent's
// address), agent.lock (locked by the agent), agent.start (locked by a launcher that starts an agent),
// exit.<launcher>.json and summary.<launcher>.json.
#include "cli/agent_client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "agent/directory.h"
#include "agent/node.h"
#include "cli/process.h"
#include "cli/run_dir.h"
#include "exporters/http_get.h"
#include "exporters/http_routes.h"
#include "text/printable.h"

namespace foreshock::cli {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFirstPause{200}, kLongestPause{5000};  // between two starts; doubled by each failure
constexpr milliseconds kShortLife{1000};                       // an agent that ends earlier has failed
constexpr milliseconds kStartTimeout{5000};  // afterwards agent.start is released even without agent.json

// Returns the path as it is after writing it to agent.json and reading it back: invalid UTF-8 is replaced.
std::string through_json(const std::string& path) {
  const std::string text =
      nlohmann::json(path).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(text).get<std::string>();
}

// Limits of what is read of a run directory into memory: lines for people, and the summary.
constexpr size_t kMostText = size_t{16} << 20, kMostSummary = size_t{256} << 20;

constexpr int kStateTimeoutMs = 2000;
constexpr const char* kTokenWanted = "answered 401";  // in the error text of http_get(): a token is missing

constexpr int kExitTimeoutMs = 30000;      // for the summary, after the command has ended
constexpr int kStuckTimeoutMs = 5000;      // replaces kExitTimeoutMs while no agent is there, or it hangs
constexpr int kStarvedTimeoutMs = 180000;  // used while other processes keep the agent from running
constexpr int kPollMs = 50;
static_assert(kExitTimeoutMs % kPollMs == 0);  // wait() prints a message exactly after kExitTimeoutMs
constexpr int kServiceTimeoutMs = 3000;   // by then a service, which looks every second, has found a new run
constexpr off_t kExitBytes = 4096;        // reserved for the exit file, which has about 60 bytes: one page
constexpr off_t kSpareBytes = 256 << 10;  // for the summary: about 3 KiB per process, also before restarts

bool is_stop_signal(int signal) { return signal == SIGTERM || signal == SIGINT || signal == SIGHUP; }

// Creates a file and allocates its space. In a directory shared with a service (an agent of several runs),
// its group may write the file. Returns 0 or an errno.
int create_reserved(const std::string& path, off_t bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | kSafeFlags, 0600);
  if (fd < 0) return errno;
  if (is_shared_with_group(std::filesystem::path(path).parent_path())) fchmod(fd, 0660);
  const int error = posix_fallocate(fd, 0, bytes);
  close(fd);
  return error;
}

using Json = nlohmann::json;

// Returns a printable text of an object; "" if it is missing.
std::string text_in(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string()
             ? printable(json[key].get<std::string>(), /*keeps_newlines=*/true)
             : "";
}

}  // namespace

std::string AgentAddress::url() const {
  if (address.starts_with("unix:")) return address;
  // An agent that listens on all addresses is reached by the loopback address.
  const std::string host = address == "0.0.0.0" ? "127.0.0.1" : address == "::" ? "::1" : address;
  const bool is_v6 = host.find(':') != std::string::npos;
  const std::string page = "http://" + (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port) + "/";
  return is_service && !run.empty() ? page + "#run=" + percent_encoded(run) : page;
}

// Whether the agent is in another pid namespace. If so, the process with the number `pid` in this namespace
// is not the agent. If agent.json has no pid namespace, a service is taken to be in another one, and an agent
// of a single run in this one.
bool AgentAddress::is_elsewhere() const {
  return pid_namespace != 0 ? pid_namespace != foreshock::pid_namespace() : is_service;
}

bool AgentAddress::writes(const std::string& path) const { return through_json(path) == record; }

bool AgentAddress::saves_flagged(const std::string& path) const { return through_json(path) == save_flagged; }

std::vector<std::string> notices(const std::string& directory) {
  std::vector<std::string> lines;
  std::istringstream text(content_of(directory, "notices", kMostText).value_or(""));
  for (std::string line; std::getline(text, line);) lines.push_back(printable(line));
  return lines;
}

std::optional<AgentAddress> read_agent_address(const std::string& directory) {
  const nlohmann::json json =
      nlohmann::json::parse(content_of(directory, "agent.json", kMostText).value_or(""), nullptr, false);
  if (!json.is_object() || !json.value("pid", nlohmann::json()).is_number_integer() ||
      !json.value("port", nlohmann::json()).is_number_integer() ||
      !json.value("address", nlohmann::json()).is_string())
    return std::nullopt;
  const auto text = [&json](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  AgentAddress agent;
  agent.pid = json["pid"];
  agent.address = json["address"];
  agent.port = json["port"];
  if (const auto taken = json.find("port_taken"); taken != json.end() && taken->is_number_integer())
    agent.port_taken = *taken;
  if (const auto space = json.find("pid_namespace"); space != json.end() && space->is_number_unsigned())
    agent.pid_namespace = *space;
  agent.record = text("record");
  agent.save_flagged = text("save_flagged");
  agent.run = text("run");
  agent.problem = text("problem");
  agent.is_service = json.value("service", nlohmann::json()) == true;
  // The pid of another namespace cannot be checked here, but a live agent holds its lock.
  if (agent.is_elsewhere()) return is_locked(directory + "/agent.lock") ? std::optional(agent) : std::nullopt;
  // EPERM: the process exists, but belongs to another user.
  if (agent.pid <= 0 || (kill(agent.pid, 0) != 0 && errno != EPERM)) return std::nullopt;
  return agent;
}

void AgentKeeper::reap() {
  if (pid_ < 0 || !poll_exit(pid_)) return;
  const bool was_short = steady_clock::now() - started_ < kShortLife;
  schedule_start(was_short ? failures_ + 1 : 0);
}

void AgentKeeper::schedule_start(int failures) {
  failures_ = failures;
  // The shift is limited to 5, since 2^5 first pauses are longer than kLongestPause.
  const milliseconds pause = std::min(kFirstPause * (1 << std::min(failures, 5)), kLongestPause);
  next_start_ = steady_clock::now() + pause;
  pid_ = -1;
  start_lock_.release();
}

void AgentKeeper::continue_if_stopped() const {
  if (is_service()) return;
  const std::optional<AgentAddress> agent = read_agent_address(directory_);
  if (agent && !agent->is_elsewhere()) kill(agent->pid, SIGCONT);
}

double AgentKeeper::cpu_wait_seconds() const {
  double on_cpu = 0, waiting = 0;  // nanoseconds; they stay 0 if the file is missing
  std::ifstream("/proc/" + std::to_string(pid_) + "/schedstat") >> on_cpu >> waiting;
  return waiting / 1e9;
}

std::optional<double> AgentKeeper::agent_seconds() const {
  pid_t pid = pid_;
  if (pid < 0) {
    const std::optional<AgentAddress> agent = read_agent_address(directory_);
    if (!agent) return std::nullopt;
    if (agent->is_elsewhere()) return std::nan("");
    pid = agent->pid;
  }
  const std::string folder = "/proc/" + std::to_string(pid);
  double on_cpu = 0, waited = 0;  // nanoseconds; `waited` grows at the end of each wait for a CPU
  std::ifstream times(folder + "/schedstat");
  // The state follows the program's name, which is in parentheses and may have any characters.
  std::ifstream stat(folder + "/stat");
  const std::string status(std::istreambuf_iterator<char>(stat), {}),
      state = status.substr(status.rfind(')') + 1);
  return state.starts_with(" R") || !(times >> on_cpu >> waited) ? std::nan("") : (on_cpu + waited) / 1e9;
}

bool AgentKeeper::is_restarting() const {
  return !is_service() && pid_ < 0 && steady_clock::now() < next_start_;
}

void AgentKeeper::kill_own_agent() const {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

void AgentKeeper::tick() {
  if (is_service()) return;
  reap();
  if (pid_ >= 0) {
    const std::optional<AgentAddress> agent = read_agent_address(directory_);
    const bool is_up = agent && agent->pid == pid_ && !agent->is_elsewhere();
    if (is_up || steady_clock::now() - started_ > kStartTimeout) start_lock_.release();
    return;
  }
  if (steady_clock::now() < next_start_) return;
  // is_locked() takes agent.lock for a moment, in which an agent that starts could not take it. So this
  // launcher holds agent.start, without which no other launcher starts an agent.
  if (!start_lock_.try_lock(directory_ + "/agent.start", LOCK_EX)) return;
  if (is_locked(directory_ + "/agent.lock")) {
    failures_ = 0;  // another launcher's agent follows the run
    start_lock_.release();
    return;
  }
  start();
}

void AgentKeeper::start() {
  const int log = open((directory_ + "/agent.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | kSafeFlags, 0600);
  sigset_t none;
  sigemptyset(&none);
  const SpawnPlan plan = {.command = command_,
                          .environment = own_environment(),
                          .signal_mask = &none,  // the launcher blocks signals that the agent must receive
                          .own_session = true,
                          .output = log,
                          .errors = log};
  started_ = steady_clock::now();
  start_error_ = spawn(plan, &pid_);
  if (start_error_ != 0) schedule_start(failures_ + 1);
  if (log >= 0) close(log);
}

std::optional<AgentAddress> AgentKeeper::wait_for_address(int timeout_ms) {
  const steady_clock::time_point end = steady_clock::now() + milliseconds(timeout_ms);
  for (;;) {
    tick();
    std::optional<AgentAddress> agent = read_agent_address(directory_);
    if (agent || has_failed() || steady_clock::now() >= end) return agent;
    const timespec pause = {0, 20'000'000};  // 20 ms
    nanosleep(&pause, nullptr);
  }
}

std::optional<AgentAddress> AgentKeeper::new_address() {
  std::optional<AgentAddress> agent = read_agent_address(directory_);
  if (!agent || reported_ == std::pair(agent->pid_namespace, agent->pid)) return std::nullopt;
  reported_ = {agent->pid_namespace, agent->pid};
  return agent;
}

std::string AgentKeeper::failure_text() const {
  if (is_service()) return "no service follows " + directory_ + "; is `foreshock agent --tree` running?";
  if (start_error_ != 0) return command_[0] + ": " + std::strerror(start_error_);
  if (pid_ < 0 && is_locked(directory_ + "/agent.lock"))
    return "another process holds " + directory_ + "/agent.lock";
  std::istringstream log(content_of(directory_, "agent.log", kMostText).value_or(""));
  std::string line, last;
  while (std::getline(log, line))
    if (!line.empty()) last = line;
  return last.empty() ? "it said nothing" : last;
}

bool read_agent_state(const AgentAddress& agent, const std::string& token_file, std::string* json,
                      std::string* error) {
  struct stat status = {};
  std::string problem;  // why the token could not be read
  const std::string token = token_file.empty() ? "" : read_token(token_file, &status, &problem);
  // A service follows several runs. Without a run id it would return the state of the latest run.
  const std::string path =
      agent.run.empty() ? "/api/v1/state" : "/api/v1/state?run=" + percent_encoded(agent.run);
  if (!http_get(agent.address, agent.port, path, kStateTimeoutMs, json, error, token)) {
    if (token_file.empty() && error->find(kTokenWanted) != std::string::npos)
      problem = "its token is shown with --token-file FILE";
    if (!problem.empty()) *error += "; " + problem;
    return false;
  }
  if (nlohmann::json::accept(*json)) return true;
  *error = "the agent's answer is not JSON";
  return false;
}

std::vector<LiveRun> live_runs(const std::string& run_id) {
  std::vector<LiveRun> runs;
  for (const std::string& base : base_directory_candidates()) {
    std::error_code error;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(base, error)) {
      if (!entry.is_directory(error)) continue;
      const LiveRun run = {entry.path().filename(), entry.path()};
      if (!run_id.empty() && run.run_id != run_id) continue;
      if (read_agent_address(run.directory) || has_live_segment(run.directory)) runs.push_back(run);
    }
  }
  std::sort(runs.begin(), runs.end(), [](const LiveRun& a, const LiveRun& b) { return a.run_id < b.run_id; });
  return runs;
}

std::string ExitExchange::reserve(const std::string& directory) {
  directory_ = directory;
  const std::string launcher = std::to_string(launcher_id());
  exit_file_ = directory + "/exit." + launcher + ".json";
  summary_name_ = "summary." + launcher + ".json";
  // The exit file is removed first: for an old exit file, the agent would write a removed summary again.
  unlink(exit_file_.c_str());
  unlink((directory + "/" + summary_name_).c_str());
  spare_file_ = directory + "/spare." + launcher;
  // write_exit_status() writes exit_file_ + ".new" and renames it.
  for (const auto& [path, bytes] :
       {std::pair(exit_file_ + ".new", kExitBytes), std::pair(spare_file_, kSpareBytes)})
    if (const int error = create_reserved(path, bytes); error != 0) return path + ": " + std::strerror(error);
  return "";
}

void ExitExchange::write_exit_status(const ExitStatus& status, int stop_signal) const {
  // 128 + n is a shell's exit status after signal n. signal 0: no stop signal ended the command.
  const int signal = stop_signal != 0                    ? stop_signal
                     : is_stop_signal(status.signal)     ? status.signal
                     : is_stop_signal(status.code - 128) ? status.code - 128
                                                         : 0;
  const char* state = signal == SIGINT   ? "interrupted"
                      : signal != 0      ? "preempted"
                      : status.code == 0 ? "finished"
                                         : "failed";
  const nlohmann::json json = {{"status", status.code}, {"signal", status.signal}, {"state", state}};
  const std::string text = json.dump() + "\n", path = exit_file_ + ".new";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | kSafeFlags, 0600);
  if (fd < 0) return;
  unlink(spare_file_.c_str());  // frees the reserved space, which the agent needs for the summary
  // Renames the file after writing, so that the agent never reads an incomplete file.
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ftruncate(fd, static_cast<off_t>(text.size())) == 0;
  close(fd);
  if (written) rename(path.c_str(), exit_file_.c_str());
}

ExitExchange::Answer ExitExchange::wait(SignalPasser* signals, AgentKeeper* keeper) const {
  keeper->continue_if_stopped();
  const double cpu_wait_before = keeper->cpu_wait_seconds();
  std::optional<double> seconds_before;  // of the agent's main thread, see agent_seconds()
  int alive_at = 0;                      // when they have grown last
  for (int waited = 0; waited < kStarvedTimeoutMs; waited += kPollMs) {
    if (waited >= kExitTimeoutMs) {
      // The agent has the lowest priority, so it may get no CPU on a busy machine; with an idle CPU it waits
      // almost never. Waiting goes on only if the agent waited for a CPU for at least half of the time.
      const double seconds = waited / 1000.0;
      if (keeper->cpu_wait_seconds() - cpu_wait_before < seconds / 2) break;
      if (waited == kExitTimeoutMs)
        std::fputs("foreshock: other processes keep the agent from running; waiting for the summary\n",
                   stderr);
    }
    if (auto summary = content_of(directory_, summary_name_, kMostSummary)) return {*summary, ""};
    if (access(exit_file_.c_str(), F_OK) != 0)
      return {"", directory_ + " is gone, or cannot be written any more"};
    if (keeper->has_failed())
      return {"", "the agent died before the run ended (its log ends: " + keeper->failure_text() + ")"};
    if (keeper->is_service() && waited >= kServiceTimeoutMs && !is_locked(directory_ + "/agent.lock"))
      return {"", keeper->failure_text()};
    keeper->tick();
    const std::optional<double> seconds = keeper->agent_seconds();
    if ((seconds && seconds != seconds_before) || keeper->is_restarting()) alive_at = waited;  // also for NaN
    seconds_before = seconds;
    if (waited - alive_at >= kStuckTimeoutMs)
      return {"", seconds ? "the agent hangs" : "no agent follows the run: " + keeper->failure_text(),
              /*is_agent_stuck=*/true};
    if (signals->interrupted_within(kPollMs)) return {"", "interrupted"};
  }
  return {"", "the agent did not answer", true};
}

Summary read_summary(const std::string& json) {
  const Json parsed = Json::parse(json, nullptr, false);
  Summary summary;
  summary.is_valid = parsed.is_object();
  if (!summary.is_valid) return summary;
  summary.text = text_in(parsed, "text");
  summary.line = text_in(parsed, "line");
  summary.has_ranks = parsed.contains("ranks") && parsed["ranks"].is_array() && !parsed["ranks"].empty();
  summary.has_other_ranks = parsed.contains("other_ranks") && parsed["other_ranks"].is_number_unsigned() &&
                            parsed["other_ranks"] > 0;
  summary.has_refused = parsed.contains("refused");
  summary.lacks_record_lines = parsed.contains("record_complete") && parsed["record_complete"] == false;
  return summary;
}

// In the first line of the text, two blanks separate the verdict at its end from the words before.
std::string in_colour(const std::string& text) {
  const size_t end = text.find('\n');
  const size_t verdict = end == text.npos ? text.npos : text.rfind("  ", end);
  if (verdict == text.npos || verdict + 2 >= end) return text;
  // The verdict of a fault is written in capitals, and so is "PARTLY CHECKED", which is not a fault.
  const std::string words = text.substr(verdict + 2, end - verdict - 2);
  const bool is_fault = std::isupper(static_cast<unsigned char>(words[0])) != 0 && words != "PARTLY CHECKED";
  // ANSI codes: bold red, green, yellow; below, bold and the end of a colour.
  const char* colour = is_fault ? "\033[1;31m" : words == "healthy" ? "\033[32m" : "\033[33m";
  return "\033[1m" + text.substr(0, verdict) + "\033[0m  " + colour + words + "\033[0m" + text.substr(end);
}

bool wants_colour(int descriptor) {
  const char* none = std::getenv("NO_COLOR");
  return isatty(descriptor) == 1 && (none == nullptr || *none == '\0');
}

}  // namespace foreshock::cli
