#include "kernels/adam_sums.h"

#include <cfloat>

#include "kernels/adam_element.h"
#include "kernels/joint_blocks.h"

namespace foreshock {
namespace {

constexpr size_t kChains = 8;

// base^n for n >= 0, the same bits everywhere, which pow of a C library does not promise. Relative error
// below n * 2^-53, so that of 1 - beta2^t is below 2^-53 * t beta2^t / (1 - beta2^t) < 2^-53 / (1 - beta2).
double power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

// A sum over f(0) .. f(n - 1) in kChains chains. One sum at a time, so that its chains stay in vector
// registers.
template <class Function>
double sum(size_t n, const Function& f) {
  double chain[kChains] = {};
  size_t at = 0;
  for (; at + kChains <= n; at += kChains) {
    for (size_t k = 0; k < kChains; ++k) chain[k] += f(at + k);
  }
  for (; at < n; ++at) chain[at % kChains] += f(at);
  double total = 0;
  for (double part : chain) total += part;
  return total;
}

// The same of what is true; the counts are kept in fp64 as well: exact, and one kind of arithmetic.
template <class Function>
uint64_t count(size_t n, const Function& f) {
  return static_cast<uint64_t>(sum(n, [&f](size_t i) { return f(i) ? 1.0 : 0.0; }));
}

// What is left out, which is rare.
void count_unusable(const double* g, const double* v, size_t n, AdamSums* block) {
  block->nonfinite_gradient = count(n, [&](size_t i) { return g[i] * 0 != 0; });
  block->unusable_state = count(n, [&](size_t i) { return !is_usable(0, v[i]); });
}

void add_block(const double* g, const double* v, size_t n, const AdamConstants& c, AdamSums* sums) {
  double square[kJointBlock], corrected[kJointBlock], moment[kJointBlock];
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
  if (c.before > 0) {
    block.surprised = count(n, [&](size_t i) { return is_surprising(square[i], moment[i], c); });
    block.surprise_counted = block.counted;
  }
  sums->add(block);
}

}  // namespace

AdamConstants adam_constants(const AdamStep& step) {
  const double eps_squared = step.eps * step.eps;
  return {.correction = 1 / (1 - power(step.beta2, step.step)),
          .eps_squared = eps_squared,
          .floor = eps_squared > DBL_MIN ? eps_squared : DBL_MIN,
          .new_share = 1 - step.beta2,
          .before = step.beta2 * (1 - power(step.beta2, step.step - 1))};
}

void add_adam_sums(const TensorView& gradient, const TensorView& second_moment, const AdamStep& step,
                   AdamSums* sums) {
  if (step.step < 1 || !(step.beta2 >= 0 && step.beta2 < 1) || !(step.eps >= 0)) return;
  const AdamConstants c = adam_constants(step);
  for_each_joint_block(gradient, second_moment,
                       [&](const double* g, const double* v, size_t n) { add_block(g, v, n, c, sums); });
}

}  // namespace foreshock
