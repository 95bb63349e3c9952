#include "shadow/judgement.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "shadow/rounding.h"

namespace foreshock {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Bits, not values: an all-ones exponent is NaN or Inf. Keys and values are most of what is read here.
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
  d->nonfinite_grad_query = count_nonfinite(s.grad_query, s.dtype, rows * head);
}

// One row of the judged tensor in all its versions.
struct Row {
  const void* trainer;
  size_t first;  // element
  DType dtype;
  const double* reference;
  const double* plain;
  int columns;

  double trainer_at(int c) const { return load_as_double(trainer, dtype, first + c); }

  // The exact value lies beyond what the format holds, and the trainer has the Inf that it rounds to: there
  // is nothing to compare, or the control itself would raise an alarm.
  bool overflows_rightly(int c) const {
    const double x = trainer_at(c);
    return std::isinf(x) && std::isfinite(reference[c]) && x == round_to(dtype, reference[c]);
  }
};

double squared_norm(const Row& row) {
  double sum = 0;
  for (int c = 0; c < row.columns; ++c)
    if (!row.overflows_rightly(c)) sum += row.reference[c] * row.reference[c];
  return sum;
}

void add_bias(const Row& row, SliceDeviation* d) {
  for (int c = 0; c < row.columns; ++c) {
    const double exact = row.reference[c];
    const double ulp = ulp_at(row.dtype, exact);
    const double sign = exact > 0 ? 1 : exact < 0 ? -1 : 0;
    const double trainer_error = (row.trainer_at(c) - exact) * sign;
    const double rounded_error = (round_to(row.dtype, exact) - exact) * sign;
    if (std::isfinite(trainer_error)) {
      d->bias.numerator += trainer_error;
      d->bias.denominator += ulp;
    }
    if (std::isfinite(rounded_error)) {
      d->rounded_bias.numerator += rounded_error;
      d->rounded_bias.denominator += ulp;
    }
  }
}

double squared_error(const Row& row, bool of_plain) {
  double sum = 0;
  for (int c = 0; c < row.columns; ++c) {
    if (row.overflows_rightly(c)) continue;
    const double error = (of_plain ? row.plain[c] : row.trainer_at(c)) - row.reference[c];
    sum += error * error;
  }
  return std::isnan(sum) ? kInfinity : sum;
}

// Sums over the compared rows, until they become means and norms.
struct Errors {
  double relative_sum = 0, relative_max = 0;
  double kernel = 0, plain = 0;                      // squares
  double squares_of_both = 0, squares_of_plain = 0;  // fourth powers: of a row's kernel + plain, of its plain
  int rows_with_plain = 0;
};

void compare_row(const Row& row, Errors* errors, SliceDeviation* d) {
  const double norm = squared_norm(row);
  if (!(norm > 0) || !(norm < kInfinity)) {
    ++d->rows_not_comparable;
    return;
  }
  ++d->rows_compared;
  const double kernel = squared_error(row, false);
  const double plain = squared_error(row, true);
  const double relative = std::sqrt(kernel / norm);
  errors->relative_sum += relative;
  errors->relative_max = std::max(errors->relative_max, relative);
  if (plain < kInfinity) {
    ++errors->rows_with_plain;
    errors->kernel += kernel;
    errors->plain += plain;
    errors->squares_of_both += (kernel + plain) * (kernel + plain);
    errors->squares_of_plain += plain * plain;
  }
  add_bias(row, d);
}

std::optional<double> effective_count(double sum, double sum_of_squares) {
  const double count = sum / sum_of_squares * sum;
  return std::isfinite(count) && sum_of_squares > 0 ? std::optional(count) : std::nullopt;
}

// Whether the ratio is more than that of two single draws, see kLeastEffectiveRows. Forward each element of a
// row is rounded for itself: there a row is a sample.
bool is_decided(const SliceDeviation& d) {
  return !d.backward || !d.effective_rows || *d.effective_rows >= kLeastEffectiveRows ||
         d.plain_effective_rows.value_or(0) >= kEnoughPlainRows;
}

void summarise(const Errors& errors, SliceDeviation* d) {
  if (d->rows_compared > 0) {
    d->relative_error_mean = errors.relative_sum / d->rows_compared;
    d->relative_error_max = errors.relative_max;
  }
  d->kernel_error_norm = std::sqrt(errors.kernel);
  d->plain_error_norm = std::sqrt(errors.plain);
  d->effective_rows = effective_count(errors.kernel + errors.plain, errors.squares_of_both);
  d->plain_effective_rows = effective_count(errors.plain, errors.squares_of_plain);
  if (errors.rows_with_plain > 0 && (errors.kernel > 0 || errors.plain > 0) && is_decided(*d)) {
    d->deviation_ratio = errors.plain > 0 ? d->kernel_error_norm / d->plain_error_norm : kInfinity;
  }
}

void compare(const AttentionSlice& slice, const DeviationWorkspace& w, SliceDeviation* d) {
  const bool backward = slice.backward();
  Row row;
  row.trainer = backward ? slice.grad_query : slice.out;
  row.dtype = slice.dtype;
  row.columns = backward ? slice.head_dim : slice.value_dim;
  Errors errors;
  for (int r = 0; r < slice.rows; ++r) {
    row.first = static_cast<size_t>(r) * row.columns;
    row.reference = (backward ? w.reference.grad_query : w.reference.out).data() + row.first;
    row.plain = (backward ? w.plain.grad_query : w.plain.out).data() + row.first;
    compare_row(row, &errors, d);
  }
  summarise(errors, d);
}

// NaN counts as the worst value there is.
void raise(double value, std::optional<double>* max) {
  const double known = std::isnan(value) ? kInfinity : value;
  *max = max->has_value() ? std::max(**max, known) : known;
}

void describe_scores(const AttentionSlice& slice, const Reference& ref, SliceDeviation* d) {
  double entropy_sum = 0;
  int entropy_rows = 0;
  for (int r = 0; r < slice.rows; ++r) {
    if (ref.log_sum_exp[r] == -kInfinity) continue;
    ++d->rows_with_keys;
    d->near_tie_rows += ref.near_tie[r];
    raise(std::isnan(ref.log_sum_exp[r]) ? kInfinity : ref.logit_abs_max[r], &d->logit_abs_max);
    if (!std::isfinite(ref.log_sum_exp[r])) continue;
    if (slice.log_sum_exp != nullptr) {
      const double trainer = load_as_double(slice.log_sum_exp, slice.log_sum_exp_dtype, r);
      const double rounded = round_to(slice.log_sum_exp_dtype, ref.log_sum_exp[r]);
      if (std::isfinite(rounded) || trainer != rounded)
        raise(std::fabs(trainer - ref.log_sum_exp[r]), &d->lse_error_abs_max);
    }
    ++entropy_rows;
    entropy_sum += ref.entropy_nats[r];
    d->entropy_min = d->entropy_min ? std::min(*d->entropy_min, ref.entropy_nats[r]) : ref.entropy_nats[r];
  }
  if (entropy_rows > 0) d->entropy_mean = entropy_sum / entropy_rows;
}

void measure_drift(const AttentionSlice& slice, const Reference& ref, SliceDeviation* d) {
  double sum = 0;
  bool any = false;
  for (int r = 0; r < slice.rows; ++r) {
    if (!std::isfinite(ref.log_sum_exp[r])) continue;
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

bool is_valid(const AttentionSlice& s) {
  if (!is_floating(s.dtype)) return false;
  if (s.rows < 1 || s.rows > kMaxSliceRows || s.keys < 0 || s.head_dim < 1 || s.value_dim < 1) return false;
  if (!std::isfinite(s.scale)) return false;
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
  count_all_nonfinite(slice, &d);
  reference(slice, &workspace->reference);
  if (slice.out != nullptr) {
    plain(slice, &workspace->plain);
    compare(slice, *workspace, &d);
  }
  describe_scores(slice, workspace->reference, &d);
  if (d.backward) measure_drift(slice, workspace->reference, &d);
  return d;
}

void BiasPool::add(const BiasCluster& cluster, const BiasSums& sums) {
  if (!std::isfinite(sums.numerator) || !(sums.denominator > 0) || !std::isfinite(sums.denominator)) return;
  entries_[next_] = {cluster, sums};
  next_ = (next_ + 1) % kSlices;
  size_ = std::min(size_ + 1, kSlices);
}

std::optional<Bias> BiasPool::bias() const {
  if (size_ == 0) return std::nullopt;
  std::array<Entry, kSlices> clusters;
  size_t count = 0;
  BiasSums all;
  for (size_t i = 0; i < size_; ++i) {
    const Entry& entry = entries_[i];
    all.numerator += entry.sums.numerator;
    all.denominator += entry.sums.denominator;
    const auto end = clusters.begin() + count;
    const auto found =
        std::find_if(clusters.begin(), end, [&](const Entry& e) { return e.cluster == entry.cluster; });
    if (found == end) {
      clusters[count++] = entry;
    } else {
      found->sums.numerator += entry.sums.numerator;
      found->sums.denominator += entry.sums.denominator;
    }
  }
  Bias result = {all.numerator / all.denominator, std::nullopt, static_cast<int>(size_),
                 static_cast<int>(count)};
  if (count < kMinClusters) return result;
  double squares = 0;
  for (size_t i = 0; i < count; ++i) {
    const double error = clusters[i].sums.numerator - result.ulp * clusters[i].sums.denominator;
    squares += error * error;
  }
  const double deviation = std::sqrt(squares * count / (count - 1)) / all.denominator;
  if (deviation > 0) result.z = result.ulp / deviation;
  return result;
}

namespace {

std::string text_of(const std::optional<double>& value) { return value ? exact_text(*value) : ""; }

}  // namespace

std::string exact_text(double value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

std::vector<Figure> figures_of(const SliceDeviation& d) {
  return {
      {"relative_error_mean", text_of(d.relative_error_mean)},
      {"relative_error_max", text_of(d.relative_error_max)},
      {"error_norm", exact_text(d.kernel_error_norm)},
      {"plain_error_norm", exact_text(d.plain_error_norm)},
      {"deviation_ratio", text_of(d.deviation_ratio)},
      {"effective_rows", text_of(d.effective_rows)},
      {"plain_effective_rows", text_of(d.plain_effective_rows)},
      {"bias_error_sum", exact_text(d.bias.numerator)},
      {"bias_ulp_sum", exact_text(d.bias.denominator)},
      {"rounded_reference_bias_error_sum", exact_text(d.rounded_bias.numerator)},
      {"rounded_reference_bias_ulp_sum", exact_text(d.rounded_bias.denominator)},
      {"grad_out_drift", text_of(d.grad_out_drift)},
      {"lse_error_abs_max", text_of(d.lse_error_abs_max)},
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
      {"nonfinite_grad_query", std::to_string(d.nonfinite_grad_query)},
  };
}

}  // namespace foreshock
