#include "cli/verdict.h"

#include <algorithm>
#include <set>
#include <vector>

#include "detect/thresholds.h"

namespace foreshock::cli {
namespace {

constexpr const char* kPasses[] = {"forward", "backward"};
constexpr double kRatioAlarm[] = {kDeviationRatioForward, kDeviationRatioBackward};

// What is most telling comes first: no figure holds what is not finite, and what is still so goes before what
// has passed.
enum Order { kNonfinite, kNow, kOverall, kPast };
struct Finding {
  Order order;
  std::string text;
};

std::string place_of(const Json& alarm) {
  const std::string layer = text(alarm, "/layer");
  return (layer.empty() ? "calls without a layer " : "layer " + layer + " ") + text(alarm, "/pass");
}

// "layer 003 forward errs 7.8 times what plain attention errs"
std::string alarm_text(const Json& alarm) {
  const std::string of = text(alarm, "/of"), where = place_of(alarm);
  const std::optional<double> value = number(alarm, "/value");
  if (of == "bias") return where + " is biased by " + formatted("%+.2f ulp", value);
  if (of == "nonfinite") return where + " gives NaN or Inf where the reference does not";
  return where + " errs up to " + formatted("%.1f", value) + " times what its precision explains";
}

std::string past_text(const Json& alarm) {
  const std::string of = text(alarm, "/of"), where = place_of(alarm);
  const std::optional<double> most = number(alarm, "/most");
  const std::string when = " at steps " + count(number(alarm, "/first_step")) + " to " +
                           count(number(alarm, "/last_step")) + ", not of late";
  if (of == "bias") return where + " was biased by up to " + formatted("%+.2f ulp", most) + when;
  if (of == "nonfinite") return where + " gave NaN or Inf where the reference does not" + when;
  return where + " erred up to " + formatted("%.1f", most) + " times what its precision explains" + when;
}

// Those that hold now and those that held, each once.
std::vector<Finding> alarm_findings(const Json& ranks) {
  std::vector<Finding> findings;
  std::set<std::string> told;
  for (const bool now : {true, false}) {
    const Json::json_pointer alarms(now ? "/alarms" : "/past_alarms");
    for (const Json& rank : ranks) {
      if (!rank.contains(alarms) || !rank[alarms].is_array()) continue;
      const std::string whose = ranks.size() > 1 ? "rank " + count(number(rank, "/rank")) + " " : "";
      for (const Json& alarm : rank[alarms]) {
        const std::string of = text(alarm, "/of");
        if (!told.insert(whose + place_of(alarm) + " " + of).second) continue;
        findings.push_back({of == "nonfinite" ? kNonfinite
                            : now             ? kNow
                                              : kPast,
                            "attention of " + whose + (now ? alarm_text(alarm) : past_text(alarm))});
      }
    }
  }
  return findings;
}

// Of a whole pass, where no layer says it.
void add_overall(const PassTotals& totals, int pass, std::vector<Finding>* findings) {
  const std::string attention = std::string("attention ") + kPasses[pass];
  if (totals.nonfinite.value_or(0) > 0)
    findings->push_back({kNonfinite, attention + " gave NaN or Inf where the reference does not, in " +
                                         count(totals.nonfinite) + " of " + count(totals.judged) +
                                         " slices"});
  if (totals.ratio_mean.value_or(0) > kRatioAlarm[pass])
    findings->push_back({kOverall, attention + " errs more than its precision explains"});
  else if (totals.biased)
    findings->push_back({kOverall, attention + " is biased"});
}

bool has(const std::vector<Finding>& findings, Order order) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.order == order; });
}

}  // namespace

// One layer's fault drowns in the mean over all layers, so layers come first.
std::string verdict(const PassTotals (&passes)[2], const Json& ranks, const Paint& paint) {
  std::vector<Finding> findings = alarm_findings(ranks), overall;
  bool judged = false, compared = false;
  for (int pass = 0; pass < 2; ++pass) {
    judged = judged || passes[pass].judged.value_or(0) > 0;
    compared = compared || passes[pass].compared;
    add_overall(passes[pass], pass, &overall);
  }
  const bool layers_differ = has(findings, kNow), layers_break = has(findings, kNonfinite);
  for (const Finding& finding : overall)
    if (finding.order == kNonfinite ? !layers_break : !layers_differ) findings.push_back(finding);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.order < b.order; });
  if (!findings.empty()) {
    const std::string more = findings.size() > 1 ? " (and " + count(findings.size() - 1) + " more)" : "";
    return paint.bad(findings[0].text + more);
  }
  if (!judged) return "no attention was judged";
  return compared ? paint.good("attention errs no more than its precision explains")
                  : "of attention only the scores were judged: its output cannot be with dropout, or where "
                    "what goes in is not finite";
}

}  // namespace foreshock::cli
