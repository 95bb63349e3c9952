#include "cli/summary_parts.h"

#include <algorithm>
#include <map>
#include <vector>

#include "cli/format.h"
#include "cli/summary.h"

namespace foreshock::cli {
namespace {

// Attention that is counted by one of its operations, forward only, and copied only if asked for.
std::string math_path_fact(const Json& ranks) {
  double calls = 0;
  for (const Json& rank : ranks)
    calls += number(rank, "/attention/forward/operations/_scaled_dot_product_attention_math").value_or(0);
  if (calls == 0) return "";
  return fact("math path",
              count(calls) + " of the forward calls (dropout > 0, some masks); their backward is") +
         fact("", "not counted; `--math-path on` samples those (with dropout: scores only)");
}

// "flex_attention (used)", each once over all ranks.
std::string unseen_fact(const Json& ranks) {
  const Json::json_pointer unseen("/attention_unseen");
  std::map<std::string, std::string> names;
  for (const Json& rank : ranks) {
    if (!rank.contains(unseen) || !rank[unseen].is_array()) continue;
    for (const Json& one : rank[unseen]) names[text(one, "/op")] = text(one, "/evidence");
  }
  std::string line;
  for (const auto& [name, evidence] : names)
    line += (line.empty() ? "" : ", ") + name + in_brackets(evidence);
  return line.empty() ? "" : fact("not seen", line) + fact("", "`foreshock.tap` makes it seen");
}

// Parameters and gradients that there was no room for, of the rank with most of them.
std::string unnamed_fact(const Json& ranks) {
  double unnamed = 0, untold = 0;
  for (const Json& rank : ranks) {
    unnamed = std::max(unnamed, number(rank, "/parameters_unnamed").value_or(0));
    untold = std::max(untold, number(rank, "/gradient/untold_steps").value_or(0));
  }
  const std::string parameters =
      count(unnamed) + " parameters, for want of room: their layers have no gradient norm";
  const std::string gradients =
      "of " + count(untold) + " steps: more gradients than there is room for, and no norm";
  return (unnamed > 0 ? fact("unnamed", parameters) : "") + (untold > 0 ? fact("untold", gradients) : "");
}

// What ran in launched CUDA graphs, and was seen by nobody then.
std::string graphs_fact(const Json& ranks) {
  double calls = 0, launches = 0, unknown = 0;
  for (const Json& rank : ranks) {
    for (const char* pass : {"forward", "backward"})
      calls += number(rank, std::string("/attention_coverage/graphs/calls/") + pass).value_or(0);
    launches += number(rank, "/attention_coverage/graphs/launches").value_or(0);
    unknown += number(rank, "/attention_coverage/graphs/unknown_launches").value_or(0);
  }
  if (calls + unknown == 0) return "";
  std::string line =
      count(calls) + " calls ran in " + count(launches) + " launches of CUDA graphs, unsampled";
  if (unknown > 0) line += "; of " + count(unknown) + " more launches nothing is known";
  return fact("in graphs", line);
}

// What --count-kernels came to, of the first rank that tells.
std::string kernels_fact(const Json& ranks) {
  for (const Json& rank : ranks) {
    const std::string state = text(rank, "/attention_coverage/kernels/state");
    if (state.empty()) continue;
    const auto of = [&](const char* what) {
      const std::string path = std::string("/attention_coverage/kernels/") + what;
      return number(rank, path + "/forward").value_or(0) + number(rank, path + "/backward").value_or(0);
    };
    if (state == "done" || state == "counting")
      return fact("kernels", count(of("launched")) + " of attention launched in " +
                                 count(number(rank, "/attention_coverage/kernels/steps").value_or(0)) +
                                 " steps, " + count(of("calls")) + " calls seen");
    const std::string holder = text(rank, "/attention_coverage/kernels/holder");
    const char* why = state == "taken"        ? "not counted: another tool has CUPTI's place"
                      : state == "profiler"   ? "not counted: torch.profiler runs"
                      : state == "no_library" ? "not counted: the process has no CUPTI"
                      : state == "refused"    ? "not counted: CUPTI refused"
                                              : "not counted: the run has ended before";
    return fact("kernels", why + in_brackets(holder));
  }
  return "";
}

// Of the numbers that lay on devices (losses, norms). Before a device is set up the first ones never come,
// which is no news: one in a hundred is.
std::string numbers_fact(const Json& ranks) {
  double fetched = 0, late = 0, missed = 0;
  std::map<std::string, double> why;
  for (const Json& rank : ranks) {
    fetched += number(rank, "/device_numbers/fetched").value_or(0);
    add_reasons(&why, rank, "/device_numbers/skipped");
    late += number(rank, "/device_numbers/late").value_or(0);
  }
  if (late > 0) why["late"] = late;
  for (const auto& [reason, times] : why) missed += times;
  if (missed * 100 <= fetched) return "";
  return fact("on a device", "of " + count(fetched) + " losses and norms there " + count(missed) +
                                 " did not come: " + reasons(why));
}

}  // namespace

std::string coverage_facts(const Json& ranks) {
  return math_path_fact(ranks) + graphs_fact(ranks) + kernels_fact(ranks) + unseen_fact(ranks) +
         unnamed_fact(ranks) + numbers_fact(ranks);
}

namespace {

constexpr size_t kMostLines = 4;

const Json& list_of(const Json& rank, const char* name) {
  static const Json kNone = Json::array();
  const Json::json_pointer place(std::string("/precursors/") + name);
  return rank.contains(place) && rank[place].is_array() ? rank[place] : kNone;
}

std::string in_layer(const Json& of) {
  const std::string layer = text(of, "/layer");
  return layer.empty() ? "" : " in " + layer;
}

std::string on_rank(const Json& ranks, const Json& rank) {
  return ranks.size() == 1 ? "" : " on rank " + count(number(rank, "/rank"));
}

std::string times(double warnings) {
  return warnings == 1 ? "once, at" : count(warnings) + " times, last at";
}

std::vector<std::string> warnings_of(const Json& ranks) {
  std::vector<std::string> lines;
  for (const Json& rank : ranks)
    for (const Json& each : list_of(rank, "detectors"))
      if (const double warnings = number(each, "/warnings").value_or(0); warnings > 0)
        lines.push_back(text(each, "/detector") + " warned " + times(warnings) + " step " +
                        count(number(each, "/last_warn_step")) + in_layer(each) + on_rank(ranks, rank));
  return lines;
}

// The earliest of each detector: it stands for its other layers.
std::string what_came_before(const Json& event) {
  std::map<std::string, const Json*> earliest;
  const auto lead = [](const Json& of) { return number(of, "/lead_steps").value_or(0); };
  if (event.contains("preceded_by"))
    for (const Json& each : event["preceded_by"]) {
      const Json*& known = earliest[text(each, "/detector")];
      if (known == nullptr || lead(each) > lead(*known)) known = &each;
    }
  std::string list;
  for (const auto& [detector, each] : earliest)
    list += (list.empty() ? "" : ", ") + detector + in_layer(*each) + " (" + count(lead(*each)) + " steps)";
  return list.empty() ? "no detector before it" : "before it " + list;
}

// `*more`: how many there were besides.
std::vector<std::string> loss_events_of(const Json& ranks, double* more) {
  std::vector<std::string> lines;
  *more = 0;
  for (const Json& rank : ranks) {
    const Json& events = list_of(rank, "loss_events");
    for (const Json& each : events)
      lines.push_back(text(each, "/event") + " at step " + count(number(each, "/step")) +
                      on_rank(ranks, rank) + "; " + what_came_before(each));
    const auto listed = static_cast<double>(events.size());
    *more += std::max(number(rank, "/precursors/loss_event_count").value_or(listed) - listed, 0.0);
  }
  return lines;
}

std::vector<std::string> dropped_of(const Json& ranks) {
  std::vector<std::string> lines;
  for (const Json& rank : ranks)
    for (const Json& each : list_of(rank, "detectors"))
      if (const double dropped = number(each, "/series_dropped").value_or(0); dropped > 0)
        lines.push_back(text(each, "/detector") + " has no room for " + count(dropped) + " of its series" +
                        on_rank(ranks, rank));
  return lines;
}

std::string facts(const char* name, const std::vector<std::string>& lines, double more = 0) {
  std::string all;
  for (size_t n = 0; n < std::min(lines.size(), kMostLines); ++n) all += fact(n == 0 ? name : "", lines[n]);
  if (lines.size() > kMostLines) more += static_cast<double>(lines.size() - kMostLines);
  if (more > 0) all += fact("", "and " + count(more) + " more");
  return all;
}

}  // namespace

std::string precursors_facts(const Json& ranks) {
  double more = 0;
  const std::vector<std::string> losses = loss_events_of(ranks, &more);
  return facts("detectors", warnings_of(ranks)) + facts("not watched", dropped_of(ranks)) +
         facts("loss events", losses, more);
}

namespace {

constexpr size_t kMostNamed = 4;

// The figures of the node are the same in every rank that has them.
const Json* rank_with(const Json& ranks, const std::string& pointer) {
  for (const Json& rank : ranks)
    if (number(rank, pointer)) return &rank;
  return nullptr;
}

double most(const Json& ranks, const std::string& pointer) {
  double value = 0;
  for (const Json& rank : ranks) value = std::max(value, number(rank, pointer).value_or(0));
  return value;
}

// A step changes the weights by so much; were all steps of an interval to go one way, W1 would be their sum.
std::string drift_text(const Json& rank) {
  const std::optional<double> distance = number(rank, "/weights/wasserstein_previous"),
                              change = number(rank, "/weights/update_mean_abs"),
                              interval = number(rank, "/weights/interval_steps");
  if (!distance || !change || !interval || *change <= 0 || *interval <= 0) return "";
  if (number(rank, "/weights/update_coverage").value_or(1) < 1) return "";  // of other values
  return ", " + formatted("%.2f", *distance / (*change * *interval)) +
         " of what its steps' changes add up to (1: drift, 0: noise)";
}

std::string moved_fact(const Json& ranks) {
  const Json* rank = rank_with(ranks, "/weights/wasserstein_previous");
  if (rank == nullptr) {
    const double interval = most(ranks, "/weights/interval_steps");
    return fact("weights", "no two intervals of " + count(interval) + " steps were seen whole");
  }
  std::string line = "W1 " + formatted("%.2e", number(*rank, "/weights/wasserstein_previous")) +
                     " in the last " + count(number(*rank, "/weights/interval_steps")) + " steps" +
                     drift_text(*rank);
  std::string text_ = fact("weights", line);
  if (const std::string tensor = text(*rank, "/weights/moved_most"); !tensor.empty())
    text_ += fact("", tensor + " moved most, W1 " +
                          formatted("%.2e", number(*rank, "/weights/moved_most_wasserstein")));
  return text_;
}

// The change of one step, if it is a part's.
std::string part_fact(const Json& ranks) {
  const Json* rank = rank_with(ranks, "/weights/update_coverage");
  const double coverage = rank != nullptr ? *number(*rank, "/weights/update_coverage") : 1;
  if (coverage >= 1) return "";
  return fact("", "their change in a step is known of " + formatted("%.0f %%", 100 * coverage) +
                      " of the values (--memory)");
}

// What stands at `where` by reason, of all ranks together.
std::map<std::string, double> counts_at(const Json& ranks, const char* where) {
  const Json::json_pointer pointer(where);
  std::map<std::string, double> counts;
  for (const Json& rank : ranks) {
    if (!rank.contains(pointer) || !rank[pointer].is_object()) continue;
    for (const auto& [reason, value] : rank[pointer].items())
      if (value.is_number() && value.get<double>() > 0) counts[reason] += value.get<double>();
  }
  return counts;
}

std::string unfollowed_fact(const Json& ranks) {
  const std::string text = unfollowed_text(ranks);
  return text.empty() ? "" : fact(most(ranks, "/weights/tensors") == 0 ? "weights" : "", text);
}

// Of a projection of queries or keys shown without the rows of its heads; reasons of a later agent stay as
// they are.
std::string why_without_heads(const std::string& reason) {
  if (reason == "shape") return "of another shape than its name and the attention calls ask for";
  if (reason == "sharded") return "of which this rank has a shard only";
  if (reason == "ring_full") return "for which the ring of weights had no room left (--memory)";
  if (reason == "too_large") return "too large for the ring of weights (--memory)";
  if (reason == "device") return "on a device, too large to be fetched";
  return reason;
}

// Projections of queries and keys whose heads were never seen are why there is no spectrum.
std::string spectra_fact(const Json& ranks) {
  if (most(ranks, "/update_spectra/layers") > 0) return "";
  std::map<std::string, double> counts;
  for (const auto& [reason, times] : counts_at(ranks, "/update_spectra/skipped"))
    counts[why_without_heads(reason)] += times;
  return counts.empty() ? ""
                        : fact("  no spectra", "looks at a projection without heads: " + reasons(counts));
}

std::string left_out_fact(const Json& ranks) {
  std::map<std::string, double> counts = counts_at(ranks, "/weights/skipped");
  if (const double dropped = most(ranks, "/weights/dropped"); dropped > 0)
    counts["no room in the agent"] = dropped;
  return counts.empty() ? "" : fact("  left out", reasons(counts));
}

std::string odd_ranks(const Json& ranks) {
  std::string names;
  size_t found = 0;
  for (const Json& rank : ranks) {
    const std::optional<double> mismatches = number(rank, "/weights/mismatches");
    if (mismatches.value_or(0) == 0) continue;
    if (++found > kMostNamed) continue;
    names += (names.empty() ? "rank " : ", rank ") + count(number(rank, "/rank")) + " (" + count(mismatches) +
             (*mismatches == 1 ? " time)" : " times)");
  }
  if (found > kMostNamed) names += " and " + count(static_cast<double>(found - kMostNamed)) + " more";
  return names;
}

}  // namespace

std::string unfollowed_text(const Json& ranks) {
  std::map<std::string, double> counts = counts_at(ranks, "/weights/unfollowed");
  counts.erase("off");  // whoever switched them off knows
  return counts.empty() ? "" : "tensors not followed: " + reasons(counts);
}

std::string replicas_text(const Json& ranks, const Paint& paint) {
  if (const std::string odd = odd_ranks(ranks); !odd.empty())
    return paint.bad("the weights of " + odd + " differ from their replicas'");
  std::string where;
  for (const Json& rank : ranks)
    if (where.empty()) where = text(rank, "/weights/replicas");
  if (where == "here")
    return count(most(ranks, "/weights/replica_ranks")) + " ranks agree bit for bit in " +
           count(most(ranks, "/weights/replicas_compared")) + " comparisons";
  if (where == "none")
    return "none: each value is held once (one rank, or a full shard), so agreement cannot be checked";
  if (where == "elsewhere") return "none on this node; Prometheus compares nodes (ForeshockReplicaMismatch)";
  return "";
}

std::string weights_facts(const Json& ranks, const Paint& paint) {
  if (most(ranks, "/weights/tensors") == 0) return unfollowed_fact(ranks);
  const std::string replicas = replicas_text(ranks, paint);
  return moved_fact(ranks) + part_fact(ranks) + unfollowed_fact(ranks) + left_out_fact(ranks) +
         spectra_fact(ranks) + (replicas.empty() ? "" : fact("replicas", replicas));
}

}  // namespace foreshock::cli
