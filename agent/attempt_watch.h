// A run that goes on after a restart may repeat steps: what was known of them is about other values.
#ifndef FORESHOCK_AGENT_ATTEMPT_WATCH_H_
#define FORESHOCK_AGENT_ATTEMPT_WATCH_H_

#include <cstdint>

#include "segment/layout.h"
#include "segment/tensor_record.h"

namespace foreshock {

class AttemptWatch {
 public:
  // Whether `record` is the first one of another attempt than all before, or the first at all.
  bool is_new(const segment::TensorRecord& record, const segment::Identity& identity) {
    if (identity.start_time_ns <= begun_ns_) return false;
    begun_ns_ = record.time_ns;  // all ranks of this attempt have started before
    return true;
  }

 private:
  uint64_t begun_ns_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_ATTEMPT_WATCH_H_
