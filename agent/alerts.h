// How a warning leaves the agent: the command of --on-alert, and the advice to trainers.
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
#include "exporters/record_line.h"

namespace foreshock {

// One command runs at a time; the others wait, a few of them. Nothing here waits for a command. One thread.
class AlertCommand {
 public:
  using Clock = std::chrono::steady_clock;
  // One and the same thing of a run, on whichever rank or layer, is told so often at most.
  static constexpr std::chrono::seconds kApart{60};
  static constexpr std::chrono::seconds kLongest{60};  // a command that takes longer is killed
  static constexpr std::chrono::seconds kToDie{5};     // and given up when that does not end it
  static constexpr size_t kMostWaiting = 16;
  static constexpr size_t kMostKinds = 4096;  // of things that are remembered

  // `command`: for /bin/sh; empty: nothing is ever run.
  explicit AlertCommand(std::string command) : command_(std::move(command)) {}
  // A command that still runs goes on by itself.
  ~AlertCommand() = default;
  AlertCommand(const AlertCommand&) = delete;
  AlertCommand& operator=(const AlertCommand&) = delete;

  // Only of what is loud: an event of the loss or the gradients, or a detector that has begun to warn. What
  // comes too soon after its like is counted and told with the next one.
  void tell(const EventLine& event, Clock::time_point now);

  // Takes note of a command that has ended, kills one that takes too long, begins the next.
  void poll(Clock::time_point now);

  // The agent ends: what waits is begun at once, and goes on by itself.
  void leave(Clock::time_point now);

  // Whether one runs or waits.
  bool is_busy() const { return child_ > 0 || !waiting_.empty(); }

  uint64_t started() const { return started_; }
  uint64_t failed() const { return failed_; }  // could not be started, or ended with another status than 0
  uint64_t left_out() const { return left_out_; }

  // Sets the address of the page that the command gets as FORESHOCK_ALERT_URL; "" until then.
  void set_url(std::string url) { url_ = std::move(url); }

  // Returns "NAME=value" for the command (docs/alerts.md).
  static std::vector<std::string> environment_of(const EventLine& event, uint64_t left_out,
                                                 const std::string& url);

 private:
  struct Told {
    Clock::time_point when;
    uint64_t left_out = 0;  // since then
  };
  void start(const std::vector<std::string>& alert, Clock::time_point now);
  void reap();

  const std::string command_;
  std::string url_;
  std::map<std::string, Told> told_;
  std::deque<std::vector<std::string>> waiting_;
  pid_t child_ = -1;
  std::vector<pid_t> given_up_;
  Clock::time_point began_;
  std::optional<Clock::time_point> killed_at_;
  uint64_t started_ = 0, failed_ = 0, left_out_ = 0;
};

// What the trainers of a node are advised: the loudest detector of any of their ranks.

// A detector above quiet. `since_step`: it has been at this level from then on.
struct Signal {
  Level level = Level::kQuiet;
  int64_t rank = -1, since_step = 0;
  std::string detector, layer;  // both "" when all is quiet
  double score = 0;

  bool operator==(const Signal&) const = default;
};

// One thread.
class Adviser {
 public:
  // An event that the detectors of a rank have made, and what they are at after it.
  void note(int64_t rank, const EventLine& event, const std::array<DetectorState, kDetectors>& states);

  // What an agent before this one has left; since when is known of warnings only.
  void restore(int64_t rank, const std::array<DetectorState, kDetectors>& states);

  // Of these ranks: the highest level, of equal ones the earliest.
  Signal loudest(const std::set<int64_t>& ranks) const;

 private:
  std::map<int64_t, std::array<Signal, kDetectors>> signals_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_ALERTS_H_
