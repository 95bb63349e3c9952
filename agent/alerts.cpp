// AlertCommand runs the command of --on-alert for each alert: a finding, or a warning of a detector. Adviser
// finds, among the ranks of a node, the detector with the highest level. A detector's level (quiet, watch or
// warn) is the highest of its layers.
#include "agent/alerts.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "agent/detection.h"
#include "detect/detector.h"
#include "detect/watch.h"

namespace foreshock {
namespace {

// Whether an event of the record runs the command: a default detector that changed to warn, or a gradient
// norm that is not finite.
bool is_alert(const EventLine& event) {
  if (event.event == name_of(WatchEventKind::kNonfiniteGradientNorm)) return true;
  if (event.event != name_of(WatchEventKind::kPrecursor) || event.level != name_of(Level::kWarn))
    return false;
  const Measured* measured = measured_of(event.detector);
  return measured != nullptr && measured->is_proven();
}

std::string text_of(const std::optional<int64_t>& number) { return number ? std::to_string(*number) : ""; }

std::string text_of(const std::optional<double>& number) {
  if (!number) return "";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", *number);
  return text;
}

constexpr char kPrefix[] = "FORESHOCK_ALERT_";  // begins the name of each variable set for the command

// Returns an environment variable. `value` may contain any bytes; c_str() cuts it at the first zero byte.
std::string variable(const char* name, const std::string& value) {
  return std::string(kPrefix) + name + "=" + value.c_str();
}

std::string end_text(int status) {  // `status`: from waitpid()
  if (WIFSIGNALED(status)) return std::string("was ended by signal ") + strsignal(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

// Sets close-on-exec on all descriptors except the standard streams. A command that outlives the agent must
// not keep a connection or the port open, and some libraries open descriptors without this flag.
void close_all_on_exec() {
  DIR* list = opendir("/proc/self/fd");
  if (list == nullptr) return;
  while (const dirent* each = readdir(list))
    if (const int descriptor = std::atoi(each->d_name); descriptor > STDERR_FILENO)
      fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  closedir(list);
}

// Returns a line for a chat or a pager: "my-run: output_error_drift warns in layer 003 on rank 0 at step 60".
std::string alert_text(const EventLine& event) {
  std::string what = event.detector.empty() ? event.event : event.detector + " warns";
  // "loss_spike" becomes words; the name of a detector stays as it is in docs and series.
  if (event.detector.empty()) std::replace(what.begin(), what.end(), '_', ' ');
  std::string text = event.run + ": " + what;
  if (!event.layer.empty()) text += " in layer " + event.layer;
  if (event.rank) text += " on rank " + std::to_string(*event.rank);
  if (event.step) text += " at step " + std::to_string(*event.step);
  return text;
}

}  // namespace

std::vector<std::string> AlertCommand::environment_of(const EventLine& event, uint64_t left_out,
                                                      const std::string& url) {
  return {variable("TEXT", alert_text(event)),
          variable("URL", url),
          variable("RUN", event.run),
          variable("RANK", text_of(event.rank)),
          variable("STEP", text_of(event.step)),
          variable("EVENT", event.event),
          variable("DETECTOR", event.detector),
          variable("LAYER", event.layer),
          variable("TENSOR", ""),
          variable("ACTION", ""),
          variable("VALUE", text_of(event.value)),
          variable("SCORE", text_of(event.score)),
          variable("LEFT_OUT", std::to_string(left_out))};
}

std::vector<std::string> AlertCommand::environment_of(const FindingLine& finding, uint64_t left_out,
                                                      const std::string& url) {
  const std::optional<double>& value = finding.largest ? finding.largest : finding.now;
  return {variable("TEXT", finding.run + ": " + finding.text + ". Do: " + finding.action + "."),
          variable("URL", url),
          variable("RUN", finding.run),
          variable("RANK", text_of(finding.rank)),
          variable("STEP", text_of(finding.since_step)),
          variable("EVENT", finding.finding),
          variable("DETECTOR", ""),
          variable("LAYER", finding.layer),
          variable("TENSOR", finding.tensor),
          variable("ACTION", finding.action),
          variable("VALUE", text_of(value)),
          variable("SCORE", ""),
          variable("LEFT_OUT", std::to_string(left_out))};
}

void AlertCommand::add(const EventLine& event, Clock::time_point now) {
  if (is_alert(event)) queue(event.run + '\n' + event.event + '\n' + event.detector, event, now);
}

void AlertCommand::add(const FindingLine& finding, Clock::time_point now) {
  queue(finding.run + '\n' + finding.finding, finding, now);
}

template <class Line>
void AlertCommand::queue(const std::string& kind, const Line& line, Clock::time_point now) {
  if (command_.empty()) return;
  if (last_alerts_.size() >= kMostKinds)
    std::erase_if(last_alerts_, [&](const auto& each) { return now - each.second.queued_at >= kMinPause; });
  const auto found = last_alerts_.find(kind);  // must come after erase_if(), which invalidates iterators
  const bool is_soon = found != last_alerts_.end() && now - found->second.queued_at < kMinPause;
  if (is_soon || waiting_.size() >= kMostWaiting ||
      (found == last_alerts_.end() && last_alerts_.size() >= kMostKinds)) {
    ++left_out_;
    if (found != last_alerts_.end()) ++found->second.left_out;
    return;
  }
  waiting_.push_back(environment_of(line, found != last_alerts_.end() ? found->second.left_out : 0, url_));
  last_alerts_[kind] = {now, 0};
}

void AlertCommand::poll(Clock::time_point now) {
  if (child_ > 0) reap();
  if (child_ > 0 && !killed_at_ && now - began_ >= kTimeout) {
    spdlog::warn("--on-alert: the command takes more than {} s and is killed", kTimeout.count());
    killed_at_ = now;
    kill(-child_, SIGKILL);  // kills the command, which leads a process group, and the processes it started
  }
  // Only a command that hangs in the kernel survives SIGKILL, for example on a device that does not answer.
  if (child_ > 0 && killed_at_ && now - *killed_at_ >= kGiveUpAfter) {
    given_up_.push_back(std::exchange(child_, -1));
    ++failed_;
  }
  // waitpid() returns 0 while the process exists.
  std::erase_if(given_up_, [](pid_t child) { return waitpid(child, nullptr, WNOHANG) != 0; });
  if (child_ > 0 || waiting_.empty()) return;
  const std::vector<std::string> alert_variables = std::move(waiting_.front());
  waiting_.pop_front();
  start(alert_variables, now);
}

// Starts all queued commands at once, because the agent ends.
void AlertCommand::start_all(Clock::time_point now) {
  for (; !waiting_.empty(); waiting_.pop_front()) start(waiting_.front(), now);
  if (left_out_ > 0)
    spdlog::info("--on-alert: {} alerts were left out: too soon after their like, or too many at once",
                 left_out_);
}

void AlertCommand::reap() {
  int status = 0;
  const pid_t ended = waitpid(child_, &status, WNOHANG);
  // If the agent inherited SIGCHLD as ignored, the kernel reaps the command. Its unknown status counts as 0.
  const bool has_no_status = ended < 0 && errno == ECHILD;
  if (ended != child_ && !has_no_status) return;  // the command still runs
  child_ = -1;
  if (status == 0) return;
  ++failed_;
  spdlog::warn("--on-alert: the command {}", end_text(status));
}

void AlertCommand::start(const std::vector<std::string>& alert_variables, Clock::time_point now) {
  // The agent's environment, with alert_variables in place of all variables whose name begins with kPrefix.
  std::vector<char*> variables;
  for (char** each = environ; *each != nullptr; ++each)
    if (std::strncmp(*each, kPrefix, sizeof kPrefix - 1) != 0) variables.push_back(*each);
  for (const std::string& each : alert_variables) variables.push_back(const_cast<char*>(each.c_str()));
  variables.push_back(nullptr);
  const char* arguments[] = {"/bin/sh", "-c", command_.c_str(), nullptr};

  close_all_on_exec();
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);  // output goes to the agent's log
  // The command gets the default action for the signals that the agent handles or ignores.
  sigset_t to_default, none;
  sigemptyset(&none);
  sigemptyset(&to_default);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGXFSZ, SIGPIPE}) sigaddset(&to_default, signal);
  posix_spawnattr_setsigdefault(&attributes, &to_default);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  const int error = posix_spawn(&child_, arguments[0], &actions, &attributes, const_cast<char**>(arguments),
                                variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ++started_;
  killed_at_.reset();
  began_ = now;
  if (error == 0) return;
  child_ = -1;
  ++failed_;
  spdlog::warn("--on-alert: the command cannot be started: {}", std::strerror(error));
}

// Updates the rank's signals, one for each detector, to `states`. One event may change several levels.
void Adviser::note(int64_t rank, const EventLine& event,
                   const std::array<DetectorState, kDetectors>& states) {
  for (size_t n = 0; n < kDetectors; ++n) {
    const DetectorState& state = states[n];
    Signal& signal = signals_[rank][n];
    const bool is_of_detector = event.detector == kDetectorTable[n].name;
    // A detector's level is the highest level of its layers. The event has the new level of one layer.
    const bool layer_has_level = is_of_detector && event.level == name_of(state.level);
    if (state.level == Level::kQuiet) {
      signal = {};
    } else if (state.level != signal.level) {
      const double score = is_of_detector ? event.score.value_or(0) : 0;
      const std::string& layer = layer_has_level ? event.layer : state.layer;
      signal = {state.level, rank, event.step.value_or(0), kDetectorTable[n].name, layer, score};
    } else if (is_of_detector && !layer_has_level && event.layer == signal.layer) {
      signal.layer = state.layer;  // the level of signal.layer fell; state.layer still has the level
    }
  }
}

void Adviser::restore(int64_t rank, const std::array<DetectorState, kDetectors>& states) {
  for (size_t n = 0; n < kDetectors; ++n)
    if (states[n].level != Level::kQuiet)
      signals_[rank][n] = {
          states[n].level, rank, std::max<int64_t>(states[n].last_warn_step, 0), kDetectorTable[n].name,
          states[n].layer, 0};
}

Signal Adviser::strongest(const std::set<int64_t>& ranks) const {
  Signal strongest;
  for (const auto& [rank, signals] : signals_) {
    if (!ranks.contains(rank)) continue;
    for (const Signal& signal : signals)
      if (signal.level > strongest.level ||
          (signal.level == strongest.level && signal.since_step < strongest.since_step))
        strongest = signal;
  }
  return strongest;
}

}  // namespace foreshock
