// AlertCommand runs the user's command of --on-alert for events. Adviser finds the detector with the highest
// level on a node; its state is sent to the trainers as advice.
#ifndef FORESHOCK_AGENT_ALERTS_H_
#define FORESHOCK_AGENT_ALERTS_H_

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "detect/watch.h"
#include "exporters/record.h"

namespace foreshock {

// Runs the alert command once per alert. Until the agent ends (start_all()), at most one command runs at a
// time and up to kMostWaiting alerts are queued. No function waits for a command. One thread.
class AlertCommand {
 public:
  using Clock = std::chrono::steady_clock;
  // Shortest time between two alerts of one kind: same run, event and detector, on any rank or layer.
  static constexpr std::chrono::seconds kMinPause{60};
  static constexpr std::chrono::seconds kTimeout{60};     // a command that takes longer is killed
  static constexpr std::chrono::seconds kGiveUpAfter{5};  // longest wait for its end after SIGKILL
  static constexpr size_t kMostWaiting = 16;
  static constexpr size_t kMostKinds = 4096;  // kinds of alerts that are remembered for kMinPause
  // `command` is passed to /bin/sh; if it is empty, nothing is run.
  explicit AlertCommand(std::string command) : command_(std::move(command)) {}
  ~AlertCommand() = default;  // does not end a command that still runs
  AlertCommand(const AlertCommand&) = delete;
  AlertCommand& operator=(const AlertCommand&) = delete;

  // Queues the command for a finding that is new.
  void add(const FindingLine& finding, Clock::time_point now);
  // Queues the command for a gradient norm that is not finite, or for a default detector that starts to warn.
  // Other events are ignored: experimental detectors warn in sound trainings too, and an event of the loss is
  // a finding. An event or finding is only counted if the last alert of its kind is younger than kMinPause,
  // if the queue is full, or if the kind is new and the table of kinds is full. If the kind is in the table,
  // its next alert reports the count to its command.
  void add(const EventLine& event, Clock::time_point now);
  // Reaps a command that has ended, kills one that takes too long, starts the next.
  void poll(Clock::time_point now);
  // Starts all queued commands at once and does not wait for them. Called when the agent ends.
  void start_all(Clock::time_point now);
  bool is_busy() const { return child_ > 0 || !waiting_.empty(); }  // a command runs or is queued

  uint64_t started() const { return started_; }    // attempts to start a command
  uint64_t failed() const { return failed_; }      // not started, killed, or exit status not 0
  uint64_t left_out() const { return left_out_; }  // alerts of all kinds for which no command was queued
  // Sets the page's address, which the command gets as FORESHOCK_ALERT_URL. It is "" before the first call.
  void set_url(std::string url) { url_ = std::move(url); }
  // Returns the variables of the command as "NAME=value" (docs/alerts.md). `left_out`: LastAlert::left_out.
  static std::vector<std::string> environment_of(const EventLine& event, uint64_t left_out,
                                                 const std::string& url);
  static std::vector<std::string> environment_of(const FindingLine& finding, uint64_t left_out,
                                                 const std::string& url);

 private:
  // Queues the command for an event or a finding, unless `kind` had one within kMinPause or there is no room.
  template <class Line>
  void queue(const std::string& kind, const Line& line, Clock::time_point now);
  struct LastAlert {
    Clock::time_point queued_at;  // when the last alert of this kind was queued
    uint64_t left_out = 0;        // alerts of this kind that were only counted since `queued_at`
  };
  // Starts the command with these variables added to its environment.
  void start(const std::vector<std::string>& alert_variables, Clock::time_point now);
  void reap();

  const std::string command_;
  std::string url_;
  std::map<std::string, LastAlert> last_alerts_;  // by kind
  std::deque<std::vector<std::string>> waiting_;  // variables of the queued commands
  pid_t child_ = -1;                              // the command that runs; -1: none
  Clock::time_point began_;                       // when child_ was started
  std::optional<Clock::time_point> killed_at_;    // when child_ was killed
  std::vector<pid_t> given_up_;                   // commands that still existed kGiveUpAfter after SIGKILL
  uint64_t started_ = 0, failed_ = 0, left_out_ = 0;
};

// The level (quiet, watch or warn) of one detector of a rank. The detector warns at a `score` of 1 or more.
struct Signal {
  Level level = Level::kQuiet;
  int64_t rank = -1, since_step = 0;  // since_step: first step of this level (but see Adviser::restore())
  std::string detector, layer;        // both "" if all detectors are quiet
  double score = 0;

  bool operator==(const Signal&) const = default;
};

// Finds the detector with the highest level, as advice for the trainers of a node. One thread.
class Adviser {
 public:
  // Adds an event of a rank's detectors. `states` has the state of each of the rank's detectors after the
  // event, since one event may reset all of them to quiet.
  void note(int64_t rank, const EventLine& event, const std::array<DetectorState, kDetectors>& states);
  // Adds the states that an earlier agent saved. They lack the first step of the level, so since_step becomes
  // the step of the last warning, or 0 if there was none.
  void restore(int64_t rank, const std::array<DetectorState, kDetectors>& states);
  // Returns the signal with the highest level among these ranks; of several, one with the lowest since_step.
  Signal strongest(const std::set<int64_t>& ranks) const;

 private:
  std::map<int64_t, std::array<Signal, kDetectors>> signals_;  // by rank, then detector
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_ALERTS_H_
