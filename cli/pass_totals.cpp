#include "cli/pass_totals.h"

#include <algorithm>
#include <cmath>

#include "detect/thresholds.h"

namespace foreshock::cli {
namespace {

void add(std::optional<double>* total, std::optional<double> value) {
  if (value) *total = total->value_or(0) + *value;
}

// Both, as the alarm of a layer.
bool is_beyond(std::optional<double> ulp, std::optional<double> z) {
  return std::fabs(ulp.value_or(0)) > kBiasUlp && std::fabs(z.value_or(0)) > kBiasZ;
}

// A large bias of one rank, from few slices, hides no sure one of another.
void add_bias(const Json& pass, PassTotals* totals) {
  const std::optional<double> bias = number(pass, "/bias_ulp"), z = number(pass, "/bias_z"),
                              control = number(pass, "/rounded_reference_bias_ulp"),
                              control_z = number(pass, "/rounded_reference_bias_z");
  if (!bias) return;
  // What the reference shows too when it is merely rounded is no fault of the kernel.
  const bool biased = is_beyond(bias, z) && !is_beyond(control, control_z);
  const bool larger = !totals->bias || std::fabs(*bias) > std::fabs(*totals->bias);
  if (biased == totals->biased ? !larger : !biased) return;
  totals->biased = biased;
  totals->bias = bias;
  totals->bias_z = z;
}

}  // namespace

std::optional<double> number(const Json& json, const std::string& pointer) {
  const Json::json_pointer path(pointer);
  if (!json.contains(path) || !json[path].is_number()) return std::nullopt;
  return json[path].get<double>();
}

std::string text(const Json& json, const std::string& pointer) {
  const Json::json_pointer path(pointer);
  std::string found = json.contains(path) && json[path].is_string() ? json[path].get<std::string>() : "";
  std::replace_if(
      found.begin(), found.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return found;
}

void add_reasons(std::map<std::string, double>* total, const Json& json, const std::string& pointer) {
  const Json::json_pointer path(pointer);
  if (!json.contains(path) || !json[path].is_object()) return;
  for (const auto& [reason, value] : json[path].items()) {
    if (value.is_number() && value.get<double>() > 0) (*total)[reason] += value.get<double>();
  }
}

PassTotals totals_of(const Json& ranks, const std::string& pass) {
  PassTotals totals;
  double weight = 0, error = 0, ratio = 0;
  for (const Json& rank : ranks) {
    const std::string at = "/attention/" + pass;
    add(&totals.calls, number(rank, at + "/calls"));
    add(&totals.unsampled, number(rank, at + "/unsampled"));
    add(&totals.sampled, number(rank, at + "/sampled"));
    add(&totals.judged, number(rank, at + "/judged"));
    add(&totals.nonfinite, number(rank, at + "/nonfinite"));
    add(&totals.in_flight, number(rank, at + "/in_flight"));
    add_reasons(&totals.skipped, rank, at + "/skipped");
    add_reasons(&totals.lost, rank, at + "/lost");
    const std::optional<double> judged = number(rank, at + "/judged"),
                                mean = number(rank, at + "/deviation_ratio/mean"),
                                relative = number(rank, at + "/relative_error/mean"),
                                max = number(rank, at + "/deviation_ratio/max");
    totals.compared = totals.compared || relative.has_value();
    if (judged && mean && relative) {
      weight += *judged;
      ratio += *judged * *mean;
      error += *judged * *relative;
    }
    if (max) totals.ratio_max = std::max(totals.ratio_max.value_or(*max), *max);
    if (const Json::json_pointer path(at); rank.contains(path)) add_bias(rank[path], &totals);
  }
  if (weight > 0) {
    totals.ratio_mean = ratio / weight;
    totals.error_mean = error / weight;
  }
  return totals;
}

}  // namespace foreshock::cli
