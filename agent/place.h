// Where in the job a rank is, as far as that is known.
#ifndef FORESHOCK_AGENT_PLACE_H_
#define FORESHOCK_AGENT_PLACE_H_

#include "agent/tensor_key.h"
#include "segment/layout.h"

namespace foreshock {

// All its model-parallel coordinates are known: only then are ranks with equal ones replicas of each other.
inline bool is_placed(const segment::Identity& identity) {
  return identity.late_ready == 1 && identity.tensor_parallel >= 0 && identity.pipeline_parallel >= 0 &&
         identity.expert_parallel >= 0;
}

// Of what a rank holds all of.
inline void place(const segment::Identity& identity, TensorKey* key) {
  if (identity.late_ready == 1) {
    key->tensor_parallel = identity.tensor_parallel;
    key->pipeline_parallel = identity.pipeline_parallel;
    key->expert_parallel = identity.expert_parallel;
  }
  if (!is_placed(identity) && identity.world_size > 1) key->rank = identity.rank;
}

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PLACE_H_
