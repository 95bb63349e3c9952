// Keeps the query and key projections of layers at two steps (LayerSpectra), and computes from them how much
// and in how many directions training changed the attention scores: statistics of the singular values of the
// increment of Wq^T Wk. The part with Eigen is at the end of the file, so that only this part includes Eigen.
#include "shadow/spectrum.h"

#include <algorithm>
#include <utility>

namespace foreshock {
namespace {

// Larger shapes are ignored, to limit the computing time.
constexpr uint32_t kMostHeadDim = 1024, kMostWidth = 1 << 20;

uint64_t values_in(const ProjectionRows& rows) {
  return rows.kv_heads.size() * uint64_t{rows.head_dim} * rows.width;
}

bool is_usable(const ProjectionRows& rows) {
  if (rows.dtype != DType::kFp32 && rows.dtype != DType::kBf16 && rows.dtype != DType::kFp16) return false;
  if (rows.step < 0 || rows.kv_heads.empty() || rows.head_dim == 0 || rows.width == 0) return false;
  if (rows.head_dim > kMostHeadDim || rows.width > kMostWidth) return false;
  const uint64_t bytes = values_in(rows) * size_of(rows.dtype);
  // A tensor with only one of the two projections leaves the other one empty.
  const auto fits = [bytes](std::span<const std::byte> side) { return side.empty() || side.size() == bytes; };
  return fits(rows.queries) && fits(rows.keys);
}

std::vector<float> values_of(std::span<const std::byte> bytes, DType type) {
  std::vector<float> values(bytes.size() / size_of(type));
  for (size_t n = 0; n < values.size(); ++n)
    values[n] = static_cast<float>(load_as_double(bytes.data(), type, n));
  return values;
}

// Returns one head's rows in fp64.
std::vector<double> head_of(const std::vector<float>& values, size_t head, size_t size) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(head * size);
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

// Adds the spectrum of one head (`of`) to the statistics of its layer (`to`): running means and extremes.
void add_head(const Spectrum& of, LayerSpectrum* to) {
  const auto least = [to](double so_far, double value) {
    return to->heads == 0 ? value : std::min(so_far, value);
  };
  to->norm_max = std::max(to->norm_max, of.frobenius);
  to->stable_rank_min = least(to->stable_rank_min, of.stable_rank);
  to->effective_rank_min = least(to->effective_rank_min, of.effective_rank);
  ++to->heads;
  const double share = 1.0 / to->heads;
  to->norm_mean += (of.frobenius - to->norm_mean) * share;
  to->stable_rank_mean += (of.stable_rank - to->stable_rank_mean) * share;
  to->effective_rank_mean += (of.effective_rank - to->effective_rank_mean) * share;
}

}  // namespace

// Returns the layer's entry, a new one if shape or interval have changed. Null: most_bytes_ does not suffice.
LayerSpectra::Layer* LayerSpectra::layer_for(const std::string& name, const ProjectionRows& rows) {
  const auto found = layers_.find(name);
  if (found != layers_.end()) {
    Layer& layer = found->second;
    if (layer.interval == rows.interval && layer.head_dim == rows.head_dim && layer.width == rows.width &&
        layer.kv_heads == rows.kv_heads)
      return &layer;
    bytes_ -= layer.bytes;
    layers_.erase(found);
  }
  const uint64_t bytes = 4 * values_in(rows) * sizeof(float);  // queries and keys, at two steps
  if (bytes > most_bytes_ - bytes_) {
    ++layers_refused_;
    return nullptr;
  }
  bytes_ += bytes;
  Layer& layer = layers_[name];
  layer.interval = rows.interval;
  layer.bytes = bytes;
  layer.head_dim = rows.head_dim;
  layer.width = rows.width;
  layer.kv_heads = rows.kv_heads;
  return &layer;
}

// Returns the layer's spectrum once queries and keys both have a new measurement (is_complete()). These may
// be of different steps, less than an interval apart, but equally many steps after the previous measurements.
std::optional<LayerSpectrum> LayerSpectra::take(const std::string& name, const ProjectionRows& rows) {
  if (!is_usable(rows)) return std::nullopt;
  Layer* layer = layer_for(name, rows);
  if (layer == nullptr) return std::nullopt;
  const auto update_side = [&rows](std::span<const std::byte> bytes, Side* side) {
    if (bytes.empty() || rows.step <= side->after.step) return;  // absent, or already received from a replica
    side->before = std::exchange(side->after, {rows.step, values_of(bytes, rows.dtype)});
    side->is_new = true;
  };
  update_side(rows.queries, &layer->query);
  update_side(rows.keys, &layer->key);
  if (!layer->query.is_complete() || !layer->key.is_complete()) return std::nullopt;
  layer->query.is_new = layer->key.is_new = false;
  // Measurements of the same step (apart 0) belong together even if no interval is given (0).
  const int64_t apart = std::abs(layer->query.after.step - layer->key.after.step);
  if (layer->query.steps() != layer->key.steps() || layer->query.steps() <= 0 ||
      (apart > 0 && static_cast<uint64_t>(apart) >= layer->interval))
    return std::nullopt;
  return spectrum_of(*layer);
}

std::optional<LayerSpectrum> LayerSpectra::spectrum_of(const Layer& layer) {
  LayerSpectrum result;
  const size_t size = size_t{layer.head_dim} * layer.width;
  for (size_t head = 0; head < layer.kv_heads.size(); ++head) {
    const std::vector<double> query_before = head_of(layer.query.before.values, head, size),
                              query_after = head_of(layer.query.after.values, head, size),
                              key_before = head_of(layer.key.before.values, head, size),
                              key_after = head_of(layer.key.after.values, head, size);
    const auto spectrum = update_spectrum({.query_before = query_before,
                                           .query_after = query_after,
                                           .key_before = key_before,
                                           .key_after = key_after,
                                           .head_dim = layer.head_dim,
                                           .width = layer.width});
    if (spectrum) add_head(*spectrum, &result);
  }
  if (result.heads == 0) return std::nullopt;
  result.step = std::max(layer.query.after.step, layer.key.after.step);
  result.steps = layer.query.steps();
  return result;
}

}  // namespace foreshock

#define EIGEN_MPL2_ONLY
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <cmath>

namespace foreshock {
namespace {

using Matrix = Eigen::MatrixXd;
using Rows = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// Returns R of the thin QR decomposition. Householder QR is stable column by column, so the columns of a
// small change keep their relative precision next to the larger columns of the weights.
Matrix triangle_of(Matrix tall) {
  if (tall.rows() <= tall.cols()) return tall;  // R would not be smaller
  const Eigen::HouseholderQR<Eigen::Ref<Matrix>> qr(tall);
  return qr.matrixQR().topRows(tall.cols()).triangularView<Eigen::Upper>();
}

Matrix side_by_side(const Matrix& left, const Matrix& right) {
  Matrix both(left.rows(), left.cols() + right.cols());
  both << left, right;
  return both;
}

}  // namespace

std::optional<Spectrum> spectrum_of(std::span<const double> singular_values) {
  double largest = 0;
  for (double s : singular_values) {
    if (!std::isfinite(s)) return std::nullopt;
    largest = std::max(largest, s);
  }
  if (largest == 0) return std::nullopt;
  double squares = 0, entropy = 0;  // of values divided by the largest, so that no square overflows
  for (double s : singular_values) squares += s / largest * (s / largest);
  for (double s : singular_values) {
    const double p = s / largest * (s / largest) / squares;
    if (p > 0) entropy -= p * std::log(p);
  }
  return Spectrum{largest * std::sqrt(squares), squares, std::exp(entropy)};  // norm, stable, effective rank
}

std::optional<Spectrum> update_spectrum(const HeadProjections& head) {
  const size_t count = head.head_dim * head.width;
  if (count == 0) return std::nullopt;
  for (std::span<const double> values :
       {head.query_before, head.query_after, head.key_before, head.key_after}) {
    if (values.size() != count) return std::nullopt;
    if (!std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }))
      return std::nullopt;
  }
  const auto columns = [&](std::span<const double> values) -> Matrix {
    return Rows(values.data(), static_cast<Eigen::Index>(head.head_dim),
                static_cast<Eigen::Index>(head.width))
        .transpose();
  };
  const Matrix query = columns(head.query_before), key = columns(head.key_before);
  // The increment D2 = dWq^T Wk + Wq^T dWk (dW: the change of W) is A B^T with A = [dWq^T, Wq^T] and
  // B = [Wk^T, dWk^T]. With A = Qa Ra and B = Qb Rb (QR), D2 and Ra Rb^T have the same singular values.
  const Matrix left = triangle_of(side_by_side(columns(head.query_after) - query, query));
  const Matrix right = triangle_of(side_by_side(key, columns(head.key_after) - key));
  const Matrix core = left * right.transpose();
  const Eigen::VectorXd values = Eigen::BDCSVD<Matrix>(core).singularValues();
  return spectrum_of({values.data(), static_cast<size_t>(values.size())});
}

}  // namespace foreshock
