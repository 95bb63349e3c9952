// Accumulators: the orders and roundings in which a matrix multiplication sums its products.
#ifndef FORESHOCK_LAB_ACCUMULATOR_H_
#define FORESHOCK_LAB_ACCUMULATOR_H_

#include <optional>
#include <span>
#include <string_view>

#include "lab/number_format.h"

namespace foreshock::lab {

enum class Accumulation {
  kExact,       // the exact sum, rounded once to fp64
  kFp64,        // a chain of fp64 fused multiply-adds in the order of k
  kFp32,        // a chain of fp32 fused multiply-adds in the order of k
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

// The accumulator for operands of `format`: fp64 for fp64, fp32 for the rest.
Accumulator natural_accumulator(const NumberFormat& format);

// Whether the unit exists for operands of `format` (tensor cores take no fp64, fp8 units only fp8).
bool accepts(const Accumulator& accumulator, const NumberFormat& format);

// `accumulator`, adapted to operands of `format`. With 32-bit operands a tensor core adds half as many
// products in a step.
Accumulator for_operands(const Accumulator& accumulator, const NumberFormat& format);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ACCUMULATOR_H_
