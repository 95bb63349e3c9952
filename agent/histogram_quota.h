// Which snapshots of weights have their histogram in the record: as many as fit into so many bytes, however
// long the run is.
#ifndef FORESHOCK_AGENT_HISTOGRAM_QUOTA_H_
#define FORESHOCK_AGENT_HISTOGRAM_QUOTA_H_

#include <cstdint>

#include "agent/tensor_snapshot.h"

namespace foreshock {

// The bytes are spent in sixteen equal parts, each on every second of the intervals that the part before took
// from: of the first snapshots every one is there, and a run 2^15 times as long still has its end in it. What
// is left out at one interval is left out of all tensors, and on every node alike but for where a part ends.
class HistogramQuota {
 public:
  // A histogram that is longer than this, stored, fits into no line of a record.
  static constexpr uint64_t kLongest = uint64_t{3} << 20;

  explicit HistogramQuota(uint64_t bytes) : bytes_(bytes) {}

  // Whether this one is written; then its bytes are spent.
  bool takes(const TensorSnapshot& snapshot);

  bool is_on() const { return bytes_ > 0; }
  uint64_t left_out() const { return left_out_; }

 private:
  static constexpr uint64_t kParts = 16;

  const uint64_t bytes_;
  uint64_t spent_ = 0, left_out_ = 0;
  int64_t window_ = -1;
  uint64_t stride_ = 1;  // of intervals, in force
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_HISTOGRAM_QUOTA_H_
