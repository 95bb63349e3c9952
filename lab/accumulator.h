// Describes how units that multiply matrices (hardware, or a loop) add up the products: in which order, and
// with which roundings. Tensor cores of several GPU generations are among them.
#ifndef FORESHOCK_LAB_ACCUMULATOR_H_
#define FORESHOCK_LAB_ACCUMULATOR_H_

#include <optional>
#include <span>
#include <string_view>

#include "lab/number_format.h"

namespace foreshock::lab {

enum class Accumulation {
  kExact,       // the exact sum, rounded once to fp64
  kFp64,        // a chain of fp64 fused multiply-adds, in the order of the products
  kFp32,        // a chain of fp32 fused multiply-adds, in the order of the products
  kTensorCore,  // fused steps of several products (tensor_core.h)
};

struct Accumulator {
  std::string_view name;
  Accumulation kind;
  // For kTensorCore only. A step adds `step` products to the running sum. Its terms are the products and the
  // old sum. They are truncated to `fraction_bits` bits below the largest exponent among them. The new sum is
  // truncated to `output_bits` fraction bits.
  int step = 0;
  int fraction_bits = 0;
  int output_bits = 0;
  int promotion = 0;      // after so many products the running sum moves to an fp32 register; 0: never
  bool fp8_only = false;  // the unit takes only fp8 operands
};

// Returns exact, fp64, fp32, ampere, hopper, hopper_fp8, hopper_fp8_promoted and blackwell_fp8.
std::span<const Accumulator> accumulators();
std::optional<Accumulator> parse_accumulator(std::string_view name);

// Returns the default accumulator: fp64 for formats of more than 24 bits of precision, else fp32.
Accumulator natural_accumulator(const NumberFormat& format);

// Whether the unit takes operands of `format`. kExact and kFp64 take all formats, units with fp8_only take
// fp8. kFp32 and other tensor cores take formats whose numbers are all fp32 numbers.
bool accepts(const Accumulator& accumulator, const NumberFormat& format);

// Returns `accumulator` for operands of `format`: a tensor core has half the `step` for fp32 and tf32.
Accumulator for_operands(const Accumulator& accumulator, const NumberFormat& format);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ACCUMULATOR_H_
