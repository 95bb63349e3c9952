// The steps of one rank as a record tells them: the last ones, and in which attempts they were made.
#ifndef FORESHOCK_CLI_REPORT_TRAIL_H_
#define FORESHOCK_CLI_REPORT_TRAIL_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "exporters/record_line.h"

namespace foreshock::cli {

// Of a step; what is not known is absent. A loss or a norm that is known may be NaN.
struct TrailStep {
  int64_t step = 0;
  std::optional<double> loss, gradient_norm, learning_rate;
  std::optional<uint64_t> batch_id, skipped_steps, interval;
};

// b - a, or the nearest that there is: steps of a record may be anything.
int64_t steps_between(int64_t a, int64_t b);

// Thread-compatible.
class Trail {
 public:
  static constexpr size_t kMostRecent = 512;
  static constexpr size_t kMostAttempts = 4096;

  // Steps in one go, `first` to `last`: a step that goes back begins another attempt.
  struct Attempt {
    int64_t first = 0, last = 0;
  };

  // Whether the step of `line` would begin another attempt.
  bool goes_back(const StepLine& line) const;
  // A line without a step says nothing.
  void add(const StepLine& line);
  // What is added next is of another process of this rank.
  void begin_process() { process_begins_ = true; }

  // Of the attempt that goes on, in their order.
  const std::deque<TrailStep>& recent() const { return recent_; }
  const std::vector<Attempt>& attempts() const { return attempts_; }
  // First steps of processes that went on where the one before had stopped: no other attempt.
  const std::vector<int64_t>& went_on() const { return went_on_; }
  uint64_t steps() const { return steps_; }
  // Step numbers that were passed over.
  uint64_t missed() const { return missed_; }

 private:
  std::deque<TrailStep> recent_;
  std::vector<Attempt> attempts_;
  std::vector<int64_t> went_on_;
  bool process_begins_ = false;
  uint64_t steps_ = 0, missed_ = 0;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_TRAIL_H_
