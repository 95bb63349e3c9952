// The notes of a summary: what was not seen, sampled or read, why, and what to do.
#include <algorithm>
#include <map>
#include <string>

#include "agent/detection.h"
#include "agent/summary.h"
#include "agent/text.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

// Returns why a training with steps was too short to be sampled, else "".
std::string too_short_text(const RankStatistics& rank) {
  const uint64_t steps = steps_of(rank), interval = rank.identity.fixed_interval;  // --every; 0: not given
  const std::string ended = "the training ended after " + counted(steps, "step", "steps") + ", and ";
  if (interval > steps) return ended + "--every " + std::to_string(interval) + " samples none of them";
  return steps == 1 ? ended + "sampling begins after the first" : "";
}

void add_attention_notes(const Ranks& ranks, const AttentionInventory& layers, const PassTotals (&passes)[2],
                         Notes* notes) {
  if (layers.other_mixers > 0)
    notes->emplace_back("no attention", counted(layers.other_mixers, "module is", "modules are") +
                                            " linear attention or state space, which is not checked: " +
                                            printable(layers.mixer_names));
  const bool saw_no_call = passes[0].calls + passes[1].calls == 0 && !passes[0].is_damaged;
  // If attention that no hook sees is known to have run, add_coverage_notes() names it.
  const bool is_named_elsewhere = std::any_of(ranks.begin(), ranks.end(), [](auto* rank) {
    return std::any_of(rank->unseen.begin(), rank->unseen.end(), was_used);
  });
  const bool has_none = ranks[0]->coverage.inventory_is_known != 0 && layers.layers == 0;
  if (saw_no_call && has_none)
    notes->emplace_back("not seen",
                        "any attention call: the model has no attention by the names of its parameters");
  else if (saw_no_call && !is_named_elsewhere && steps_of(*ranks[0]) >= 10)  // fewer steps prove nothing
    notes->emplace_back(
        "not seen",
        "any attention call: it may be written out inside a compiled graph, or call a kernel that PyTorch "
        "does not dispatch; foreshock.tap reports one");
  if (passes[1].calls > 0 && steps_of(*ranks[0]) == 0)
    notes->emplace_back("not seen",
                        "any optimizer step, and nothing is sampled before the first: call "
                        "foreshock.report(step=) or foreshock_annotate_step()");
  // slots_given: slots of the segment. slots_wanted is 0 if the user switched slices off.
  const bool has_slots = max_over(ranks, [](auto& rank) { return rank.identity.slots_given; }) > 0;
  const bool wants_slots = max_over(ranks, [](auto& rank) { return rank.identity.slots_wanted; }) > 0;
  uint64_t for_budget = 0, for_others = 0;  // skipped calls, by reason
  for (const PassTotals& pass : passes)
    for (const auto& [reason, calls] : pass.skipped) {
      uint64_t& count = reason == "budget" ? for_budget : for_others;
      count += calls;
    }
  if (!has_slots && !wants_slots)
    notes->emplace_back("not sampled", "--slices off: calls are counted, none is copied");
  else if (!has_slots)
    notes->emplace_back("not sampled",
                        "no shared memory left: raise --memory, the container's --shm-size or memory limit, "
                        "or set FORESHOCK_DIR to a tmpfs with room");
  else if (passes[0].judged + passes[1].judged == 0 && for_budget > for_others)
    notes->emplace_back("not sampled",
                        "one sample costs more than --max-slowdown allows for steps this short or so few: "
                        "train longer, or allow more, as in --max-slowdown 10%");
  else if (const std::string why = too_short_text(*ranks[0]);
           !why.empty() && passes[0].sampled + passes[1].sampled == 0 && passes[0].calls > 0)
    notes->emplace_back("not sampled", why);
  const uint64_t math_path = sum_over(ranks, [](const RankStatistics& rank) {
    uint64_t calls = 0;
    for (size_t op = 0; op < rank.ops.size(); ++op)
      if (rank.ops[op].pass == 0 &&
          segment::text_of(rank.ops[op].name) == "_scaled_dot_product_attention_math")
        calls += rank.totals.calls[op];
    return calls;
  });
  if (math_path > 0)
    notes->emplace_back("math path",
                        grouped(math_path) +
                            " forward calls that no fused kernel takes (dropout, some masks, values "
                            "of another head size); their backward is counted in sampled steps only");
}

void add_graph_notes(const Ranks& ranks, Notes* notes) {
  uint64_t calls = 0, launches = 0, unknown = 0;
  for (const RankStatistics* rank : ranks) {
    calls += rank->coverage.launched_calls[0] + rank->coverage.launched_calls[1];
    launches += rank->coverage.graph_launches;
    unknown += rank->coverage.unknown_launches;
  }
  if (calls + unknown == 0) return;
  std::string text = grouped(calls) + " calls ran in " + counted(launches, "launch", "launches") +
                     " of CUDA graphs, not sampled";
  if (unknown > 0) text += "; the content of " + grouped(unknown) + " more launches is unknown";
  notes->emplace_back("CUDA graphs", text);
}

// Reports what --count-kernels counted through CUPTI, on the first rank that was to count.
void add_kernel_notes(const Ranks& ranks, Notes* notes) {
  for (const RankStatistics* rank : ranks) {
    const segment::Coverage& coverage = rank->coverage;
    if (coverage.kernel_count_state == 0) continue;  // no count was requested
    const std::string state = segment::kernel_count_state_name(coverage.kernel_count_state);
    const std::string other_tool = printable(segment::text_of(coverage.kernel_count_holder));
    if (state == "done" || state == "counting")
      notes->emplace_back("kernels",
                          grouped(coverage.kernels[0] + coverage.kernels[1]) + " attention kernels in " +
                              counted(coverage.kernel_count_steps, "step", "steps") + ", " +
                              grouped(coverage.kernel_count_calls[0] + coverage.kernel_count_calls[1]) +
                              " calls seen");
    else
      notes->emplace_back("kernels", std::string("not counted: ") +
                                         (state == "taken"        ? "another tool uses CUPTI"
                                          : state == "profiler"   ? "torch.profiler runs"
                                          : state == "no_library" ? "the process has no CUPTI"
                                          : state == "refused"    ? "CUPTI refused"
                                                                  : "the run ended before") +
                                         (other_tool.empty() ? "" : " (" + spaced(other_tool) + ")"));
    return;
  }
}

// Names attention that no hook sees, and parameters, norms and losses that the trainer could not report.
void add_coverage_notes(const Ranks& ranks, Notes* notes) {
  add_graph_notes(ranks, notes);
  add_kernel_notes(ranks, notes);
  std::map<std::string, std::string> names;
  for (const RankStatistics* rank : ranks)
    for (const segment::UnseenName& unseen : rank->unseen)
      names[printable(segment::text_of(unseen.name))] = segment::unseen_evidence_name(unseen.evidence);
  std::string unseen;
  for (const auto& [name, evidence] : names)
    unseen += (unseen.empty() ? "" : ", ") + name + " (" + evidence + ")";
  if (!unseen.empty()) notes->emplace_back("not seen", unseen + "; foreshock.tap makes it visible");
  const uint64_t unnamed = max_over(ranks, [](auto& rank) { return rank.coverage.parameters_unnamed; });
  if (unnamed > 0)
    notes->emplace_back(
        "not named", grouped(unnamed) + " parameters beyond the limit: their layers have no gradient norm");
  const uint64_t norms = max_over(ranks, [](auto& rank) { return rank.coverage.norms_untold; });
  if (norms > 0)
    notes->emplace_back("no norm",
                        "in " + counted(norms, "step", "steps") + " with more gradients than the limit");
  std::map<std::string, uint64_t> missed;
  uint64_t fetched = 0, all_missed = 0;
  for (const RankStatistics* rank : ranks) {
    fetched += rank->coverage.numbers_fetched;
    missed["late"] += rank->coverage.numbers_late;
    for (uint32_t n = 0; n < segment::kSkipReasons; ++n)
      missed[segment::kSkipReasonNames[n]] += rank->coverage.numbers_skipped[n];
  }
  // Numbers skipped with the reason "set_up" (the device is being set up, in its first steps) are normal if
  // they are fewer than half of the fetched ones. All other missed numbers together are normal up to 1 %.
  if (missed["set_up"] * 2 < fetched) missed.erase("set_up");
  for (const auto& [reason, times] : missed) all_missed += times;
  if (all_missed * 100 > fetched)
    notes->emplace_back("not read", grouped(all_missed) + " of " + grouped(fetched) +
                                        " losses and norms on a device: " + listed(missed));
}

// Counts the slices whose layer is unknown, by reason, on ranks that have found the layer of other slices.
void add_layer_notes(const Ranks& ranks, Notes* notes) {
  uint64_t judged = 0, unnamed = 0, unknown = 0;
  for (const RankStatistics* rank : ranks) {
    if (rank->layer_source != segment::name_of(segment::LayerSource::kParameter) &&
        rank->layer_source != segment::name_of(segment::LayerSource::kAnnotation))
      continue;
    judged += rank->judged[0] + rank->judged[1];
    for (const auto& [reason, slices] : rank->slices_without_layer) {
      const bool is_unnamed = reason == segment::name_of(segment::LayerSource::kUnnamedParameter);
      uint64_t& count = is_unnamed ? unnamed : unknown;
      count += slices;
    }
  }
  if (unnamed + unknown == 0) return;
  std::string reasons;
  if (unnamed > 0) reasons = grouped(unnamed) + " read a parameter that has no name";
  if (unknown > 0)
    reasons += (reasons.empty() ? "" : ", ") + grouped(unknown) +
               " have no parameter in their history (none is kept without gradient)";
  notes->emplace_back("no layer",
                      grouped(unnamed + unknown) + " of " + grouped(judged) + " slices: " + reasons);
}

void add_detector_notes(const Ranks& ranks, Notes* notes) {
  for (const RankStatistics* rank : ranks) {
    if (rank->watch == nullptr) continue;
    for (const std::string& text : series_left_out(*rank->watch))
      notes->emplace_back("not watched", text + on_rank(ranks, *rank));
  }
}

// Names what another process has damaged in the segments: "3 slices and 12 steps, and the file of rank 0;
// ...".
std::string damaged_text(const Ranks& ranks) {
  const uint64_t slices = sum_over(ranks, [](const RankStatistics& rank) {
    constexpr auto kDamaged = static_cast<uint32_t>(segment::Lost::kDamaged);
    return rank.lost[0][kDamaged] + rank.lost[1][kDamaged];
  });
  const uint64_t steps = sum_over(ranks, [](const RankStatistics& rank) { return rank.steps_damaged; });
  std::string text;
  if (slices > 0) text = counted(slices, "slice", "slices");
  if (steps > 0) text += (text.empty() ? "" : ", ") + counted(steps, "step", "steps");
  for (const RankStatistics* rank : ranks)
    if (rank->is_damaged)
      text +=
          (text.empty() ? "the file of rank " : ", the file of rank ") + std::to_string(rank->identity.rank);
  return text.empty() ? ""
                      : text +
                            ": another process has changed the segment, or the trainer could not write into "
                            "it. What is damaged is not judged";
}

void add_agent_notes(const SummaryInput& input, Notes* notes) {
  const Ranks& ranks = input.ranks;
  if (input.processes_left_out > 0)
    notes->emplace_back("left out",
                        counted(input.processes_left_out, "earlier process", "earlier processes") +
                            " of this run: it started too many");
  if (const std::string damaged = damaged_text(ranks); !damaged.empty())
    notes->emplace_back("damaged", damaged);
  const uint64_t lost =
      sum_over(ranks, [](const RankStatistics& rank) { return rank.steps_lost - rank.steps_damaged; });
  if (lost > 0)
    notes->emplace_back("not read", grouped(lost) + " of " +
                                        counted(sum_over(ranks, steps_of), "step", "steps") +
                                        ": the agent came too late for their losses and norms");
  if (const uint64_t restarts =
          sum_over(ranks, [](const RankStatistics& rank) { return rank.step_restarts; });
      restarts > 0)
    notes->emplace_back(
        "trainings",
        "the optimizer was replaced, or the step number fell, " + counted(restarts, "time", "times") +
            " in a process: losses, norms and layers without a name are pooled over these trainings");
  int64_t restart_step = -1;  // last step that an earlier agent has processed; -1: this agent is the first
  for (const RankStatistics* rank : ranks) restart_step = std::max(restart_step, rank->taken_up_step);
  if (restart_step >= 0)
    notes->emplace_back("restart", "the agent was restarted at step " + std::to_string(restart_step) +
                                       ": errors are of later steps, faults of all steps");
  std::vector<int64_t> given_up;  // steps at which trainers stopped reporting names, norms and weights
  bool has_failed = false;
  for (const RankStatistics* rank : ranks)
    if (rank->tensors_given_up_step >= 0) {
      given_up.push_back(rank->tensors_given_up_step);
      has_failed = has_failed || rank->tensors_given_up_failed;
    }
  if (!given_up.empty())
    notes->emplace_back(
        "stopped", "names, gradient norms and weights from step " +
                       std::to_string(*std::min_element(given_up.begin(), given_up.end())) + " on" +
                       (given_up.size() < ranks.size() ? " in " + std::to_string(given_up.size()) + " of " +
                                                             counted(ranks.size(), "rank", "ranks")
                                                       : "") +
                       (has_failed ? ": a model's tensors could not be named"
                                   : ": they cost several times --max-slowdown"));
  std::string paused;
  for (const RankStatistics* rank : ranks)
    if (!rank->switched_on) paused += (paused.empty() ? "" : ", ") + std::to_string(rank->identity.rank);
  if (!paused.empty() && input.state == RunState::kRunning)
    notes->emplace_back("paused", "rank " + paused + "; foreshock resume continues");
}

}  // namespace

Notes notes_of(const SummaryInput& input, const AttentionInventory& layers, const PassTotals (&passes)[2]) {
  Notes notes;
  add_agent_notes(input, &notes);
  add_attention_notes(input.ranks, layers, passes, &notes);
  add_coverage_notes(input.ranks, &notes);
  add_layer_notes(input.ranks, &notes);
  add_detector_notes(input.ranks, &notes);
  return notes;
}

}  // namespace foreshock
