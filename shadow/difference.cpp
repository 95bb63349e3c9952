// Sums the magnitudes and squares of the differences b[n] - a[n] of two arrays, block by block. A block is
// summed in vectors (Highway compiles sum_vectors() once per instruction set); a block with a value that is
// not finite, pair by pair. A switch's default case is bf16, the only other floating type.
#include "shadow/difference.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shadow/difference.cpp"
#include "hwy/foreach_target.h"
// must follow foreach_target.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace foreshock {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Lanes = hn::ScalableTag<double>;
template <class Stored>
using Narrow = hn::Rebind<Stored, Lanes>;

// Loads one vector of values, as many as there are fp64 lanes, and converts them exactly.
template <DType kType>
hn::Vec<Lanes> load(const char* at) {
  const Lanes d;
  if constexpr (kType == DType::kFp64) {
    return hn::LoadU(d, reinterpret_cast<const double*>(at));
  } else if constexpr (kType == DType::kFp32) {
    return hn::PromoteTo(d, hn::LoadU(Narrow<float>(), reinterpret_cast<const float*>(at)));
  } else if constexpr (kType == DType::kFp16) {
    const auto half = hn::LoadU(Narrow<hwy::float16_t>(), reinterpret_cast<const hwy::float16_t*>(at));
    return hn::PromoteTo(d, hn::PromoteTo(Narrow<float>(), half));
  } else {
    const auto bits = hn::LoadU(Narrow<uint16_t>(), reinterpret_cast<const uint16_t*>(at));
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(Narrow<uint32_t>(), bits));
    return hn::PromoteTo(d, hn::BitCast(Narrow<float>(), wide));
  }
}

// Sums the first `count` pairs; the caller sets sums->pairs. `count` must be a multiple of the values in two
// vectors. Each sum has two accumulators, so that an addition need not wait for the previous one. If a value
// is not finite, sum_magnitude is not finite either. of_a0, of_a1: sums of the squares of a.
template <DType kA, DType kB>
void sum_pairs(const char* a, const char* b, size_t count, Difference* sums) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  auto magnitude0 = hn::Zero(d), magnitude1 = hn::Zero(d), squares0 = hn::Zero(d), squares1 = hn::Zero(d);
  auto of_a0 = hn::Zero(d), of_a1 = hn::Zero(d), max = hn::Zero(d);
  for (size_t n = 0; n < count; n += 2 * lanes) {
    const auto a0 = load<kA>(a + n * size_of(kA)), a1 = load<kA>(a + (n + lanes) * size_of(kA));
    const auto d0 = hn::Abs(hn::Sub(load<kB>(b + n * size_of(kB)), a0));
    const auto d1 = hn::Abs(hn::Sub(load<kB>(b + (n + lanes) * size_of(kB)), a1));
    magnitude0 = hn::Add(magnitude0, d0);
    magnitude1 = hn::Add(magnitude1, d1);
    squares0 = hn::MulAdd(d0, d0, squares0);
    squares1 = hn::MulAdd(d1, d1, squares1);
    of_a0 = hn::MulAdd(a0, a0, of_a0);
    of_a1 = hn::MulAdd(a1, a1, of_a1);
    max = hn::Max(max, hn::Max(d0, d1));
  }
  sums->sum_magnitude = hn::GetLane(hn::SumOfLanes(d, hn::Add(magnitude0, magnitude1)));
  sums->sum_squares = hn::GetLane(hn::SumOfLanes(d, hn::Add(squares0, squares1)));
  sums->sum_squares_of_a = hn::GetLane(hn::SumOfLanes(d, hn::Add(of_a0, of_a1)));
  sums->max_magnitude = hn::GetLane(hn::MaxOfLanes(d, max));
}

template <DType kA>
void sum_pairs_with(DType b_type, const char* a, const char* b, size_t count, Difference* sums) {
  switch (b_type) {
    case DType::kFp64:
      return sum_pairs<kA, DType::kFp64>(a, b, count, sums);
    case DType::kFp32:
      return sum_pairs<kA, DType::kFp32>(a, b, count, sums);
    case DType::kFp16:
      return sum_pairs<kA, DType::kFp16>(a, b, count, sums);
    default:
      return sum_pairs<kA, DType::kBf16>(a, b, count, sums);
  }
}

// Sums whole groups of two vectors. Returns the number of pairs summed; the pairs after these remain.
size_t sum_vectors(const char* a, DType a_type, const char* b, DType b_type, size_t count, Difference* sums) {
  const size_t whole = count - count % (2 * hn::Lanes(Lanes()));
  switch (a_type) {
    case DType::kFp64:
      sum_pairs_with<DType::kFp64>(b_type, a, b, whole, sums);
      break;
    case DType::kFp32:
      sum_pairs_with<DType::kFp32>(b_type, a, b, whole, sums);
      break;
    case DType::kFp16:
      sum_pairs_with<DType::kFp16>(b_type, a, b, whole, sums);
      break;
    default:
      sum_pairs_with<DType::kBf16>(b_type, a, b, whole, sums);
  }
  return whole;
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock {
namespace {

HWY_EXPORT(sum_vectors);

// Elements per block. If a block has a value that is not finite, all its elements are summed again, one by
// one, which is expensive for a larger block. A smaller block would add up the lanes of vectors more often.
constexpr size_t kBlock = 4096;

Difference one_by_one(const char* a, DType type_a, const char* b, DType type_b, size_t first, size_t end) {
  Difference sums;
  for (size_t n = first; n < end; ++n) {
    const double x = load_as_double(a, type_a, n), y = load_as_double(b, type_b, n);
    if (!std::isfinite(x) || !std::isfinite(y)) {
      ++sums.non_finite;
      continue;
    }
    const double d = std::fabs(y - x);
    ++sums.pairs;
    sums.sum_magnitude += d;
    sums.sum_squares += d * d;
    sums.sum_squares_of_a += x * x;
    sums.max_magnitude = std::max(sums.max_magnitude, d);
  }
  return sums;
}

Difference of_block(const char* a, DType type_a, const char* b, DType type_b, size_t count) {
  Difference sums;
  const size_t done = HWY_DYNAMIC_DISPATCH(sum_vectors)(a, type_a, b, type_b, count, &sums);
  // If a value is not finite, its difference is infinite or NaN, and so is the sum.
  if (!std::isfinite(sums.sum_magnitude)) return one_by_one(a, type_a, b, type_b, 0, count);
  sums.pairs = done;
  sums.add(one_by_one(a, type_a, b, type_b, done, count));
  return sums;
}

}  // namespace

void Difference::add(const Difference& other) {
  pairs += other.pairs;
  non_finite += other.non_finite;
  sum_magnitude += other.sum_magnitude;
  sum_squares += other.sum_squares;
  sum_squares_of_a += other.sum_squares_of_a;
  max_magnitude = std::max(max_magnitude, other.max_magnitude);
}

double Difference::mean_magnitude() const { return sum_magnitude / static_cast<double>(pairs); }

double Difference::relative_l2() const { return std::sqrt(sum_squares) / std::sqrt(sum_squares_of_a); }

Difference difference(const void* a, DType type_a, const void* b, DType type_b, size_t count) {
  const char *at_a = static_cast<const char*>(a), *at_b = static_cast<const char*>(b);
  Difference sums;
  for (size_t n = 0; n < count; n += kBlock)
    sums.add(of_block(at_a + n * size_of(type_a), type_a, at_b + n * size_of(type_b), type_b,
                      std::min(kBlock, count - n)));
  return sums;
}

}  // namespace foreshock
#endif  // HWY_ONCE
