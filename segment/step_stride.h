// How far the number of the step goes on from one end of a step that is told to the next: a trainer may tell
// every tenth only.
#ifndef FORESHOCK_SEGMENT_STEP_STRIDE_H_
#define FORESHOCK_SEGMENT_STEP_STRIDE_H_

#include <algorithm>
#include <cstdint>

namespace foreshock {

// Follows from the numbers alone, so it is the same on all ranks that tell the same steps, and in the agent.
// One caller at a time.
class StepStride {
 public:
  // Any number, since the agent hears of it from a trainer; a negative one is unknown.
  void tell(int64_t step) {
    const int64_t went = last_ < 0 || step < 0 ? 1 : step - last_;
    stride_ = std::max<int64_t>(1, std::min(went, went_));
    went_ = went;
    last_ = step;
  }
  // The next end of a step is expected so many steps after the last one: the lesser of the last two, since
  // one jump (a training resumed, a step told at the end of an epoch) is no habit.
  int64_t steps() const { return stride_; }

 private:
  int64_t last_ = -1, went_ = 1, stride_ = 1;
};

}  // namespace foreshock

#endif  // FORESHOCK_SEGMENT_STEP_STRIDE_H_
