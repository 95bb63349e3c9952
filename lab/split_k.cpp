#include <algorithm>
#include <cmath>
#include <limits>

#include "lab/attention.h"
#include "lab/attention_backward.h"
#include "lab/flash2_registers.h"

namespace foreshock::lab {
namespace {

std::vector<Tensors> parts_of(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  const Tensor &key = inputs.at("key"), &value = inputs.at("value");
  const int splits = std::clamp(settings.tiling.splits, 1, key.rows);
  std::vector<Tensors> parts;
  for (int s = 0; s < splits; ++s) {
    const int first = static_cast<int>(static_cast<int64_t>(key.rows) * s / splits);
    const int last = static_cast<int>(static_cast<int64_t>(key.rows) * (s + 1) / splits);
    const Tensors part{{"query", inputs.at("query")},
                       {"key", rows_of(key, first, last)},
                       {"value", rows_of(value, first, last)}};
    parts.push_back(flash2_in_registers(part, settings, {}, arithmetic));
  }
  return parts;
}

}  // namespace

Tensors split_k(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
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
  if (settings.backward) attention_backward(inputs, settings, State::kRegisters, arithmetic, results);
  return results;
}

}  // namespace foreshock::lab
