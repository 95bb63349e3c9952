// Checks, by column, sum(dV) = sum(dO) and sum(dK) = 0. dV and dK are summed over all keys of a kv-head, dO
// over its query rows. excess: by how much a sum violates its equation; variance: mean square of the excess
// that roundings in a sound kernel cause (formulas: conservation.h).
#include "shadow/conservation.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace foreshock {
namespace {

// Returns the largest Euclidean norm of `count` rows that follow each other without gaps.
double largest_norm(const void* rows, DType type, int count, int width) {
  double largest = 0;
  for (int n = 0; n < count; ++n) {
    double squares = 0;
    for (int c = 0; c < width; ++c) {
      const double x = load_as_double(rows, type, static_cast<size_t>(n) * width + c);
      squares += x * x;
    }
    largest = std::max(largest, squares);
  }
  return std::sqrt(largest);
}

// Returns the RMS of the excess over all columns / root of the mean variance; nullopt if one is not finite.
std::optional<double> ratio_of(const std::vector<double>& excess, const std::vector<double>& variance) {
  double squares = 0, expected = 0;
  for (size_t c = 0; c < excess.size(); ++c) {
    squares += excess[c] * excess[c];
    expected += variance[c];
  }
  if (!std::isfinite(squares) || !std::isfinite(expected)) return std::nullopt;
  if (expected > 0) return std::sqrt(squares / expected);
  return squares > 0 ? INFINITY : 0;
}

}  // namespace

// Roundings in a sum over queries: in fp32 and fp64 one per row, in other formats one per block of rows.
double roundings_of_sum(const KeyColumns& c) {
  if (format_of(c.dtype).precision >= 24) return static_cast<double>(c.rows());
  // The number of queries in one block of PyTorch's CPU kernel (at::native::flash_attention_backward).
  const int block = c.queries >= 768 ? 256 : c.queries >= 192 ? 64 : 32;
  return static_cast<double>(c.heads) * ((c.queries + block - 1) / block);
}

ConservationRatios conservation_of(const KeyColumns& c) {
  constexpr double kMostEta = 0.125;
  if (c.sums == nullptr) return {};
  // u: half an ulp at 1 in the storage format. e: precision of the arithmetic; lse_e: e, or the precision of
  // log_sum_exp if that is coarser. v, k: limits of the norms of all values and keys, estimated as twice the
  // largest norm of the sampled ones. delta: dO . out of a row. summed: the number of keys times
  // (e v)^2, the variance of the sum over all keys of the rounding errors of dO . value, for a dO of norm 1.
  // keep: what dropout multiplies weights by. The factors below, such as 2 at delta and 3 at eta, are derived
  // in conservation.h.
  const size_t head = c.head_dim, value = c.value_dim;
  const ColumnSum *of_key = c.sums, *of_value = c.sums + head;
  const double u = std::ldexp(1.0, -format_of(c.dtype).precision), u2 = u * u;
  const double e = c.dtype == DType::kFp64 ? 0x1p-52 : 0x1p-23;
  const double lse_e = std::max(e, std::ldexp(1.0, -format_of(c.log_sum_exp_dtype).precision));
  const double v = 2 * largest_norm(c.value, c.dtype, c.columns, c.value_dim);
  const double k = 2 * largest_norm(c.key, c.dtype, c.columns, c.head_dim);
  const double keep = keep_factor(c);
  const double summed = static_cast<double>(std::max<int64_t>(c.keys, 1)) * e * e * v * v * keep * keep;

  std::vector<double> value_excess(value), value_variance(value), key_excess(head), key_variance(head);
  std::vector<double> query(head);
  double most_eta = 0;
  const bool may_lack_keys = may_have_rows_without_keys(c);
  for (size_t row = 0; row < c.rows(); ++row) {
    const double given_lse = load_as_double(c.log_sum_exp, c.log_sum_exp_dtype, row);
    if (may_lack_keys && std::isinf(given_lse)) continue;  // the row has no weights
    double query_squares = 0;
    for (size_t d = 0; d < head; ++d) {
      query[d] = load_as_double(c.query, c.dtype, row * head + d);
      query_squares += query[d] * query[d];
    }
    const double lse = std::fabs(given_lse);
    // eta: relative error of the row's attention weights, from its scores and log_sum_exp.
    const double eta = lse_e * lse + e * std::fabs(c.scale) * std::sqrt(query_squares) * k;
    const double weight_variance = u2 / 3 + eta * eta;
    double delta = 0, out_squares = 0, grad_squares = 0;  // out_squares: sum of (dO_d out_d)^2
    bool has_out = false;
    for (size_t d = 0; d < value; ++d) {
      const double grad = load_as_double(c.grad_out, c.dtype, row * value + d);
      const double out = load_as_double(c.out, c.dtype, row * value + d);
      const double product = grad * out;
      has_out |= out != 0;
      delta += product;
      out_squares += product * product;
      grad_squares += grad * grad;
      value_excess[d] -= grad;
      value_variance[d] += grad * grad * weight_variance;
    }
    if (grad_squares > 0 && (eta > kMostEta || (may_lack_keys && !has_out))) return {};
    const double delta_variance = u2 / 3 * (out_squares + 2 * delta * delta) + summed * grad_squares;
    for (size_t d = 0; d < head; ++d) key_variance[d] += query[d] * query[d] * delta_variance;
    if (grad_squares > 0) most_eta = std::max(most_eta, eta);
  }
  // The variance, in ulp^2, from rounding sums over queries (elements of dK or dV) to the storage format:
  // 1/12 for each rounding.
  const double stored = roundings_of_sum(c) / 12;
  bool is_key_finite = true, is_value_finite = true;
  for (size_t d = 0; d < value; ++d) {
    is_value_finite &= of_value[d].nonfinite == 0;
    value_excess[d] += of_value[d].sum;
    value_variance[d] += stored * of_value[d].ulp_squares;
  }
  for (size_t d = 0; d < head; ++d) {
    is_key_finite &= of_key[d].nonfinite == 0;
    key_excess[d] = of_key[d].sum;
    // 1 + 3 eta^2 / u^2: the sum over dS^2 and the rounding of dS, enlarged for the errors of the weights.
    key_variance[d] = key_variance[d] * c.scale * c.scale +
                      (1 + 3 * most_eta * most_eta / u2 + stored) * of_key[d].ulp_squares;
  }
  ConservationRatios ratios;
  if (is_key_finite && c.soft_cap == 0) ratios.grad_key = ratio_of(key_excess, key_variance);
  if (is_value_finite && c.kept == nullptr) ratios.grad_value = ratio_of(value_excess, value_variance);
  return ratios;
}

}  // namespace foreshock
