// Compares the trainer's result in a slice, row by row, with the fp64 reference, and its error with two noise
// floors: the errors of two correct algorithms in the trainer's precision, plain (unfused) and fused
// attention. Below: the same for slices of key columns.
#include "shadow/judgement.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "shadow/conservation.h"

namespace foreshock {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Counts elements whose exponent bits are all ones, i.e. NaN and Inf. Compares bits for speed, because keys
// and values are most of the data of a slice.
template <class Word, Word kExponent>
uint64_t count_all_ones(const void* data, size_t count) {
  const auto* bytes = static_cast<const char*>(data);
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, bytes + i * sizeof(Word), sizeof(Word));
    total += (word & kExponent) == kExponent;
  }
  return total;
}

uint64_t count_nonfinite(const void* data, DType type, size_t count) {
  switch (type) {
    case DType::kBf16:
      return count_all_ones<uint16_t, 0x7f80>(data, count);
    case DType::kFp16:
      return count_all_ones<uint16_t, 0x7c00>(data, count);
    case DType::kFp32:
      return count_all_ones<uint32_t, 0x7f800000>(data, count);
    case DType::kFp64:
      return count_all_ones<uint64_t, 0x7ff0000000000000>(data, count);
    default:
      return 0;
  }
}

void count_all_nonfinite(const AttentionSlice& s, SliceDeviation* d) {
  const size_t rows = s.rows, keys = s.keys, head = s.head_dim, value = s.value_dim;
  d->nonfinite_inputs = count_nonfinite(s.query, s.dtype, rows * head) +
                        count_nonfinite(s.key, s.dtype, keys * head) +
                        count_nonfinite(s.value, s.dtype, keys * value);
  if (s.out != nullptr) d->nonfinite_out = count_nonfinite(s.out, s.dtype, rows * value);
  if (s.log_sum_exp != nullptr) d->nonfinite_lse = count_nonfinite(s.log_sum_exp, s.log_sum_exp_dtype, rows);
  if (!s.backward()) return;
  d->nonfinite_inputs += count_nonfinite(s.grad_out, s.dtype, rows * value);
  d->nonfinite_gradient = count_nonfinite(s.grad_query, s.dtype, rows * head);
}

// One row of the judged tensor in all its versions. `reference` is exact attention over the slice. `given` is
// the exact result for the log_sum_exp and out that the backward call was given; in forward slices it equals
// `reference`. Plain is compared with `reference`, fused with `given`, the trainer's result with both.
struct Row {
  const void* trainer;
  size_t first;  // index of the row's first element in `trainer`
  DType dtype;
  const double* reference;
  const double* given;
  const double* plain;
  const double* fused;
  bool may_be_nonfinite;     // a sound kernel may give NaN or Inf: kScoresAreNoise, or may_spread_nan()
  double mean_square_error;  // least square of fused's error; 0: unknown
  const double* key_mean;  // only for dQ, else null: the mean of the keys, weighted by the attention weights
  int columns;

  double trainer_at(int c) const { return load_as_double(trainer, dtype, first + c); }

  bool is_finite() const {
    for (int c = 0; c < columns; ++c)
      if (!std::isfinite(trainer_at(c))) return false;
    return true;
  }

  // Whether the exact value exceeds the range of the format and the trainer has the Inf to which it rounds.
  // Such elements are not compared, since even the rounded reference has an infinite error there.
  bool overflows_correctly(int c, const double* exact) const {
    const double x = trainer_at(c);
    return std::isinf(x) && std::isfinite(exact[c]) && x == round_to(dtype, exact[c]);
  }
};

// Here and below, `exact` is row.reference or row.given.
double squared_norm(const Row& row, const double* exact) {
  double sum = 0;
  for (int c = 0; c < row.columns; ++c)
    if (!row.overflows_correctly(c, exact)) sum += exact[c] * exact[c];
  return sum;
}

// Returns the sum over the row of (value_at(column) - exact[column])^2; Inf if the sum is NaN.
template <class ValueAt>
double squared_error(const Row& row, const double* exact, ValueAt value_at) {
  double sum = 0;
  for (int c = 0; c < row.columns; ++c) {
    if (row.overflows_correctly(c, exact)) continue;
    const double error = value_at(c) - exact[c];
    sum += error * error;
  }
  return std::isnan(sum) ? kInfinity : sum;
}

// Returns the squared error against `given`, without the component of the error along row.key_mean, the mean
// key. Rounding errors of the gradients of the scores add up along the mean key. If the keys of a layer have
// a large common part, this component alone can exceed the error of a wrong gradient.
template <class ValueAt>
double squared_error_across(const Row& row, ValueAt value_at) {
  double along = 0, norm = 0;
  for (int c = 0; c < row.columns; ++c) {
    along += (value_at(c) - row.given[c]) * row.key_mean[c];
    norm += row.key_mean[c] * row.key_mean[c];
  }
  const double share = norm > 0 ? along / norm : 0;
  double sum = 0;
  for (int c = 0; c < row.columns; ++c) {
    const double error = value_at(c) - row.given[c] - share * row.key_mean[c];
    sum += error * error;
  }
  return std::isnan(sum) ? kInfinity : sum;
}

// Gradients below this are sums of products that leave the range of fp32, where sound kernels differ: some
// compute exp(-90) as 0, some as the smallest normal number, 2^-126. The other factors of such a product
// (queries, keys, values, gradients and their sums) are together below 2^46.
constexpr double kBelowFp32 = 0x1p-80;

// Returns the least squared error that a floor is taken to have in a row. The error of a floor is one draw of
// the errors of a correct algorithm, and may be almost 0 by chance, for example if one key has all weight.
// One rounding of each element has a mean square of ulp^2 / 12. A quarter of it, so half the error, is taken.
double least_error(const Row& row, const double* exact) {
  constexpr double kReferenceError = 1e-13;  // of the fp64 reference, relative (reference.h)
  const bool is_fp64 = row.dtype == DType::kFp64;
  double sum = 0;
  for (int c = 0; c < row.columns; ++c) {
    const double ulp = ulp_at(row.dtype, exact[c]);
    const double other = is_fp64 ? kReferenceError * exact[c] : kBelowFp32;
    sum += ulp * ulp / 48 + other * other;
  }
  return std::max(sum, row.mean_square_error);
}

// Sums over the compared rows, for summarise(). plain and the relative errors are against `reference`, the
// others against `given`. fused_across: errors of squared_error_across(). given_out: of the out that a
// backward call was given, against fused's own.
struct Errors {
  double relative_sum = 0, relative_max = 0, given_norm = 0;
  int relative_rows = 0;
  RowErrors plain, fused, fused_across, given_out;
};

// Whether the trainer's precision resolves an element: fused attention has at least three correct bits of it.
// If the softmax is saturated, or keys have a large common part, some elements are differences of nearly
// equal sums. Such elements consist of rounding errors, whose sign does not depend on the kernel.
bool is_resolved(const Row& row, int c) {
  return std::fabs(row.fused[c] - row.given[c]) <= 0.125 * std::fabs(row.given[c]);
}

// Adds the errors of `value_at` against `exact` to the numerator, positive if away from zero, and the
// spacings of the storage format at `exact` (1 ulp) to the denominator.
template <class ValueAt>
void add_bias(const Row& row, const double* exact, ValueAt value_at, BiasSums* sums) {
  for (int c = 0; c < row.columns; ++c) {
    if (!is_resolved(row, c)) continue;
    const double sign = exact[c] > 0 ? 1 : exact[c] < 0 ? -1 : 0;
    const double error = (value_at(c) - exact[c]) * sign;
    if (!std::isfinite(error)) continue;
    sums->numerator += error;
    sums->denominator += ulp_at(row.dtype, exact[c]);
  }
}

void add_biases(const Row& row, SliceDeviation* d) {
  add_bias(
      row, row.given, [&](int c) { return row.trainer_at(c); }, &d->bias);
  add_bias(
      row, row.given, [&](int c) { return round_to(row.dtype, row.given[c]); }, &d->rounded_bias);
  add_bias(
      row, row.given, [&](int c) { return row.fused[c]; }, &d->floor_bias);
  add_bias(
      row, row.reference, [&](int c) { return row.plain[c]; }, &d->plain_bias);
}

// Whether the format cannot hold the row: the trainer's row has NaN or Inf, and so has a correct algorithm
// where the exact value is in range, for example because scores overflow in a training that diverges.
bool exceeds_format(const Row& row) {
  if (row.is_finite()) return false;
  if (row.may_be_nonfinite) return true;
  for (int c = 0; c < row.columns; ++c)
    if (!std::isfinite(row.plain[c] + row.fused[c]) && std::isfinite(round_to(row.dtype, row.reference[c])))
      return true;
  return false;
}

// Adds the relative error of a row whose squared error is `kernel` and whose norm is `norm`. If even fused
// has fewer than three correct bits of the row, the error says nothing about the kernel, unless it is
// infinite.
void add_relative_error(double kernel, double fused, double norm, Errors* errors) {
  if (!(fused <= 0x1p-6 * norm) && kernel < kInfinity) return;
  // Divides roots, because the quotient of the squares could overflow.
  const double relative = std::sqrt(kernel) / std::sqrt(norm);
  ++errors->relative_rows;
  errors->relative_sum += relative;
  errors->relative_max = std::max(errors->relative_max, relative);
}

// Adds the errors of one row to the sums, if the norm of its reference is finite and not 0.
void compare_row(const Row& row, Errors* errors, SliceDeviation* d) {
  const double norm = squared_norm(row, row.reference), given_norm = squared_norm(row, row.given);
  if (!(norm > 0) || !(norm < kInfinity) || exceeds_format(row)) {
    ++d->rows_not_comparable;
    return;
  }
  ++d->rows_compared;
  const auto trainer = [&](int c) { return row.trainer_at(c); };
  const auto fused = [&](int c) { return row.fused[c]; };
  const double kernel = squared_error(row, row.reference, trainer);
  const double fused_error = squared_error(row, row.given, fused);
  add_relative_error(kernel, fused_error, norm, errors);
  errors->plain.add(kernel, squared_error(row, row.reference, [&](int c) { return row.plain[c]; }),
                    least_error(row, row.reference));
  if (given_norm < kInfinity) {
    errors->given_norm += given_norm;
    const double least = least_error(row, row.given);
    errors->fused.add(squared_error(row, row.given, trainer), fused_error, least);
    if (row.key_mean != nullptr && row.is_finite())
      errors->fused_across.add(squared_error_across(row, trainer), squared_error_across(row, fused), least);
  }
  add_biases(row, d);
}

// Whether enough rows contribute to a ratio: kLeastEffectiveRows to the sum of both errors, or
// kEnoughFloorRows to the floor's error. An output of fewer rows is always decided: a row without a dominant
// error has an independent error in each element. So are dK and dV, whose floor has a known mean.
bool is_decided(JudgedTensor tensor, const RowErrors& errors) {
  if (tensor == JudgedTensor::kGradKey || tensor == JudgedTensor::kGradValue) return true;
  if (tensor == JudgedTensor::kOut && errors.rows < kLeastEffectiveRows) return true;
  const std::optional<double> both = errors.effective_rows();
  return !both || *both >= kLeastEffectiveRows ||
         errors.effective_floor_rows().value_or(0) >= kEnoughFloorRows;
}

// Absent if no row has an error or too few rows contribute.
std::optional<double> ratio_of(JudgedTensor tensor, const RowErrors& errors) {
  return is_decided(tensor, errors) ? errors.ratio() : std::nullopt;
}

// Computes the means, norms and ratios of *d.
void summarise(const Errors& errors, SliceDeviation* d) {
  if (errors.relative_rows > 0) {
    d->relative_error_mean = errors.relative_sum / errors.relative_rows;
    d->relative_error_max = errors.relative_max;
  }
  const RowErrors& plain = errors.plain;
  d->kernel_error_norm = std::sqrt(plain.kernel);
  d->plain_error_norm = std::sqrt(plain.floor);
  d->fused_error_norm = std::sqrt(errors.fused.floor);
  d->reference_norm = std::sqrt(errors.given_norm);
  d->effective_rows = plain.effective_rows();
  d->plain_effective_rows = plain.effective_floor_rows();
  d->plain_errors = plain;
  d->fused_errors = errors.fused;
  d->deviation_ratio = ratio_of(d->tensor, plain);
  d->fused_ratio = ratio_of(d->tensor, errors.fused);
  // Where too few rows decide about the gradient itself, the other two ratios do not stand for it.
  if (d->fused_ratio)
    for (const auto& other :
         {ratio_of(d->tensor, errors.fused_across), ratio_of(JudgedTensor::kOut, errors.given_out)})
      d->fused_ratio = std::max(*d->fused_ratio, other.value_or(0));
  d->unexplained_bias = unexplained_bias(d->bias, {d->rounded_bias, d->floor_bias});
}

// Whether a kernel may compute NaN or Inf from scores of this magnitude, or from such before they are scaled.
bool may_overflow(const AttentionSlice& slice, double logit_abs_max) {
  return slice.dtype != DType::kFp64 &&
         logit_abs_max >= std::min(kScoresAreNoise, overflow_of(slice.dtype) * std::fabs(slice.scale));
}

// Whether a sound kernel may give NaN or Inf in a row whose own inputs are finite. Kernels multiply keys and
// values that a row does not see by a weight of 0, and 0 times NaN or Inf is NaN.
bool may_spread_nan(const AttentionSlice& slice, const SliceDeviation& d) {
  return slice.lacks_keys || d.nonfinite_inputs > 0;
}

// Compares the out that a backward call was given in a row, the trainer's, with exact attention. A partial
// row's out also covers keys outside of the slice, so it is not compared.
void compare_given_out(const AttentionSlice& slice, const DeviationWorkspace& w, int r, bool may_be_nonfinite,
                       Errors* errors) {
  if (w.reference.partial[r] != 0) return;
  Row row = {};
  row.may_be_nonfinite = may_be_nonfinite;
  row.trainer = slice.out;
  row.dtype = slice.dtype;
  row.columns = slice.value_dim;
  row.first = static_cast<size_t>(r) * row.columns;
  const double* exact = row.reference = row.given = w.reference.out.data() + row.first;
  row.plain = w.floors.plain.out.data() + row.first;
  row.fused = w.floors.fused.out.data() + row.first;
  const double norm = squared_norm(row, exact);
  if (!(norm > 0) || !(norm < kInfinity) || exceeds_format(row)) return;
  errors->given_out.add(squared_error(row, exact, [&](int c) { return row.trainer_at(c); }),
                        squared_error(row, exact, [&](int c) { return row.fused[c]; }),
                        least_error(row, exact));
}

void compare(const AttentionSlice& slice, const DeviationWorkspace& w, SliceDeviation* d) {
  const bool backward = slice.backward(), spreads_nan = may_spread_nan(slice, *d);
  Row row = {};
  row.trainer = backward ? slice.grad_query : slice.out;
  row.dtype = slice.dtype;
  row.columns = backward ? slice.head_dim : slice.value_dim;
  Errors errors;
  for (int r = 0; r < slice.rows; ++r) {
    row.first = static_cast<size_t>(r) * row.columns;
    row.key_mean = backward ? w.reference.key_mean.data() + row.first : nullptr;
    row.given = (backward ? w.reference.given_grad_query : w.reference.out).data() + row.first;
    // A row is partial if its given log_sum_exp also covers keys of other calls. Its gradient has to use it.
    row.reference =
        backward && w.reference.partial[r] == 0 ? w.reference.grad_query.data() + row.first : row.given;
    row.plain = (backward ? w.floors.plain.grad_query : w.floors.plain.out).data() + row.first;
    row.fused = (backward ? w.floors.fused.grad_query : w.floors.fused.out).data() + row.first;
    row.may_be_nonfinite = spreads_nan || may_overflow(slice, w.reference.logit_abs_max[r]);
    compare_row(row, &errors, d);
    if (backward) compare_given_out(slice, w, r, row.may_be_nonfinite, &errors);
  }
  summarise(errors, d);
}

// Sets *max to the larger of *max and `value`; NaN counts as infinity.
void raise(double value, std::optional<double>* max) {
  const double known = std::isnan(value) ? kInfinity : value;
  *max = max->has_value() ? std::max(**max, known) : known;
}

// Compares the trainer's log_sum_exp of a row, or counts the row as partial.
void compare_lse(const AttentionSlice& slice, const Reference& ref, int row, bool spreads_nan,
                 SliceDeviation* d) {
  if (slice.backward() && ref.partial[row] != 0) {
    ++d->partial_rows;
    return;
  }
  const double given = load_as_double(slice.log_sum_exp, slice.log_sum_exp_dtype, row);
  const double rounded = round_to(slice.log_sum_exp_dtype, ref.log_sum_exp[row]);
  if (!std::isfinite(rounded) && given == rounded) return;
  if (!std::isfinite(given) && (spreads_nan || may_overflow(slice, ref.logit_abs_max[row]))) return;
  const double error = std::fabs(given - ref.log_sum_exp[row]);
  raise(error, &d->lse_error_abs_max);
  raise(error / lse_tolerance(slice.dtype, ref.logit_abs_max[row]), &d->lse_error_ratio);
}

// A slice counts as partial (other calls have more keys of its rows) if at least this share of its rows is
// partial. The share is below 1, since rows in which these keys have almost no weight do not look partial.
constexpr double kPartialShare = 0.75;

// Sets the results about scores and log_sum_exp, over the rows that see a key.
void describe_scores(const AttentionSlice& slice, const Reference& ref, SliceDeviation* d) {
  double entropy_sum = 0;
  int entropy_rows = 0;
  const bool spreads_nan = may_spread_nan(slice, *d);
  const std::vector<double>& size = slice.mask != nullptr ? ref.product_abs_max : ref.logit_abs_max;
  for (int r = 0; r < slice.rows; ++r) {
    if (ref.log_sum_exp[r] == -kInfinity) continue;
    ++d->rows_with_keys;
    d->near_tie_rows += ref.near_tie[r];
    raise(std::isnan(ref.log_sum_exp[r]) ? kInfinity : size[r], &d->logit_abs_max);
    if (!std::isfinite(ref.log_sum_exp[r])) continue;
    if (slice.log_sum_exp != nullptr) compare_lse(slice, ref, r, spreads_nan, d);
    ++entropy_rows;
    entropy_sum += ref.entropy_nats[r];
    d->entropy_min = d->entropy_min ? std::min(*d->entropy_min, ref.entropy_nats[r]) : ref.entropy_nats[r];
  }
  if (entropy_rows > 0) d->entropy_mean = entropy_sum / entropy_rows;
  d->partial = d->partial_rows > 0 && d->partial_rows >= kPartialShare * entropy_rows &&
               d->lse_error_ratio.value_or(0) <= 1;
  if (d->rows_with_keys > 0) d->near_tie_ratio = static_cast<double>(d->near_tie_rows) / d->rows_with_keys;
}

// Sets grad_out_drift: the sum of grad_out * (trainer's out - exact out).
void measure_drift(const AttentionSlice& slice, const Reference& ref, SliceDeviation* d) {
  double sum = 0;
  bool any = false;
  for (int r = 0; r < slice.rows; ++r) {
    if (!std::isfinite(ref.log_sum_exp[r]) || ref.partial[r] != 0) continue;
    any = true;
    for (int c = 0; c < slice.value_dim; ++c) {
      const size_t index = static_cast<size_t>(r) * slice.value_dim + c;
      const double error = load_as_double(slice.out, slice.dtype, index) - ref.out[index];
      sum += load_as_double(slice.grad_out, slice.dtype, index) * error;
    }
  }
  if (any && std::isfinite(sum)) d->grad_out_drift = sum;
}

}  // namespace

double lse_tolerance(DType dtype, double logit_abs_max) {
  constexpr double kSummedInFp32 = 0x1p-15;  // error of sums of thousands of terms
  const double rounding = std::ldexp(1.0, -format_of(dtype).precision);
  return std::max(rounding, kSummedInFp32) * std::max(1.0, logit_abs_max);
}

bool is_valid(const AttentionSlice& s) {
  if (!is_floating(s.dtype)) return false;
  if (s.rows < 1 || s.rows > kMaxSliceRows || s.keys < 0 || s.head_dim < 1 || s.value_dim < 1) return false;
  if (!std::isfinite(s.scale) || !has_valid_rules(s)) return false;
  if (s.key_limit == nullptr || s.query == nullptr) return false;
  if (s.out == nullptr && s.backward()) return false;
  if (s.keys > 0 && (s.key == nullptr || s.value == nullptr)) return false;
  if (s.mask != nullptr && s.mask_dtype != DType::kBool && !is_floating(s.mask_dtype)) return false;
  if (s.log_sum_exp != nullptr && !is_floating(s.log_sum_exp_dtype)) return false;
  return (s.grad_out != nullptr) == (s.grad_query != nullptr);
}

SliceDeviation judge(const AttentionSlice& slice, DeviationWorkspace* workspace) {
  SliceDeviation d;
  d.backward = slice.backward();
  d.tensor = d.backward ? JudgedTensor::kGradQuery : JudgedTensor::kOut;
  count_all_nonfinite(slice, &d);
  reference(slice, &workspace->reference);
  if (slice.out != nullptr) {
    compute_noise_floors(slice, workspace->reference, &workspace->floors);
    compare(slice, *workspace, &d);
  }
  describe_scores(slice, workspace->reference, &d);
  if (d.backward) measure_drift(slice, workspace->reference, &d);
  return d;
}

namespace {

uint64_t nonfinite_inputs_of(const KeyColumns& c) {
  const size_t rows = c.rows(), columns = c.columns, head = c.head_dim, value = c.value_dim;
  return count_nonfinite(c.query, c.dtype, rows * head) + count_nonfinite(c.grad_out, c.dtype, rows * value) +
         count_nonfinite(c.key, c.dtype, columns * head) + count_nonfinite(c.value, c.dtype, columns * value);
}

// Returns the number of NaN and Inf in out and log_sum_exp. *without_keys is the number of rows that are not
// counted, since an infinite log_sum_exp means that they see no key.
uint64_t nonfinite_results_of(const KeyColumns& c, uint64_t* without_keys) {
  const bool may_lack_keys = may_have_rows_without_keys(c);
  const size_t row_bytes = c.value_dim * size_of(c.dtype);
  uint64_t count = 0;
  *without_keys = 0;
  for (size_t row = 0; row < c.rows(); ++row) {
    const double lse = load_as_double(c.log_sum_exp, c.log_sum_exp_dtype, row);
    if (may_lack_keys && std::isinf(lse)) {
      ++*without_keys;
      continue;
    }
    count += !std::isfinite(lse);
    count += count_nonfinite(static_cast<const char*>(c.out) + row * row_bytes, c.dtype, c.value_dim);
  }
  return count;
}

// Whether a sound kernel may give NaN in dK and dV of keys whose exact gradient is finite: because a row sees
// no key (its weights are 0 / 0), or has NaN or Inf, which a weight of 0 makes NaN for keys it does not see.
bool may_spread_nan(const KeyColumns& c) {
  uint64_t without_keys = 0;
  return nonfinite_inputs_of(c) + nonfinite_results_of(c, &without_keys) + without_keys > 0;
}

// Whether scores that have a weight are so large that weights are noise. They are near the log-sum-exp.
bool has_noisy_scores(const KeyColumns& c) {
  if (c.dtype == DType::kFp64) return false;
  for (size_t row = 0; row < c.rows(); ++row)
    if (const double lse = load_as_double(c.log_sum_exp, c.log_sum_exp_dtype, row);
        std::isfinite(lse) && std::fabs(lse) >= kScoresAreNoise)
      return true;
  return false;
}

// Whether a row with such scores has a part in dK and dV. A mask that adds the lowest number of fp32 to all
// keys of a row is the usual case: the log-sum-exp cannot hold the number of keys any more, and exp(score -
// log_sum_exp) is 1 for each of n keys instead of 1 / n. A row whose gradient is 0 adds 0 with any weight.
bool has_noisy_weights(const KeyColumns& c) {
  if (c.dtype == DType::kFp64) return false;
  for (size_t row = 0; row < c.rows(); ++row) {
    const double lse = load_as_double(c.log_sum_exp, c.log_sum_exp_dtype, row);
    if (!std::isfinite(lse) || std::fabs(lse) < kScoresAreNoise) continue;
    for (int n = 0; n < c.value_dim; ++n)
      if (load_as_double(c.grad_out, c.dtype, row * c.value_dim + n) != 0) return true;
  }
  return false;
}

SliceDeviation compare_columns(const KeyColumns& c, JudgedTensor judged, const ColumnReference& reference) {
  const bool is_key = judged == JudgedTensor::kGradKey;
  const void* trainer = is_key ? c.grad_key : c.grad_value;
  const int width = is_key ? c.head_dim : c.value_dim;
  const auto tensor = is_key ? &ColumnGradients::grad_key : &ColumnGradients::grad_value;
  SliceDeviation d;
  d.backward = true;
  d.tensor = judged;
  d.nonfinite_gradient = count_nonfinite(trainer, c.dtype, static_cast<size_t>(c.columns) * width);
  Row row = {};
  row.trainer = trainer;
  row.dtype = c.dtype;
  row.columns = width;
  // Both read all rows, so only if it matters.
  row.may_be_nonfinite = d.nonfinite_gradient > 0 && (may_spread_nan(c) || has_noisy_scores(c));
  Errors errors;
  if (has_noisy_weights(c)) d.rows_not_comparable = c.columns;
  for (int n = d.rows_not_comparable; n < c.columns; ++n) {
    row.first = static_cast<size_t>(n) * width;
    row.reference = row.given = (reference.exact.*tensor).data() + row.first;
    row.plain = (reference.plain.*tensor).data() + row.first;
    row.fused = (reference.fused.*tensor).data() + row.first;
    row.mean_square_error = (reference.mean_square_error.*tensor)[n];
    compare_row(row, &errors, &d);
  }
  summarise(errors, &d);
  return d;
}

// Whether a gradient may overflow in a correct training. Always true in fp16, where the loss is scaled until
// gradients overflow. Otherwise true if a sampled gradient is near the end of the format's range, or if fused
// attention overflows.
bool may_overflow(const KeyColumns& c, const ColumnReference& reference) {
  if (c.dtype == DType::kFp16) return true;
  const double limit = c.dtype == DType::kFp64 ? 0x1p1000 : 0x1p112;
  const auto is_large = [&](double x) { return !(std::fabs(x) < limit); };
  const auto has_large = [&](const ColumnGradients& gradients) {
    return std::any_of(gradients.grad_key.begin(), gradients.grad_key.end(), is_large) ||
           std::any_of(gradients.grad_value.begin(), gradients.grad_value.end(), is_large);
  };
  return has_large(reference.exact) || has_large(reference.fused);
}

// Sets the results over all keys of the kv-head, from the sums over dK, dV and dQ that the library in the
// trainer has computed: first those of dK's columns, then dV's, and last one of all dQ.
void judge_all_keys(const KeyColumns& c, const ColumnReference& reference, ColumnDeviation* d) {
  if (c.sums == nullptr) return;
  const auto nonfinite_of = [&](int first, int count) {
    uint64_t sum = 0;
    for (int n = first; n < first + count; ++n) sum += c.sums[n].nonfinite;
    return sum;
  };
  d->grad_key.nonfinite_gradient = nonfinite_of(0, c.head_dim);
  d->grad_value.nonfinite_gradient = nonfinite_of(c.head_dim, c.value_dim);
  uint64_t without_keys = 0;
  if (d->grad_key.nonfinite_inputs + nonfinite_results_of(c, &without_keys) > 0) return;
  const ConservationRatios ratios = conservation_of(c);
  d->grad_key.conservation_ratio = ratios.grad_key;
  d->grad_value.conservation_ratio = ratios.grad_value;
  if (may_overflow(c, reference) || has_noisy_scores(c) || without_keys > 0) return;
  d->grad_key.nonfinite_anywhere = d->grad_key.nonfinite_gradient > 0;
  d->grad_value.nonfinite_anywhere = d->grad_value.nonfinite_gradient > 0;
  d->grad_key.nonfinite_grad_query = nonfinite_of(c.head_dim + c.value_dim, 1) > 0;
}

}  // namespace

ColumnDeviation judge(const KeyColumns& columns, ColumnReference* workspace) {
  compute_exact(columns, workspace);
  compute_floors(columns, workspace);
  ColumnDeviation d = {compare_columns(columns, JudgedTensor::kGradKey, *workspace),
                       compare_columns(columns, JudgedTensor::kGradValue, *workspace)};
  d.grad_key.nonfinite_inputs = d.grad_value.nonfinite_inputs = nonfinite_inputs_of(columns);
  judge_all_keys(columns, *workspace, &d);
  return d;
}

namespace {

// Returns the value as text; "" if it is absent.
std::string text_of(const std::optional<double>& value) { return value ? exact_text(*value) : ""; }

}  // namespace

bool is_nonfinite(const SliceDeviation& d) {
  const auto is_infinite = [](const std::optional<double>& value) { return value && std::isinf(*value); };
  return is_infinite(d.relative_error_max) || is_infinite(d.lse_error_abs_max) || d.nonfinite_anywhere;
}

std::string exact_text(double value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

std::vector<Figure> figures_of(const SliceDeviation& d) {
  constexpr const char* kNonfinite[kJudgedTensors] = {"nonfinite_grad_query", "nonfinite_grad_query",
                                                      "nonfinite_grad_key", "nonfinite_grad_value"};
  return {
      {"relative_error_mean", text_of(d.relative_error_mean)},
      {"relative_error_max", text_of(d.relative_error_max)},
      {"error_norm", exact_text(d.kernel_error_norm)},
      {"plain_error_norm", exact_text(d.plain_error_norm)},
      {"deviation_ratio", text_of(d.deviation_ratio)},
      {"fused_error_norm", exact_text(d.fused_error_norm)},
      {"fused_ratio", text_of(d.fused_ratio)},
      {"reference_norm", exact_text(d.reference_norm)},
      {"effective_rows", text_of(d.effective_rows)},
      {"plain_effective_rows", text_of(d.plain_effective_rows)},
      {"bias_error_sum", exact_text(d.bias.numerator)},
      {"bias_ulp_sum", exact_text(d.bias.denominator)},
      {"rounded_reference_bias_error_sum", exact_text(d.rounded_bias.numerator)},
      {"rounded_reference_bias_ulp_sum", exact_text(d.rounded_bias.denominator)},
      {"floor_bias_error_sum", exact_text(d.floor_bias.numerator)},
      {"floor_bias_ulp_sum", exact_text(d.floor_bias.denominator)},
      {"grad_out_drift", text_of(d.grad_out_drift)},
      {"lse_error_abs_max", text_of(d.lse_error_abs_max)},
      {"lse_error_ratio", text_of(d.lse_error_ratio)},
      {"partial_rows", std::to_string(d.partial_rows)},
      {"logit_abs_max", text_of(d.logit_abs_max)},
      {"entropy_nats_min", text_of(d.entropy_min)},
      {"entropy_nats_mean", text_of(d.entropy_mean)},
      {"rows_compared", std::to_string(d.rows_compared)},
      {"rows_not_comparable", std::to_string(d.rows_not_comparable)},
      {"rows_with_keys", std::to_string(d.rows_with_keys)},
      {"near_tie_rows", std::to_string(d.near_tie_rows)},
      {"nonfinite_inputs", std::to_string(d.nonfinite_inputs)},
      {"nonfinite_out", std::to_string(d.nonfinite_out)},
      {"nonfinite_lse", std::to_string(d.nonfinite_lse)},
      {kNonfinite[static_cast<uint32_t>(d.tensor)], std::to_string(d.nonfinite_gradient)},
      {"conservation_ratio", text_of(d.conservation_ratio)},
  };
}

}  // namespace foreshock
