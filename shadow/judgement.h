// Checks one slice. Compares the trainer's result with the fp64 reference, and its error with the noise
// floors: the errors of two correct algorithms in the trainer's precision, plain (unfused) and fused
// attention (reference.h). Also measures the signed bias of the result (bias.h). The bias of the reference,
// rounded once to the trainer's format, is a control: it must cause no alarm.
#ifndef FORESHOCK_SHADOW_JUDGEMENT_H_
#define FORESHOCK_SHADOW_JUDGEMENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadow/bias.h"
#include "shadow/key_columns.h"
#include "shadow/reference.h"
#include "shadow/row_errors.h"
#include "shadow/slice.h"

namespace foreshock {

// The tensors by which slices are checked. A slice of rows is checked by kOut (forward) or kGradQuery
// (backward), a slice of key positions by kGradKey and kGradValue.
enum class JudgedTensor : uint32_t { kOut, kGradQuery, kGradKey, kGradValue };
inline constexpr uint32_t kJudgedTensors = 4;
inline constexpr const char* kJudgedTensorNames[kJudgedTensors] = {"out", "grad_query", "grad_key",
                                                                   "grad_value"};

// A slice of rows has an error ratio only if its error is spread over at least kLeastEffectiveRows rows
// (SliceDeviation::effective_rows), or the floor's error over at least kEnoughFloorRows. The error of a row
// of dQ is mainly the error of one number, delta = sum (grad_out * out). That of a row of the output is
// mainly the error of one score if the softmax is saturated. If one row has nearly all of the trainer's and
// of the floor's error, the ratio is that of two single draws. It exceeds 3 in one slice of five even if the
// trainer is correct (two normal draws: 1 - 2/pi atan 3). In eight trainings of a GPT that memorizes its
// data, 59 of 10,714 slices of dQ exceeded 3. All of them were among the 4,425 with fewer than 3 effective
// rows, and had fewer than 7 effective rows of plain. dK and dV are sums over many rows, whose mean error is
// known (ColumnReference::mean_square_error), so one key position suffices.
inline constexpr double kLeastEffectiveRows = 3, kEnoughFloorRows = 8;

// The result of checking one tensor of a slice, the judged tensor. In a slice of key positions, a "row" here
// is a key position. Errors are taken over the compared rows: those whose reference is finite and not all
// zero. So a row without a visible key, or with inputs that make the reference non-finite, is not compared.
// A row is not compared either if it has NaN or Inf and so has a floor: the format cannot hold its scores.
// Nor is a key position with NaN or Inf if a query row of its slice sees no key, which makes some kernels
// write NaN. If out is absent, no row is compared. An element is not compared if the reference exceeds the
// range of the format and the trainer has the Inf to which it rounds. No value here is NaN; an unknown value
// is absent.
struct SliceDeviation {
  bool backward = false;  // true also for key positions
  JudgedTensor tensor = JudgedTensor::kOut;
  int rows_compared = 0;
  int rows_not_comparable = 0;

  // Mean and maximum of ||x - x*|| / ||x*|| over the compared rows of which fused attention has at least
  // three bits right, where x is a row of the trainer's result and x* of the reference. +Inf if a compared x
  // has NaN or Inf. Absent if there is no such row.
  std::optional<double> relative_error_mean, relative_error_max;
  // Roots of the sums of squared errors over compared rows. The norms of the trainer's result (kernel) and of
  // plain take the rows where plain is finite, the norm of fused the rows where fused is finite.
  double kernel_error_norm = 0, plain_error_norm = 0, fused_error_norm = 0;
  double reference_norm = 0;  // of the exact values with which fused is compared, where they are finite
  // Number of rows over which the error is spread: (sum of e)^2 / sum of e^2, from 1 to the number of rows.
  // For effective_rows e is the squared error of the trainer in a row plus that of plain, for
  // plain_effective_rows that of plain alone. Absent if the sum is 0 or not finite.
  std::optional<double> effective_rows, plain_effective_rows;
  // kernel_error_norm / plain_error_norm, a figure that decides nothing. plain_error_norm counts as at least
  // half the error of one rounding (least_error()). Absent if both are 0, if plain is finite in no compared
  // row, or if too few rows decide it (kLeastEffectiveRows). +Inf if the trainer's result is
  // not finite in a row where plain is.
  std::optional<double> deviation_ratio;
  // The same ratio with fused instead of plain, which decides whether the kernel is faulty. For grad_query
  // the errors are taken against the gradient that the given out and log_sum_exp (the trainer's) define
  // (Reference::given_grad_query), and the value is the largest of three ratios: of the whole errors, of the
  // errors without their component along the mean key, in which rounding errors add up, and of the errors of
  // the given out, which may be wrong where the forward call was right. Absent if the first one is. The
  // agent gives one to several slices of dQ without a ratio (agent/rank_state.h, LayerStatistics::few_rows).
  std::optional<double> fused_ratio;
  // The sums of these two ratios; those of the whole errors.
  RowErrors plain_errors, fused_errors;

  BiasSums bias;          // of the trainer's result, against the exact values with which fused is compared
  BiasSums rounded_bias;  // control: of the reference rounded once
  // Control: of fused, a correct algorithm. A bias that the kernel shares with it is not the kernel's fault.
  BiasSums floor_bias;
  BiasSums plain_bias;          // control: of plain, against the reference
  double unexplained_bias = 0;  // ulp; see unexplained_bias(); the controls are rounded_bias and floor_bias

  // Backward: number of partial rows (Reference::partial). Their given log_sum_exp also covers keys of other
  // calls (context parallelism), and they are compared with the gradient that the given log_sum_exp defines.
  int partial_rows = 0;
  // At least three quarters of the rows with finite scores are partial, and lse_error_ratio is at most 1 or
  // absent.
  bool partial = false;

  // Largest error of the given log_sum_exp over the rows that see a key and are not partial. Absent if there
  // is no such row or no log_sum_exp was given; +Inf if the given one is not finite.
  std::optional<double> lse_error_abs_max;
  // The largest such error relative to lse_tolerance(). Rounding of the scores explains at most 1.
  std::optional<double> lse_error_ratio;
  // Over the rows that see a key (the entropies: and have finite scores); absent without such rows.
  // Of scaled scores without the values of the mask; +Inf if one is NaN or +Inf.
  std::optional<double> logit_abs_max;
  std::optional<double> entropy_min, entropy_mean;  // nats
  int rows_with_keys = 0;
  int near_tie_rows = 0;                 // rows whose two largest scores are nearly equal (kNearTie)
  std::optional<double> near_tie_ratio;  // near_tie_rows / rows_with_keys; absent without such rows

  // Numbers of NaN and Inf elements, counted before any comparison.
  uint64_t nonfinite_inputs = 0;  // query, key, value and grad_out, but not an additive mask
  uint64_t nonfinite_out = 0;
  uint64_t nonfinite_lse = 0;
  // NaN and Inf in the judged gradient. For dK and dV, at all keys of the kv-head if the slice has sums.
  uint64_t nonfinite_gradient = 0;

  // Slices of key positions only: how far the sum over all keys is from its exact value, relative to what
  // rounding explains (conservation.h). Valid only if the call saw all keys that its log_sum_exp covers.
  std::optional<double> conservation_ratio;
  // A fault: an element is not finite although the inputs are, and no sampled gradient is near the largest
  // number of its format. In a slice of key positions nonfinite_anywhere covers dK or dV at all keys, and
  // nonfinite_grad_query (set with the result for dK) covers dQ. In a slice of rows the caller sets
  // nonfinite_anywhere, for the output at other rows of the head.
  bool nonfinite_anywhere = false, nonfinite_grad_query = false;

  // Slices with grad_query only: sum of grad_out * (out - out*), out* being the exact out, over the rows that
  // are not partial and have a finite log_sum_exp. Absent without such rows, or if the sum is not finite.
  std::optional<double> grad_out_drift;
};

// Whether the trainer's result has NaN or Inf where the reference has none.
bool is_nonfinite(const SliceDeviation& deviation);

// Scores of this magnitude have errors of about 1 nat in fp32, so a weight exp(score - log_sum_exp) of a
// sound kernel can be anything, Inf included. NaN and Inf beside such scores are not judged, and neither are
// key columns to which such a row contributes.
inline constexpr double kScoresAreNoise = 0x1p22;

// Returns the tolerance for an error of log_sum_exp: the largest error that one rounding of every score to
// the format can cause, but at least the error of sums of products in fp32 (which counts for fp32 and fp64).
double lse_tolerance(DType dtype, double logit_abs_max);

// Working memory of judge(). It grows to the largest slice seen. Use one per thread.
struct DeviationWorkspace {
  Reference reference;
  NoiseFloors floors;
};

// The results for dK and dV of sampled key positions. Each is checked like a slice whose rows are the key
// positions. The exact values, plain and fused all use the given log_sum_exp and out (the trainer's), so
// both ratios have the same reference. Values of log_sum_exp, scores and drift are absent.
struct ColumnDeviation {
  SliceDeviation grad_key, grad_value;
};

// Checks sampled key positions. `columns` must be valid (key_columns.h).
ColumnDeviation judge(const KeyColumns& columns, ColumnReference* workspace);

// Whether a slice can be checked: its formats are known, its sizes are in range and no array is missing.
bool is_valid(const AttentionSlice& slice);

// Checks a slice of rows, which must be valid.
SliceDeviation judge(const AttentionSlice& slice, DeviationWorkspace* workspace);

// Returns the shortest decimal that reads back as the same double; "inf", "-inf" or "nan".
std::string exact_text(double value);

struct Figure {
  const char* name;  // the name of the number in the record, if the record has it
  std::string text;  // exact_text() of the number; empty: unknown
};

// Returns every number of the result but near_tie_ratio, which follows from two others. The order is always
// the same. Equal texts mean equal bits.
std::vector<Figure> figures_of(const SliceDeviation& deviation);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_JUDGEMENT_H_
