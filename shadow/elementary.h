// Elementary functions of the reference (attention in fp64): exponential, soft cap and shift of scores. With
// the logarithm of kernels/logarithm.h they are fixed sequences of IEEE operations, so they give the same
// bits on every machine, while C libraries differ in the last bits. rows_in_lanes-inl.h has the same
// exponential and soft cap for vectors, with the constants of this file.
#ifndef FORESHOCK_SHADOW_ELEMENTARY_H_
#define FORESHOCK_SHADOW_ELEMENTARY_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/logarithm.h"

namespace foreshock {

// exp(x) = 2^n exp(r) with x = n ln 2 + r and |r| <= ln 2 / 2. ln 2 is the sum of a high and a low part. The
// high part has 21 trailing zero bits, so n times it is exact.
inline constexpr double kLog2E = 1.4426950408889634;
// Taylor series of exp(r). The first omitted term, r^13 / 13!, is at most 0.76 * 2^-52 (if |r| = ln 2 / 2).
inline constexpr double kExpCoefficient[13] = {
    1,          1,           1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,      1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
// A smaller x is replaced by this number, whose exp is less than half of the smallest subnormal and thus +0.
inline constexpr double kExpArgumentMin = -746.0;
// Adding this number to x / ln 2 rounds x / ln 2 to a whole number n, and leaves n + 1023 + 512, the biased
// exponent of 2^(n + 512), in the low bits of the sum. 2^(n + 512) is a normal number for every n in use, so
// exp(r) * 2^(n + 512) is exact. Only its product with 2^-512 can round: once, also for a subnormal result.
inline constexpr double kExpRoundToInteger = 0x1.8p52 + 1023 + 512;
inline constexpr double kExpUnscale = 0x1p-512;

// exp(x) is (1 + fraction) * power * kExpUnscale: fraction is exp(r) - 1, power is 2^(n + 512).
struct ExpParts {
  double fraction, power;
};

// Computes the parts of exp(x) for x <= 0. exp(r) is 1 + r + r^2 tail; the terms of `tail`, c[2] to c[12],
// are summed in pairs (Estrin's scheme).
inline ExpParts exp_parts(double x) {
  x = x < kExpArgumentMin ? kExpArgumentMin : x;
  const double biased = std::fma(x, kLog2E, kExpRoundToInteger);
  const double n = biased - kExpRoundToInteger;
  double r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  const double* c = kExpCoefficient;
  const double r2 = r * r;
  const double r4 = r2 * r2;
  const double c23 = std::fma(c[3], r, c[2]);
  const double c45 = std::fma(c[5], r, c[4]);
  const double c67 = std::fma(c[7], r, c[6]);
  const double c89 = std::fma(c[9], r, c[8]);
  const double c1011 = std::fma(c[11], r, c[10]);
  const double low = std::fma(c45, r2, c23);
  const double middle = std::fma(c89, r2, c67);
  const double high = std::fma(c[12], r2, c1011);
  const double tail = std::fma(std::fma(high, r4, middle), r4, low);
  const double power = std::bit_cast<double>(std::bit_cast<uint64_t>(biased) << 52);
  return {std::fma(r2, tail, r), power};
}

// Returns exp(x) for x <= 0; 0 for x <= -746; NaN for NaN. The error is below 3 units in the last place.
inline double exp_nonpositive(double x) {
  const ExpParts parts = exp_parts(x);
  return (parts.fraction + 1.0) * parts.power * kExpUnscale;
}

// Returns exp(x) for x of any sign; Inf if it overflows.
inline double exp_of_any_sign(double x) { return x > 0 ? 1 / exp_nonpositive(-x) : exp_nonpositive(x); }

// A score cap * tanh(product / cap), and its derivative with respect to the product, 1 - tanh^2.
struct CappedScore {
  double score, slope;
};

// Applies a soft cap. With x = -2 |product| / cap, n and r as above, and E = exp(x) - 1 = 2^n (exp(r) - 1) +
// (2^n - 1):
//   tanh = -E / (2 + E) with the sign of the product,   1 - tanh^2 = 4 exp(x) / (2 + E)^2
// Neither cancels: for small products E is the polynomial itself, and for large ones exp(x) keeps its
// relative precision. Errors in u = 2^-53, relative: the polynomial's truncation, at most r^13 / 13! < 1.6 u,
// is below 5.2 u of E, which is at least 0.29 in size where |r| is largest; with the roundings of the
// polynomial and of the sum E has an error below 7 u. Division by 2 + E adds a fifth of it there, and as much
// as E's own error of below 2 u where E is near -1. With 3 more roundings (product / cap, sum, division) tanh
// is within 2^-49 (16 u). So is the slope: exp has 6 u, (2 + E)^2 twice 2 u, and there are 4 roundings.
inline CappedScore soft_capped(double product, double cap) {
  const double y = product / cap;
  const ExpParts parts = exp_parts(-2 * std::fabs(y));
  const double unit = parts.power * kExpUnscale;
  const double minus_one = std::fma(unit, parts.fraction, unit - 1);
  const double divisor = 2 + minus_one;
  const double exponential = (parts.fraction + 1.0) * parts.power * kExpUnscale;
  return {cap * std::copysign(-minus_one / divisor, y), 4 * exponential / (divisor * divisor)};
}

// Returns the number to subtract from the scores before exp: the maximum, or 0 for a row without keys, so
// that its weights are exp(-Inf) = 0 and not NaN.
inline double shift_of(double max) { return max == -std::numeric_limits<double>::infinity() ? 0.0 : max; }

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_ELEMENTARY_H_
