// The table of accumulators (ways to add the products of a matrix product) and which formats each one takes.
#include "lab/accumulator.h"

#include <array>

namespace foreshock::lab {
namespace {

// Columns: name, kind; of a tensor core: products that one step adds, fraction bits of the terms, fraction
// bits of the new sum, products after which the sum moves to an fp32 register (0: never), fp8 only.
// Sources: arXiv 2511.10909 (MMA-Sim), 2512.07004 (Khattak and Mikaitis), for the move 2412.19437 (DeepSeek).
constexpr std::array<Accumulator, 8> kAccumulators = {{
    {"exact", Accumulation::kExact},
    {"fp64", Accumulation::kFp64},
    {"fp32", Accumulation::kFp32},
    {"ampere", Accumulation::kTensorCore, 8, 24, 23},
    {"hopper", Accumulation::kTensorCore, 16, 25, 23},
    {"hopper_fp8", Accumulation::kTensorCore, 32, 13, 13, 0, true},
    {"hopper_fp8_promoted", Accumulation::kTensorCore, 32, 13, 13, 128, true},
    {"blackwell_fp8", Accumulation::kTensorCore, 32, 25, 23, 0, true},
}};

}  // namespace

std::span<const Accumulator> accumulators() { return kAccumulators; }

std::optional<Accumulator> parse_accumulator(std::string_view name) {
  for (const Accumulator& accumulator : kAccumulators)
    if (accumulator.name == name) return accumulator;
  return std::nullopt;
}

Accumulator natural_accumulator(const NumberFormat& format) {
  return *parse_accumulator(format.precision > 24 ? "fp64" : "fp32");  // fp32 has 24 bits of precision
}

bool accepts(const Accumulator& accumulator, const NumberFormat& format) {
  const Accumulation kind = accumulator.kind;
  if (kind == Accumulation::kExact || kind == Accumulation::kFp64) return true;
  const bool is_subset_of_fp32 = format.precision <= 24 && format.min_exponent >= -126;
  return accumulator.fp8_only ? format.is_fp8() : is_subset_of_fp32;
}

Accumulator for_operands(const Accumulator& accumulator, const NumberFormat& format) {
  Accumulator adapted = accumulator;
  // 32-bit operands halve the products per step. tf32 has 11 bits of precision, but is stored in 32 bits.
  const bool has_32_bits = format.name == "tf32" || format.precision > 11;
  if (adapted.kind == Accumulation::kTensorCore && has_32_bits) adapted.step /= 2;
  return adapted;
}

}  // namespace foreshock::lab
