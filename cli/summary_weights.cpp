#include "cli/summary_weights.h"

#include <algorithm>
#include <map>

namespace foreshock::cli {
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
