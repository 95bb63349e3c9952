#include "lab/attention.h"
#include "lab/flash2_registers.h"

namespace foreshock::lab {

Tensors flash3_fp8(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  const bool fp8 = arithmetic.format().is_fp8();  // in wider formats it is flash2_shipped
  return flash2_kernel(inputs, settings, {.shift_log2 = fp8 ? 8.0 : 0.0, .scale_per_tile = fp8}, arithmetic);
}

}  // namespace foreshock::lab
