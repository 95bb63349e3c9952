#include "cli/verdict.h"

#include <cmath>
#include <vector>

#include "detect/thresholds.h"

namespace foreshock::cli {
namespace {

constexpr const char* kPasses[] = {"forward", "backward"};
constexpr double kRatioAlarm[] = {kDeviationRatioForward, kDeviationRatioBackward};

// Both, as the alarm of a layer.
bool is_bias(std::optional<double> ulp, std::optional<double> z) {
  return std::fabs(ulp.value_or(0)) > kBiasUlp && std::fabs(z.value_or(0)) > kBiasZ;
}

// "layer 003 forward errs 7.8 times what plain attention errs"
std::string alarm_text(const Json& alarm) {
  const std::string of = text(alarm, "/of"),
                    where = "layer " + text(alarm, "/layer") + " " + text(alarm, "/pass");
  const std::optional<double> value = number(alarm, "/value");
  if (of == "bias") return where + " is biased by " + formatted("%+.2f ulp", value);
  if (of == "nonfinite") return where + " gives NaN or Inf where the reference does not";
  return where + " errs up to " + formatted("%.1f", value) + " times what its precision explains";
}

std::vector<std::string> alarm_texts(const Json& ranks) {
  const Json::json_pointer alarms("/alarms");
  std::vector<std::string> texts;
  for (const Json& rank : ranks) {
    if (!rank.contains(alarms) || !rank[alarms].is_array()) continue;
    for (const Json& alarm : rank[alarms])
      texts.push_back((ranks.size() > 1 ? "rank " + count(number(rank, "/rank")) + " " : "") +
                      alarm_text(alarm));
  }
  return texts;
}

}  // namespace

// One layer's fault drowns in the mean over all layers, so layers come first.
std::string verdict(const PassTotals (&passes)[2], const Json& ranks, const Paint& paint) {
  const std::vector<std::string> alarms = alarm_texts(ranks);
  if (!alarms.empty()) {
    const std::string more = alarms.size() > 1 ? " (and " + count(alarms.size() - 1) + " more)" : "";
    return paint.bad("attention of " + alarms[0] + more);
  }
  bool judged = false, compared = false;
  for (int pass = 0; pass < 2; ++pass) {
    const PassTotals& totals = passes[pass];
    judged = judged || totals.judged.value_or(0) > 0;
    compared = compared || totals.compared;
    if (totals.ratio_mean.value_or(0) > kRatioAlarm[pass]) {
      return paint.bad(std::string("attention ") + kPasses[pass] + " errs more than its precision explains");
    }
    // What the reference shows too when it is merely rounded is no fault of the kernel.
    if (is_bias(totals.bias, totals.bias_z) && !is_bias(totals.control_bias, totals.control_bias_z)) {
      return paint.bad(std::string("attention ") + kPasses[pass] + " is biased");
    }
  }
  if (!judged) return "no attention was judged";
  return compared ? paint.good("attention errs no more than its precision explains")
                  : "of attention only the scores were judged: with dropout its output cannot be";
}

}  // namespace foreshock::cli
