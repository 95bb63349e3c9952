// Convolution, softmax, layer norm and cross-entropy in a given arithmetic. arithmetic.store(x) rounds to the
// storage format, cast(x) to the format of a product's operands, in_register(x) to fp32. An image has the
// shape [channels][side * side], the filters [output channels][channels * 3 * 3].
#include "lab/other_operations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lab/algorithm.h"

namespace foreshock::lab {

Tensors convolution_direct(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  const Tensor& image = inputs.at("image");
  Tensor filter = inputs.at("filter");
  const int side = static_cast<int>(std::lround(std::sqrt(image.cols))), out_side = side - 2;
  // Column `pixel` has the input pixels on which output pixel `pixel` depends. Row `tap` has, in column
  // `pixel`, number tap % 9 of the 3 x 3 input pixels in channel tap / 9.
  Tensor patches(image.rows * 9, out_side * out_side);
  for (int tap = 0; tap < patches.rows; ++tap)
    for (int pixel = 0; pixel < patches.cols; ++pixel) {
      const int y = pixel / out_side + tap % 9 / 3, x = pixel % out_side + tap % 3;
      patches.at(tap, pixel) = image.at(tap / 9, y * side + x);
    }
  arithmetic.cast(patches);
  arithmetic.cast(filter);
  Tensor out = arithmetic.multiply(filter, patches);
  arithmetic.store(out);
  return {{"out", std::move(out)}};
}

namespace {

// The matrices of the Winograd convolution of a tile: out = at [(g filter g^T) * (bt image bt^T)] at^T, where
// * is elementwise. g, bt and at are G, B^T and A^T of Lavin and Gray (arXiv 1509.09308).
struct Transform {
  int tile_side;  // outputs per side of a tile
  Tensor bt, g, at;
};

Tensor matrix(int rows, int cols, std::initializer_list<double> values) {
  Tensor m(rows, cols);
  m.data.assign(values);
  return m;
}

Transform f2() {
  return {2, matrix(4, 4, {1, 0, -1, 0, 0, 1, 1, 0, 0, -1, 1, 0, 0, 1, 0, -1}),
          matrix(4, 3, {1, 0, 0, .5, .5, .5, .5, -.5, .5, 0, 0, 1}),
          matrix(2, 4, {1, 1, 1, 0, 0, 1, -1, -1})};
}

Transform f4() {
  return {4, matrix(6, 6, {4, 0,  -5, 0, 1, 0, 0, -4, -4, 1,  1, 0, 0, 4, -4, -1, 1, 0,
                           0, -2, -1, 2, 1, 0, 0, 2,  -1, -2, 1, 0, 0, 4, 0,  -5, 0, 1}),
          matrix(6, 3,
                 {1. / 4, 0, 0, -1. / 6, -1. / 6, -1. / 6, -1. / 6, 1. / 6, -1. / 6, 1. / 24, 1. / 12, 1. / 6,
                  1. / 24, -1. / 12, 1. / 6, 0, 0, 1}),
          matrix(4, 6, {1, 1, 1, 1, 1, 0, 0, 1, -1, 2, -2, 0, 0, 1, 1, 4, 4, 0, 0, 1, -1, 8, -8, 1})};
}

Transform f6() {
  return {6, matrix(8, 8, {1, 0,   -5.25, 0,    5.25,  0,   -1, 0, 0, 1,  1,   -4.25, -4.25, 1,     1, 0,
                           0, -1,  1,     4.25, -4.25, -1,  1,  0, 0, .5, .25, -2.5,  -1.25, 2,     1, 0,
                           0, -.5, .25,   2.5,  -1.25, -2,  1,  0, 0, 2,  4,   -2.5,  -5,    .5,    1, 0,
                           0, -2,  4,     2.5,  -5,    -.5, 1,  0, 0, -1, 0,   5.25,  0,     -5.25, 0, 1}),
          matrix(8, 3, {1,        0,       0,        -2. / 9,   -2. / 9, -2. / 9,  -2. / 9, 2. / 9,
                        -2. / 9,  1. / 90, 1. / 45,  2. / 45,   1. / 90, -1. / 45, 2. / 45, 32. / 45,
                        16. / 45, 8. / 45, 32. / 45, -16. / 45, 8. / 45, 0,        0,       1}),
          matrix(6, 8, {1, 1, 1, 1,  1,  1,     1,     0, 0, 1, -1, 2,  -2,  .5,     -.5,     0,
                        0, 1, 1, 4,  4,  .25,   .25,   0, 0, 1, -1, 8,  -8,  .125,   -.125,   0,
                        0, 1, 1, 16, 16, .0625, .0625, 0, 0, 1, -1, 32, -32, .03125, -.03125, 1})};
}

// Computes m x m^T in registers, first along columns, then along rows, as kernels do.
Tensor sandwich(const Tensor& m, const Tensor& x, const Arithmetic& arithmetic) {
  Tensor half(m.rows, x.cols), whole(m.rows, m.rows);
  for (int i = 0; i < m.rows; ++i)
    for (int j = 0; j < x.cols; ++j)
      for (int k = 0; k < m.cols; ++k)
        half.at(i, j) = arithmetic.in_register(std::fma(m.at(i, k), x.at(k, j), half.at(i, j)));
  for (int i = 0; i < m.rows; ++i)
    for (int j = 0; j < m.rows; ++j)
      for (int k = 0; k < m.cols; ++k)
        whole.at(i, j) = arithmetic.in_register(std::fma(half.at(i, k), m.at(j, k), whole.at(i, j)));
  return whole;
}

// The transformed 3 x 3 filter of an output channel and an input channel.
Tensor transformed_filter(const Transform& t, const Tensor& filter, int out_channel, int channel,
                          const Arithmetic& arithmetic) {
  Tensor taps(3, 3);
  std::copy_n(filter.row(out_channel) + channel * 9, 9, taps.data.begin());
  return sandwich(t.g, taps, arithmetic);
}

// The transformed input of the tile whose first output is (y0, x0); pixels beyond the image are zero.
Tensor transformed_image(const Transform& t, const Tensor& image, int side, int channel, int y0, int x0,
                         const Arithmetic& arithmetic) {
  const int width = t.bt.rows;
  Tensor patch(width, width);
  for (int y = 0; y < width && y0 + y < side; ++y)
    for (int x = 0; x < width && x0 + x < side; ++x)
      patch.at(y, x) = image.at(channel, (y0 + y) * side + x0 + x);
  return sandwich(t.bt, patch, arithmetic);
}

Tensors winograd(const Transform& t, const Tensors& inputs, Arithmetic& arithmetic) {
  const Tensor &image = inputs.at("image"), &filter = inputs.at("filter");
  const int side = static_cast<int>(std::lround(std::sqrt(image.cols))), out_side = side - 2;
  const int channels = image.rows, out_channels = filter.rows,
            tiles_per_side = (out_side + t.tile_side - 1) / t.tile_side;
  const int tiles = tiles_per_side * tiles_per_side, positions = t.bt.rows * t.bt.rows;

  // One matrix per position of the transformed tile, so that the sum over channels is a matrix product.
  std::vector<Tensor> left(positions, Tensor(out_channels, channels)),
      right(positions, Tensor(channels, tiles));
  for (int c = 0; c < channels; ++c) {
    for (int o = 0; o < out_channels; ++o) {
      const Tensor transformed = transformed_filter(t, filter, o, c, arithmetic);
      for (int p = 0; p < positions; ++p) left[p].at(o, c) = transformed.data[p];
    }
    for (int tile = 0; tile < tiles; ++tile) {
      const int y0 = tile / tiles_per_side * t.tile_side, x0 = tile % tiles_per_side * t.tile_side;
      const Tensor transformed = transformed_image(t, image, side, c, y0, x0, arithmetic);
      for (int p = 0; p < positions; ++p) right[p].at(c, tile) = transformed.data[p];
    }
  }
  std::vector<Tensor> products;
  for (int p = 0; p < positions; ++p) {
    arithmetic.cast(left[p]);
    arithmetic.cast(right[p]);
    products.push_back(arithmetic.multiply(left[p], right[p]));
  }
  Tensor out(out_channels, out_side * out_side);
  for (int o = 0; o < out_channels; ++o)
    for (int tile = 0; tile < tiles; ++tile) {
      Tensor product(t.bt.rows, t.bt.rows);
      for (int p = 0; p < positions; ++p) product.data[p] = products[p].at(o, tile);
      const Tensor outputs = sandwich(t.at, product, arithmetic);
      const int y0 = tile / tiles_per_side * t.tile_side, x0 = tile % tiles_per_side * t.tile_side;
      for (int dy = 0; dy < t.tile_side && y0 + dy < out_side; ++dy)
        for (int dx = 0; dx < t.tile_side && x0 + dx < out_side; ++dx)
          out.at(o, (y0 + dy) * out_side + x0 + dx) = outputs.at(dy, dx);
    }
  arithmetic.store(out);
  return {{"out", std::move(out)}};
}

}  // namespace

Tensors winograd_f2(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return winograd(f2(), inputs, arithmetic);
}
Tensors winograd_f4(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return winograd(f4(), inputs, arithmetic);
}
Tensors winograd_f6(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return winograd(f6(), inputs, arithmetic);
}

namespace {

// Replaces row i of x by exp(x - maximum) / sum.
void normalise(Tensor& x, int i, double maximum, double sum, const Arithmetic& arithmetic) {
  for (int j = 0; j < x.cols; ++j)
    x.at(i, j) = arithmetic.in_register(arithmetic.exp(arithmetic.in_register(x.at(i, j) - maximum)) / sum);
}

}  // namespace

Tensors softmax_two_pass(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  Tensor out = inputs.at("logits");
  for (int i = 0; i < out.rows; ++i) {
    const double maximum = Arithmetic::row_max(out, i);
    double sum = 0;
    for (int j = 0; j < out.cols; ++j)
      sum = arithmetic.in_register(sum + arithmetic.exp(arithmetic.in_register(out.at(i, j) - maximum)));
    normalise(out, i, maximum, sum, arithmetic);
  }
  arithmetic.store(out);
  return {{"out", std::move(out)}};
}

Tensors softmax_online(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  Tensor out = inputs.at("logits");
  for (int i = 0; i < out.rows; ++i) {
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int first = 0; first < out.cols; first += settings.tiling.block_k) {
      const int end = std::min(first + settings.tiling.block_k, out.cols);
      const double raised = std::max(maximum, *std::max_element(out.row(i) + first, out.row(i) + end));
      double part = 0;  // the block's sum of exp(logit - raised); `sum` is scaled to `raised` below
      for (int j = first; j < end; ++j)
        part = arithmetic.in_register(part + arithmetic.exp(arithmetic.in_register(out.at(i, j) - raised)));
      const double scaled = arithmetic.store(arithmetic.store(arithmetic.exp(maximum - raised)) * sum);
      sum = arithmetic.store(scaled + arithmetic.store(part));
      maximum = raised;
    }
    normalise(out, i, maximum, sum, arithmetic);
  }
  arithmetic.store(out);
  return {{"out", std::move(out)}};
}

namespace {

constexpr double kEpsilon = 1e-5;  // PyTorch's default

struct Moments {
  double mean, variance;
};

using MomentsOf = Moments (*)(const double* x, int count, const Arithmetic& arithmetic);

Moments two_pass_moments(const double* x, int count, const Arithmetic& arithmetic) {
  double sum = 0, squares = 0;
  for (int j = 0; j < count; ++j) sum = arithmetic.in_register(sum + x[j]);
  const double mean = arithmetic.in_register(sum / count);
  for (int j = 0; j < count; ++j) {
    const double centred = arithmetic.in_register(x[j] - mean);
    squares = arithmetic.in_register(squares + arithmetic.in_register(centred * centred));
  }
  return {mean, arithmetic.in_register(squares / count)};
}

Moments fused_moments(const double* x, int count, const Arithmetic& arithmetic) {
  double sum = 0, squares = 0;
  for (int j = 0; j < count; ++j) {
    sum = arithmetic.in_register(sum + x[j]);
    squares = arithmetic.in_register(squares + arithmetic.in_register(x[j] * x[j]));
  }
  const double mean = arithmetic.in_register(sum / count);
  const double square_of_mean = arithmetic.in_register(mean * mean);
  const double variance = arithmetic.in_register(arithmetic.in_register(squares / count) - square_of_mean);
  return {mean, variance > 0 ? variance : 0};  // cancellation can make it negative
}

Moments welford_moments(const double* x, int count, const Arithmetic& arithmetic) {
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
  return layer_norm(two_pass_moments, inputs, arithmetic);
}
Tensors layer_norm_fused(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return layer_norm(fused_moments, inputs, arithmetic);
}
Tensors layer_norm_welford(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return layer_norm(welford_moments, inputs, arithmetic);
}

namespace {

// Where an intermediate result is kept: stored in the format, or in a register.
enum class Keep { kStored, kRegister };

Tensor logits_of(const Tensors& inputs, Keep keep, Arithmetic& arithmetic) {
  Tensor hidden = inputs.at("hidden"), classes = inputs.at("classes");
  arithmetic.cast(hidden);
  arithmetic.cast(classes);
  Tensor logits = arithmetic.multiply(hidden, transposed(classes));
  for (double& x : logits.data) x = arithmetic.in_register(x);
  if (keep == Keep::kStored) arithmetic.store(logits);
  return logits;
}

// Returns the log-sum-exp of row i, by chunks of columns. `keep`: where maximum and sum are between chunks.
double log_sum_exp_of(const Tensor& logits, int i, int chunk, Keep keep, Arithmetic& arithmetic) {
  const auto kept = [&](double x) {
    return keep == Keep::kStored ? arithmetic.store(x) : arithmetic.in_register(x);
  };
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int first = 0; first < logits.cols; first += chunk) {
    const int end = std::min(first + chunk, logits.cols);
    const double chunk_maximum = *std::max_element(logits.row(i) + first, logits.row(i) + end);
    const double raised = std::max(maximum, kept(chunk_maximum));
    double part = 0;
    for (int j = first; j < end; ++j)
      part = arithmetic.in_register(part + arithmetic.exp(arithmetic.in_register(logits.at(i, j) - raised)));
    sum = kept(kept(kept(arithmetic.exp(maximum - raised)) * sum) + kept(part));
    maximum = raised;
  }
  return arithmetic.in_register(maximum + std::log(sum));
}

// Returns loss and gradient of `hidden`. `keep`: see log_sum_exp_of(). Replaces the logits by their gradient.
Tensors loss_and_gradient(Tensor& logits, int chunk, Keep keep, const Tensors& inputs,
                          Arithmetic& arithmetic) {
  Tensor loss(logits.rows, 1);
  for (int i = 0; i < logits.rows; ++i) {
    const int label = static_cast<int>(inputs.at("label").at(i, 0));
    const double log_sum_exp = log_sum_exp_of(logits, i, chunk, keep, arithmetic);
    loss.at(i, 0) = arithmetic.in_register(log_sum_exp - logits.at(i, label));
    for (int j = 0; j < logits.cols; ++j)
      logits.at(i, j) = arithmetic.exp(arithmetic.in_register(logits.at(i, j) - log_sum_exp));
    logits.at(i, label) = arithmetic.in_register(logits.at(i, label) - 1);
  }
  arithmetic.cast(logits);
  Tensor classes = inputs.at("classes");
  arithmetic.cast(classes);
  Tensor grad_hidden = arithmetic.multiply(logits, classes);
  arithmetic.store(grad_hidden);
  return {{"loss", std::move(loss)}, {"grad_hidden", std::move(grad_hidden)}};
}

}  // namespace

Tensors cross_entropy_plain(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  Tensor logits = logits_of(inputs, Keep::kStored, arithmetic);
  return loss_and_gradient(logits, logits.cols, Keep::kRegister, inputs, arithmetic);
}

Tensors cross_entropy_chunked(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  Tensor logits = logits_of(inputs, Keep::kRegister, arithmetic);
  return loss_and_gradient(logits, settings.tiling.block_k, Keep::kRegister, inputs, arithmetic);
}

Tensors cross_entropy_chunked_reimplemented(const Tensors& inputs, const Settings& settings,
                                            Arithmetic& arithmetic) {
  Tensor logits = logits_of(inputs, Keep::kRegister, arithmetic);
  return loss_and_gradient(logits, settings.tiling.block_k, Keep::kStored, inputs, arithmetic);
}

}  // namespace foreshock::lab
