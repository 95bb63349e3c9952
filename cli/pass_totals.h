// What a summary or a state (docs/summary.md) says, read without trust in its shape, and its ranks put
// together.
#ifndef FORESHOCK_CLI_PASS_TOTALS_H_
#define FORESHOCK_CLI_PASS_TOTALS_H_

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace foreshock::cli {

using Json = nlohmann::json;

// The number at a JSON pointer; nothing where there is none.
std::optional<double> number(const Json& json, const std::string& pointer);

// The text there, or "". Names come from a trainer: control characters are question marks here, so that none
// of them reaches a terminal.
std::string text(const Json& json, const std::string& pointer);

// Adds the counts of the object there, each under its name, to *total; those of 0 are left out.
void add_reasons(std::map<std::string, double>* total, const Json& json, const std::string& pointer);

// One pass over all ranks: counts add up, means weigh by what was judged, extremes stay extremes.
struct PassTotals {
  std::optional<double> calls, unsampled, sampled, judged, in_flight, nonfinite;
  std::map<std::string, double> skipped, lost;
  std::optional<double> error_mean, ratio_mean, ratio_max;
  bool compared = false;  // some result was compared, not scores alone, as with dropout
  bool biased = false;    // some rank is
  std::optional<double> bias,
      bias_z;  // of the rank where it is largest, among those that are biased if any is
};

// `pass`: "forward" or "backward".
PassTotals totals_of(const Json& ranks, const std::string& pass);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_PASS_TOTALS_H_
