#include "agent/followed.h"

namespace foreshock {

Followed::Followed(std::unique_ptr<segment::SegmentReader> segment, const std::string& run,
                   Pipeline* pipeline)
    : name(segment->name()), segment_(std::move(segment)), pipeline_(pipeline), changed_(Clock::now()) {
  rank.run = run;
  pipeline_->refresh(*segment_, &rank);
  pipeline_->take_up(*segment_, &rank);
}

void Followed::look(Clock::time_point now) {
  if (is_finished()) return;
  // The lock before the counters: a trainer that ends in between has stored its last count by then.
  rank.alive = segment_->is_locked();
  pipeline_->refresh(*segment_, &rank);
  if (!rank.alive) rank.exit_status = segment_->exit_status();
  if (rank.alive || !(rank.totals == seen_)) changed_ = now;
  seen_ = rank.totals;
}

bool Followed::is_gone(Clock::time_point now, Clock::duration quiet) const {
  return !rank.alive && now - changed_ >= quiet;
}

void Followed::finish(RunState state) {
  if (is_finished()) return;
  pipeline_->finish(*segment_, &rank);
  rank.state = state;
  rank.alive = segment_->is_locked();
  segment_.reset();
}

}  // namespace foreshock
