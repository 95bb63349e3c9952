#include "agent/findings.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "agent/text.h"
#include "detect/detector.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

// An alarm whose last bad slice is more than this many sampling intervals old is printed with that step.
constexpr int64_t kRecentIntervals = 8;

constexpr const char* kAttentionFault = "ATTENTION FAULT";

// `tensor` is a JudgedTensor: the output in the forward pass; dQ, dK or dV in the backward pass.
std::string place_of(const std::string& layer, uint32_t tensor) {
  constexpr const char* kNames[kJudgedTensors] = {"forward", "backward", "dK (grad_key)", "dV (grad_value)"};
  return (layer.empty() ? std::string("calls without a layer") : "layer " + printable(layer)) + ", " +
         kNames[tensor];
}

// `alarm`: LayerAlarm::kind.
FindingKind kind_of(const std::string& alarm) {
  if (alarm == "nonfinite") return FindingKind::kNonfiniteAttention;
  if (alarm == "bias") return FindingKind::kAttentionBias;
  if (alarm == "conservation") return FindingKind::kConservation;
  if (alarm == "log_sum_exp") return FindingKind::kLogSumExp;
  return FindingKind::kAttentionError;
}

// Describes an alarm. `kind`: LayerAlarm::kind, the exceeded limit. `value`: a ratio, or a bias in ulp.
std::string fault_text(const std::string& kind, std::optional<double> value) {
  if (kind == "bias") return "biased by " + formatted("%+.2f ulp", value);
  if (kind == "nonfinite") return "NaN or Inf where the fp64 reference has none";
  const std::string times = formatted("%.3gx", value);
  if (kind == "fused_ratio") return "error up to " + times + " of fused attention";
  if (kind == "conservation") return "sum over all keys off by " + times + " of its rounding";
  if (kind == "log_sum_exp") return "log-sum-exp error " + times + " of its rounding";
  return "error up to " + times + " of plain attention";
}

// Returns " (last seen at step N)" if the alarm's last bad slice is long ago. An alarm holds until 64 later
// slices have replaced that slice, which may never happen after a divergence: NaN slices do not replace it.
std::string last_seen_text(const LayerAlarm& alarm, const RankStatistics& rank) {
  const auto interval = static_cast<int64_t>(std::max<uint64_t>(rank.last_step.interval, 1));
  if (alarm.last_step < 0 || rank.last_step.step - alarm.last_step <= kRecentIntervals * interval) return "";
  return " (last seen at step " + std::to_string(alarm.last_step) + ")";
}

// Returns the finding of one kind of alarm (LayerAlarm::kind) without its text. `past`: null if none is
// stored.
Finding attention_finding(const RankStatistics& rank, const LayerStatistics& layer, uint32_t tensor,
                          const std::string& alarm, const PastAlarm* past, Severity severity) {
  Finding finding = {kind_of(alarm), alarm == "nonfinite" ? Severity::kNonfinite : severity, kAttentionFault,
                     ""};
  finding.layer = layer.label;
  finding.tensor = static_cast<int>(tensor);
  finding.rank = rank.identity.rank;
  finding.unit = alarm == "bias" ? "ulp" : "times";
  if (past == nullptr) return finding;
  finding.since_step = past->first_step;
  finding.last_step = past->last_step;
  finding.most = past->most;
  return finding;
}

// Adds the active alarms of layers, then ended ones (`past` has both), once per rank, layer, tensor and kind.
void add_attention(const Ranks& ranks, std::vector<Finding>* findings) {
  std::set<std::string> seen;
  for (const RankStatistics* rank : ranks) {
    for (const LayerAlarm& alarm : rank->alarms()) {
      const std::string place = place_of(alarm.layer->label, alarm.tensor) + on_rank(ranks, *rank);
      seen.insert(place + alarm.kind);
      const PassStatistics& statistics = *statistics_of(*alarm.layer, alarm.tensor);
      const auto past = statistics.past.find(alarm.kind);
      const bool is_stored = past != statistics.past.end();
      Finding finding = attention_finding(*rank, *alarm.layer, alarm.tensor, alarm.kind,
                                          is_stored ? &past->second : nullptr, Severity::kAlarm);
      finding.now = alarm.value;
      finding.text = place + (is_stored ? ", since step " + std::to_string(past->second.first_step) : "") +
                     ": " + fault_text(alarm.kind, alarm.value) + last_seen_text(alarm, *rank);
      findings->push_back(std::move(finding));
    }
  }
  for (const RankStatistics* rank : ranks) {
    rank->each_tensor([&](const LayerStatistics& layer, uint32_t tensor, const PassStatistics& statistics) {
      for (const auto& [kind, past] : statistics.past) {
        const std::string place = place_of(layer.label, tensor) + on_rank(ranks, *rank);
        if (!seen.insert(place + kind).second) continue;
        Finding finding = attention_finding(*rank, layer, tensor, kind, &past, Severity::kPastAlarm);
        finding.text = place + ", steps " + std::to_string(past.first_step) + " to " +
                       std::to_string(past.last_step) + ", not since: " + fault_text(kind, past.most);
        findings->push_back(std::move(finding));
      }
    });
  }
}

// Returns the first rank on which a whole pass is biased, or null. Ranks with a layer that pools calls of
// different shapes or trainings are excluded, because a mean error over such calls is meaningless.
const RankStatistics* biased_rank(const Ranks& ranks, uint32_t pass) {
  for (const RankStatistics* rank : ranks) {
    const bool is_mixed = std::any_of(rank->layers.begin(), rank->layers.end(),
                                      [](const auto& layer) { return layer.second.is_mixed; });
    if (!is_mixed && is_biased(rank->pass[pass], pass)) return rank;
  }
  return nullptr;
}

// Adds the limits that a pass exceeds over all layers together.
void add_overall(const Ranks& ranks, const PassTotals (&passes)[2], std::vector<Finding>* findings) {
  if (!findings->empty()) return;  // add_attention() has found alarms of single layers
  constexpr double kLimits[] = {kDeviationRatioForward, kDeviationRatioBackward};
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    const std::string name = segment::kPassNames[pass];
    const auto add = [&](FindingKind kind, Severity severity, const std::string& text) {
      findings->push_back({kind, severity, kAttentionFault, text});
      findings->back().tensor = static_cast<int>(pass);
    };
    if (passes[pass].nonfinite > 0)
      add(FindingKind::kNonfiniteAttention, Severity::kNonfinite,
          name + ": NaN or Inf in " + grouped(passes[pass].nonfinite) + " of " +
              counted(passes[pass].judged, "checked call", "checked calls"));
    if (passes[pass].ratio.value_or(0) > kLimits[pass]) {
      add(FindingKind::kAttentionError, Severity::kWholePass,
          name + " of all layers: " + fault_text("deviation_ratio", passes[pass].ratio));
      findings->back().now = passes[pass].ratio;
      findings->back().unit = "times";
    } else if (const RankStatistics* biased = biased_rank(ranks, pass)) {
      const double ulp = biased->pass[pass].bias.bias()->ulp;
      add(FindingKind::kAttentionBias, Severity::kWholePass,
          name + " of all layers" + on_rank(ranks, *biased) + ": " + fault_text("bias", ulp));
      findings->back().now = ulp;
      findings->back().unit = "ulp";
      findings->back().rank = biased->identity.rank;
    }
  }
}

void add_replicas(const Ranks& ranks, const Weights* weights, std::vector<Finding>* findings) {
  if (weights == nullptr) return;
  for (const RankStatistics* rank : ranks)
    if (const uint64_t times = weights->replicas().mismatches(rank->identity.rank); times > 0) {
      findings->push_back({FindingKind::kReplicas, Severity::kReplicas, "REPLICAS DIFFER",
                           "weights of rank " + std::to_string(rank->identity.rank) +
                               " differ from its replicas' (" + counted(times, "time)", "times)")});
      findings->back().rank = rank->identity.rank;
    }
}

// Returns "; before it gradient_norm in layer 3 (12 steps)": the first detector whose level rose before the
// loss event, and how many steps before.
std::string preceding_text(const LossEventSeen& event) {
  if (event.preceded_by.empty()) return "";
  const Episode& first = event.preceded_by.front();
  return "; before it " + std::string(info_of(first.detector).name) +
         (first.layer.empty() ? "" : " in layer " + printable(first.layer)) + " (" +
         std::to_string(event.onset_step - first.since_step) + " steps)";
}

// A spike that becomes a divergence has the same onset and is listed only as the divergence.
void add_loss_events(const RankWatch& watch, std::vector<Finding>* findings) {
  std::set<int64_t> diverged;
  for (const LossEventSeen& event : watch.loss_events())
    if (event.kind == WatchEventKind::kDivergence) diverged.insert(event.onset_step);
  for (const LossEventSeen& event : watch.loss_events()) {
    const std::string when = " at step " + std::to_string(event.onset_step) + preceding_text(event);
    if (event.kind == WatchEventKind::kDivergence)
      findings->push_back(
          {FindingKind::kLossDiverged, Severity::kDiverged, "LOSS DIVERGED", "loss diverged" + when});
    else if (event.kind == WatchEventKind::kLossSpike && !diverged.contains(event.onset_step))
      findings->push_back({FindingKind::kLossSpike, Severity::kSpike, "LOSS SPIKE", "loss spike" + when});
    else
      continue;
    findings->back().since_step = event.onset_step;
  }
}

// All ranks have the same loss, so only the first rank with a loss that is not finite and the first rank with
// loss events are listed. rank->watch has the results of the rank's detectors.
void add_loss(const Ranks& ranks, std::vector<Finding>* findings) {
  for (const RankStatistics* rank : ranks) {
    if (!rank->last_loss || std::isfinite(*rank->last_loss)) continue;
    findings->push_back({FindingKind::kNonfiniteLoss, Severity::kLossNonfinite, "LOSS NOT FINITE",
                         "loss is not finite in " + counted(rank->nonfinite_loss, "step", "steps") +
                             ", the last one included"});
    break;
  }
  for (const RankStatistics* rank : ranks) {
    if (rank->watch == nullptr || rank->watch->loss_events().empty()) continue;
    return add_loss_events(*rank->watch, findings);
  }
}

}  // namespace

std::vector<Finding> findings_of(const Ranks& ranks, const Weights* weights, const PassTotals (&passes)[2]) {
  std::vector<Finding> findings;
  add_attention(ranks, &findings);
  add_overall(ranks, passes, &findings);
  add_replicas(ranks, weights, &findings);
  add_loss(ranks, &findings);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return findings;
}

Verdict verdict_of(const std::vector<Finding>& findings, const PassTotals (&passes)[2]) {
  if (!findings.empty()) return {findings.front().headline, true, false};
  if (passes[0].judged + passes[1].judged == 0) return {"attention not checked"};
  if (!passes[0].is_compared && !passes[1].is_compared) return {"attention output not checked"};
  if (std::max(passes[0].judged, passes[1].judged) < kLeastJudged) return {"too few samples for a verdict"};
  return {"healthy", false, true};
}

}  // namespace foreshock
