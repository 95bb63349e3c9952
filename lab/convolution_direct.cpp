#include <cmath>

#include "lab/convolution.h"

namespace foreshock::lab {

Tensors convolution_direct(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  const Tensor& image = inputs.at("image");
  Tensor filter = inputs.at("filter");
  const int side = static_cast<int>(std::lround(std::sqrt(image.cols))), out_side = side - 2;
  Tensor patches(image.rows * 9, out_side * out_side);
  for (int tap = 0; tap < patches.rows; ++tap)
    for (int at = 0; at < patches.cols; ++at) {
      const int y = at / out_side + tap % 9 / 3, x = at % out_side + tap % 3;
      patches.at(tap, at) = image.at(tap / 9, y * side + x);
    }
  arithmetic.cast(patches);
  arithmetic.cast(filter);
  Tensor out = arithmetic.multiply(filter, patches);
  arithmetic.store(out);
  return {{"out", std::move(out)}};
}

}  // namespace foreshock::lab
