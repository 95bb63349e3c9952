#include "libmonitor/ordinal.h"

namespace foreshock {

void OrdinalFollower::begin_step() { runs_ = run_ = backward_ = last_run_ = 0; }

void OrdinalFollower::end_run() {
  last_run_ = run_;
  run_ = 0;
  const bool is_first = runs_++ == 0;
  if (period_ == 0) period_ = last_run_;
  // An evaluation between two steps makes a run of several periods.
  if (last_run_ % period_ == 0) {
    ++agreed_;
  } else if (agreed_ >= kRunsToTrust || (!is_first && last_run_ < period_)) {
    unstable_ = true;  // names that were given meant something else, or would
  } else {
    period_ = last_run_;
    agreed_ = 1;
  }
}

int OrdinalFollower::next(bool backward, bool in_backward) {
  if (!backward && in_backward) return -1;
  if (!backward) {
    backward_ = 0;
    const uint32_t place = run_++;
    return is_trusted() ? static_cast<int>(place % period_) : -1;
  }
  if (run_ > 0) end_run();
  const uint32_t place = backward_++;
  if (!is_trusted() || place >= last_run_) return -1;
  return static_cast<int>((last_run_ - 1 - place) % period_);
}

}  // namespace foreshock
