#include "cli/summary_coverage.h"

#include <algorithm>
#include <map>

#include "cli/pass_totals.h"
#include "cli/summary_words.h"

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

}  // namespace foreshock::cli
