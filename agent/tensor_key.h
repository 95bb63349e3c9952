// Which tensor of a run a record is about.
#ifndef FORESHOCK_AGENT_TENSOR_KEY_H_
#define FORESHOCK_AGENT_TENSOR_KEY_H_

#include <compare>
#include <cstdint>
#include <string>

namespace foreshock {

// Where a rank holds all of a tensor, ranks of other model-parallel coordinates have another of that name;
// and so has any other rank, when nobody knows its coordinates.
struct TensorKey {
  std::string name;
  int32_t tensor_parallel = -1, pipeline_parallel = -1, expert_parallel = -1;
  int32_t rank = -1;  // -1: of any rank that is at these coordinates
  auto operator<=>(const TensorKey&) const = default;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TENSOR_KEY_H_
