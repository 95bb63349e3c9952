#include "agent/flagged_reason.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "detect/thresholds.h"
#include "shadow/rounding.h"

namespace foreshock {
namespace {

// Beyond the limit by so much, one slice is enough: plain attention does not err four times less by chance,
// unless hardly anything is rounded at all. Rounding once to p bits costs a row 2^-p of its norm at most;
// what errs four times that is not such a case.
constexpr double kFarBeyond = 4;

// The reference's own error (shadow/reference.h): beside fp64 storage it is what plain attention errs too,
// and no ratio says anything.
constexpr double kReferenceError = 1e-13;

double ratio_limit(const SliceDeviation& d) {
  return d.backward ? kDeviationRatioBackward : kDeviationRatioForward;
}

bool is_beyond(const SliceDeviation& d, double times) {
  return d.deviation_ratio && *d.deviation_ratio > times * ratio_limit(d) &&
         d.relative_error_max.value_or(0) > kReferenceError;
}

bool is_far_beyond(const JudgedSlice& judged) {
  const double once = std::ldexp(1.0, -format_of(judged.slice.dtype).precision);
  return is_beyond(judged.deviation, kFarBeyond) &&
         judged.deviation.relative_error_max.value_or(0) > kFarBeyond * once;
}

double per_ulp(const BiasSums& sums) { return sums.denominator > 0 ? sums.numerator / sums.denominator : 0; }

// Beyond what the reference shows too when it is merely rounded.
bool errs_that_way(const SliceDeviation& d, double pooled) {
  return (per_ulp(d.bias) - per_ulp(d.rounded_bias)) * (pooled < 0 ? -1 : 1) > kBiasUlp;
}

bool is_rounded_reference(const JudgedSlice& judged) {
  const AttentionSlice& slice = judged.slice;
  const size_t count = static_cast<size_t>(slice.rows) * slice.value_dim;
  for (size_t n = 0; n < count; ++n)
    if (load_as_double(slice.out, slice.dtype, n) != round_to(slice.dtype, judged.reference.out[n]))
      return false;
  return true;
}

// What is known of the layer and pass of a slice.
class Surroundings {
 public:
  Surroundings(const JudgedSlice& judged, const RankStatistics& rank)
      : label_(judged.layer), watch_(rank.watch), pass_(judged.deviation.backward) {
    const auto found = rank.layers.find(label_);
    if (label_.empty() || found == rank.layers.end()) return;
    layer_ = &found->second;
    alarms_ = alarms_of(*layer_, pass_);
  }

  bool warns(DetectorId detector) const {
    return !label_.empty() && watch_ != nullptr && watch_->level_of(detector, label_) == Level::kWarn;
  }
  bool has_alarm(std::string_view of) const {
    return std::any_of(alarms_.begin(), alarms_.end(), [&](const LayerAlarm& a) { return a.of == of; });
  }
  double pooled_bias() const {
    const std::optional<Bias> bias = layer_ != nullptr ? layer_->pass[pass_].bias.bias() : std::nullopt;
    return bias ? bias->ulp : 0;
  }

 private:
  const std::string& label_;
  const RankWatch* watch_;
  const uint32_t pass_;
  const LayerStatistics* layer_ = nullptr;
  std::vector<LayerAlarm> alarms_;
};

bool is_flagged(FlagReason reason, const JudgedSlice& judged, const Surroundings& around) {
  const SliceDeviation& d = judged.deviation;
  switch (reason) {
    case FlagReason::kNonfinite:
      return is_nonfinite(d);
    case FlagReason::kDeviationRatio:
      return is_far_beyond(judged) || (is_beyond(d, 1) && around.has_alarm("deviation_ratio"));
    case FlagReason::kBias:
      return (around.has_alarm("bias") || (!d.backward && around.warns(DetectorId::kBias))) &&
             errs_that_way(d, around.pooled_bias());
    case FlagReason::kOutputErrorDrift:
      return d.backward && around.warns(DetectorId::kOutputErrorDrift) && !is_rounded_reference(judged);
    case FlagReason::kLogit:
      return !d.backward && (around.warns(DetectorId::kMaxLogit) || around.warns(DetectorId::kLogitGrowth));
    case FlagReason::kControl:
      break;
  }
  return false;
}

}  // namespace

std::optional<FlagReason> flag_reason(const JudgedSlice& judged, const RankStatistics& rank) {
  const Surroundings around(judged, rank);
  for (size_t n = 0; n < kFlagReasons; ++n)
    if (const auto reason = static_cast<FlagReason>(n); is_flagged(reason, judged, around)) return reason;
  return std::nullopt;
}

bool is_fit_as_control(const SliceDeviation& d) { return d.rows_compared > 0 && !is_beyond(d, 1); }

}  // namespace foreshock
