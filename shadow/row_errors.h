// The squared errors of rows, of the trainer's result and of a correct algorithm, and the ratio of both. A
// slice that too few rows decide has no ratio of its own; PooledRows gives one to several such slices.
#ifndef FORESHOCK_SHADOW_ROW_ERRORS_H_
#define FORESHOCK_SHADOW_ROW_ERRORS_H_

#include <optional>

namespace foreshock {

// Sums over rows in which the correct algorithm (the floor) is finite.
struct RowErrors {
  double kernel = 0, floor = 0, least = 0;  // squared errors; least: what the floor counts as at least
  double squares_of_both = 0, squares_of_floor = 0;  // sums over rows of (kernel + floor)^2 and of floor^2
  int rows = 0;

  void add(double row_kernel, double row_floor, double row_least);

  // Over how many rows the sum of both errors, or the floor's error, is spread: (sum of e)^2 / sum of e^2.
  // Absent if the sum is 0 or not finite.
  std::optional<double> effective_rows() const, effective_floor_rows() const;

  // The kernel's error divided by the floor's. Absent if no row has an error.
  std::optional<double> ratio() const;
};

// Adds up the errors of successive slices of one tensor of one layer, each of which too few rows decide: for
// example of dQ, if the loss reaches only the class token. One thread.
class PooledRows {
 public:
  // The kernel's error divided by that of fused and of plain attention.
  struct Ratios {
    std::optional<double> fused, plain;
  };

  // Adds a slice whose reference has the norm `reference_norm` over the compared rows. Slices count relative
  // to it, since gradients become smaller in a training. Returns the ratios over the slices since the last
  // ratios, once the errors are spread over kRowsOfPool rows.
  std::optional<Ratios> add(const RowErrors& fused, const RowErrors& plain, double reference_norm);

 private:
  RowErrors fused_, plain_;
};

// If the errors of each row are single draws of a normal distribution, such a pool has some 15 rows, and its
// ratio exceeds 3 in fewer than 4 of 100,000 pools (measured on 1.3 million simulated ones).
inline constexpr double kRowsOfPool = 8;

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_ROW_ERRORS_H_
