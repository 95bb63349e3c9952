#include "cli/verdict.h"

#include <algorithm>
#include <set>

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

// How the alarms of a kind are worded; `%` stands for the value.
struct Wording {
  const char* of;
  const char* now;
  const char* past;
  const char* format;  // of the value; null: none
};
constexpr Wording kWordings[] = {
    {"nonfinite", " gives NaN or Inf where the reference does not",
     " gave NaN or Inf where the reference does not", nullptr},
    {"bias", " is biased by %", " was biased by up to %", "%+.2f ulp"},
    {"fused_ratio", " errs up to % times what fused attention in its precision errs",
     " erred up to % times what fused attention in its precision errs", "%.1f"},
    {"log_sum_exp", " returns a log-sum-exp whose error is up to % times what rounding explains",
     " returned a log-sum-exp whose error was up to % times what rounding explains", "%.1f"},
    {"deviation_ratio", " errs up to % times what its precision explains",
     " erred up to % times what its precision explains", "%.1f"},
};

const Wording& wording_of(const std::string& of) {
  const auto found =
      std::find_if(std::begin(kWordings), std::end(kWordings), [&](const Wording& w) { return w.of == of; });
  return found != std::end(kWordings) ? *found : *std::rbegin(kWordings);
}

std::string filled_in(std::string words, const Wording& wording, std::optional<double> value) {
  const size_t at = words.find('%');
  return at == std::string::npos ? words : words.replace(at, 1, formatted(wording.format, value));
}

std::string place_of(const Json& alarm) {
  const std::string layer = text(alarm, "/layer");
  return (layer.empty() ? "calls without a layer " : "layer " + layer + " ") + text(alarm, "/pass");
}

// An alarm holds until 64 later slices have come. After a divergence none may come.
std::string support_of(const Json& alarm, const Json& rank) {
  const std::optional<double> last = number(alarm, "/last_step"), step = number(rank, "/step");
  const double interval = number(rank, "/sample_interval_steps").value_or(1);
  if (!last || !step || *step - *last <= 8 * interval) return "";
  return " (last seen at step " + count(last) + ")";
}

// "layer 003 forward errs up to 7.8 times what its precision explains"
std::string alarm_text(const Json& alarm, const Json& rank) {
  const Wording& wording = wording_of(text(alarm, "/of"));
  return place_of(alarm) + filled_in(wording.now, wording, number(alarm, "/value")) + support_of(alarm, rank);
}

std::string past_text(const Json& alarm) {
  const Wording& wording = wording_of(text(alarm, "/of"));
  return place_of(alarm) + filled_in(wording.past, wording, number(alarm, "/most")) + " at steps " +
         count(number(alarm, "/first_step")) + " to " + count(number(alarm, "/last_step")) + ", not of late";
}

// Those that hold now and those that held, each once.
std::vector<Finding> alarm_findings(const Json& ranks) {
  std::vector<Finding> findings;
  std::set<std::string> seen;
  for (const bool now : {true, false}) {
    const Json::json_pointer alarms(now ? "/alarms" : "/past_alarms");
    for (const Json& rank : ranks) {
      if (!rank.contains(alarms) || !rank[alarms].is_array()) continue;
      const std::string whose = ranks.size() > 1 ? "rank " + count(number(rank, "/rank")) + " " : "";
      for (const Json& alarm : rank[alarms]) {
        const std::string of = text(alarm, "/of");
        if (!seen.insert(whose + place_of(alarm) + " " + of).second) continue;
        const Order order = of == "nonfinite" ? kNonfinite : now ? kNow : kPast;
        findings.push_back(
            {order, "attention of " + whose + (now ? alarm_text(alarm, rank) : past_text(alarm))});
      }
    }
  }
  return findings;
}

// Of a whole pass, where no layer shows it.
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

// One layer's fault drowns in the mean over all layers, so layers come first.
std::vector<std::string> findings_of(const PassTotals (&passes)[2], const Json& ranks) {
  std::vector<Finding> findings = alarm_findings(ranks), overall;
  for (int pass = 0; pass < 2; ++pass) add_overall(passes[pass], pass, &overall);
  const bool layers_differ = has(findings, kNow), layers_break = has(findings, kNonfinite);
  for (const Finding& finding : overall)
    if (finding.order == kNonfinite ? !layers_break : !layers_differ) findings.push_back(finding);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.order < b.order; });
  std::vector<std::string> texts;
  for (const Finding& finding : findings) texts.push_back(finding.text);
  return texts;
}

std::string evidence_of(const PassTotals (&passes)[2]) {
  std::string evidence;
  double samples = 0, layers = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const double judged = passes[pass].judged.value_or(0);
    layers = std::max(layers, passes[pass].layers.value_or(0));
    if (judged == 0) continue;
    samples += judged;
    evidence += (evidence.empty() ? "over " : " and ") + count(judged) + " " + kPasses[pass];
  }
  if (evidence.empty()) return "";
  evidence += samples == 1 ? " sample" : " samples";
  return layers > 0 ? evidence + " of " + count(layers) + (layers == 1 ? " layer" : " layers") : evidence;
}

}  // namespace

std::string Verdict::sentence() const {
  const std::string over = evidence.empty() ? "" : ", " + evidence;
  std::string unjudged;
  for (const std::string& each : not_judged) unjudged += (unjudged.empty() ? "; not judged: " : ", ") + each;
  switch (state) {
    case State::kNotJudged:
      return "no attention was judged";
    case State::kScoresOnly:
      return "of attention only the scores were judged: its output cannot be with dropout, or where what "
             "goes in "
             "is not finite";
    case State::kTooFew:
      return "too few samples for a verdict on attention" + over;
    case State::kSound:
      return "attention errs no more than its precision explains" + over + unjudged;
    case State::kFault:
      break;
  }
  return findings[0] + (findings.size() > 1 ? " (and " + count(findings.size() - 1) + " more)" : "");
}

Verdict verdict_of(const PassTotals (&passes)[2], const Json& ranks) {
  Verdict verdict;
  verdict.findings = findings_of(passes, ranks);
  verdict.evidence = evidence_of(passes);
  bool judged = false, compared = false, enough = false;
  for (int pass = 0; pass < 2; ++pass) {
    const double samples = passes[pass].judged.value_or(0);
    judged = judged || samples > 0;
    compared = compared || passes[pass].compared;
    enough = enough || samples >= kLeastSamples;
    verdict.partial = verdict.partial || passes[pass].partial.value_or(0) > 0;
    if (samples == 0)
      verdict.not_judged.push_back(kPasses[pass]);
    else if (samples < kLeastSamples)
      verdict.not_judged.push_back(std::string(kPasses[pass]) + " (too few samples)");
  }
  if (!verdict.findings.empty())
    verdict.state = Verdict::State::kFault;
  else if (!judged)
    verdict.state = Verdict::State::kNotJudged;
  else if (!compared)
    verdict.state = Verdict::State::kScoresOnly;
  else
    verdict.state = enough ? Verdict::State::kSound : Verdict::State::kTooFew;
  return verdict;
}

}  // namespace foreshock::cli
