// Algorithm 1 of FlashAttention (arXiv 2205.14135), one rounding per elementwise operation.
#include <algorithm>
#include <limits>

#include "lab/attention.h"
#include "lab/attention_backward.h"
#include "lab/attention_operands.h"

namespace foreshock::lab {
namespace {

struct RowState {
  double maximum = -std::numeric_limits<double>::infinity();
  double sum = 0;
};

// What one tile contributes: P relative to the tile's own maxima, their sums, and P . value.
struct Tile {
  std::vector<double> maxima, sums;
  Tensor out;
};

Tile tile_of(const Tensor& query, const Tensor& key, const Tensor& value, double scale,
             Arithmetic& arithmetic) {
  Tensor scores = arithmetic.multiply(query, transposed(key));
  arithmetic.store(scores);
  for (double& s : scores.data) s *= scale;
  arithmetic.store(scores);
  Tile tile;
  for (int i = 0; i < scores.rows; ++i) {
    tile.maxima.push_back(Arithmetic::row_max(scores, i));
    for (int j = 0; j < scores.cols; ++j) scores.at(i, j) -= tile.maxima[i];
  }
  arithmetic.store(scores);
  for (double& s : scores.data) s = std::exp(s);
  arithmetic.store(scores);
  for (int i = 0; i < scores.rows; ++i) tile.sums.push_back(arithmetic.store(arithmetic.row_sum(scores, i)));
  arithmetic.cast(scores);
  tile.out = arithmetic.multiply(scores, value);
  arithmetic.store(tile.out);
  return tile;
}

// exp(x - y), difference and exponential stored; 0 for the first tile, where x is -infinity.
double stored_exp(double x, double y, Arithmetic& arithmetic) {
  return arithmetic.store(std::exp(arithmetic.store(x - y)));
}

// out = (old_sum * out + tile_weight * tile.out) / sum, every product, sum and quotient stored.
void update(std::vector<RowState>& state, Tile& tile, Tensor& out, Arithmetic& arithmetic) {
  for (int i = 0; i < out.rows; ++i) {
    const double maximum = std::max(state[i].maximum, tile.maxima[i]);
    const double old_weight = stored_exp(state[i].maximum, maximum, arithmetic);
    const double tile_weight = stored_exp(tile.maxima[i], maximum, arithmetic);
    const double old_sum = arithmetic.store(old_weight * state[i].sum);
    state[i] = {maximum, arithmetic.store(old_sum + arithmetic.store(tile_weight * tile.sums[i]))};
    for (int c = 0; c < out.cols; ++c) {
      out.at(i, c) *= old_sum;
      tile.out.at(i, c) *= tile_weight;
    }
  }
  arithmetic.store(out);
  arithmetic.store(tile.out);
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] += tile.out.data[i];
  arithmetic.store(out);
  for (int i = 0; i < out.rows; ++i)
    for (int c = 0; c < out.cols; ++c) out.at(i, c) /= state[i].sum;
  arithmetic.store(out);
}

}  // namespace

Tensors flash_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  const AttentionOperands x = attention_operands(inputs, settings, arithmetic);
  const Tiling& tiling = settings.tiling;
  Tensor out(x.query.rows, x.value.cols), log_sum_exp(x.query.rows, 1);
  for (int row = 0; row < out.rows; row += tiling.block_q) {
    const int end = std::min(row + tiling.block_q, out.rows);
    const Tensor query = rows_of(x.query, row, end);
    std::vector<RowState> state(end - row);
    Tensor running(end - row, out.cols);
    for (int first : key_tiles(x.key.rows, tiling)) {
      const int last = std::min(first + tiling.block_k, x.key.rows);
      Tile tile = tile_of(query, rows_of(x.key, first, last), rows_of(x.value, first, last), x.score_scale,
                          arithmetic);
      update(state, tile, running, arithmetic);
    }
    for (int i = 0; i < running.rows; ++i) {
      for (int c = 0; c < out.cols; ++c) out.at(row + i, c) = running.at(i, c) * x.value_scale;
      log_sum_exp.at(row + i, 0) = arithmetic.store(state[i].maximum + std::log(state[i].sum));
    }
  }
  arithmetic.store(out);
  Tensors results{{"out", std::move(out)}, {"log_sum_exp", std::move(log_sum_exp)}};
  if (settings.backward) attention_backward(inputs, settings, State::kFormat, arithmetic, results);
  return results;
}

}  // namespace foreshock::lab
