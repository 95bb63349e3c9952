// Writes the text of a run's summary. Its first line has the verdict: the headline of the most severe
// finding, or "healthy". Entries with figures follow, then notes on data that was not checked.
// A RankStatistics has the agent's figures of one trainer process; a restarted rank has several processes.
// "Judged" slices and calls are those that the agent has checked against fp64.
#include "agent/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "agent/condition_list.h"
#include "agent/detection.h"
#include "agent/findings.h"
#include "agent/publish.h"
#include "agent/text.h"
#include "detect/detector.h"
#include "detect/tensor_conditions.h"
#include "segment/layout.h"
#include "shadow/written_out.h"

namespace foreshock {
namespace {

constexpr size_t kLabelColumns = 14;
// Limits of the printed findings, gaps, looks, ranks and notes, and of the names in one list. The others are
// counted.
constexpr size_t kMostFindings = 3, kMostGaps = 2, kMostLooks = 3, kMostRankLines = 4, kMostNotes = 8,
                 kMostNamed = 3;
constexpr int64_t kMostStepsApart = 1;  // largest distance of the ranks' last steps if none ended early
// If a rank trained for less time, most of its overhead is set-up, so these seconds are printed beside it.
constexpr double kShortSeconds = 10;
// The limit of the slowdown holds over this many steps, or more. In fewer steps, the cost of the first
// snapshots of the weights and of the last samples is a larger share.
constexpr uint64_t kStepsOfLimit = 500;

// Formats "  label       text", wrapped at kSummaryColumns. A word that is too long gets a separate line. An
// empty label continues the entry before.
std::string entry(const std::string& label, const std::string& text) {
  std::string out = "  " + label, line;
  out.resize(std::max(kLabelColumns, out.size() + 1), ' ');
  size_t column = out.size();
  bool is_first = true;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!is_first && column + 1 + word.size() > kSummaryColumns) {
      out += "\n" + std::string(kLabelColumns, ' ') + word;
      column = kLabelColumns + word.size();
    } else {
      out += (is_first ? "" : " ") + word;
      column += word.size() + (is_first ? 0 : 1);
    }
    is_first = false;
    begin = end + 1;
  }
  return out + "\n";
}

// -- entries --

// Returns "8 ranks in 16 processes (2 attempts), ", for example; "" for a single process.
std::string processes_text(const Ranks& ranks) {
  std::set<int32_t> numbers, attempts;
  for (const RankStatistics* rank : ranks) {
    numbers.insert(rank->identity.rank);
    attempts.insert(std::max(rank->identity.attempt, 0));  // number of restarts; -1: unknown
  }
  if (ranks.size() == 1) return "";
  std::string text = counted(numbers.size(), "rank", "ranks");
  if (ranks.size() > numbers.size()) text += " in " + counted(ranks.size(), "process", "processes");
  if (attempts.size() > 1) text += " (" + counted(attempts.size(), "attempt", "attempts") + ")";
  return text + ", ";
}

std::string trained_text(const Ranks& ranks) {
  uint64_t first = 0, last = 0;
  for (const RankStatistics* rank : ranks) {
    const uint64_t start = rank->identity.start_time_ns;  // 0: unknown
    if (start > 0) first = first == 0 ? start : std::min(first, start);
    last = std::max(last, rank->last_step.time_ns);
  }
  if (first == 0 || last <= first) return "";
  return " in " + duration_text(1e-9 * static_cast<double>(last - first));
}

// Returns the most steps of a rank. A process that was started again continues the steps of the one before
// it, or counts from 1; either way both have trained.
uint64_t steps_trained(const Ranks& ranks) {
  std::map<int32_t, uint64_t> steps;
  uint64_t most = 0;
  for (const RankStatistics* rank : ranks)
    most = std::max(most, steps[rank->identity.rank] += steps_of(*rank));
  return most;
}

// Returns the first line, with the verdict at the right edge. If the verdict does not fit two spaces after
// the rest, it gets a second line.
std::string headline(const SummaryInput& input, const std::string& verdict) {
  const uint64_t steps = steps_trained(input.ranks);
  std::string left = "foreshock  " + printable(input.run) + " " + name_of(input.state) + ", " +
                     processes_text(input.ranks) + counted(steps, "step", "steps") +
                     trained_text(input.ranks);
  const size_t left_columns = kSummaryColumns - std::min(kSummaryColumns, verdict.size() + 2);
  if (left.size() > left_columns) return left + "\n" + std::string(left_columns + 2, ' ') + verdict + "\n";
  left.resize(left_columns + 2, ' ');
  return left + verdict + "\n";
}

// A training that failed was healthy as far as it was seen: why it failed is not known here.
std::string verdict_text(const SummaryInput& input, const Verdict& verdict, size_t looks) {
  if (verdict.headline == kPartlyChecked) return "no fault found, " + verdict.headline;
  const bool is_cut = verdict.is_healthy && input.state == RunState::kFailed;
  return headline_with_looks(is_cut ? "healthy until it failed" : verdict.headline, verdict.is_healthy,
                             looks);
}

// A larger ratio has no meaning: the yardstick is nearly 0.
std::string ratio_text(const std::optional<double>& ratio) {
  constexpr double kMostTimes = 1000;
  return ratio && *ratio > kMostTimes ? "over 1000x" : formatted("%.2fx", ratio);
}

// Returns why the judged backward calls gave no key positions, by which dK and dV are checked: " (mask 12)".
std::string key_reasons(const Ranks& ranks) {
  std::map<std::string, uint64_t> counts;
  for (const RankStatistics* rank : ranks)
    for (uint32_t why = segment::kColumnsTaken + 1; why < segment::kColumnsSkips; ++why)
      counts[segment::kColumnsSkipNames[why]] += rank->columns_skipped[why];
  const std::string reasons = listed(counts);
  return reasons.empty() ? "" : " (" + reasons + ")";
}

// Returns "126 forward and 126 backward of 500 and 500 calls checked, in 6 of 6 layers; 61 of the backward by
// dK and dV as well as dQ", for example.
std::string evidence_text(const Ranks& ranks, const AttentionInventory& layers,
                          const PassTotals (&passes)[2]) {
  std::string text = grouped(passes[0].judged) + " forward and " + grouped(passes[1].judged) +
                     " backward of " + grouped(passes[0].calls) + " and " +
                     counted(passes[1].calls, "call", "calls") + " checked";
  if (layers.layers > 0)
    text += ", in " + grouped(layers.judged[0]) + " of " + counted(layers.layers, "layer", "layers") +
            (layers.is_known ? "" : " (counted from calls)");
  if (passes[1].judged == 0) return text + "; backward not checked";
  if (layers.judged[1] < layers.judged[0]) text += " (backward " + grouped(layers.judged[1]) + ")";
  const uint64_t key_slices = sum_over(ranks, key_slices_of);  // slices of keys: checked by dK and dV
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
    if (passes[pass].judged < kLeastJudged)
      text += std::string("; ") + segment::kPassNames[pass] + ": too few samples";
  if (key_slices == 0) return text + "; dK and dV not checked" + key_reasons(ranks);
  text += "; " + grouped(key_slices) + " of the backward by dK and dV as well as dQ";
  if (layers.judged[2] < layers.judged[1]) text += ", in " + counted(layers.judged[2], "layer", "layers");
  return text;
}

// Returns the mean error of dK or dV, divided by that of the yardstick. Ranks are weighted by their slices.
std::optional<double> key_ratio(const Ranks& ranks, JudgedTensor tensor) {
  WeightedMean ratio;
  for (const RankStatistics* rank : ranks)
    if (const PassStatistics* statistics = statistics_of(*rank, static_cast<uint32_t>(tensor)))
      ratio.add(mean_of(statistics->fused_ratio), statistics->judged);
  return ratio.value();
}

// Returns the format of the last slice of the first rank, on which the alarm limits depend.
DType dtype_of(const Ranks& ranks, uint32_t pass) {
  return ranks.empty() ? DType::kNone : ranks.front()->pass[pass].dtype;
}

std::string keys_entry(const Ranks& ranks) {
  const auto key = key_ratio(ranks, JudgedTensor::kGradKey),
             value = key_ratio(ranks, JudgedTensor::kGradValue);
  if (!key && !value) return "";
  uint64_t slices = 0, written_out = 0;
  for (const RankStatistics* rank : ranks)
    if (const PassStatistics* keys = statistics_of(*rank, static_cast<uint32_t>(JudgedTensor::kGradKey))) {
      slices += keys->judged;
      written_out += keys->written_out;
    }
  return entry("", "mean error " + ratio_text(key) + " dK, " + ratio_text(value) + " dV of " +
                       yardstick_of(slices, written_out) + " (alarm above " +
                       formatted("%g", ratio_limit(2, dtype_of(ranks, 1), 0)) + ")");
}

// Names the layers that were not checked, and what to do.
std::string gap_entries(const AttentionInventory& layers, const PassTotals (&passes)[2], size_t most) {
  std::vector<CoverageGap> gaps = layers.gaps;
  // Without any checked call, the verdict and the notes name all other causes.
  if (passes[0].judged + passes[1].judged == 0)
    std::erase_if(gaps, [](const CoverageGap& gap) { return gap.cause != GapCause::kSkipped; });
  std::string out;
  for (size_t n = 0; n < std::min(gaps.size(), most); ++n)
    out += entry(n == 0 ? "not checked" : "", printable(text_of(gaps[n])));
  if (gaps.size() > most)
    out += entry("", "and " + std::to_string(gaps.size() - most) + " more in foreshock status --json");
  return out;
}

std::string attention_entries(const Ranks& ranks, const AttentionInventory& layers,
                              const PassTotals (&passes)[2]) {
  if (passes[0].calls + passes[1].calls == 0)
    return entry("attention", passes[0].is_damaged ? "unknown" : "no call seen");
  std::string out;
  const char* yardstick = passes[passes[0].ratio ? 0 : 1].yardstick;
  if (passes[0].ratio && passes[1].ratio && std::string_view(yardstick) != passes[1].yardstick)
    yardstick = yardstick_of(0, 0);
  if (passes[0].ratio || passes[1].ratio)
    out = entry("attention", "mean error " + ratio_text(passes[0].ratio) + " forward, " +
                                 ratio_text(passes[1].ratio) + " backward (dQ) of " + yardstick +
                                 " (alarm above " + formatted("%g", ratio_limit(0, dtype_of(ranks, 0), 0)) +
                                 " forward, " + formatted("%g", ratio_limit(1, dtype_of(ranks, 1), 0)) +
                                 " backward)") +
          keys_entry(ranks);
  out += entry(out.empty() ? "attention" : "", evidence_text(ranks, layers, passes));
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    const std::string skipped = listed(passes[pass].skipped), lost = listed(passes[pass].lost);
    if (!skipped.empty()) out += entry("", std::string(segment::kPassNames[pass]) + " skipped: " + skipped);
    if (!lost.empty()) out += entry("", std::string(segment::kPassNames[pass]) + " lost: " + lost);
  }
  return out;
}

std::string loss_events_text(const RankStatistics& rank) {
  const std::optional<LossCount> spikes = rank.loss_event_count(WatchEventKind::kLossSpike),
                                 divergences = rank.loss_event_count(WatchEventKind::kDivergence);
  const bool takes_turns = rank.watch != nullptr && rank.watch->takes_turns();
  // Unknown if an earlier agent may have seen some, or if a later process of the rank counts them (!current).
  if (!spikes || !divergences) return rank.current ? ", spikes unknown" : "";
  // A spike that became a divergence has the same onset. Both are shown as one event, the divergence.
  const bool is_same_event =
      divergences->count > 0 && spikes->count > 0 && spikes->first_step == divergences->first_step;
  const auto spikes_text = [](uint64_t count) { return counted(count, "spike", "spikes"); };
  std::string text;
  if (spikes->count > 0 && !is_same_event)
    text += ", " + spikes_text(spikes->count) + (spikes->count > 1 ? ", first" : "") + " at step " +
            std::to_string(spikes->first_step);
  if (divergences->count > 0) text += ", diverged at step " + std::to_string(divergences->first_step);
  if (is_same_event && spikes->count > 1) text += ", " + spikes_text(spikes->count - 1) + " later";
  if (takes_turns) return text + ", not judged: optimizers take turns";
  return text.empty() ? ", no spike" : text;
}

std::string loss_text(const RankStatistics& rank) {
  if (!rank.last_loss) return "unknown";
  const std::string source = segment::loss_source_name(rank.loss_source);
  return formatted("%.4g", rank.first_loss) + " -> " + formatted("%.4g", rank.last_loss) +
         (source == "unknown" ? "" : " (" + spaced(source) + ")") + loss_events_text(rank);
}

// Names the ranks of the last attempt whose last step is more than kMostStepsApart before that of the
// furthest rank.
std::string ended_early_text(const Ranks& ranks) {
  int32_t attempt = 0;
  int64_t furthest = -1;
  for (const RankStatistics* rank : ranks) attempt = std::max(attempt, rank->identity.attempt);
  std::map<int32_t, int64_t> reached;
  for (const RankStatistics* rank : ranks) {
    if (std::max(rank->identity.attempt, 0) != attempt) continue;
    int64_t& step = reached.emplace(rank->identity.rank, -1).first->second;
    if (rank->last_step.sequence != 0) step = std::max(step, rank->last_step.step);  // 0: no step has ended
    furthest = std::max(furthest, step);
  }
  std::string text;
  size_t early = 0;  // ranks that ended early, of which the first kMostNamed are named
  for (const auto& [rank, step] : reached) {
    if (step + kMostStepsApart >= furthest) continue;
    if (++early > kMostNamed) continue;
    text += (text.empty() ? "" : ", ") + ("rank " + std::to_string(rank)) +
            (step < 0 ? " before its first step" : " at step " + std::to_string(step));
  }
  if (early > kMostNamed) text += " and " + std::to_string(early - kMostNamed) + " more";
  return text.empty() ? "" : text + ", of " + std::to_string(furthest);
}

// Returns "process 4711, 40 steps: ", which distinguishes the processes of one rank.
std::string process_text(const RankStatistics& rank) {
  return "process " + std::to_string(rank.identity.pid) + ", " + counted(steps_of(rank), "step", "steps") +
         ": ";
}

// Reports the optimizer steps that a gradient scaler skipped, on the rank with the most.
std::string skipped_entry(const Ranks& ranks) {
  const uint64_t most =
      max_over(ranks, [](const RankStatistics& rank) { return skipped_steps_of(rank).value_or(0); });
  if (most == 0) return "";
  return entry("skipped", counted(most, "optimizer step", "optimizer steps") +
                              " by a gradient scaler: gradients were not finite");
}

// Formats an entry for each of the first kMostRankLines processes: errors of both passes, and the loss.
std::string rank_entries(const Ranks& ranks) {
  std::string out;
  for (size_t n = 0; n < std::min(ranks.size(), kMostRankLines); ++n) {
    const RankStatistics& rank = *ranks[n];
    // A restarted rank, or one whose process executed another program, has several processes.
    const auto has_same_rank = [&](const RankStatistics* other) {
      return other != &rank && other->identity.rank == rank.identity.rank;
    };
    const bool is_alone = std::none_of(ranks.begin(), ranks.end(), has_same_rank);
    out += entry("rank " + std::to_string(rank.identity.rank),
                 (is_alone ? "" : process_text(rank)) + "error " +
                     ratio_text(mean_of(rank.pass[0].fused_ratio)) + ", " +
                     ratio_text(mean_of(rank.pass[1].fused_ratio)) + "; loss " + loss_text(rank));
  }
  if (ranks.size() > kMostRankLines)
    out += entry("", "and " + counted(ranks.size() - kMostRankLines, "process", "processes") + " more");
  return out;
}

// Returns the norm on the first rank (data-parallel ranks have equal norms), and the layers whose gradients
// had NaN or Inf on any rank.
std::string gradient_text(const Ranks& ranks) {
  std::string layers;
  size_t nonfinite = 0;  // number of layers with NaN or Inf
  for (const RankStatistics* rank : ranks)
    for (const auto& [label, layer] : rank->layers) {
      if (layer.nonfinite_steps == 0) continue;
      if (++nonfinite > kMostNamed) continue;
      layers += (layers.empty() ? "" : ", ") + printable(label) + on_rank(ranks, *rank);
    }
  if (nonfinite > kMostNamed) layers += " and " + std::to_string(nonfinite - kMostNamed) + " more";
  const std::optional<double> norm = ranks[0]->gradient_norm;
  if (!norm && layers.empty()) return "";
  std::string text = norm ? "norm " + formatted("%.4g", *norm) + " before clipping at the last step" : "";
  if (!layers.empty()) return text + (text.empty() ? "" : "; ") + "not finite at times in layer " + layers;
  const uint64_t steps = max_over(ranks, [](auto& rank) { return rank.nonfinite_gradient; });
  return text + (steps == 0 ? ", all finite" : ", not finite in " + counted(steps, "step", "steps"));
}

// Returns how many looks at gradients were compared with the sums of the contributions, and why the others
// were not; "" without looks.
std::string gradient_looks_text(const Ranks& ranks) {
  const auto known =
      std::ranges::find_if(ranks, [](const auto* rank) { return rank->conditions != nullptr; });
  if (known == ranks.end()) return "";
  const GradientCounts& counts = (*known)->conditions->gradient_counts();
  std::string causes, unseen = "contributions not seen";
  if (const auto& names = (*known)->conditions->gradients_not_whole(); !names.empty())
    unseen += " (" + printable(patterns_text({names.begin(), names.end()})) + ")";
  uint64_t all = counts.judged;
  for (const auto& [number, cause] :
       {std::pair<uint64_t, std::string>(counts.without_ranks, "not seen on all ranks"),
        {counts.not_whole, unseen},
        {counts.without_law, "no known rule holds"}}) {
    all += number;
    if (number > 0) causes += (causes.empty() ? "" : ", ") + grouped(number) + " " + cause;
  }
  if (all == 0) return "";
  return counted(counts.judged, "look", "looks") + " judged of " + grouped(all) +
         (causes.empty() ? "" : "; not judged: " + causes);
}

// Names the detectors that have warned, with the number of their warnings; the experimental ones last.
std::string warnings_entry(const Ranks& ranks) {
  std::string text;
  size_t warned = 0;  // detectors with a warning, summed over the ranks
  for (const bool is_proven : {true, false})
    for (const RankStatistics* rank : ranks) {
      if (rank->watch == nullptr) continue;
      const auto states = rank->watch->states();  // by DetectorId
      for (size_t n = 0; n < states.size(); ++n) {
        const char* name = info_of(static_cast<DetectorId>(n)).name;
        const Measured* measured = measured_of(name);
        if (states[n].warnings == 0 || (measured != nullptr && measured->proven) != is_proven) continue;
        if (++warned > kMostNamed) continue;
        text += (text.empty() ? "" : "; ") + std::string(name) + (is_proven ? "" : " (experimental)") +
                " warned " + counted(states[n].warnings, "time", "times") + ", last at step " +
                std::to_string(states[n].last_warn_step) + on_rank(ranks, *rank);
      }
    }
  if (warned > kMostNamed) text += "; and " + std::to_string(warned - kMostNamed) + " more";
  return text.empty() ? "" : entry("detectors", text);
}

// Returns the number of weight tensors that are never measured ("unfollowed"), by reason.
std::map<std::string, uint64_t> unfollowed_tensors(const Ranks& ranks) {
  std::map<std::string, uint64_t> counts;
  for (const RankStatistics* rank : ranks)
    for (uint32_t n = 0; n < segment::kTensorUnfollowed; ++n)
      counts[segment::kTensorUnfollowedNames[n]] += rank->tensors.unfollowed[n];
  counts.erase("off");  // the user has switched these tensors off
  return counts;
}

std::string weights_entries(const SummaryInput& input) {
  const Ranks& ranks = input.ranks;
  const uint64_t tensors = max_over(ranks, [](const RankStatistics& rank) { return rank.tensors.tensors; });
  const std::string unfollowed = listed(unfollowed_tensors(ranks));
  if (input.weights == nullptr || tensors == 0)
    return unfollowed.empty() ? "" : entry("weights", "not measured: " + unfollowed);
  const PoolSnapshot& model = input.weights->model();  // the last snapshot of all tensors together, if any
  std::string text = counted(tensors, "tensor", "tensors") + " followed";
  if (model.previous) {  // the Wasserstein distance W1 to the snapshots one interval earlier
    text += ", W1 " + formatted("%.2e", model.previous->value) + " in " +
            counted(model.interval, "step", "steps");
    if (!model.moved_most.empty()) text += ", most in " + printable(model.moved_most);
  } else {
    text += ", no two snapshots of all yet";
  }
  std::string out = entry("weights", text);
  // update_elements: values of which the change in one optimizer step was measured. step < 0: no snapshot.
  if (model.step >= 0 && model.update_elements < model.elements)
    out += entry("", "their change in a step is known of " +
                         formatted("%.0f %%", 100 * static_cast<double>(model.update_elements) /
                                                  static_cast<double>(model.elements)) +
                         " of the values (--memory)");
  if (!unfollowed.empty()) out += entry("", "not measured: " + unfollowed);
  std::map<std::string, uint64_t> skipped;
  for (const RankStatistics* rank : ranks)
    for (uint32_t n = 0; n < segment::kTensorSkips; ++n)
      skipped[segment::kTensorSkipNames[n]] += rank->tensors.skipped[n];
  skipped["no room in the agent"] = input.weights->snapshots_dropped();
  if (const std::string left_out = listed(skipped); !left_out.empty())
    out += entry("", "snapshots left out: " + left_out);
  return out;
}

// Formats "2 ranks agree bit for bit: 83 of 120 tensors compared (412 comparisons); never compared:
// head.weight and 36 more". The 120 have replicas; they include tensors that no rank has reported yet.
std::string replicas_text(const Replicas& replicas, const Replicas::Coverage& coverage, const Ranks& ranks) {
  const size_t compared = replicas.tensors_compared();
  // Largest numbers on one rank: of tensors, and of tensors without replicas.
  const size_t held = max_over(ranks, [](auto& rank) { return rank.tensors.tensors; });
  const size_t unreplicated = std::min(coverage.most_on_a_rank, held);
  const size_t tensors = std::max(compared + coverage.never.size(), held - unreplicated);
  std::string text = counted(replicas.most_ranks(), "rank", "ranks") +
                     " agree bit for bit: " + grouped(compared) + " of " +
                     counted(tensors, "tensor", "tensors") + " compared (" +
                     counted(replicas.comparisons(), "comparison", "comparisons") + ")";
  if (coverage.by_hand > 0)
    text += "; " + grouped(coverage.by_hand) + " of them kept equal by the training itself";
  const auto names_text = [](const std::vector<std::string>& names, size_t all) {
    const size_t named = std::min(names.size(), kMostNamed);
    std::string named_text;
    for (size_t n = 0; n < named; ++n) named_text += (n > 0 ? ", " : "") + printable(names[n]);
    return all > named ? named_text + " and " + grouped(all - named) + " more" : named_text;
  };
  if (unreplicated > 0 && !coverage.own.empty())
    text += "; not compared, since nothing keeps them equal: " + names_text(coverage.own, unreplicated);
  if (compared == tensors) return text;
  const size_t missing = tensors - compared;
  text += "; never compared: ";
  if (coverage.never.empty()) return text + counted(missing, "tensor", "tensors") + " that no rank has shown";
  return text + names_text(coverage.never, missing);
}

std::string replicas_entry(const SummaryInput& input) {
  if (input.weights == nullptr) return "";
  const Replicas& replicas = input.weights->replicas();
  const char* found = nullptr;  // "here", "elsewhere" (on other nodes), "none", or null: unknown
  for (const RankStatistics* rank : input.ranks)
    if (found == nullptr) found = replicas_place(*input.weights, rank->identity.world_size, input.ranks_here);
  if (found == nullptr) return "";
  const std::string_view place = found;
  const Replicas::Coverage coverage = replicas.coverage();
  if (place == "none" && coverage.maybe_replicas > 0)
    return entry("replicas", "not known: no framework keeps tensors equal; " +
                                 counted(coverage.maybe_replicas, "tensor", "tensors") +
                                 " of the same name on several ranks, equal at fewer than 3 looks");
  if (place == "none") return entry("replicas", "none: each value is held once, nothing to compare");
  if (place == "elsewhere")
    return entry("replicas",
                 "not compared: none on this node (alert ForeshockReplicaMismatch compares nodes)");
  if (sum_over(input.ranks, [&](const RankStatistics& r) { return replicas.mismatches(r.identity.rank); }) >
      0)
    return "";  // add_replicas() has added it to the findings
  return entry("replicas", replicas_text(replicas, coverage, input.ranks));
}

std::string milliseconds(double seconds) {
  return formatted(seconds < 0.01 ? "%.2g" : "%.0f", 1e3 * seconds) + " ms";
}

// If the cost of unsampled steps (other_step_cost) exceeds the limit, names the shortest step length for
// which it does not. A longer sampling interval does not reduce it. `allowed`: the limit; 0: unknown; 1 or
// more: the user has set none.
std::string short_steps_text(const RankStatistics& rank, double allowed) {
  if (allowed <= 0 || allowed >= 1 || rank.other_step_cost.size() == 0) return "";
  const double fixed = median_of(rank.other_step_cost), step = median_of(rank.step_seconds);
  if (fixed <= allowed * step) return "";
  return "; a step costs at least " + milliseconds(fixed) + ", which steps of " +
         milliseconds(fixed / allowed) + " or longer allow for";
}

// Formats "; first look 0.04 s of 0.5 s granted, not included". First look: a rank's first sampled steps.
std::string first_look_text(const Ranks& ranks) {
  double most = 0;
  for (const RankStatistics* rank : ranks) most = std::max(most, rank->first_look.own_seconds);
  if (most <= 0) return "";
  return "; first look " + formatted("%.2g", most) + " s of " + formatted("%g", segment::kFirstLookSeconds) +
         " s granted, not included";
}

// Reports the slowdown of the slowest rank and the limit, and how many steps are sampled.
std::string overhead_entry(const SummaryInput& input, const PassTotals (&passes)[2]) {
  std::optional<double> most;
  double allowed = 0;
  for (const RankStatistics* rank : input.ranks) {
    const std::optional<double> value = rank->slowdown(input.cores_per_rank);
    if (value) most = std::max(most.value_or(*value), *value);
    allowed = std::max(allowed, rank->identity.max_slowdown);
  }
  if (!most) return entry("overhead", "unknown");
  double shortest_training = input.ranks[0]->cost.train_seconds;
  for (const RankStatistics* rank : input.ranks)
    shortest_training = std::min(shortest_training, rank->cost.train_seconds);
  std::string text = formatted("%.2f %%", *most * 100);
  if (allowed >= 1)  // the user gave --every without --max-slowdown
    text += ", no limit given";
  else if (allowed > 0 && *most > allowed && shortest_training < kShortSeconds &&
           steps_of(*input.ranks[0]) < kStepsOfLimit)
    text += " (the limit of " + formatted("%g %%", allowed * 100) + " is for " +
            std::to_string(kStepsOfLimit) + " steps or more)";
  else if (allowed > 0)
    text += (*most > allowed ? ", above the " : " of ") + formatted("%g %%", allowed * 100) + " allowed";
  if (input.ranks.size() > 1) text += " (slowest rank)";
  if (shortest_training < kShortSeconds)
    text += " of " + formatted("%.2f", shortest_training) + " s in steps";
  const uint64_t interval = input.ranks[0]->last_step.interval;
  const bool has_samples = passes[0].sampled + passes[1].sampled > 0;
  if (has_samples && interval > 1) text += "; 1 step in " + grouped(interval) + " sampled";
  // `interval` is the last sampling interval. Calls in unsampled steps show that it was longer before.
  const bool was_longer = passes[0].unsampled + passes[1].unsampled > 0;
  if (has_samples && interval == 1)
    text += was_longer ? "; every step sampled at the end" : "; every step sampled";
  text += short_steps_text(*input.ranks[0], allowed) + first_look_text(input.ranks);
  return entry("overhead", text);
}

std::string refused_text(const SummaryInput& input) {
  if (input.refused_segments == 0) return "";
  return counted(input.refused_segments, "process", "processes") +
         " cannot be followed: " + printable(input.refusal);
}

std::string flagged_entries(const SummaryInput& input) {
  if (!input.flagged) return "";
  uint64_t saved = 0;
  std::map<std::string, uint64_t> reasons, dropped;
  for (size_t n = 0; n < kFlagReasons; ++n) {
    saved += input.flagged->saved[n];
    reasons[kFlagReasonNames[n]] = input.flagged->saved[n];
  }
  for (size_t n = 0; n < kFlaggedDrops; ++n) dropped[kFlaggedDropNames[n]] = input.flagged->dropped[n];
  std::string out;
  if (saved > 0)
    out += entry("flagged", counted(saved, "slice", "slices") + " saved (" + listed(reasons) +
                                "): foreshock judge " + printable(input.flagged_directory) +
                                "/*.slice.safetensors");
  if (!input.flagged->problem.empty())
    out += entry("not flagged", listed(dropped) + ": " + printable(input.flagged->problem));
  return out;
}

std::string notes_entries(const SummaryInput& input, const AttentionInventory& layers,
                          const PassTotals (&passes)[2]) {
  const Notes notes = notes_of(input, layers, passes);
  std::string out;
  for (size_t n = 0; n < std::min(notes.size(), kMostNotes); ++n)
    out += entry(notes[n].first, notes[n].second);
  if (notes.size() > kMostNotes)
    out += entry("", "and " + std::to_string(notes.size() - kMostNotes) + " more in foreshock status --json");
  return out;
}

// Returns the first kSummaryLines lines. The last of them gives the number of missing lines.
std::string shortened(const std::string& text) {
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  if (lines <= kSummaryLines) return text;
  size_t end = 0;
  for (size_t n = 0; n + 1 < kSummaryLines; ++n) end = text.find('\n', end) + 1;
  return text.substr(0, end) + entry("", "and " + std::to_string(lines - kSummaryLines + 1) +
                                             " lines more in foreshock status --json");
}

}  // namespace

std::string summary_text(const SummaryInput& input) {
  const std::string refused = refused_text(input);
  if (input.ranks.empty())
    return "foreshock  " + printable(input.run) + " " + name_of(input.state) + ", no rank seen\n" +
           (refused.empty() ? "" : entry("refused", refused));
  const PassTotals passes[2] = {totals_of(input.ranks, 0), totals_of(input.ranks, 1)};
  const std::vector<Finding> findings = findings_of(input.ranks, input.weights, passes);
  const AttentionInventory layers = inventory_of(input.ranks);
  const Verdict verdict = verdict_of(findings, layers, passes);
  const std::vector<Condition> looks = looks_of(input.ranks);
  std::string out = headline(input, verdict_text(input, verdict, looks.size()));
  for (size_t n = 0; n < std::min(findings.size(), kMostFindings); ++n) {
    // The action of a kind is printed once.
    const bool is_known = n > 0 && findings[n].kind == findings[n - 1].kind;
    out += entry(n == 0 ? "finding" : "", is_known ? findings[n].text + "." : sentence_of(findings[n]));
  }
  if (findings.size() > kMostFindings)
    out += entry("", "and " + std::to_string(findings.size() - kMostFindings) + " more");
  for (size_t n = 0; n < std::min(looks.size(), kMostLooks); ++n) out += entry("look", text_of(looks[n]));
  if (looks.size() > kMostLooks)
    out += entry("", "and " + std::to_string(looks.size() - kMostLooks) + " more");
  if (!refused.empty()) out += entry("refused", refused);
  out += gap_entries(layers, passes, findings.empty() ? kMostGaps : 1);
  out += attention_entries(input.ranks, layers, passes);
  if (input.ranks.size() == 1) {
    out += entry("loss", loss_text(*input.ranks[0]));
  } else {
    out += rank_entries(input.ranks);
    const std::string early = ended_early_text(input.ranks);
    // After a restart of its step numbers, a rank cannot be compared with others by step.
    const bool has_restarts =
        sum_over(input.ranks, [](const RankStatistics& rank) { return rank.step_restarts; }) > 0;
    if (!early.empty() && !has_restarts && input.state != RunState::kRunning)
      out += entry("ended early", early);
  }
  if (const std::string gradients = gradient_text(input.ranks); !gradients.empty())
    out += entry("gradients", gradients);
  if (const std::string looks = gradient_looks_text(input.ranks); !looks.empty())
    out += entry("conserved", looks);
  out += skipped_entry(input.ranks);
  out += warnings_entry(input.ranks) + weights_entries(input) + replicas_entry(input) +
         overhead_entry(input, passes) + flagged_entries(input) + notes_entries(input, layers, passes);
  if (!input.record_problem.empty()) out += entry("not written", printable(input.record_problem));
  if (!input.record.empty()) out += entry("more", "foreshock report " + printable(input.record));
  return shortened(out);
}

std::string summary_line(const SummaryInput& input) {
  std::string line = printable(input.run) + "  " + name_of(input.state);
  if (input.ranks.empty()) return line + "  no rank seen\n";
  const PassTotals passes[2] = {totals_of(input.ranks, 0), totals_of(input.ranks, 1)};
  const Verdict verdict =
      verdict_of(findings_of(input.ranks, input.weights, passes), inventory_of(input.ranks), passes);
  int64_t step = -1;
  for (const RankStatistics* rank : input.ranks)
    if (rank->last_step.sequence != 0) step = std::max(step, rank->last_step.step);
  return line + "  step " + (step < 0 ? "unknown" : grouped(static_cast<uint64_t>(step))) + "  loss " +
         formatted("%.4g", input.ranks[0]->last_loss) + "  error " + ratio_text(passes[0].ratio) + ", " +
         ratio_text(passes[1].ratio) + "  " + verdict_text(input, verdict, looks_of(input.ranks).size()) +
         "\n";
}

}  // namespace foreshock
