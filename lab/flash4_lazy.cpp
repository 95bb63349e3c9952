#include "lab/attention.h"
#include "lab/flash2_registers.h"

namespace foreshock::lab {

Tensors flash4_lazy(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  // P may exceed 1 by the threshold: P <= 1 is no invariant of such a kernel.
  return flash2_kernel(inputs, settings, {.lazy_log2 = 8}, arithmetic);
}

}  // namespace foreshock::lab
