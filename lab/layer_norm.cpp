#include "lab/reductions.h"

namespace foreshock::lab {
namespace {

constexpr double kEpsilon = 1e-5;  // PyTorch's default

struct Moments {
  double mean, variance;
};

using MomentsOf = Moments (*)(const double* x, int count, const Arithmetic& arithmetic);

Moments two_pass(const double* x, int count, const Arithmetic& arithmetic) {
  double sum = 0, squares = 0;
  for (int j = 0; j < count; ++j) sum = arithmetic.in_register(sum + x[j]);
  const double mean = arithmetic.in_register(sum / count);
  for (int j = 0; j < count; ++j) {
    const double centred = arithmetic.in_register(x[j] - mean);
    squares = arithmetic.in_register(squares + arithmetic.in_register(centred * centred));
  }
  return {mean, arithmetic.in_register(squares / count)};
}

Moments fused(const double* x, int count, const Arithmetic& arithmetic) {
  double sum = 0, squares = 0;
  for (int j = 0; j < count; ++j) {
    sum = arithmetic.in_register(sum + x[j]);
    squares = arithmetic.in_register(squares + arithmetic.in_register(x[j] * x[j]));
  }
  const double mean = arithmetic.in_register(sum / count);
  const double square_of_mean = arithmetic.in_register(mean * mean);
  const double variance = arithmetic.in_register(arithmetic.in_register(squares / count) - square_of_mean);
  return {mean, variance > 0 ? variance : 0};  // cancellation can leave less than nothing
}

Moments welford(const double* x, int count, const Arithmetic& arithmetic) {
  double mean = 0, squares = 0;
  for (int j = 0; j < count; ++j) {
    const double before = arithmetic.in_register(x[j] - mean);
    mean = arithmetic.in_register(mean + arithmetic.in_register(before / (j + 1)));
    const double after = arithmetic.in_register(x[j] - mean);
    squares = arithmetic.in_register(squares + arithmetic.in_register(before * after));
  }
  return {mean, arithmetic.in_register(squares / count)};
}

Tensors layer_norm(MomentsOf moments_of, const Tensors& inputs, Arithmetic& arithmetic) {
  Tensor out = inputs.at("input");
  for (int i = 0; i < out.rows; ++i) {
    const Moments moments = moments_of(out.row(i), out.cols, arithmetic);
    const double inverse = arithmetic.in_register(1 / std::sqrt(moments.variance + kEpsilon));
    for (int j = 0; j < out.cols; ++j)
      out.at(i, j) = arithmetic.in_register(arithmetic.in_register(out.at(i, j) - moments.mean) * inverse);
  }
  arithmetic.store(out);
  return {{"out", std::move(out)}};
}

}  // namespace

Tensors layer_norm_two_pass(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return layer_norm(two_pass, inputs, arithmetic);
}
Tensors layer_norm_fused(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return layer_norm(fused, inputs, arithmetic);
}
Tensors layer_norm_welford(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return layer_norm(welford, inputs, arithmetic);
}

}  // namespace foreshock::lab
