// The Wasserstein distances of two weighted samples on the line, by sorting: slow and obvious, the truth that
// counting methods are held to, and the paper's second yardstick.
#ifndef FORESHOCK_LAB_WASSERSTEIN_H_
#define FORESHOCK_LAB_WASSERSTEIN_H_

#include <span>

namespace foreshock::lab {

// W1 = integral of |F - G|, F and G the distribution functions of x and y. Weights are per value, positive,
// normalised here; empty: all equal. NaN if a sample is empty or holds a NaN.
double wasserstein(std::span<const double> x, std::span<const double> y,
                   std::span<const double> x_weights = {}, std::span<const double> y_weights = {});

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_WASSERSTEIN_H_
