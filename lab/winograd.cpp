#include <algorithm>
#include <cmath>

#include "lab/convolution.h"

namespace foreshock::lab {
namespace {

// out = at [(g filter g^T) * (bt image bt^T)] at^T per tile; interpolation points as in Lavin and Gray.
struct Transform {
  int tile;  // m: outputs per side
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

// m x m^T, as a kernel does it: along columns, then along rows, in registers.
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

Tensor transformed_filter(const Transform& t, const Tensor& filter, int out, int channel,
                          const Arithmetic& arithmetic) {
  Tensor taps(3, 3);
  std::copy_n(filter.row(out) + channel * 9, 9, taps.data.begin());
  return sandwich(t.g, taps, arithmetic);
}

// The tile whose first output is (y0, x0); zeros beyond the image.
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
  const int channels = image.rows, outs = filter.rows, per_side = (out_side + t.tile - 1) / t.tile;
  const int tiles = per_side * per_side, positions = t.bt.rows * t.bt.rows;

  // One matrix per position of the transformed tile, so that the sum over channels is a matrix product.
  std::vector<Tensor> left(positions, Tensor(outs, channels)), right(positions, Tensor(channels, tiles));
  for (int c = 0; c < channels; ++c) {
    for (int o = 0; o < outs; ++o) {
      const Tensor u = transformed_filter(t, filter, o, c, arithmetic);
      for (int p = 0; p < positions; ++p) left[p].at(o, c) = u.data[p];
    }
    for (int tile = 0; tile < tiles; ++tile) {
      const Tensor v = transformed_image(t, image, side, c, tile / per_side * t.tile,
                                         tile % per_side * t.tile, arithmetic);
      for (int p = 0; p < positions; ++p) right[p].at(c, tile) = v.data[p];
    }
  }
  std::vector<Tensor> products;
  for (int p = 0; p < positions; ++p) {
    arithmetic.cast(left[p]);
    arithmetic.cast(right[p]);
    products.push_back(arithmetic.multiply(left[p], right[p]));
  }
  Tensor out(outs, out_side * out_side);
  for (int o = 0; o < outs; ++o)
    for (int tile = 0; tile < tiles; ++tile) {
      Tensor m(t.bt.rows, t.bt.rows);
      for (int p = 0; p < positions; ++p) m.data[p] = products[p].at(o, tile);
      const Tensor y = sandwich(t.at, m, arithmetic);
      const int y0 = tile / per_side * t.tile, x0 = tile % per_side * t.tile;
      for (int dy = 0; dy < t.tile && y0 + dy < out_side; ++dy)
        for (int dx = 0; dx < t.tile && x0 + dx < out_side; ++dx)
          out.at(o, (y0 + dy) * out_side + x0 + dx) = y.at(dy, dx);
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

}  // namespace foreshock::lab
