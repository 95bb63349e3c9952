#include "cli/report_trail.h"

#include <limits>
#include <utility>

namespace foreshock::cli {

int64_t steps_between(int64_t a, int64_t b) {
  int64_t difference = 0;
  if (!__builtin_sub_overflow(b, a, &difference)) return difference;
  return b > a ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

bool Trail::goes_back(const StepLine& line) const {
  return line.step && !attempts_.empty() && *line.step < attempts_.back().last;
}

void Trail::add(const StepLine& line) {
  if (!line.step) return;
  const bool is_other_process = std::exchange(process_begins_, false) && !attempts_.empty();
  if (is_other_process && !goes_back(line) && went_on_.size() < kMostAttempts) went_on_.push_back(*line.step);
  if (attempts_.empty() || goes_back(line)) {
    if (attempts_.size() < kMostAttempts) attempts_.push_back({*line.step, *line.step});
    attempts_.back().last = *line.step;
    recent_.clear();
  }
  ++steps_;
  Attempt& attempt = attempts_.back();
  if (const int64_t gap = steps_between(attempt.last, *line.step); gap > 1)
    missed_ += static_cast<uint64_t>(gap) - 1;
  attempt.last = *line.step;
  recent_.push_back({*line.step, line.loss, line.gradient_norm, line.learning_rate, line.batch_id,
                     line.skipped_steps, line.sample_interval_steps});
  if (recent_.size() > kMostRecent) recent_.pop_front();
}

}  // namespace foreshock::cli
