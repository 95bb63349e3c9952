// Judges one slice: compares the trainer's result with the reference, and its error with the noise floors
// (noise_floor.h) and with the reference rounded once, on which no alarm may fire. Pools signed errors of
// many slices into a bias.
#ifndef FORESHOCK_SHADOW_JUDGEMENT_H_
#define FORESHOCK_SHADOW_JUDGEMENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadow/key_columns.h"
#include "shadow/noise_floor.h"
#include "shadow/reference.h"
#include "shadow/slice.h"

namespace foreshock {

// What a slice is judged by. The first two have the numbers of their passes; a slice of key positions has the
// last two.
enum class JudgedTensor : uint32_t { kOut, kGradQuery, kGradKey, kGradValue };
inline constexpr uint32_t kJudgedTensors = 4;
inline constexpr const char* kJudgedTensorNames[kJudgedTensors] = {"out", "grad_query", "grad_key",
                                                                   "grad_value"};

// The two sums that a signed bias is the ratio of (BiasPool). Over elements finite in both that the precision
// resolves: of which fused attention has three bits right.
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
  JudgedTensor tensor = JudgedTensor::kOut;
  int rows_compared = 0;
  int rows_not_comparable = 0;

  // ||x - x*|| / ||x*|| per row. +Inf as soon as one compared row of the trainer's holds NaN or Inf. Absent:
  // no row was compared.
  std::optional<double> relative_error_mean, relative_error_max;
  // Root of the sum of squares over the compared rows; plain is itself finite there, else the row is in
  // neither norm. Of fused, likewise, over the rows where it is finite.
  double kernel_error_norm = 0, plain_error_norm = 0, fused_error_norm = 0;
  double reference_norm = 0;  // of what fused_error_norm is an error of
  // Over how many rows they are spread: (sum of e)^2 / sum of e^2, 1 to the rows they are taken over. Of
  // both: e is the row's squared error of the trainer plus that of plain. Absent where it is 0 or not finite.
  std::optional<double> effective_rows, plain_effective_rows;
  // Ratio of the norms. Absent when both are 0 or no row qualifies, and of a backward slice when too few rows
  // decide it (kLeastEffectiveRows); +Inf when only plain's is 0, or the trainer's result is not finite where
  // plain's is.
  std::optional<double> deviation_ratio;
  // The same beside fused attention, and for a backward slice against the gradient that the given out and
  // log_sum_exp define (Reference::given_grad_query). Above the limit, the call itself is wrong. If only
  // deviation_ratio is, a backward call may have been given a wrong output. Backward the larger one of two:
  // over all components of the errors, and without the one along the mean key.
  std::optional<double> fused_ratio;

  BiasSums bias;          // of the trainer's result
  BiasSums rounded_bias;  // control: of the reference rounded once
  // Control: of plain attention, or of fused attention where plain errs kMuchNoisier times more, as under
  // large scores. Both are sound, so a bias that they share is no fault of the kernel.
  BiasSums floor_bias;

  // Backward: rows whose given log_sum_exp is above that of the slice's own keys (Reference::partial). It
  // covers keys of other calls too, as with context parallelism; all is judged with it there.
  int partial_rows = 0;
  bool partial = false;  // nearly all rows with keys are, and no row is below

  // Over rows that see a key and are not partial. Absent: no such row, or (lse) no log_sum_exp given. +Inf:
  // the trainer's is not finite.
  std::optional<double> lse_error_abs_max;
  // Largest error over lse_tolerance(). Above 1 rounding of the scores does not explain it.
  std::optional<double> lse_error_ratio;
  std::optional<double> logit_abs_max;              // of scaled, masked scores; +Inf when one is NaN or +Inf
  std::optional<double> entropy_min, entropy_mean;  // nats
  int rows_with_keys = 0;
  int near_tie_rows = 0;

  // Counted before any comparison. Inputs: query, key, value, and grad_out; an additive mask is not counted.
  uint64_t nonfinite_inputs = 0;
  uint64_t nonfinite_out = 0;
  uint64_t nonfinite_lse = 0;
  uint64_t nonfinite_gradient = 0;  // of the judged one; of dK and dV of all keys, if their sums are given

  // Of slices of rows the caller knows `nonfinite_anywhere`: of the output at other rows of the head.
  // Slices of key positions. Of what the whole gradient conserves (conservation.h); it holds where the call
  // saw all keys that its log_sum_exp covers. And whether elements are not finite anywhere in dK or dV, or
  // (given with dK) in dQ, while the inputs are and no sampled gradient is near the end of its format.
  std::optional<double> conservation_ratio;
  bool nonfinite_anywhere = false, nonfinite_grad_query = false;

  // Sum of grad_out * (out - out*) over the rows compared by their out; backward slices only. Absent when no
  // row was or the sum is not finite.
  std::optional<double> grad_out_drift;
};

// What rounding every score once to the format explains of an error of log_sum_exp, doubled. Sums of products
// in fp32 give less, which is what the lower bound covers.
double lse_tolerance(DType dtype, double logit_abs_max);

// Grows to the largest slice seen, then allocates no more. One per thread.
struct DeviationWorkspace {
  Reference reference;
  NoiseFloors floors;
};

// Plain attention is then too noisy a control for a bias.
inline constexpr double kMuchNoisier = 4;

// What the kernel's bias exceeds that of the floor by, over the same elements. Empty if either has none.
BiasSums excess_bias(const SliceDeviation& deviation);

// The gradients of sampled key positions, each judged as a slice of its own: its rows are the columns. Both
// controls and the exact values are of the given log_sum_exp and out, so deviation_ratio and fused_ratio are
// beside the same values. What only a slice of rows shows (log_sum_exp, scores, drift) is absent.
struct ColumnDeviation {
  SliceDeviation grad_key, grad_value;
};

// `columns` must be valid (key_columns.h).
ColumnDeviation judge(const KeyColumns& columns, ColumnReference* workspace);

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

// The last 64 slices of one layer and pass (or of many ranks' such). The kernel's result, its excess over the
// floor and the rounded reference each have a pool of their own. Copyable plain data: its state can be saved
// as it is.
//
// The bias is a ratio of sums, b = sum S / sum D, since a mean of per-element ratios is ruled by elements
// near zero. With S_g and D_g the sums of cluster g of G, the error of b is to first order
//   b - E b = sum_g e_g / sum D,   e_g = S_g - b D_g,
// the clusters being independent and the e_g summing to zero by the choice of b. Hence
//   var b = G / (G - 1) * sum_g e_g^2 / (sum D)^2,   z = b / sqrt(var b),
// about Student with G - 1 degrees of freedom when there is no bias. Treating the rows of one slice as
// independent instead would give |z| in the hundreds for a reference rounded once: they share keys and
// values.
//
// No cluster decides alone. The weight D_g of a cluster is limited to kMostWeight times the median one (S_g
// shrinks with it), each e_g is divided by 1 - D_g / sum D (a cluster that rules b would have no residual),
// and z needs an effective number of clusters, (sum D)^2 / sum D^2, of kLeastEffective. In a run that
// diverges, a single slice can have a million times the gradient of all others.
class BiasPool {
 public:
  static constexpr size_t kSlices = 64;
  static constexpr int kMinClusters = 16;
  static constexpr double kMostWeight = 4, kLeastEffective = 8;
  // A slice with less than this share of what is usual here is left out: of a gradient that has died, only
  // the rounding of what cancelled is left.
  static constexpr double kNegligible = 0x1p-7;

  // Sums that are not finite, or with nothing in them, are left out.
  void add(const BiasCluster& cluster, const BiasSums& sums);

  // Absent while the pool is empty.
  std::optional<Bias> bias() const;

 private:
  struct Entry {
    BiasCluster cluster;
    BiasSums sums;
  };
  // The sums of each cluster; returns how many there are.
  size_t add_up(std::array<BiasSums, kSlices>* clusters) const;

  // Follows about the 90th percentile of denominators, in octaves, over a hundred slices and more.
  double usual_octave_ = 0;
  bool has_usual_ = false;
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
