#include "cli/pass_totals.h"

#include <algorithm>
#include <cmath>

namespace foreshock::cli {
namespace {

void add(std::optional<double>* total, std::optional<double> value) {
  if (value) *total = total->value_or(0) + *value;
}

void add_reasons(std::map<std::string, double>* total, const Json& json, const std::string& pointer) {
  const Json::json_pointer path(pointer);
  if (!json.contains(path) || !json[path].is_object()) return;
  for (const auto& [reason, value] : json[path].items()) {
    if (value.is_number() && value.get<double>() > 0) (*total)[reason] += value.get<double>();
  }
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

PassTotals totals_of(const Json& ranks, const std::string& pass) {
  PassTotals totals;
  double weight = 0, error = 0, ratio = 0;
  for (const Json& rank : ranks) {
    const std::string at = "/attention/" + pass;
    add(&totals.calls, number(rank, at + "/calls"));
    add(&totals.unsampled, number(rank, at + "/unsampled"));
    add(&totals.sampled, number(rank, at + "/sampled"));
    add(&totals.judged, number(rank, at + "/judged"));
    add(&totals.in_flight, number(rank, at + "/in_flight"));
    add_reasons(&totals.skipped, rank, at + "/skipped");
    add_reasons(&totals.lost, rank, at + "/lost");
    const std::optional<double> judged = number(rank, at + "/judged"),
                                mean = number(rank, at + "/deviation_ratio/mean"),
                                relative = number(rank, at + "/relative_error/mean"),
                                max = number(rank, at + "/deviation_ratio/max"),
                                bias = number(rank, at + "/bias_ulp");
    totals.compared = totals.compared || relative.has_value();
    if (judged && mean && relative) {
      weight += *judged;
      ratio += *judged * *mean;
      error += *judged * *relative;
    }
    if (max) totals.ratio_max = std::max(totals.ratio_max.value_or(*max), *max);
    if (bias && (!totals.bias || std::fabs(*bias) > std::fabs(*totals.bias))) {
      totals.bias = bias;
      totals.bias_z = number(rank, at + "/bias_z");
      totals.control_bias = number(rank, at + "/rounded_reference_bias_ulp");
      totals.control_bias_z = number(rank, at + "/rounded_reference_bias_z");
    }
  }
  if (weight > 0) {
    totals.ratio_mean = ratio / weight;
    totals.error_mean = error / weight;
  }
  return totals;
}

}  // namespace foreshock::cli
