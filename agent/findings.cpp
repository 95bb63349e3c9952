#include "agent/findings.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "agent/condition_list.h"
#include "agent/detection.h"
#include "agent/text.h"
#include "detect/detector.h"
#include "segment/layout.h"
#include "shadow/written_out.h"

namespace foreshock {
namespace {

// An alarm whose last bad slice is more than this many sampling intervals old is printed with that step.
constexpr int64_t kRecentIntervals = 8;

// `tensor` is a JudgedTensor.
const char* name_of_tensor(uint32_t tensor) {
  constexpr const char* kNames[kJudgedTensors] = {"the output", "dQ", "dK", "dV"};
  return kNames[tensor];
}

// Returns "layer 001 on rank 3", for example.
std::string place_of(const std::string& layer, const std::string& rank) {
  return (layer.empty() ? std::string("calls without a layer") : "layer " + printable(layer)) + rank;
}

constexpr FindingKind kind_of(AlarmKind alarm) { return static_cast<FindingKind>(alarm); }
static_assert(kind_of(AlarmKind::kNonfinite) == FindingKind::kNonfiniteAttention &&
              kind_of(AlarmKind::kBias) == FindingKind::kAttentionBias &&
              kind_of(AlarmKind::kFusedRatio) == FindingKind::kAttentionError &&
              kind_of(AlarmKind::kConservation) == FindingKind::kConservation &&
              kind_of(AlarmKind::kLogSumExp) == FindingKind::kLogSumExp);

// Relative measures have no meaning where the reference is nearly 0, so no size is printed beyond a bound.
constexpr double kMostTimes = 1000;
std::string times_text(double times) { return formatted("%.3gx", times); }
std::string largest_text(double times) { return times > kMostTimes ? "more than 1000x" : times_text(times); }
std::string percent_text(double ratio) {
  return ratio > 1 ? "more than 100 %" : "up to " + formatted("%.2g %%", 100 * ratio);
}

// Describes what is wrong with a tensor: "dQ is wrong by up to 5 % (20x the error of fused attention, 12x in
// the last samples)". The largest size and that of the last samples are both named where they differ. The
// sentence is short, so that the first lines of the summary have the action too.
std::string fault_text(const Finding& finding, const PassStatistics& statistics) {
  const std::string tensor = name_of_tensor(static_cast<uint32_t>(finding.tensor));
  if (finding.kind == FindingKind::kNonfiniteAttention)
    return tensor + " has NaN or Inf where the fp64 reference has none";
  if (finding.kind == FindingKind::kAttentionBias)
    return tensor + " is biased by " +
           formatted("%+.2f ulp", finding.largest ? finding.largest : finding.now);
  const std::optional<double> largest = finding.largest ? finding.largest : finding.now;
  std::string size = largest ? largest_text(*largest) : "unknown times";
  const std::string most = largest && *largest <= kMostTimes ? "up to " : "";
  const std::string now =
      finding.now && largest && *finding.now < 0.9 * *largest && *finding.now <= kMostTimes
          ? ", " + times_text(*finding.now) + " in the last samples"
          : "";
  if (finding.kind == FindingKind::kConservation)
    return "the sum of " + tensor + " over all keys is wrong by " + most + size + " its rounding error" + now;
  if (finding.kind == FindingKind::kLogSumExp)
    return "the log-sum-exp is wrong by " + most + size + " its rounding error" + now;
  size += std::string(" the error of ") + yardstick_of(statistics.judged, statistics.written_out) + now;
  if (!finding.relative_error) return tensor + " is wrong by " + most + size;
  return tensor + " is wrong by " + percent_text(*finding.relative_error) + " (" + size + ")";
}

// Returns " since step 317", and the last sound step if steps between the two had no sample.
std::string since_text(const PastAlarm& past) {
  const std::string since = " since step " + std::to_string(past.first_step);
  const bool is_known = past.sound_step >= 0 && past.sound_step < past.first_step;
  if (!is_known || past.first_step - past.sound_step == 1) return since;
  return since + " (sound at " + std::to_string(past.sound_step) + ")";
}

// Returns ", last seen at step N" if the alarm's last bad slice is long ago. An alarm holds until 64 later
// slices have replaced that slice, which may never happen after a divergence: NaN slices do not replace it.
std::string last_seen_text(const LayerAlarm& alarm, const RankStatistics& rank) {
  const auto interval = static_cast<int64_t>(std::max<uint64_t>(rank.last_step.interval, 1));
  if (alarm.last_step < 0 || rank.last_step.step - alarm.last_step <= kRecentIntervals * interval) return "";
  return ", last seen at step " + std::to_string(alarm.last_step);
}

// Returns the finding of one kind of alarm without its text. `past`: null if none is stored.
Finding attention_finding(const RankStatistics& rank, const LayerStatistics& layer, uint32_t tensor,
                          AlarmKind alarm, const PastAlarm* past, Severity severity) {
  Finding finding = {kind_of(alarm), alarm == AlarmKind::kNonfinite ? Severity::kNonfinite : severity};
  finding.layer = layer.label;
  finding.tensor = static_cast<int>(tensor);
  finding.rank = rank.identity.rank;
  finding.unit = alarm == AlarmKind::kNonfinite ? "" : alarm == AlarmKind::kBias ? "ulp" : "times";
  if (past == nullptr) return finding;
  finding.since_step = past->first_step;
  finding.last_step = past->last_step;
  finding.largest = past->most;
  finding.relative_error = past->relative_error;
  return finding;
}

// Adds the active alarms of layers, then ended ones (`past` has both), once per rank, layer, tensor and kind.
void add_attention(const Ranks& ranks, std::vector<Finding>* findings) {
  std::set<std::tuple<const LayerStatistics*, uint32_t, AlarmKind>> seen;
  for (const RankStatistics* rank : ranks) {
    for (const LayerAlarm& alarm : rank->alarms()) {
      seen.insert({alarm.layer, alarm.tensor, alarm.kind});
      const PassStatistics& statistics = *statistics_of(*alarm.layer, alarm.tensor);
      const auto past = statistics.past.find(alarm.kind);
      const bool is_stored = past != statistics.past.end();
      Finding finding = attention_finding(*rank, *alarm.layer, alarm.tensor, alarm.kind,
                                          is_stored ? &past->second : nullptr, Severity::kAlarm);
      finding.now = alarm.value;
      finding.text = place_of(alarm.layer->label, on_rank(ranks, *rank)) + ": " +
                     fault_text(finding, statistics) + (is_stored ? since_text(past->second) : "") +
                     last_seen_text(alarm, *rank);
      findings->push_back(std::move(finding));
    }
  }
  for (const RankStatistics* rank : ranks) {
    rank->each_tensor([&](const LayerStatistics& layer, uint32_t tensor, const PassStatistics& statistics) {
      for (const auto& [kind, past] : statistics.past) {
        // A kernel's bias does not end. One that ended before it filled a pool came from the data.
        if (kind == AlarmKind::kBias && past.slices < BiasPool::kSlices) continue;
        if (!seen.insert({&layer, tensor, kind}).second) continue;
        Finding finding = attention_finding(*rank, layer, tensor, kind, &past, Severity::kPastAlarm);
        finding.text = place_of(layer.label, on_rank(ranks, *rank)) + ": " + fault_text(finding, statistics) +
                       " in steps " + std::to_string(past.first_step) + " to " +
                       std::to_string(past.last_step) + ", not since";
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
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    const std::string begin = "all layers: ";
    const auto add = [&](FindingKind kind, Severity severity) {
      findings->push_back({kind, severity});
      findings->back().tensor = static_cast<int>(pass);
      return &findings->back();
    };
    if (passes[pass].nonfinite > 0)
      add(FindingKind::kNonfiniteAttention, Severity::kNonfinite)->text =
          begin + name_of_tensor(pass) + " has NaN or Inf where the fp64 reference has none, in " +
          grouped(passes[pass].nonfinite) + " of " +
          counted(passes[pass].judged, "checked call", "checked calls");
    const auto wrong = std::find_if(ranks.begin(), ranks.end(), [&](const RankStatistics* rank) {
      return has_large_errors(rank->pass[pass], pass);
    });
    if (wrong != ranks.end()) {
      Finding* finding = add(FindingKind::kAttentionError, Severity::kWholePass);
      finding->now = max_of((*wrong)->pass[pass].fused_ratio);
      finding->unit = "times";
      finding->rank = (*wrong)->identity.rank;
      finding->text =
          "all layers" + on_rank(ranks, **wrong) + ": " + fault_text(*finding, (*wrong)->pass[pass]);
    } else if (const RankStatistics* biased = biased_rank(ranks, pass)) {
      Finding* finding = add(FindingKind::kAttentionBias, Severity::kWholePass);
      finding->now = biased->pass[pass].bias.bias()->ulp;
      finding->unit = "ulp";
      finding->rank = biased->identity.rank;
      finding->text =
          "all layers" + on_rank(ranks, *biased) + ": " + fault_text(*finding, biased->pass[pass]);
    }
  }
}

// Returns the first step of an event of this name on any rank; -1: there was none.
int64_t first_step_of(const Ranks& ranks, std::string_view event) {
  int64_t first = -1;
  for (const RankStatistics* rank : ranks)
    for (const RankEvent& each : rank->events)
      if (each.what == event && (first < 0 || each.first_step < first)) first = each.first_step;
  return first;
}

void add_replicas(const Ranks& ranks, const Mismatches& mismatches, std::vector<Finding>* findings) {
  const size_t before = findings->size();
  for (const RankStatistics* rank : ranks) {
    const auto found = mismatches.find(rank->identity.rank);
    if (found == mismatches.end() || found->second == 0) continue;
    findings->push_back({FindingKind::kReplicas, Severity::kReplicas,
                         "rank " + std::to_string(rank->identity.rank) +
                             ": weights differ from those of its replicas (" +
                             counted(found->second, "time)", "times)")});
    findings->back().rank = rank->identity.rank;
  }
  // The events do not name the rank, so the first step is known only if one rank differs.
  if (findings->size() != before + 1) return;
  if (const int64_t first = first_step_of(ranks, "weight_mismatch"); first >= 0) {
    findings->back().since_step = first;
    findings->back().text += " since step " + std::to_string(first);
  }
}

// Returns what changed before a loss event: ", one step after the learning rate went from 0.003 to 0.3";
// else, if a detector warned that the benchmark has found reliable, that detector; else "".
std::string cause_text(const LossEventSeen& event) {
  if (!event.circumstances.empty()) return ", " + text_of(event.circumstances.front(), event.onset_step);
  for (const Episode& each : event.preceded_by) {
    const Measured* measured = measured_of(info_of(each.detector).name);
    if (each.warn_step < 0 || each.warn_step >= event.onset_step || measured == nullptr || !measured->proven)
      continue;
    return ", " + counted(static_cast<uint64_t>(event.onset_step - each.warn_step), "step", "steps") +
           " after detector " + info_of(each.detector).name + " warned" +
           (each.layer.empty() ? "" : " in layer " + printable(each.layer));
  }
  return "";
}

// A spike that becomes a divergence has the same onset and is listed only as the divergence. A divergence to
// NaN with onset `nonfinite_since` is listed as a loss that is not finite.
void add_loss_events(const RankStatistics& rank, int64_t nonfinite_since, std::vector<Finding>* findings) {
  std::set<int64_t> diverged;
  for (const LossEventSeen& event : rank.watch->loss_events())
    if (event.kind == WatchEventKind::kDivergence) diverged.insert(event.onset_step);
  for (const LossEventSeen& event : rank.watch->loss_events()) {
    const std::string when = " at step " + std::to_string(event.onset_step) + cause_text(event);
    if (event.onset_step == nonfinite_since) continue;
    if (event.kind == WatchEventKind::kDivergence)
      findings->push_back(
          {FindingKind::kLossDiverged, Severity::kDiverged, printable(event.loss) + " diverged" + when});
    else if (event.kind == WatchEventKind::kLossRise)
      findings->push_back({FindingKind::kLossRise, Severity::kRise, "loss began to rise slowly" + when});
    else if (!diverged.contains(event.onset_step))
      findings->push_back({FindingKind::kLossSpike, Severity::kSpike, "loss spike" + when});
    else
      continue;
    findings->back().since_step = event.onset_step;
    findings->back().rank = rank.identity.rank;
  }
}

// Names what was NaN or Inf first, in the order of steps: "; first NaN or Inf: loss at step 12, gradient norm
// at step 12, attention of layer 003 at step 13". In one step, the forward pass of attention comes first,
// then the loss, then the backward pass of attention, then the norm, then the weights. Attention and weights
// are seen in some steps only.
std::string first_nonfinite_text(const RankStatistics& rank) {
  std::vector<std::tuple<int64_t, int, std::string>> seen;  // step, order in the step, what
  if (rank.nonfinite_loss_since >= 0) seen.emplace_back(rank.nonfinite_loss_since, 1, "loss");
  for (const RankEvent& event : rank.events) {
    const std::string where = event.layer.empty() ? "" : " of layer " + printable(event.layer);
    if (event.what == "nonfinite") seen.emplace_back(event.first_step, 0, "attention" + where);
    if (event.what == "nonfinite_attention_gradient")
      seen.emplace_back(event.first_step, 2, "gradients of attention" + where);
    if (event.what == name_of(WatchEventKind::kNonfiniteGradientNorm))
      seen.emplace_back(event.first_step, 3, "gradient norm");
  }
  for (const Condition& condition : conditions_of({&rank}))
    if (condition.id == ConditionId::kWeightsNonfinite) seen.emplace_back(condition.since_step, 4, "weights");
  if (seen.size() < 2) return "";
  std::sort(seen.begin(), seen.end());
  constexpr size_t kMost = 3;
  std::string text = "; first NaN or Inf: ";
  for (size_t n = 0; n < std::min(seen.size(), kMost); ++n)
    text += (n == 0 ? "" : ", ") + std::get<2>(seen[n]) + " at step " + std::to_string(std::get<0>(seen[n]));
  return text;
}

// Returns the first step of the last losses if none of them is finite. -1: unknown, since an agent that has
// replaced another one has not seen the losses before its first step.
int64_t nonfinite_loss_since(const RankStatistics& rank) {
  const bool is_known = rank.taken_up_step < 0 || rank.nonfinite_loss_since > rank.taken_up_step + 1;
  return is_known ? rank.nonfinite_loss_since : -1;
}

Finding nonfinite_loss_finding(const RankStatistics& rank) {
  Finding finding = {FindingKind::kNonfiniteLoss, Severity::kLossNonfinite, "loss is not finite"};
  finding.rank = rank.identity.rank;
  finding.since_step = nonfinite_loss_since(rank);
  if (finding.since_step < 0) {
    finding.text += " in " + counted(rank.nonfinite_loss, "step", "steps") + ", the last one included";
    return finding;
  }
  finding.text += " since step " + std::to_string(finding.since_step);
  if (rank.watch != nullptr)
    for (const LossEventSeen& event : rank.watch->loss_events())
      if (event.kind == WatchEventKind::kDivergence && event.onset_step == finding.since_step)
        finding.text += cause_text(event);
  finding.text += first_nonfinite_text(rank);
  return finding;
}

// All ranks have the same loss, so only the first rank with a loss that is not finite and the first rank with
// loss events are listed. rank->watch has the results of the rank's detectors.
void add_loss(const Ranks& ranks, std::vector<Finding>* findings) {
  int64_t nonfinite_since = -1;
  for (const RankStatistics* rank : ranks) {
    if (!rank->last_loss || std::isfinite(*rank->last_loss)) continue;
    findings->push_back(nonfinite_loss_finding(*rank));
    nonfinite_since = findings->back().since_step;
    break;
  }
  for (const RankStatistics* rank : ranks) {
    if (rank->watch == nullptr || rank->watch->loss_events().empty()) continue;
    return add_loss_events(*rank, nonfinite_since, findings);
  }
}

// Scores from which one rounding to the format of the scores changes a weight by a factor of e or more, so
// that a kernel that rounds its scores may overflow. Kernels that do not round them are judged up to
// kScoresAreNoise.
double large_scores(DType dtype) {
  return dtype == DType::kBf16 ? 0x1p8 : dtype == DType::kFp16 ? 0x1p11 : 0x1p22;
}

// NaN or Inf in attention within these steps after the onset of a loss event may follow from it. The loss and
// attention are seen at different steps: the latter in sampled ones only.
constexpr int64_t kConsequenceSteps = 64;

// A training that diverges raises its scores until they overflow. Where a loss event began before attention
// had NaN or Inf, and the scores of the layer are large, the loss event is the headline, and the NaN its
// consequence.
void note_consequences(const Ranks& ranks, std::vector<Finding>* findings) {
  std::vector<int64_t> onsets;
  for (const Finding& each : *findings)
    if (each.kind == FindingKind::kLossDiverged || each.kind == FindingKind::kLossSpike)
      onsets.push_back(each.since_step);
  for (Finding& finding : *findings) {
    if (finding.kind != FindingKind::kNonfiniteAttention || finding.since_step < 0) continue;
    const auto precedes = [&](int64_t onset) {
      return onset < finding.since_step && finding.since_step - onset <= kConsequenceSteps;
    };
    const auto onset = std::find_if(onsets.begin(), onsets.end(), precedes);
    const bool has_large_scores = std::any_of(ranks.begin(), ranks.end(), [&](const RankStatistics* rank) {
      if (rank->identity.rank != finding.rank) return false;
      const auto found = rank->layers.find(finding.layer);
      const LayerStatistics& layer = found != rank->layers.end() ? found->second : rank->unnamed;
      return max_of(layer.scores.logit).value_or(0) >= large_scores(layer.pass[0].dtype);
    });
    if (onset == onsets.end() || !has_large_scores) continue;
    finding.severity = Severity::kConsequence;
    finding.text += ", after the loss event at step " + std::to_string(*onset) + ": its scores are too large";
  }
}

// Adds the conditions that are certainly faults.
void add_conditions(const Ranks& ranks, std::vector<Finding>* findings) {
  const auto kind_of_condition = [](ConditionId id) {
    if (id == ConditionId::kNoStepTaken) return FindingKind::kNoStepTaken;
    return id == ConditionId::kNothingTrained ? FindingKind::kNothingTrained : FindingKind::kWeightsNonfinite;
  };
  for (const Condition& condition : conditions_of(ranks)) {
    if (!is_fault(condition)) continue;
    Finding finding = {kind_of_condition(condition.id), Severity::kCondition, sentence_of(condition)};
    finding.rank = condition.rank;
    finding.since_step = condition.since_step;
    finding.last_step = condition.last_step;
    findings->push_back(std::move(finding));
  }
}

}  // namespace

std::vector<Finding> findings_of(const Ranks& ranks, const Weights* weights, const PassTotals (&passes)[2]) {
  Mismatches mismatches;
  if (weights != nullptr)
    for (const RankStatistics* rank : ranks)
      mismatches[rank->identity.rank] = weights->replicas().mismatches(rank->identity.rank);
  return findings_of(ranks, mismatches, passes);
}

std::vector<Finding> findings_of(const Ranks& ranks, const Mismatches& mismatches,
                                 const PassTotals (&passes)[2]) {
  std::vector<Finding> findings;
  add_attention(ranks, &findings);
  add_overall(ranks, passes, &findings);
  add_replicas(ranks, mismatches, &findings);
  add_loss(ranks, &findings);
  add_conditions(ranks, &findings);
  note_consequences(ranks, &findings);
  // A wrong output makes dQ wrong too, and which of the two is sampled first is chance. So the tensors of a
  // layer with the same kind of fault stay together, in their order.
  const auto fault_of = [](const Finding& each) {
    return std::tuple(each.severity, each.kind, each.rank, each.layer);
  };
  const auto onset_of = [](const Finding& each) { return static_cast<uint64_t>(each.since_step); };
  std::map<std::tuple<Severity, FindingKind, int64_t, std::string>, uint64_t> first;
  for (const Finding& each : findings) {
    const auto found = first.try_emplace(fault_of(each), onset_of(each)).first;
    found->second = std::min(found->second, onset_of(each));
  }
  // An unknown onset (-1) comes last among equals.
  const auto order = [&](const Finding& each) {
    return std::pair(each.severity, each.tensor >= 0 ? first.at(fault_of(each)) : onset_of(each));
  };
  std::stable_sort(findings.begin(), findings.end(),
                   [&](const Finding& a, const Finding& b) { return order(a) < order(b); });
  return findings;
}

std::string sentence_of(const Finding& finding) {
  return finding.text + ". Do: " + info_of(finding.kind).action + ".";
}

// Several loss events of one kind differ by their onset; which rank shows them may change. The other kinds
// occur once in a place.
std::string key_of(const Finding& finding) {
  const bool is_loss = finding.kind >= FindingKind::kNonfiniteLoss;
  return std::string(info_of(finding.kind).name) + '\n' + finding.layer + '\n' +
         std::to_string(finding.tensor) + '\n' + std::to_string(is_loss ? -1 : finding.rank) + '\n' +
         std::to_string(is_loss ? finding.since_step : -1);
}

Verdict verdict_of(const std::vector<Finding>& findings, const AttentionInventory& layers,
                   const PassTotals (&passes)[2]) {
  if (!findings.empty()) return {info_of(findings.front().kind).headline, true, false};
  if (passes[0].judged + passes[1].judged == 0) return {"attention not checked"};
  if (!passes[0].is_compared && !passes[1].is_compared) return {"attention output not checked"};
  if (std::max(passes[0].judged, passes[1].judged) < kLeastJudged) return {"too few samples for a verdict"};
  if (!layers.gaps.empty() || passes[0].is_damaged || passes[1].is_damaged) return {kPartlyChecked};
  return {"healthy", false, true};
}

}  // namespace foreshock
