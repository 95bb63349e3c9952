#include "lab/attention.h"
#include "lab/flash2_registers.h"

namespace foreshock::lab {

Tensors flash2_cast_sum(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_kernel(inputs, settings, {.sum_after_cast = true}, arithmetic);
}

}  // namespace foreshock::lab
