#include "shadow/row_errors.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foreshock {
namespace {

// What a slice counts for after the next one. Without it, a slice with a far larger error than all others
// would leave the pool undecided for ever. Equal slices reach 2 / (1 - kKept) - 1 = 63 effective rows.
constexpr double kKept = 1 - 1.0 / 32;

std::optional<double> effective_count(double sum, double sum_of_squares) {
  const double count = sum / sum_of_squares * sum;
  return std::isfinite(count) && sum_of_squares > 0 ? std::optional(count) : std::nullopt;
}

bool is_finite(const RowErrors& errors, double weight) {
  return std::isfinite(weight * (errors.kernel + errors.floor + errors.least));
}

void add_weighted(const RowErrors& errors, double weight, RowErrors* sums) {
  const auto add = [](double* sum, double kept, double value) { *sum = kept * *sum + value; };
  add(&sums->kernel, kKept, weight * errors.kernel);
  add(&sums->floor, kKept, weight * errors.floor);
  add(&sums->least, kKept, weight * errors.least);
  add(&sums->squares_of_both, kKept * kKept, weight * weight * errors.squares_of_both);
  add(&sums->squares_of_floor, kKept * kKept, weight * weight * errors.squares_of_floor);
  sums->rows += errors.rows;
}

bool is_spread(const RowErrors& errors) { return errors.effective_rows().value_or(0) >= kRowsOfPool; }

}  // namespace

void RowErrors::add(double row_kernel, double row_floor, double row_least) {
  if (!(row_floor < std::numeric_limits<double>::infinity())) return;
  ++rows;
  kernel += row_kernel;
  floor += row_floor;
  least += row_least;
  squares_of_both += (row_kernel + row_floor) * (row_kernel + row_floor);
  squares_of_floor += row_floor * row_floor;
}

std::optional<double> RowErrors::effective_rows() const {
  return effective_count(kernel + floor, squares_of_both);
}

std::optional<double> RowErrors::effective_floor_rows() const {
  return effective_count(floor, squares_of_floor);
}

std::optional<double> RowErrors::ratio() const {
  if (rows == 0 || !(kernel > 0 || floor > 0)) return std::nullopt;
  return std::sqrt(kernel) / std::sqrt(std::max(floor, least));
}

std::optional<PooledRows::Ratios> PooledRows::add(const RowErrors& fused, const RowErrors& plain,
                                                  double reference_norm) {
  const double weight = 1 / (reference_norm * reference_norm);
  // An infinite error of the kernel is a ratio of its own slice.
  if (!is_finite(fused, weight) || !is_finite(plain, weight)) return std::nullopt;
  add_weighted(fused, weight, &fused_);
  add_weighted(plain, weight, &plain_);
  if (!is_spread(fused_) || !is_spread(plain_)) return std::nullopt;
  const Ratios ratios = {fused_.ratio(), plain_.ratio()};
  fused_ = plain_ = {};
  return ratios;
}

}  // namespace foreshock
