#include <algorithm>
#include <limits>
#include <numbers>

#include "lab/attention.h"
#include "lab/attention_backward.h"
#include "lab/attention_operands.h"
#include "lab/flash2_registers.h"

namespace foreshock::lab {
namespace {

// Kernels fold log2(e) into the scale and use exp2, so maxima and scores here are in powers of two.
struct Running {
  std::vector<double> maximum, sum;
  Tensor out;
};

struct Operands {
  Tensor query, key, value;
  std::vector<double> query_scale, key_scale, value_scale;  // one per row
};

Operands operands_of(const Tensors& inputs, const Settings& settings, const FlashKernel& kernel,
                     Arithmetic& arithmetic) {
  Operands x{inputs.at("query"), inputs.at("key"), inputs.at("value"), {}, {}, {}};
  const Tiling& tiling = settings.tiling;
  x.query_scale = quantise(arithmetic, x.query, kernel.scale_per_tile ? tiling.block_q : x.query.rows);
  x.key_scale = quantise(arithmetic, x.key, kernel.scale_per_tile ? tiling.block_k : x.key.rows);
  x.value_scale = quantise(arithmetic, x.value, kernel.scale_per_tile ? tiling.block_k : x.value.rows);
  return x;
}

double raised(double old_maximum, double tile_maximum, const FlashKernel& kernel) {
  return tile_maximum > old_maximum + kernel.lazy_log2 ? tile_maximum : old_maximum;
}

// Scores in powers of two become P; sums and the old output are brought to the new maximum.
void add_tile(Tensor& scores, const Tensor& value, double value_scale, const FlashKernel& kernel,
              Running& running, Arithmetic& arithmetic) {
  std::vector<double> tile_sum(scores.rows);
  for (int i = 0; i < scores.rows; ++i) {
    const double maximum = raised(running.maximum[i], Arithmetic::row_max(scores, i), kernel);
    const double old_weight =
        arithmetic.in_register(std::exp2(arithmetic.in_register(running.maximum[i] - maximum)));
    running.maximum[i] = maximum;
    for (int j = 0; j < scores.cols; ++j) {
      const double exponent = arithmetic.in_register(scores.at(i, j) - maximum + kernel.shift_log2);
      scores.at(i, j) = arithmetic.in_register(std::exp2(exponent));
    }
    tile_sum[i] = arithmetic.row_sum(scores, i);
    running.sum[i] = arithmetic.in_register(running.sum[i] * old_weight);
    for (int c = 0; c < running.out.cols; ++c)
      running.out.at(i, c) = arithmetic.in_register(running.out.at(i, c) * old_weight);
  }
  arithmetic.cast(scores);
  for (int i = 0; i < scores.rows; ++i) {
    if (kernel.sum_after_cast) tile_sum[i] = arithmetic.row_sum(scores, i);
    running.sum[i] = arithmetic.in_register(running.sum[i] + tile_sum[i]);
  }
  if (value_scale == 1) return arithmetic.multiply_add(scores, value, running.out);
  const Tensor tile_out = arithmetic.multiply(scores, value);  // a scaled tile cannot share the accumulator
  for (size_t i = 0; i < tile_out.data.size(); ++i)
    running.out.data[i] =
        arithmetic.in_register(running.out.data[i] + arithmetic.in_register(tile_out.data[i] * value_scale));
}

}  // namespace

Tensors flash2_in_registers(const Tensors& inputs, const Settings& settings, const FlashKernel& kernel,
                            Arithmetic& arithmetic) {
  const Operands x = operands_of(inputs, settings, kernel, arithmetic);
  const Tiling& tiling = settings.tiling;
  Tensor out(x.query.rows, x.value.cols), log_sum_exp(x.query.rows, 1);
  for (int row = 0; row < out.rows; row += tiling.block_q) {
    const int end = std::min(row + tiling.block_q, out.rows);
    const Tensor query = rows_of(x.query, row, end);
    Running running{std::vector<double>(end - row, -std::numeric_limits<double>::infinity()),
                    std::vector<double>(end - row, 0), Tensor(end - row, out.cols)};
    for (int first : key_tiles(x.key.rows, tiling)) {
      const int last = std::min(first + tiling.block_k, x.key.rows);
      Tensor scores = arithmetic.multiply(query, transposed(rows_of(x.key, first, last)));
      const double scale = arithmetic.in_register(settings.scale * x.query_scale[row] * x.key_scale[first] *
                                                  std::numbers::log2e);
      for (double& s : scores.data) s = arithmetic.in_register(s * scale);
      add_tile(scores, rows_of(x.value, first, last), x.value_scale[first], kernel, running, arithmetic);
    }
    for (int i = 0; i < running.out.rows; ++i) {
      const double inverse = arithmetic.in_register(1 / running.sum[i]);
      for (int c = 0; c < out.cols; ++c)
        out.at(row + i, c) = arithmetic.in_register(running.out.at(i, c) * inverse);
      log_sum_exp.at(row + i, 0) = arithmetic.in_register(
          (running.maximum[i] - kernel.shift_log2) * std::numbers::ln2 + std::log(running.sum[i]));
    }
  }
  return {{"out", std::move(out)}, {"log_sum_exp", std::move(log_sum_exp)}};
}

Tensors flash2_kernel(const Tensors& inputs, const Settings& settings, const FlashKernel& kernel,
                      Arithmetic& arithmetic) {
  Tensors results = flash2_in_registers(inputs, settings, kernel, arithmetic);
  arithmetic.store(results.at("out"));
  if (settings.backward) attention_backward(inputs, settings, State::kRegisters, arithmetic, results);
  return results;
}

Tensors flash2_shipped(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_kernel(inputs, settings, {}, arithmetic);
}

}  // namespace foreshock::lab
