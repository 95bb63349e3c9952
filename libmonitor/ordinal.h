// The layer of a call that nothing else names: its place in the run of calls since the last turn of
// direction.
#ifndef FORESHOCK_LIBMONITOR_ORDINAL_H_
#define FORESHOCK_LIBMONITOR_ORDINAL_H_

#include <cstdint>

namespace foreshock {

// Fed with every call of the sampled steps, in order. Forward calls count up from the last backward call,
// backward calls count down through the forward run before them. The length of a forward run is the period;
// only once two steps in a row have shown the same one is an ordinal given, and never again after it changed.
// Nor where a shorter run follows within a step: so does recomputation look that nobody has marked.
class OrdinalFollower {
 public:
  // At the start of a sampled step.
  void begin_step();

  // The next call, -1 where the place is not known. `in_backward`: a recomputation, which turns no direction.
  int next(bool backward, bool in_backward);

 private:
  static constexpr uint32_t kRunsToTrust = 2;
  void end_run();
  bool is_trusted() const { return !unstable_ && agreed_ >= kRunsToTrust; }

  uint32_t runs_ = 0;      // forward runs that have ended in this step
  uint32_t run_ = 0;       // forward calls since the last turn
  uint32_t backward_ = 0;  // backward calls since the last turn
  uint32_t last_run_ = 0;  // length of the forward run before this backward
  uint32_t period_ = 0;
  uint32_t agreed_ = 0;  // runs in a row of this period
  bool unstable_ = false;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_ORDINAL_H_
