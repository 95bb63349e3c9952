// Accumulators: the orders and roundings in which a unit (hardware, or a loop) that multiplies matrices adds.
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
  // kTensorCore only. One step adds `step` products to the accumulator: the terms are truncated to
  // `fraction_bits` bits below the largest exponent among them, the sum to `output_bits` fraction bits.
  int step = 0;
  int fraction_bits = 0;
  int output_bits = 0;
  int promotion = 0;      // products after which the partial sum is added to an fp32 register; 0: never
  bool fp8_only = false;  // the unit takes fp8 operands and no others
};

// exact, fp64, fp32, ampere, hopper, hopper_fp8, hopper_fp8_promoted, blackwell_fp8.
std::span<const Accumulator> accumulators();
std::optional<Accumulator> parse_accumulator(std::string_view name);

// The accumulator if none is chosen: fp64 for formats of more than 24 bits of precision, else fp32.
Accumulator natural_accumulator(const NumberFormat& format);

// Whether the unit takes operands of `format`: fp32 chains and tensor cores subsets of fp32, fp8 units fp8.
bool accepts(const Accumulator& accumulator, const NumberFormat& format);

// `accumulator`, adapted to operands of `format`. With 32-bit operands a tensor core adds half as many
// products in a step.
Accumulator for_operands(const Accumulator& accumulator, const NumberFormat& format);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ACCUMULATOR_H_
