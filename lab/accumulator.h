// Accumulators: how units that multiply matrices (hardware, or a loop) add the products: order and roundings.
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
  // kTensorCore only. One step adds `step` products to the running sum: these terms are truncated to
  // `fraction_bits` bits below the largest exponent among them, the new sum to `output_bits` fraction bits.
  int step = 0;
  int fraction_bits = 0;
  int output_bits = 0;
  int promotion = 0;      // after so many products the running sum moves to an fp32 register; 0: never
  bool fp8_only = false;  // the unit takes fp8 operands and no others
};

// Returns exact, fp64, fp32, ampere, hopper, hopper_fp8, hopper_fp8_promoted and blackwell_fp8.
std::span<const Accumulator> accumulators();
std::optional<Accumulator> parse_accumulator(std::string_view name);

// Returns the default accumulator: fp64 for formats of more than 24 bits of precision, else fp32.
Accumulator natural_accumulator(const NumberFormat& format);

// Whether the unit takes operands of `format`. fp32 chains and tensor cores take formats within fp32, units
// with fp8_only take fp8, kExact and kFp64 take all formats.
bool accepts(const Accumulator& accumulator, const NumberFormat& format);

// Returns `accumulator` for operands of `format`: for 32 bits (and tf32) with half the step of a tensor core.
Accumulator for_operands(const Accumulator& accumulator, const NumberFormat& format);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ACCUMULATOR_H_
