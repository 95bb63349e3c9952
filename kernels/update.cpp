#include "kernels/update.h"

#include <algorithm>
#include <cmath>

namespace foreshock {
namespace {

// Independent chains, so that the compiler may keep them in vector registers without reordering a sum.
constexpr size_t kChains = 8;

template <class Load>
Update sums(size_t count, const Load& load) {
  double magnitude[kChains] = {}, squares[kChains] = {}, after_squares[kChains] = {}, most[kChains] = {};
  const auto add = [&](size_t n, size_t chain) {
    const double after = load.after(n), d = std::fabs(after - load.before(n));
    magnitude[chain] += d;
    squares[chain] += d * d;
    after_squares[chain] += after * after;
    most[chain] = most[chain] < d ? d : most[chain];
  };
  size_t n = 0;
  for (; n + kChains <= count; n += kChains)
    for (size_t chain = 0; chain < kChains; ++chain) add(n + chain, chain);
  for (; n < count; ++n) add(n, 0);
  Update update;
  for (size_t chain = 0; chain < kChains; ++chain) {
    update.sum_magnitude += magnitude[chain];
    update.sum_squares += squares[chain];
    update.sum_squares_after += after_squares[chain];
    update.max_magnitude = std::max(update.max_magnitude, most[chain]);
  }
  if (std::isnan(update.sum_magnitude)) update.max_magnitude = update.sum_magnitude;  // NaN compares as less
  return update;
}

struct LoadFp32 {
  const float *a, *b;
  double before(size_t n) const { return a[n]; }
  double after(size_t n) const { return b[n]; }
};
template <float (*kConvert)(uint16_t)>
struct Load16 {
  const uint16_t *a, *b;
  double before(size_t n) const { return kConvert(a[n]); }
  double after(size_t n) const { return kConvert(b[n]); }
};

}  // namespace

Update update_between(const void* before, const void* after, DType type, size_t count) {
  const auto *a = static_cast<const uint16_t*>(before), *b = static_cast<const uint16_t*>(after);
  switch (type) {
    case DType::kFp32:
      return sums(count, LoadFp32{static_cast<const float*>(before), static_cast<const float*>(after)});
    case DType::kBf16:
      return sums(count, Load16<bf16_to_float>{a, b});
    case DType::kFp16:
      return sums(count, Load16<fp16_to_float>{a, b});
    default:
      return {};
  }
}

}  // namespace foreshock
