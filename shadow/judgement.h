// The judgement on one slice: how far the trainer's result is from the reference, beside what the same
// precision costs anyway (plain attention) and beside the reference rounded once, which no alarm may fire on.
#ifndef FORESHOCK_SHADOW_JUDGEMENT_H_
#define FORESHOCK_SHADOW_JUDGEMENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadow/plain.h"
#include "shadow/reference.h"
#include "shadow/slice.h"

namespace foreshock {

// The two sums that a signed bias is the ratio of (BiasPool). Over elements finite in both.
struct BiasSums {
  double numerator = 0;    // sum of (x - x*) sign(x*); positive: away from zero
  double denominator = 0;  // sum of ulp(x*) in the storage format
};

// The error of a row's gradient is in the main that of one number, (grad_out * out), so where one row has
// nearly all of the error the ratio is that of two single draws, and beyond 3 in one slice of five (of two
// normal ones: 1 - 2/pi atan 3). Rows that err as plain does are not told from those where plain was lucky,
// unless plain's own error is spread. Eight trainings of a GPT that comes to know its data by heart had 59 of
// 10,714 backward slices beyond 3: all among the 4,425 with fewer effective rows than 3, and fewer than 7 of
// plain's.
inline constexpr double kLeastEffectiveRows = 3, kEnoughPlainRows = 8;

// "Judged" is out in a forward slice, grad_query in a backward slice. Errors are taken over its compared
// rows: those whose reference is finite and not all zero. A row without a visible key, or whose inputs make
// the reference itself non-finite, is not comparable; without out none is. Nor is an element beyond what the
// format holds, where the trainer's is the Inf that the reference rounds to. Nothing here is NaN; what cannot
// be said is absent.
struct SliceDeviation {
  bool backward = false;
  int rows_compared = 0;
  int rows_not_comparable = 0;

  // ||x - x*|| / ||x*|| per row. +Inf as soon as one compared row of the trainer's holds NaN or Inf. Absent:
  // no row was compared.
  std::optional<double> relative_error_mean, relative_error_max;
  // Root of the sum of squares over the compared rows; plain is itself finite there, else the row is in
  // neither norm.
  double kernel_error_norm = 0, plain_error_norm = 0;
  // Over how many rows they are spread: (sum of e)^2 / sum of e^2, 1 to the rows they are taken over. Of
  // both: e is the row's squared error of the trainer plus that of plain. Absent where it is 0 or not finite.
  std::optional<double> effective_rows, plain_effective_rows;
  // Ratio of the norms. Absent when both are 0 or no row qualifies, and of a backward slice when too few rows
  // decide it (kLeastEffectiveRows); +Inf when only plain's is 0, or the trainer's result is not finite where
  // plain's is.
  std::optional<double> deviation_ratio;

  BiasSums bias;          // of the trainer's result
  BiasSums rounded_bias;  // of the reference rounded once: the control

  // Over rows that see a key. Absent: no such row, or (lse) no log_sum_exp given. +Inf: the trainer's is not
  // finite.
  std::optional<double> lse_error_abs_max;
  std::optional<double> logit_abs_max;              // of scaled, masked scores; +Inf when one is NaN or +Inf
  std::optional<double> entropy_min, entropy_mean;  // nats
  int rows_with_keys = 0;
  int near_tie_rows = 0;

  // Counted before any comparison. Inputs: query, key, value, and grad_out; an additive mask is not counted.
  uint64_t nonfinite_inputs = 0;
  uint64_t nonfinite_out = 0;
  uint64_t nonfinite_lse = 0;
  uint64_t nonfinite_grad_query = 0;

  // Sum of grad_out * (out - out*) over the rows compared by their out; backward slices only. Absent when no
  // row was or the sum is not finite.
  std::optional<double> grad_out_drift;
};

// Grows to the largest slice seen, then allocates no more. One per thread.
struct DeviationWorkspace {
  Reference reference;
  PlainWorkspace plain;
};

// Whether a slice can be judged: known formats, sizes in range, no array missing. judge() needs it.
bool is_valid(const AttentionSlice& slice);

SliceDeviation judge(const AttentionSlice& slice, DeviationWorkspace* workspace);

// The signed bias of a stream of slices, in units in the last place, and how sure it is.

// Slices of one cluster are not independent: they may share keys, values and the batch they come from.
struct BiasCluster {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t step = 0;
  int32_t rank = 0;

  bool operator==(const BiasCluster&) const = default;
};

struct Bias {
  double ulp;               // pooled; positive: away from zero
  std::optional<double> z;  // between clusters; absent below kMinClusters, or without any spread
  int slices;
  int clusters;
};

// The last 64 slices of one layer and pass (or of many ranks' such). The kernel's result and the rounded
// reference each have a pool of their own. Copyable plain data: its state can be saved as it is.
//
// The bias is a ratio of sums, b = sum S / sum D, since a mean of per-element ratios is ruled by elements
// near zero. With S_g and D_g the sums of cluster g of G, the error of b is to first order
//   b - E b = sum_g e_g / sum D,   e_g = S_g - b D_g,
// the clusters being independent and the e_g summing to zero by the choice of b. Hence
//   var b = G / (G - 1) * sum_g e_g^2 / (sum D)^2,   z = b / sqrt(var b),
// about Student with G - 1 degrees of freedom when there is no bias. Treating the rows of one slice as
// independent instead would give |z| in the hundreds for a reference rounded once: they share keys and
// values.
class BiasPool {
 public:
  static constexpr size_t kSlices = 64;
  static constexpr int kMinClusters = 16;

  // Sums that are not finite, or with nothing in them, are left out.
  void add(const BiasCluster& cluster, const BiasSums& sums);

  // Absent while the pool is empty.
  std::optional<Bias> bias() const;

 private:
  struct Entry {
    BiasCluster cluster;
    BiasSums sums;
  };
  std::array<Entry, kSlices> entries_ = {};
  size_t size_ = 0;
  size_t next_ = 0;
};

// The judgement on a slice as text that says it to the bit: two judgements are the same when their texts are.

// The shortest decimal that reads back as the same double; "inf", "-inf", "nan".
std::string exact_text(double value);

struct Figure {
  const char* name;  // as in the record, where it is there
  std::string text;  // empty: cannot be said
};

// Every number of the judgement, always in the same order.
std::vector<Figure> figures_of(const SliceDeviation& deviation);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_JUDGEMENT_H_
