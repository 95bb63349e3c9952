// Weights as a trainer describes them.
#ifndef FORESHOCK_TESTS_LIBMONITOR_DESCRIBED_WEIGHTS_H_
#define FORESHOCK_TESTS_LIBMONITOR_DESCRIBED_WEIGHTS_H_

#include "foreshock/hook.h"

namespace foreshock {

inline foreshock_weight named(const char* name, int64_t rows, int64_t columns) {
  foreshock_weight weight = {};
  weight.size = sizeof weight;
  weight.version = FORESHOCK_ABI_VERSION;
  weight.name = name;
  weight.layer = "000";
  for (int n = 0; n < FORESHOCK_TENSOR_DIMS; ++n) weight.shape[n] = weight.part[n] = 1;
  weight.shape[0] = weight.part[0] = rows;
  weight.shape[1] = weight.part[1] = columns;
  weight.dims = 2;
  return weight;
}

inline foreshock_weight_state state_of(uint32_t number, const void* data, int64_t rows, int64_t columns,
                                       uint32_t dtype = FORESHOCK_FP32) {
  foreshock_weight_state state = {};
  state.size = sizeof state;
  state.version = FORESHOCK_ABI_VERSION;
  state.number = number;
  state.parameter = {data, {rows, columns, 1, 1}, {columns, 1, 1, 1}, dtype, 2, FORESHOCK_DEVICE_CPU, 0};
  return state;
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_DESCRIBED_WEIGHTS_H_
