// The tiled attention algorithms that the lab measures (attention.h): FlashAttention 1 and 2 as in their
// papers, and the shipped kernels (FlashAttention 2, 3 in fp8, 4, split keys). A tile is a block of query
// rows with a block of keys; P is exp(score - maximum). "The format" is the one under test.
// arithmetic.cast(x) rounds an operand of a product to it, store(x) rounds other tensors to it (to bf16 if it
// is fp8), and in_register(x) rounds to fp32. Running state is what an algorithm keeps of the tiles so far:
// for each row the maximum, the sum of P, and P . value. score_scale (it includes the softmax scale) and
// value_scale undo the scaling of fp8 inputs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "lab/attention.h"

namespace foreshock::lab {
namespace {

// Returns the value that is used as the maximum of row i of a tile's scores.
using TileMaximum = double (*)(const Tensor& scores, int i);

struct FlashKernel {            // options of the kernels that keep their running state in registers
  bool sum_after_cast = false;  // the sum of P is taken after its cast to the format
  double lazy_log2 = 0;         // the running maximum is raised only if a score exceeds it by more than this
  double shift_log2 = 0;        // P is multiplied by 2^shift_log2, to use the range of fp8
  bool scale_per_tile = false;  // fp8: the inputs have one scale per tile, not one per tensor
};

// -- FlashAttention 1: algorithm 1 of arXiv 2205.14135, with one rounding per elementwise operation --

struct RowState {  // running maximum and sum of a row
  double maximum = -std::numeric_limits<double>::infinity();
  double sum = 0;
};

// The contribution of one tile: its row maxima, the row sums of P relative to these maxima, and P . value.
struct TileResult {
  std::vector<double> maxima, sums;
  Tensor out;
};

TileResult compute_tile(const Tensor& query, const Tensor& key, const Tensor& value, double scale,
                        Arithmetic& arithmetic) {
  Tensor scores = arithmetic.multiply(query, transposed(key));
  arithmetic.store(scores);
  for (double& s : scores.data) s *= scale;
  arithmetic.store(scores);
  TileResult tile;
  for (int i = 0; i < scores.rows; ++i) {
    tile.maxima.push_back(Arithmetic::row_max(scores, i));
    for (int j = 0; j < scores.cols; ++j) scores.at(i, j) -= tile.maxima[i];
  }
  arithmetic.store(scores);
  for (double& s : scores.data) s = std::exp(s);
  arithmetic.store(scores);  // now P
  for (int i = 0; i < scores.rows; ++i) tile.sums.push_back(arithmetic.store(arithmetic.row_sum(scores, i)));
  arithmetic.cast(scores);
  tile.out = arithmetic.multiply(scores, value);
  arithmetic.store(tile.out);
  return tile;
}

// Returns exp(x - y), with difference and exponential stored; 0 if x is -infinity, as before the first tile.
double stored_exp(double x, double y, Arithmetic& arithmetic) {
  return arithmetic.store(std::exp(arithmetic.store(x - y)));
}

// Adds a tile to the rows' state and to the running output: out = (old_sum * out + tile_weight * tile.out) /
// sum. Every product, sum and quotient is stored. The weights scale the old state and the tile to their
// common maximum.
void merge_tile(std::vector<RowState>& state, TileResult& tile, Tensor& out, Arithmetic& arithmetic) {
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
    Tensor running_out(end - row, out.cols);
    for (int first : key_tiles(x.key.rows, tiling)) {
      const int key_end = std::min(first + tiling.block_k, x.key.rows);
      TileResult tile = compute_tile(query, rows_of(x.key, first, key_end), rows_of(x.value, first, key_end),
                                     x.score_scale, arithmetic);
      merge_tile(state, tile, running_out, arithmetic);
    }
    for (int i = 0; i < running_out.rows; ++i) {
      for (int c = 0; c < out.cols; ++c) out.at(row + i, c) = running_out.at(i, c) * x.value_scale;
      log_sum_exp.at(row + i, 0) = arithmetic.store(state[i].maximum + std::log(state[i].sum));
    }
  }
  arithmetic.store(out);
  Tensors results{{"out", std::move(out)}, {"log_sum_exp", std::move(log_sum_exp)}};
  if (settings.backward) attention_backward(inputs, settings, Intermediates::kStored, arithmetic, results);
  return results;
}

namespace {

// -- FlashAttention 2 with its running state in the format --

// Running state of a block of query rows; the constructor makes the state before the first key.
struct RunningState {
  RunningState(int rows, int columns)
      : maximum(rows, -std::numeric_limits<double>::infinity()), sum(rows, 0), out(rows, columns) {}

  std::vector<double> maximum, sum;
  Tensor out;  // not yet divided by the sum
};

// Raises the running maximum if the tile has a larger one, and replaces the scores by exp(score - maximum),
// P. Returns for each row the weight that scales the old state to the new maximum.
std::vector<double> raise_maximum(Tensor& scores, RunningState& running, TileMaximum tile_maximum,
                                  Arithmetic& arithmetic) {
  std::vector<double> old_weight;
  for (int i = 0; i < scores.rows; ++i) {
    const double maximum = std::max(running.maximum[i], arithmetic.store(tile_maximum(scores, i)));
    old_weight.push_back(stored_exp(running.maximum[i], maximum, arithmetic));
    running.maximum[i] = maximum;
    for (int j = 0; j < scores.cols; ++j) scores.at(i, j) -= maximum;
  }
  arithmetic.store(scores);
  for (double& s : scores.data) s = std::exp(s);
  arithmetic.store(scores);
  return old_weight;
}

// Adds a tile to the running state. Replaces the tile's scores by P.
void add_tile(Tensor& scores, const Tensor& value, TileMaximum tile_maximum, RunningState& running,
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

// FlashAttention 2 with its running state in the format. `tile_maximum` gives the maxima of a tile's rows.
Tensors flash2_state_in_format(const Tensors& inputs, const Settings& settings, TileMaximum tile_maximum,
                               Arithmetic& arithmetic) {
  const AttentionOperands x = attention_operands(inputs, settings, arithmetic);
  const Tiling& tiling = settings.tiling;
  Tensor out(x.query.rows, x.value.cols), log_sum_exp(x.query.rows, 1);
  for (int row = 0; row < out.rows; row += tiling.block_q) {
    const int end = std::min(row + tiling.block_q, out.rows);
    const Tensor query = rows_of(x.query, row, end);
    RunningState running(end - row, out.cols);
    for (int first : key_tiles(x.key.rows, tiling)) {
      const int key_end = std::min(first + tiling.block_k, x.key.rows);
      Tensor scores = arithmetic.multiply(query, transposed(rows_of(x.key, first, key_end)));
      arithmetic.store(scores);
      for (double& s : scores.data) s *= x.score_scale;
      arithmetic.store(scores);
      add_tile(scores, rows_of(x.value, first, key_end), tile_maximum, running, arithmetic);
    }
    for (int i = 0; i < running.out.rows; ++i) {
      for (int c = 0; c < out.cols; ++c)
        out.at(row + i, c) = running.out.at(i, c) / running.sum[i] * x.value_scale;
      log_sum_exp.at(row + i, 0) = arithmetic.store(running.maximum[i] + std::log(running.sum[i]));
    }
  }
  arithmetic.store(out);
  Tensors results{{"out", std::move(out)}, {"log_sum_exp", std::move(log_sum_exp)}};
  if (settings.backward) attention_backward(inputs, settings, Intermediates::kStored, arithmetic, results);
  return results;
}

// -- kernels with their running state in registers; they use exp2, so scores are multiplied by log2(e) --

// The inputs after quantise(), which for fp8 divides each row by its scale. Scales of other formats are 1.
// AttentionOperands, for the algorithms above, has one scale per tensor instead.
struct Operands {
  Tensor query, key, value;
  std::vector<double> query_scale, key_scale, value_scale;  // one per row; the same for all rows of a tile
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

// Returns the running maximum of a row after a tile whose maximum in this row is `tile_maximum`.
double maximum_after(double old_maximum, double tile_maximum, const FlashKernel& kernel) {
  return tile_maximum > old_maximum + kernel.lazy_log2 ? tile_maximum : old_maximum;
}

// Scales the running state to the new maximum and adds a tile. Replaces the tile's scores by P.
void add_tile(Tensor& scores, const Tensor& value, double value_scale, const FlashKernel& kernel,
              RunningState& running, Arithmetic& arithmetic) {
  std::vector<double> tile_sum(scores.rows);
  for (int i = 0; i < scores.rows; ++i) {
    const double maximum = maximum_after(running.maximum[i], Arithmetic::row_max(scores, i), kernel);
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
  // With scale 1 the products are added directly to the running output, otherwise summed, scaled, then added.
  if (value_scale == 1) return arithmetic.multiply_add(scores, value, running.out);
  const Tensor tile_out = arithmetic.multiply(scores, value);
  for (size_t i = 0; i < tile_out.data.size(); ++i)
    running.out.data[i] =
        arithmetic.in_register(running.out.data[i] + arithmetic.in_register(tile_out.data[i] * value_scale));
}

// Runs a kernel. Returns out [rows][d], not yet stored in the format, and log_sum_exp [rows][1].
Tensors flash2_in_registers(const Tensors& inputs, const Settings& settings, const FlashKernel& kernel,
                            Arithmetic& arithmetic) {
  const Operands x = operands_of(inputs, settings, kernel, arithmetic);
  const Tiling& tiling = settings.tiling;
  Tensor out(x.query.rows, x.value.cols), log_sum_exp(x.query.rows, 1);
  for (int row = 0; row < out.rows; row += tiling.block_q) {
    const int end = std::min(row + tiling.block_q, out.rows);
    const Tensor query = rows_of(x.query, row, end);
    RunningState running(end - row, out.cols);
    for (int first : key_tiles(x.key.rows, tiling)) {
      const int key_end = std::min(first + tiling.block_k, x.key.rows);
      Tensor scores = arithmetic.multiply(query, transposed(rows_of(x.key, first, key_end)));
      const double scale = arithmetic.in_register(settings.scale * x.query_scale[row] * x.key_scale[first] *
                                                  std::numbers::log2e);
      for (double& s : scores.data) s = arithmetic.in_register(s * scale);
      add_tile(scores, rows_of(x.value, first, key_end), x.value_scale[first], kernel, running, arithmetic);
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

// Runs flash2_in_registers(), stores its output in the format, and runs the backward pass if requested.
Tensors flash2_kernel(const Tensors& inputs, const Settings& settings, const FlashKernel& kernel,
                      Arithmetic& arithmetic) {
  Tensors results = flash2_in_registers(inputs, settings, kernel, arithmetic);
  arithmetic.store(results.at("out"));
  if (settings.backward)
    attention_backward(inputs, settings, Intermediates::kInRegisters, arithmetic, results);
  return results;
}

}  // namespace

Tensors flash2_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_state_in_format(inputs, settings, Arithmetic::row_max, arithmetic);
}

Tensors flash2_shipped(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_kernel(inputs, settings, {}, arithmetic);
}

Tensors flash2_cast_sum(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_kernel(inputs, settings, {.sum_after_cast = true}, arithmetic);
}

namespace {

// The stabilised maximum of "Why Low-Precision Transformer Training Fails" (arXiv 2510.04212, algorithm 1):
// if the row maximum occurs several times, a larger value is subtracted, which does not change the exact
// softmax. P is then not exactly 1 (unless the maximum is 0), so sums of values of one sign do not always
// round in the same direction. The paper uses a factor beta of 7, and takes scores within 1e-3 for equal.
constexpr double kBeta = 7;
constexpr double kRepeatTolerance = 1e-3;

double shifted_maximum(const Tensor& scores, int i) {
  const double maximum = Arithmetic::row_max(scores, i);
  int repeats = 0;
  for (int j = 0; j < scores.cols; ++j) repeats += scores.at(i, j) >= maximum - kRepeatTolerance;
  if (repeats < 2) return maximum;
  return maximum > 0 ? kBeta * maximum : 0;
}

}  // namespace

Tensors flash2_dynamic_max(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_state_in_format(inputs, settings, shifted_maximum, arithmetic);
}

Tensors flash3_fp8(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  // P is at most 1. 2^8 is the largest power of two below 448, the largest number of e4m3. For formats other
  // than fp8 this algorithm equals flash2_shipped.
  const bool fp8 = arithmetic.format().is_fp8();
  return flash2_kernel(inputs, settings, {.shift_log2 = fp8 ? 8.0 : 0.0, .scale_per_tile = fp8}, arithmetic);
}

Tensors flash4_lazy(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_kernel(inputs, settings, {.lazy_log2 = 8}, arithmetic);  // P may then be as large as 2^8
}

namespace {

// Returns the results of attention to each of settings.tiling.splits ranges of keys.
std::vector<Tensors> parts_of(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  const Tensor &key = inputs.at("key"), &value = inputs.at("value");
  const int splits = std::clamp(settings.tiling.splits, 1, key.rows);
  std::vector<Tensors> parts;
  for (int s = 0; s < splits; ++s) {
    const int first = static_cast<int>(static_cast<int64_t>(key.rows) * s / splits);
    const int key_end = static_cast<int>(static_cast<int64_t>(key.rows) * (s + 1) / splits);
    const Tensors part{{"query", inputs.at("query")},
                       {"key", rows_of(key, first, key_end)},
                       {"value", rows_of(value, first, key_end)}};
    parts.push_back(flash2_in_registers(part, settings, {}, arithmetic));
  }
  return parts;
}

}  // namespace

Tensors split_k(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  // out = sum of weight * out_part / sum of weight, with weight = exp(lse_part - maximum of all lse_part).
  const std::vector<Tensors> parts = parts_of(inputs, settings, arithmetic);
  Tensor out = parts[0].at("out"), log_sum_exp = parts[0].at("log_sum_exp");
  for (int i = 0; i < out.rows; ++i) {
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const Tensors& part : parts) maximum = std::max(maximum, part.at("log_sum_exp").at(i, 0));
    std::fill(out.row(i), out.row(i) + out.cols, 0.0);
    for (const Tensors& part : parts) {
      const double weight = arithmetic.exp(arithmetic.in_register(part.at("log_sum_exp").at(i, 0) - maximum));
      sum = arithmetic.in_register(sum + weight);
      for (int c = 0; c < out.cols; ++c)
        out.at(i, c) =
            arithmetic.in_register(out.at(i, c) + arithmetic.in_register(weight * part.at("out").at(i, c)));
    }
    for (int c = 0; c < out.cols; ++c) out.at(i, c) = arithmetic.in_register(out.at(i, c) / sum);
    log_sum_exp.at(i, 0) = arithmetic.in_register(maximum + std::log(sum));
  }
  arithmetic.store(out);
  Tensors results{{"out", std::move(out)}, {"log_sum_exp", std::move(log_sum_exp)}};
  if (settings.backward)
    attention_backward(inputs, settings, Intermediates::kInRegisters, arithmetic, results);
  return results;
}

}  // namespace foreshock::lab
