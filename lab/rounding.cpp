// Rounds fp64 values to a number format: a scalar definition, and vector code with equal results. The header
// foreach_target.h of Highway, a SIMD library, includes this file once for each kind of CPU; HWY_NAMESPACE
// differs each time.
#include "lab/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lab/inputs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/rounding.cpp"
// No FMA: no gain over SSE2, which is compiled. SVE: its vectors cannot be members; NEON is compiled.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace foreshock::lab {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<double>;
using V = hn::Vec<D>;

// Constants of a format. A binade is a power of two, and stands for the numbers from it up to the next one.
struct Bounds {
  V smallest_binade, beyond_largest;  // binade of the smallest normal number; the binade after max_finite's
  V spacing, max_finite;              // spacing: distance of neighbouring numbers between 1 and 2
  V overflow, finite_overflow;        // the results for infinity; for a finite value beyond max_finite
};

Bounds bounds_of(const NumberFormat& format, Rounding rounding) {
  const D d;
  const double overflow = format.overflow_value();
  const double finite = rounding == Rounding::kTowardZero ? format.max_finite : overflow;
  return {hn::Set(d, std::ldexp(1.0, format.min_exponent)),
          hn::Set(d, std::ldexp(1.0, std::ilogb(format.max_finite) + 1)),
          hn::Set(d, std::ldexp(1.0, 1 - format.precision)),
          hn::Set(d, format.max_finite),
          hn::Set(d, overflow),
          hn::Set(d, finite)};
}

// Computes round_scalar() of each element of x, with the element of u as its random number (kStochastic).
template <Rounding kRounding>
V rounded(const Bounds& bounds, V x, V u) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const V magnitude = hn::Abs(x);
  // The exponent field alone is the largest power of two that is at most |x|. Clamped to the format's range,
  // it gives the spacing of the format around x.
  const auto field = hn::And(hn::BitCast(du, x), hn::Set(du, 0x7ff0000000000000u));
  const V binade = hn::Min(hn::Max(hn::BitCast(d, field), bounds.smallest_binade), bounds.beyond_largest);
  const V quantum = hn::Mul(binade, bounds.spacing);
  // 1 / quantum. Bits 52 to 62 of a power of two 2^e store e + 1023, those of 2^-e store 1023 - e: sum 2046.
  const V inverse = hn::BitCast(d, hn::Sub(hn::Set(du, uint64_t{2046} << 52), hn::BitCast(du, quantum)));
  const V steps = hn::Mul(magnitude, inverse);  // |x| in units of the spacing; `whole` is this number rounded
  V whole;
  if constexpr (kRounding == Rounding::kNearestEven) {
    whole = hn::Round(steps);
  } else {
    whole = hn::Trunc(steps);
    if constexpr (kRounding == Rounding::kStochastic) {
      const auto up = hn::Lt(u, hn::Sub(steps, whole));
      whole = hn::Add(whole, hn::IfThenElseZero(up, hn::Set(d, 1.0)));
    }
  }
  V result = hn::Mul(whole, quantum);
  const auto infinite = hn::Eq(magnitude, hn::Set(d, std::numeric_limits<double>::infinity()));
  const V beyond = hn::IfThenElse(infinite, bounds.overflow, bounds.finite_overflow);
  result = hn::IfThenElse(hn::Gt(result, bounds.max_finite), beyond, result);
  return hn::CopySign(result, x);
}

template <Rounding kRounding>
void round_all(const NumberFormat& format, double* values, size_t count, uint64_t key) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const Bounds bounds = bounds_of(format, kRounding);
  HWY_ALIGN double block[hn::MaxLanes(D())];
  HWY_ALIGN double u[hn::MaxLanes(D())] = {};
  for (size_t i = 0; i < count; i += lanes) {
    const size_t filled = std::min(lanes, count - i);
    if constexpr (kRounding == Rounding::kStochastic)
      for (size_t k = 0; k < filled; ++k) u[k] = uniform(key, i + k);
    if (filled == lanes) {  // otherwise the last values do not fill a vector, and are rounded in `block`
      hn::StoreU(rounded<kRounding>(bounds, hn::LoadU(d, values + i), hn::Load(d, u)), d, values + i);
      continue;
    }
    std::fill(block, block + lanes, 0.0);
    std::copy(values + i, values + count, block);
    hn::Store(rounded<kRounding>(bounds, hn::Load(d, block), hn::Load(d, u)), d, block);
    std::copy(block, block + filled, values + i);
  }
}

void round_dispatched(const NumberFormat& format, Rounding rounding, double* values, size_t count,
                      uint64_t key) {
  switch (rounding) {
    case Rounding::kNearestEven:
      return round_all<Rounding::kNearestEven>(format, values, count, key);
    case Rounding::kTowardZero:
      return round_all<Rounding::kTowardZero>(format, values, count, key);
    case Rounding::kStochastic:
      return round_all<Rounding::kStochastic>(format, values, count, key);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock::lab
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock::lab {

HWY_EXPORT(round_dispatched);

std::optional<Rounding> parse_rounding(std::string_view text) {
  for (Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kStochastic})
    if (text == name_of(rounding)) return rounding;
  return std::nullopt;
}

std::string_view name_of(Rounding rounding) {
  constexpr std::string_view kNames[] = {"rne", "rtz", "stochastic"};
  return kNames[static_cast<size_t>(rounding)];
}

double round_scalar(const NumberFormat& format, Rounding rounding, double x, double u) {
  if (format.is_fp64() || std::isnan(x) || x == 0) return x;
  const double overflow = format.overflow_value();
  if (std::isinf(x)) return std::copysign(overflow, x);
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const int quantum_exponent = exponent - (format.precision - 1);  // log2 of the spacing around x
  const double steps = std::ldexp(std::fabs(x), -quantum_exponent);
  double whole = std::trunc(steps);
  const double fraction = steps - whole;
  const bool odd = std::fmod(whole, 2) == 1;
  if (rounding == Rounding::kNearestEven && (fraction > 0.5 || (fraction == 0.5 && odd))) whole += 1;
  if (rounding == Rounding::kStochastic && u < fraction) whole += 1;
  double result = std::ldexp(whole, quantum_exponent);
  if (result > format.max_finite) result = rounding == Rounding::kTowardZero ? format.max_finite : overflow;
  return std::copysign(result, x);
}

void round_to(const NumberFormat& format, Rounding rounding, double* values, size_t count, uint64_t key) {
  if (format.is_fp64()) return;
  HWY_DYNAMIC_DISPATCH(round_dispatched)(format, rounding, values, count, key);
}

}  // namespace foreshock::lab
#endif  // HWY_ONCE
