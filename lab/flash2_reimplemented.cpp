#include <algorithm>
#include <limits>

#include "lab/attention.h"
#include "lab/attention_backward.h"
#include "lab/attention_operands.h"
#include "lab/flash2_state.h"

namespace foreshock::lab {
namespace {

struct Running {
  std::vector<double> maximum, sum;
  Tensor out;  // not yet divided by the sum
};

// P relative to the running maximum, which the tile may raise; returns the weight the old state gets.
std::vector<double> raise_maximum(Tensor& scores, Running& running, TileMaximum tile_maximum,
                                  Arithmetic& arithmetic) {
  std::vector<double> old_weight;
  for (int i = 0; i < scores.rows; ++i) {
    const double maximum = std::max(running.maximum[i], arithmetic.store(tile_maximum(scores, i)));
    const double fall = arithmetic.store(running.maximum[i] - maximum);
    old_weight.push_back(arithmetic.store(std::exp(fall)));
    running.maximum[i] = maximum;
    for (int j = 0; j < scores.cols; ++j) scores.at(i, j) -= maximum;
  }
  arithmetic.store(scores);
  for (double& s : scores.data) s = std::exp(s);
  arithmetic.store(scores);
  return old_weight;
}

void add_tile(Tensor& scores, const Tensor& value, TileMaximum tile_maximum, Running& running,
              Arithmetic& arithmetic) {
  const std::vector<double> old_weight = raise_maximum(scores, running, tile_maximum, arithmetic);
  for (int i = 0; i < scores.rows; ++i) {
    const double tile_sum = arithmetic.store(arithmetic.row_sum(scores, i));
    running.sum[i] = arithmetic.store(arithmetic.store(old_weight[i] * running.sum[i]) + tile_sum);
    for (int c = 0; c < running.out.cols; ++c) running.out.at(i, c) *= old_weight[i];
  }
  arithmetic.store(running.out);
  arithmetic.cast(scores);
  Tensor tile_out = arithmetic.multiply(scores, value);
  arithmetic.store(tile_out);
  for (size_t i = 0; i < tile_out.data.size(); ++i) running.out.data[i] += tile_out.data[i];
  arithmetic.store(running.out);
}

}  // namespace

Tensors flash2_state_in_format(const Tensors& inputs, const Settings& settings, TileMaximum tile_maximum,
                               Arithmetic& arithmetic) {
  const AttentionOperands x = attention_operands(inputs, settings, arithmetic);
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
      arithmetic.store(scores);
      for (double& s : scores.data) s *= x.score_scale;
      arithmetic.store(scores);
      add_tile(scores, rows_of(x.value, first, last), tile_maximum, running, arithmetic);
    }
    for (int i = 0; i < running.out.rows; ++i) {
      for (int c = 0; c < out.cols; ++c)
        out.at(row + i, c) = running.out.at(i, c) / running.sum[i] * x.value_scale;
      log_sum_exp.at(row + i, 0) = arithmetic.store(running.maximum[i] + std::log(running.sum[i]));
    }
  }
  arithmetic.store(out);
  Tensors results{{"out", std::move(out)}, {"log_sum_exp", std::move(log_sum_exp)}};
  if (settings.backward) attention_backward(inputs, settings, State::kFormat, arithmetic, results);
  return results;
}

Tensors flash2_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_state_in_format(inputs, settings, Arithmetic::row_max, arithmetic);
}

}  // namespace foreshock::lab
