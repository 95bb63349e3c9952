#include "lab/accumulator.h"

#include <array>

namespace foreshock::lab {
namespace {

// Steps and widths are from MMA-Sim (arXiv 2511.10909) and from Khattak and Mikaitis (arXiv 2512.07004).
// hopper_fp8_promoted adds the 13-bit sum to an fp32 register every 128 products, as DeepSeek-V3 (arXiv
// 2412.19437) does in software.
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
  return *parse_accumulator(format.precision > 24 ? "fp64" : "fp32");
}

bool accepts(const Accumulator& accumulator, const NumberFormat& format) {
  switch (accumulator.kind) {
    case Accumulation::kExact:
    case Accumulation::kFp64:
      return true;
    case Accumulation::kFp32:
      return format.precision <= 24 && format.min_exponent >= -126;
    case Accumulation::kTensorCore:
      return accumulator.fp8_only ? format.is_fp8() : format.precision <= 24 && format.min_exponent >= -126;
  }
  return false;
}

Accumulator for_operands(const Accumulator& accumulator, const NumberFormat& format) {
  Accumulator unit = accumulator;
  const bool wide = format.name == "tf32" || format.precision > 11;
  if (unit.kind == Accumulation::kTensorCore && wide) unit.step /= 2;
  return unit;
}

}  // namespace foreshock::lab
