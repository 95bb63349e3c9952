// Random inputs of the lab's algorithms, by distribution ("law"). Each number is a function of a key, derived
// from the seed, and a counter, so the inputs do not depend on threads, and a report's seed reproduces them.
#ifndef FORESHOCK_LAB_INPUTS_H_
#define FORESHOCK_LAB_INPUTS_H_

#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>

#include "lab/algorithm.h"
#include "lab/number_format.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// One step of SplitMix64 (Steele, Lea, Flood 2014): a bijection. Each output bit depends on all input bits.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t random_bits(uint64_t key, uint64_t counter) { return mix(mix(key) ^ counter); }

// Uniform on [0, 1), a multiple of 2^-53.
constexpr double uniform(uint64_t key, uint64_t counter) {
  return static_cast<double>(random_bits(key, counter) >> 11) * 0x1p-53;
}

// Standard normal (Box-Muller); uses the counters 2 * counter and 2 * counter + 1 of the key.
inline double normal(uint64_t key, uint64_t counter) {
  const double radius = std::sqrt(-2 * std::log1p(-uniform(key, 2 * counter)));
  return radius * std::cos(2 * std::numbers::pi * uniform(key, 2 * counter + 1));
}

// A distribution of inputs. Outside of attention, one_signed, flat and ties are as normal. grad_out is normal
// unless noted otherwise. The laws by name:
// - normal: N(0, 1)
// - uniform: U(0, 1)
// - outlier: N(0, 1) + N(0, 100) * Bernoulli(0.001), as in FlashAttention-3's error table (arXiv 2407.08608)
// - one_signed: as normal, but value in (-1.5, -0.5] and grad_out negative
// - flat: as normal, but query * 3e-4: scores are so close that exp(score - maximum) rounds to 1 in bf16
// - shifted: N(32, 1), with a mean far above the standard deviation
// - ties:T[:GAP]: T keys of each row share the maximum score. With a GAP, only one of the T keys has the
//   maximum, and the scores of the T - 1 others are less by GAP, 0 < GAP < 1. The keys that do not tie have
//   together a softmax weight of 2e-4. value and grad_out are as in one_signed. Needs d >= 1 and T <= n.
struct InputLaw {
  enum class Kind { kNormal, kUniform, kOutlier, kOneSigned, kFlat, kShifted, kTies };
  Kind kind = Kind::kNormal;
  int ties = 0;    // kTies: T
  double gap = 0;  // kTies: GAP, in nats; 0: all T keys share the maximum
  std::string name = "normal";
};

std::optional<InputLaw> parse_input_law(std::string_view text);

struct Shape {
  Family family = Family::kAttention;
  int rows = 128;  // attention: query rows; convolution: output channels; else rows
  int n = 1024;    // attention: keys; convolution: side of the image; cross-entropy: classes; else columns
  int d = 64;      // attention: head dimension; convolution: channels
};

// The inputs of the family, rounded to `storage` (except labels). Before rounding they do not depend on it.
// `query_scale` multiplies the first input of the family: query, image, logits, input, hidden or left.
Tensors make_inputs(const Shape& shape, const InputLaw& law, double query_scale, uint64_t seed,
                    const NumberFormat& storage);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_INPUTS_H_
