// The natural logarithm, as a fixed sequence of IEEE operations, so that it gives the same bits on every
// machine, while C libraries differ in the last bits.
#ifndef FORESHOCK_KERNELS_LOGARITHM_H_
#define FORESHOCK_KERNELS_LOGARITHM_H_

#include <cmath>
#include <limits>

namespace foreshock {

// ln 2 is the sum of these two. The high part has 21 trailing zero bits, so its product with an exponent is
// exact.
inline constexpr double kLn2High = 6.93147180369123816490e-01;
inline constexpr double kLn2Low = 1.90821492927058770002e-10;

// Returns log(x); -Inf for 0; NaN for NaN and x < 0. Computes it as exponent * ln 2 + log f, where x = f *
// 2^exponent with f in [sqrt 1/2, sqrt 2), and log f = 2 (s + s^3 / 3 + ... + s^25 / 25), where
// s = (f - 1) / (f + 1), |s| <= 0.1716. The first omitted term, s^27 / 27, is < 2^-70 |s|.
inline double log_nonnegative(double x) {
  if (x == 0) return -std::numeric_limits<double>::infinity();
  if (!(x > 0)) return std::numeric_limits<double>::quiet_NaN();
  if (x == std::numeric_limits<double>::infinity()) return x;
  int exponent;
  double f = std::frexp(x, &exponent);
  if (f < 0.70710678118654752) {
    f *= 2;
    --exponent;
  }
  const double s = (f - 1) / (f + 1);
  const double s2 = s * s;
  double series = 0;
  for (int k = 25; k >= 3; k -= 2) series = std::fma(series, s2, 1.0 / k);
  const double log_f = std::fma(2 * s * s2, series, 2 * s);
  return std::fma(exponent, kLn2High, std::fma(exponent, kLn2Low, log_f));
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_LOGARITHM_H_
