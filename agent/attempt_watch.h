// A run that goes on after a restart may repeat steps: what was known of them is about other values.
#ifndef FORESHOCK_AGENT_ATTEMPT_WATCH_H_
#define FORESHOCK_AGENT_ATTEMPT_WATCH_H_

#include <algorithm>
#include <cstdint>
#include <map>

#include "segment/layout.h"

namespace foreshock {

class AttemptWatch {
 public:
  // Whether `record` is the first one of another attempt than all before, or the first at all. A rank that
  // was not seen before may be one that begins late, unless its launcher numbers the attempt higher: after an
  // elastic restart a node may have other ranks.
  bool is_new(const segment::TensorRecord& record, const segment::Identity& identity) {
    const bool is_first = starts_.empty();
    const auto [found, joins] = starts_.try_emplace(identity.rank, identity.start_time_ns);
    const bool starts_again = !joins && identity.start_time_ns > found->second;
    if (starts_again) found->second = identity.start_time_ns;
    const bool is_numbered_higher = attempt_ >= 0 && identity.attempt > attempt_;
    attempt_ = std::max<int64_t>(attempt_, identity.attempt);
    if (!is_first && !is_numbered_higher && (!starts_again || identity.start_time_ns <= begun_ns_))
      return false;
    begun_ns_ = record.time_ns;  // all ranks of this attempt that were seen before have started before
    return true;
  }

 private:
  std::map<int32_t, uint64_t> starts_;  // by rank, of its last process
  uint64_t begun_ns_ = 0;
  int64_t attempt_ = -1;  // the highest number so far; -1: nobody numbers them
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_ATTEMPT_WATCH_H_
