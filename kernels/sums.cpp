// Sums over tensors in host memory (sums.h): squares, the change by one optimizer step, statistics of Adam,
// and a checksum. The order of additions, and so each bit of the results, does not depend on the machine.
#include "kernels/sums.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

namespace foreshock {
namespace {

// Loads `count` elements, `stride` apart, as fp64. The loop for stride 1 is separate, to be vectorized.
template <class T, class Convert>
void load(const T* from, int64_t stride, size_t count, double* to, Convert convert) {
  if (stride == 1) {
    for (size_t n = 0; n < count; ++n) to[n] = convert(from[n]);
  } else {
    for (size_t n = 0; n < count; ++n) to[n] = convert(from[static_cast<int64_t>(n) * stride]);
  }
}

}  // namespace

void load_block(const TensorView& tensor, int64_t first, int64_t stride, size_t count, double* to) {
  switch (tensor.dtype) {
    case DType::kFp64:
      return load(static_cast<const double*>(tensor.data) + first, stride, count, to,
                  [](double x) { return x; });
    case DType::kFp32:
      return load(static_cast<const float*>(tensor.data) + first, stride, count, to,
                  [](float x) { return static_cast<double>(x); });
    case DType::kBf16:
      return load(static_cast<const uint16_t*>(tensor.data) + first, stride, count, to,
                  [](uint16_t x) { return static_cast<double>(bf16_to_float(x)); });
    case DType::kFp16:
      return load(static_cast<const uint16_t*>(tensor.data) + first, stride, count, to,
                  [](uint16_t x) { return static_cast<double>(fp16_to_float(x)); });
    default:
      for (size_t n = 0; n < count; ++n) to[n] = 0;
  }
}

bool is_jointly_dense(const TensorView& a, const TensorView& b) {
  // Takes the dimensions one by one, the innermost in memory first. None may leave a gap to the ones taken.
  int64_t filled = 1;  // number of elements of the dimensions taken so far
  bool taken[4] = {};
  for (int count = 0; count < 4; ++count) {
    int next = -1;
    for (int n = 0; n < 4; ++n) {
      if (a.shape[n] != b.shape[n]) return false;
      if (!taken[n] && (a.shape[n] == 1 || (a.stride[n] == filled && b.stride[n] == filled))) next = n;
    }
    if (next < 0) return false;
    taken[next] = true;
    filled *= a.shape[next];
  }
  return true;
}

namespace {

// Each sum has eight independent partial sums ("chains"), which the compiler may keep in vector registers.
constexpr size_t kChains = 8;

template <class T, class Convert>
double sum_squares(const void* data, size_t count, Convert convert) {
  const T* from = static_cast<const T*>(data);
  double chain[kChains] = {};
  const auto add = [&](size_t n, size_t c) {
    const double x = convert(from[n]);
    chain[c] += x * x;
  };
  size_t n = 0;
  for (; n + kChains <= count; n += kChains)
    for (size_t c = 0; c < kChains; ++c) add(n + c, c);
  for (; n < count; ++n) add(n, 0);
  double total = 0;
  for (double part : chain) total += part;
  return total;
}

}  // namespace

double sum_of_squares(const void* data, DType type, size_t count) {
  switch (type) {
    case DType::kFp64:
      return sum_squares<double>(data, count, [](double x) { return x; });
    case DType::kFp32:
      return sum_squares<float>(data, count, [](float x) { return static_cast<double>(x); });
    case DType::kBf16:
      return sum_squares<uint16_t>(data, count, [](uint16_t x) { return double{bf16_to_float(x)}; });
    case DType::kFp16:
      return sum_squares<uint16_t>(data, count, [](uint16_t x) { return double{fp16_to_float(x)}; });
    default:
      return 0;
  }
}

namespace {

// Adds up the changes of the weights from load.before(n) to load.after(n).
template <class Load>
Update sum_update(size_t count, const Load& load) {
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
  if (std::isnan(update.sum_magnitude)) update.max_magnitude = update.sum_magnitude;  // `most < d` misses NaN
  return update;
}

struct LoadFp32 {
  const float *old_values, *new_values;
  double before(size_t n) const { return old_values[n]; }
  double after(size_t n) const { return new_values[n]; }
};
template <float (*kConvert)(uint16_t)>
struct Load16 {
  const uint16_t *old_values, *new_values;
  double before(size_t n) const { return kConvert(old_values[n]); }
  double after(size_t n) const { return kConvert(new_values[n]); }
};

}  // namespace

Update update_between(const void* before, const void* after, DType type, size_t count) {
  const auto *a = static_cast<const uint16_t*>(before), *b = static_cast<const uint16_t*>(after);
  switch (type) {
    case DType::kFp32:
      return sum_update(count, LoadFp32{static_cast<const float*>(before), static_cast<const float*>(after)});
    case DType::kBf16:
      return sum_update(count, Load16<bf16_to_float>{a, b});
    case DType::kFp16:
      return sum_update(count, Load16<fp16_to_float>{a, b});
    default:
      return {};
  }
}

void add_gradient_sums(const TensorView& gradient, GradientSums* sums) {
  for_each_joint_block(gradient, gradient, [&](const double* g, const double* /*same*/, size_t n) {
    GradientSums of_block;
    for (size_t i = 0; i < n; ++i) of_block.add(g[i]);
    sums->add(of_block);
  });
}

namespace {

// Returns base^n for n >= 0, with the same bits on every machine, which pow() does not guarantee. The
// relative error is below n * 2^-53. So for Adam's beta2 and step t, 1 - beta2^t has a relative error below
// 2^-53 * t beta2^t / (1 - beta2^t), which is less than 2^-53 / (1 - beta2), since 1 - beta2^t is 1 - beta2
// times 1 + beta2 + ... + beta2^(t - 1), and each of these t terms exceeds beta2^t.
double power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

// Sums f(0) .. f(n - 1) in kChains chains. A loop makes only one sum, so that its chains stay in registers.
template <class Function>
double sum(size_t n, const Function& f) {
  double chain[kChains] = {};
  size_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (size_t k = 0; k < kChains; ++k) chain[k] += f(i + k);
  }
  for (; i < n; ++i) chain[i % kChains] += f(i);
  double total = 0;
  for (double part : chain) total += part;
  return total;
}

// Counts the i < n for which f(i) is true. Counts in fp64, which is exact, so that sum() can be used.
template <class Function>
uint64_t count(size_t n, const Function& f) {
  return static_cast<uint64_t>(sum(n, [&f](size_t i) { return f(i) ? 1.0 : 0.0; }));
}

// Counts the elements that the sums leave out: if g is not finite, or v is negative or not finite.
void count_unusable(const double* g, const double* v, size_t n, AdamSums* block) {
  block->nonfinite_gradient = count(n, [&](size_t i) { return g[i] * 0 != 0; });  // NaN or Inf times 0 is NaN
  block->unusable_state = count(n, [&](size_t i) { return !is_usable(/*g=*/0, v[i]); });
}

// Adds n <= kJointBlock elements (g: gradient, v: second moment). For an unusable element adam_element()
// returns values with which it adds nothing to any sum, and only to the two counts of unusable elements.
void add_block(const double* g, const double* v, size_t n, const AdamConstants& c, AdamSums* sums) {
  double square[kJointBlock], corrected[kJointBlock], moment[kJointBlock];  // g^2, bias-corrected v, v
  for (size_t i = 0; i < n; ++i) {
    const AdamElement element = adam_element(g[i], v[i], c);
    square[i] = element.square;
    moment[i] = element.moment;
    corrected[i] = element.corrected;
  }
  AdamSums block;
  block.counted = count(n, [&](size_t i) { return is_counted(corrected[i]); });
  if (block.counted != n) count_unusable(g, v, n, &block);
  block.staleness = sum(n, [&](size_t i) { return staleness_of(square[i], corrected[i], c); });
  block.epsilon_dominated = count(n, [&](size_t i) { return corrected[i] < c.eps_squared; });
  block.gradient_squares = sum(n, [&](size_t i) { return square[i]; });
  if (c.old_moment_factor > 0) {  // v has a part from earlier steps, with which g^2 is compared
    block.surprised = count(n, [&](size_t i) { return is_surprising(square[i], moment[i], c); });
    block.surprise_counted = block.counted;
  }
  sums->add(block);
}

}  // namespace

AdamConstants adam_constants(const AdamStep& step) {
  const double eps_squared = step.eps * step.eps;
  // old_moment_factor times the bias-corrected v is the part of v from earlier steps (AdamConstants).
  return {.correction = 1 / (1 - power(step.beta2, step.step)),
          .eps_squared = eps_squared,
          .floor = eps_squared > DBL_MIN ? eps_squared : DBL_MIN,
          .new_share = 1 - step.beta2,
          .old_moment_factor = step.beta2 * (1 - power(step.beta2, step.step - 1))};
}

void add_adam_sums(const TensorView& gradient, const TensorView& second_moment, const AdamStep& step,
                   AdamSums* sums) {
  if (step.step < 1 || !(step.beta2 >= 0 && step.beta2 < 1) || !(step.eps >= 0)) return;
  const AdamConstants c = adam_constants(step);
  for_each_joint_block(gradient, second_moment,
                       [&](const double* g, const double* v, size_t n) { add_block(g, v, n, c, sums); });
}

namespace {

// The checksum is the sum of the 32-bit words, each multiplied by its factor. The factor of word n,
// checksum_factor(n), is checksum_factor(0) + n * kStride modulo 2^32.
constexpr uint32_t kStride = checksum_factor(1) - checksum_factor(0);
constexpr size_t kBlock = 1024;  // words

}  // namespace

uint64_t checksum(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  uint64_t sum = 0;
  uint32_t first = checksum_factor(0);  // the factor of the word at `at`
  size_t words = bytes / sizeof(uint32_t);
  // Each factor of a block is computed from the first one, so that the compiler vectorizes the inner loop.
  for (; words >= kBlock; words -= kBlock, at += kBlock * sizeof(uint32_t)) {
    uint32_t block[kBlock];
    std::memcpy(block, at, sizeof block);
    for (uint32_t n = 0; n < kBlock; ++n) sum += uint64_t{block[n]} * (first + n * kStride);
    first += static_cast<uint32_t>(kBlock) * kStride;
  }
  for (; words > 0; --words, at += sizeof(uint32_t), first += kStride) {
    uint32_t word;
    std::memcpy(&word, at, sizeof word);
    sum += uint64_t{word} * first;
  }
  uint32_t rest = 0;  // the last word if it is incomplete, filled up with zeros
  if (const size_t tail = bytes % sizeof(uint32_t); tail > 0) std::memcpy(&rest, at, tail);
  return sum + uint64_t{rest} * first;
}

}  // namespace foreshock
