// One segment that the agent follows: its reader, what is known of its rank, and whether its trainer lives.
#ifndef FORESHOCK_AGENT_FOLLOWED_H_
#define FORESHOCK_AGENT_FOLLOWED_H_

#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "agent/pipeline.h"

namespace foreshock {

class Followed {
 public:
  using Clock = std::chrono::steady_clock;

  Followed(std::unique_ptr<segment::SegmentReader> segment, const std::string& run, Pipeline* pipeline);

  // Takes what is new. False when there was nothing, or nothing can come any more.
  bool poll() { return !is_finished() && pipeline_->poll(*segment_, &rank); }

  // Reads the counters, and whether the trainer still holds its lock.
  void look(Clock::time_point now);

  // The trainer has let go of its lock, and nothing has moved since for `quiet`.
  bool is_gone(Clock::time_point now, Clock::duration quiet) const;

  // Its process has called exit(0): nothing more is to come, whatever its launcher still does.
  bool has_exited_well() const { return !rank.alive && rank.exit_status == 0; }

  // Judges what is left and lets the segment go.
  void finish(RunState state);
  bool is_finished() const { return segment_ == nullptr; }

  uint64_t launcher_id() const { return rank.identity.launcher_id; }
  // Not after finish().
  segment::SegmentReader& segment() { return *segment_; }

  const std::string name;  // of its segment
  RankStatistics rank;
  bool announced = false;              // in the record
  std::set<std::string> shown_layers;  // that have had series

 private:
  std::unique_ptr<segment::SegmentReader> segment_;
  Pipeline* pipeline_;
  segment::Totals seen_;
  Clock::time_point changed_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FOLLOWED_H_
