// Names of attention that runs past every hook, kept from before there is a segment.
#ifndef FORESHOCK_LIBMONITOR_UNSEEN_H_
#define FORESHOCK_LIBMONITOR_UNSEEN_H_

#include <atomic>
#include <cstdint>

#include "segment/layout.h"

namespace foreshock {

// Any thread; who finds it taken by another one goes without. Fixed room, no heap.
class Unseen {
 public:
  // Copies what is known into `records` (kMaxUnseen of them), and stores there too from now on.
  void attach(segment::UnseenName* records);

  // `evidence`: FORESHOCK_UNSEEN_...; of several the smallest one stays. What is no name, or has no room, is
  // dropped. `has_segment`: the process still has the one that was attached; a forked child has not.
  void note(const char* name, uint32_t evidence, bool has_segment);

 private:
  void store(uint32_t index);

  std::atomic_flag busy_;
  segment::UnseenName names_[segment::kMaxUnseen] = {};
  uint32_t known_ = 0;
  segment::UnseenName* records_ = nullptr;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_UNSEEN_H_
