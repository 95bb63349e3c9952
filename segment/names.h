// Words for the numbers in a segment.
#ifndef FORESHOCK_SEGMENT_NAMES_H_
#define FORESHOCK_SEGMENT_NAMES_H_

#include <iterator>

#include "segment/layout.h"

namespace foreshock::segment {

inline constexpr const char* kPassNames[kPasses] = {"forward", "backward"};

// Bits of StepRecord::given and numbers of its sources: those of hook.h.
enum : uint32_t {
  kGivenLoss = 1,
  kGivenLearningRate = 2,
  kGivenGradientNorm = 4,
  kGivenBatchId = 8,
  kGivenUpTensors = 16,
  kGivenUpFailed = 32
};

constexpr bool knows_skips(const StepRecord& step) { return (step.given & kSkipsUnseen) == 0; }

constexpr bool is_pending(const StepRecord& step) { return (step.given & kNumbersPending) != 0; }

constexpr bool given(const StepRecord& step, uint32_t what) { return (step.given & what) != 0; }

constexpr const char* name_of(LayerSource source) {
  constexpr const char* kNames[] = {"unknown", "annotation", "parameter", "ordinal"};
  return static_cast<uint32_t>(source) < std::size(kNames) ? kNames[static_cast<uint32_t>(source)]
                                                           : kNames[0];
}

constexpr const char* step_source_name(uint32_t source) {
  constexpr const char* kNames[] = {"unknown", "reported", "optimizer_state", "counted"};
  return source < std::size(kNames) ? kNames[source] : kNames[0];
}

constexpr const char* loss_source_name(uint32_t source) {
  constexpr const char* kNames[] = {"unknown", "reported", "nll", "backward_root", "logged"};
  return source < std::size(kNames) ? kNames[source] : kNames[0];
}

// How it is known that there is attention nobody sees: FORESHOCK_UNSEEN_... of hook.h.
constexpr const char* unseen_evidence_name(uint32_t evidence) {
  constexpr const char* kNames[] = {"unknown", "used", "imported", "registered"};
  return evidence < std::size(kNames) ? kNames[evidence] : kNames[0];
}

// KernelCountState of layout.h.
constexpr const char* kKernelCountStates[] = {"not_asked",  "waiting", "counting", "done",
                                              "no_library", "taken",   "profiler", "refused"};
constexpr const char* kernel_count_state_name(uint32_t state) {
  return state < std::size(kKernelCountStates) ? kKernelCountStates[state] : kKernelCountStates[0];
}

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_NAMES_H_
