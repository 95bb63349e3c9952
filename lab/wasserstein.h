// The Wasserstein distance W1 of two weighted samples of numbers, by sorting. Slow and simple: the tests
// compare the histogram methods with it.
#ifndef FORESHOCK_LAB_WASSERSTEIN_H_
#define FORESHOCK_LAB_WASSERSTEIN_H_

#include <span>

namespace foreshock::lab {

// W1 = integral of |F - G|, where F and G are the distribution functions of x and y. Weights must be
// positive; none means equal weights. NaN if a sample is empty or has a NaN.
double wasserstein(std::span<const double> x, std::span<const double> y,
                   std::span<const double> x_weights = {}, std::span<const double> y_weights = {});

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_WASSERSTEIN_H_
