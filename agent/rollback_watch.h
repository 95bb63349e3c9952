// A trainer that goes back to an earlier state of its own without a restart repeats steps: what was known of
// them is about other values. A step that is numbered far too high, once, ends the same way.
#ifndef FORESHOCK_AGENT_ROLLBACK_WATCH_H_
#define FORESHOCK_AGENT_ROLLBACK_WATCH_H_

#include <cstdint>
#include <map>

#include "segment/layout.h"

namespace foreshock {

// All ranks go back together, but are read one after the other: what a rank has shown before it went back,
// and is read after another one went, is of before. Thread-compatible.
class RollbackWatch {
 public:
  // A rank that does not go back at all is not waited for longer, by the clock of the trainers.
  static constexpr uint64_t kPatienceNs = 10'000'000'000;

  enum class Verdict { kGoesOn, kWentBack, kOfBefore };

  // Records of a rank come as it wrote them.
  Verdict take(const segment::TensorRecord& record, int32_t rank) {
    Rank& one = ranks_[rank];
    if (record.step < one.step) ++one.returns;
    one.step = record.step;
    if (one.returns > returns_) {
      returns_ = one.returns;
      one.behind_since_ns = 0;
      return Verdict::kWentBack;
    }
    if (one.returns < returns_) {
      // From its own first record on, or a run that goes back again and again would never hear it.
      if (one.behind_since_ns == 0) one.behind_since_ns = record.time_ns;
      if (record.time_ns - one.behind_since_ns < kPatienceNs) return Verdict::kOfBefore;
    }
    one.returns = returns_;
    one.behind_since_ns = 0;
    return Verdict::kGoesOn;
  }

  void begin_anew() {
    ranks_.clear();
    returns_ = 0;
  }

 private:
  struct Rank {
    int64_t step = -1;
    uint64_t returns = 0;
    uint64_t behind_since_ns = 0;  // its first record that is of before; 0: it is not behind
  };
  std::map<int32_t, Rank> ranks_;
  uint64_t returns_ = 0;  // of the rank that has gone back most often
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_ROLLBACK_WATCH_H_
