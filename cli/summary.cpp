#include "cli/summary.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "cli/format.h"
#include "cli/summary_parts.h"
#include "cli/verdict.h"
#include "detect/thresholds.h"
#include "shadow/judgement.h"

namespace foreshock::cli {
namespace {

constexpr const char* kPasses[] = {"forward", "backward"};
constexpr size_t kMostRankLines = 16;

std::string reason_facts(const std::string& name, const PassTotals& forward, const PassTotals& backward,
                         bool lost) {
  const std::string ahead = reasons(lost ? forward.lost : forward.skipped);
  const std::string back = reasons(lost ? backward.lost : backward.skipped);
  if (ahead == "none" && back == "none") return row(name, "none", "none");
  return fact(name, "forward: " + ahead + "; backward: " + back);
}

// z needs 16 slices; before that a bias is noise.
std::string z_text(const PassTotals& totals) {
  return totals.bias && !totals.bias_z ? "few slices" : formatted("%+.1f", totals.bias_z);
}

// Beyond 1 there is no right digit, and how far beyond tells only how small the reference is: where one key
// has all the weight, gradients of 1e-60 are right.
bool has_no_digit(std::optional<double> error_mean) { return error_mean.value_or(0) > 1; }

std::string error_text(std::optional<double> mean) {
  return has_no_digit(mean) ? "above 1" : formatted("%.1e", mean);
}

static_assert(BiasPool::kSlices == 64 && kSlicesBeyond == 2, "the remarks say so");

// Healthy trainings come there too, and must not look broken.
std::string error_remark(const PassTotals& forward, const PassTotals& backward) {
  if (has_no_digit(forward.error_mean) || has_no_digit(backward.error_mean))
    return "above 1: rows that are almost 0, or all is wrong; the ratio tells which";
  return "against the fp64 reference, in the last 64 slices of a rank";
}

std::string attention_table(const PassTotals (&passes)[2], const Paint& paint) {
  const PassTotals &forward = passes[0], &backward = passes[1];
  std::string out = paint.dim(row("", kPasses[0], kPasses[1]));
  out += row("attention calls", count(forward.calls), count(backward.calls));
  out += row("  sampled", count(forward.sampled), count(backward.sampled));
  out += row("  judged in fp64", count(forward.judged), count(backward.judged));
  out += reason_facts("  skipped", forward, backward, false);
  out += reason_facts("  lost", forward, backward, true);
  const auto both = [&](const std::string& name, const char* format, std::optional<double> PassTotals::*field,
                        const std::string& remark) {
    return row(name, formatted(format, forward.*field), formatted(format, backward.*field),
               paint.dim(remark));
  };
  out += row("relative error", error_text(forward.error_mean), error_text(backward.error_mean),
             paint.dim(error_remark(forward, backward)));
  out += both("deviation ratio", "%.2f", &PassTotals::ratio_mean,
              "over the noise floor: 1 is what plain attention errs");
  out += both("  largest", "%.2f", &PassTotals::ratio_max,
              "of them; two of a layer's last 64 above 2 forward or 3 backward are an alarm");
  out += both("bias", "%+.3f ulp", &PassTotals::bias, "signed; 0 for a rounding that is fair");
  out += row("  z between slices", z_text(forward), z_text(backward));
  return out;
}

std::string span_of(const Json& ranks, const std::string& pointer) {
  std::optional<double> low, high;
  for (const Json& rank : ranks) {
    const std::optional<double> value = number(rank, pointer);
    if (!value) continue;
    low = std::min(low.value_or(*value), *value);
    high = std::max(high.value_or(*value), *value);
  }
  return low == high ? count(low) : count(low) + " to " + count(high);
}

// ", 2 spikes, first at step 812"
std::string events_text(const Json& rank, const std::string& one, const std::string& several,
                        const std::string& key) {
  const std::optional<double> number_of = number(rank, "/loss/" + key + "s");
  if (number_of.value_or(0) == 0) return "";
  const std::optional<double> first = number(rank, "/loss/first_" + key + "_step");
  const std::string at = *number_of == 1 ? " at step " : ", first at step ";
  return ", " + (*number_of == 1 ? one : count(number_of) + " " + several) +
         (first ? at + formatted("%.0f", *first) : "");
}

std::string loss_events_text(const Json& rank) {
  // A spike that has become a divergence, with the same onset, is one event.
  const std::optional<double> onset = number(rank, "/loss/first_divergence_step");
  const bool is_one =
      number(rank, "/loss/spikes") == 1 && onset && onset == number(rank, "/loss/first_spike_step");
  const std::string line = (is_one ? "" : events_text(rank, "1 spike", "spikes", "spike")) +
                           events_text(rank, "diverged", "divergences", "divergence");
  if (!line.empty()) return line;
  return number(rank, "/loss/spikes") ? ", no spike" : ", spikes unknown";
}

// Of a rank that an agent before this one has followed too.
std::string taken_up_fact(const Json& ranks) {
  std::optional<double> step;
  for (const Json& rank : ranks)
    if (const std::optional<double> at = number(rank, "/taken_up_step"))
      step = std::max(step.value_or(*at), *at);
  if (!step) return "";
  return fact("", "the agent was started again at step " + count(step) +
                      ": deviations are of later steps, the verdict knows what was found before");
}

std::string loss_fact(const Json& rank) {
  const std::optional<double> first = number(rank, "/loss/first"), last = number(rank, "/loss/last");
  const std::string not_finite = text(rank, "/loss/last_nonfinite");
  if (!last && not_finite.empty()) return "unknown";
  return formatted("%.4g", first) + " -> " + (last ? formatted("%.4g", last) : not_finite) +
         in_brackets(text(rank, "/loss/source")) + loss_events_text(rank);
}

// "No spike" is said of the others.
std::string lost_steps_fact(const Json& ranks) {
  double lost = 0, all = 0;
  for (const Json& rank : ranks) {
    lost += number(rank, "/steps_lost").value_or(0);
    all += number(rank, "/steps").value_or(0);
  }
  if (lost == 0) return "";
  return fact("not seen", count(lost) + " of " + count(all) + " steps" +
                              (ranks.size() > 1 ? " of all ranks" : "") +
                              ": the agent came too late to read their losses and norms");
}

std::string gradient_fact(const Json& rank) {
  const std::optional<double> norm = number(rank, "/gradient/norm");
  std::string line = norm ? formatted("%.4g", norm) + " at the last step, before clipping" : "";
  const Json::json_pointer layers("/gradient/nonfinite_layers");
  if (rank.contains(layers) && rank[layers].is_array() && !rank[layers].empty()) {
    line += line.empty() ? "not finite at times in layer" : "; not finite at times in layer";
    for (const Json& layer : rank[layers])
      line += " " + (layer.is_string() ? layer.get<std::string>() : layer.dump());
  }
  return line.empty() ? "" : fact("gradient norm", line);
}

std::string layer_fact(const Json& rank) {
  const std::string worst = text(rank, "/worst_layer"), source = text(rank, "/layer_source");
  if (worst.empty()) return "unknown";
  return worst + (source.empty() || source == "unknown" ? "" : " (named by " + source + ")");
}

constexpr double kShortSeconds = 10;

// A ratio of few seconds says little of the program around them: set-up is most of our time in them.
std::string base_of_slowdown(const Json& ranks) {
  std::optional<double> least;
  for (const Json& rank : ranks)
    if (const auto seconds = number(rank, "/train_seconds"))
      least = std::min(least.value_or(*seconds), *seconds);
  return least && *least < kShortSeconds ? " of " + formatted("%.2f", least) + " s in steps" : "";
}

std::string restarts_fact(const Json& ranks) {
  double restarts = 0;
  for (const Json& rank : ranks) restarts += number(rank, "/step_restarts").value_or(0);
  if (restarts == 0) return "";
  return fact("several trainings", "the optimizer was replaced, or the step number fell, " + count(restarts) +
                                       (restarts == 1 ? " time" : " times") + " in a process;") +
         fact("", "losses, norms and layers without a name are pooled over these trainings");
}

std::string slowdown_fact(const PassTotals (&passes)[2], const Json& ranks) {
  std::optional<double> most;
  for (const Json& rank : ranks) {
    const std::optional<double> value = number(rank, "/slowdown_ratio");
    if (value) most = std::max(most.value_or(*value), *value);
  }
  if (most) *most *= 100;
  if (!most) return "unknown";
  const std::optional<double> interval = number(ranks[0], "/sample_interval_steps");
  std::string often;
  if (interval && passes[0].sampled.value_or(0) + passes[1].sampled.value_or(0) > 0) {
    // The interval is the last one: calls that were not sampled show that it was longer before.
    const bool was_longer = passes[0].unsampled.value_or(0) + passes[1].unsampled.value_or(0) > 0;
    often = *interval != 1 ? ", one step in " + count(interval) + " was sampled"
            : was_longer   ? ", every step was sampled at the end"
                           : ", every step was sampled";
  }
  return formatted("%.2f %%", most) + (ranks.size() > 1 ? " (slowest rank)" : "") + base_of_slowdown(ranks) +
         often;
}

std::string rank_lines(const Json& ranks) {
  std::string out;
  size_t shown = 0;
  for (const Json& rank : ranks) {
    if (++shown > kMostRankLines)
      return out + fact("", "... and " + count(ranks.size() - kMostRankLines) + " more");
    out += fact("rank " + count(number(rank, "/rank")),
                "ratio " + formatted("%.2f", number(rank, "/attention/forward/deviation_ratio/mean")) +
                    " / " + formatted("%.2f", number(rank, "/attention/backward/deviation_ratio/mean")) +
                    ", worst layer " + layer_fact(rank) + ", loss " + loss_fact(rank));
  }
  return out;
}

// Only a live run's state says whether a rank is switched on.
std::string paused_fact(const Json& ranks) {
  std::string paused;
  for (const Json& rank : ranks)
    if (rank.contains("on") && rank["on"] == false) paused += " " + count(number(rank, "/rank"));
  return paused.empty() ? "" : fact("paused", "rank" + paused + "; `foreshock resume` goes on");
}

// The helper in the trainer was too dear, or could not name a model.
std::string given_up_fact(const Json& ranks) {
  const std::string since = given_up_text(ranks);
  if (since.empty()) return "";
  const Json::json_pointer reason("/tensors_given_up_reason");
  const bool has_failed = std::any_of(ranks.begin(), ranks.end(), [&](const Json& rank) {
    return rank.contains(reason) && rank[reason] == "failure";
  });
  if (has_failed)
    return fact("given up", "names, gradient norms and weights, " + since + ": a model's") +
           fact("", "tensors could not be named; steps and attention are followed");
  return fact("given up", "names, gradient norms and weights, " + since + ": to tell of") +
         fact("", "them cost several times --max-slowdown; steps and attention are followed");
}

// Another release in the trainer than the agent's, mostly.
std::string refused_text(const Json& summary) {
  const double segments = number(summary, "/refused/segments").value_or(0);
  if (segments == 0) return "";
  return count(segments) + (segments == 1 ? " process" : " processes") +
         " of this run cannot be followed: " + text(summary, "/refused/why");
}

std::string left_out_fact(const Json& summary) {
  const double processes = number(summary, "/processes_left_out").value_or(0);
  if (processes == 0) return "";
  return fact(
      "", count(processes) + " earlier processes of this run are not in these figures: it started too many");
}

std::string refused_fact(const Json& summary) {
  const std::string refused = refused_text(summary);
  return refused.empty() ? "" : fact("refused", refused);
}

bool saw_no_attention(const PassTotals (&passes)[2], const Json& ranks) {
  return passes[0].calls == 0 && passes[1].calls == 0 && number(ranks[0], "/steps").value_or(0) >= 10;
}

bool saw_no_step(const PassTotals (&passes)[2], const Json& ranks) {
  return passes[1].calls > 0 && number(ranks[0], "/steps").value_or(0) == 0;
}

// Of an older agent, which does not tell, it is believed.
bool had_slots(const Json& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const Json& rank) { return number(rank, "/slots/given").value_or(1) > 0; });
}

// Why there was no slot to copy a sample into.
std::string no_slots_fact(const Json& ranks) {
  const bool wanted = std::any_of(ranks.begin(), ranks.end(), [](const Json& rank) {
    return number(rank, "/slots/wanted").value_or(0) > 0;
  });
  if (!wanted) return fact("", "`--slices off`: calls are counted, none is copied");
  return fact("",
              "no shared memory was left for samples: allow more (--memory, a container's --shm-size and") +
         fact("", "memory limit), or set FORESHOCK_DIR to a directory on a tmpfs with room");
}

bool had_no_budget(const PassTotals (&passes)[2]) {
  const auto is_spent = [](const PassTotals& totals) {
    const auto budget = totals.skipped.find("budget");
    return totals.judged == 0 && budget != totals.skipped.end() && budget->second > 0;
  };
  return passes[0].judged.value_or(0) + passes[1].judged.value_or(0) == 0 &&
         (is_spent(passes[0]) || is_spent(passes[1]));
}

std::string painted(const Verdict& verdict, const Paint& paint) {
  const std::string sentence = verdict.sentence();
  if (verdict.is_fault()) return paint.bad(sentence);
  return verdict.state == Verdict::State::kSound ? paint.good(sentence) : sentence;
}

}  // namespace

std::string summary_text(const std::string& json, bool colour) {
  const Json summary = Json::parse(json, nullptr, false);
  if (!summary.is_object()) return "";
  const Paint paint(colour);
  const Json ranks =
      summary.contains("ranks") && summary["ranks"].is_array() ? summary["ranks"] : Json::array();
  std::string out = "\n" + paint.bold("foreshock") + "  run " + paint.bold(text(summary, "/run"));
  const std::string state = text(summary, "/state");
  out += "  " + (state.empty() ? "unknown" : state);
  if (ranks.empty()) return out + "  no rank seen\n" + refused_fact(summary) + "\n";
  out += "  " + ranks_text(ranks) + "  " + span_of(ranks, "/steps") + " steps" +
         in_brackets(text(ranks[0], "/step_source")) + "\n\n";

  const PassTotals passes[2] = {totals_of(ranks, kPasses[0]), totals_of(ranks, kPasses[1])};
  out += attention_table(passes, paint) + "\n";
  out += fact("verdict", painted(verdict_of(passes, ranks), paint)) + taken_up_fact(ranks);
  if (saw_no_attention(passes, ranks)) {
    out += fact("", "no attention call was seen: written by hand, by a kernel that PyTorch does not");
    out += fact("", "dispatch, or on the math path (dropout > 0, some masks) inside a compiled graph");
  }
  if (saw_no_step(passes, ranks)) {
    out += fact("", "no optimizer step was seen, and nothing is sampled before the first: tell them with");
    out += fact("", "foreshock.report(step=) or, in C and C++, foreshock_annotate_step()");
  }
  if (!had_slots(ranks)) {
    out += no_slots_fact(ranks);
  } else if (had_no_budget(passes)) {
    out += fact("", "a sample costs more than --max-slowdown allows of steps this short, or of so few:");
    out += fact("", "train longer, or allow more, as in --max-slowdown 10%");
  }
  out += coverage_facts(ranks);
  if (ranks.size() == 1) {
    out += fact("worst layer", layer_fact(ranks[0]));
    out += fact("loss", loss_fact(ranks[0]));
    if (ranks[0].contains("gradient")) out += gradient_fact(ranks[0]);
  } else {
    out += rank_lines(ranks);
    if (const std::string early = ended_early_text(ranks);
        !early.empty() && state != "running" && restarts_fact(ranks).empty())
      out += fact("ended early", early);
  }
  out +=
      restarts_fact(ranks) + lost_steps_fact(ranks) + precursors_facts(ranks) + weights_facts(ranks, paint);
  return out + fact("slowdown", slowdown_fact(passes, ranks)) + given_up_fact(ranks) + paused_fact(ranks) +
         refused_fact(summary) + left_out_fact(summary) + "\n";
}

std::string brief_text(const std::string& json, bool colour) {
  const Json summary = Json::parse(json, nullptr, false);
  if (!summary.is_object()) return "";
  const Json ranks =
      summary.contains("ranks") && summary["ranks"].is_array() ? summary["ranks"] : Json::array();
  const Paint paint(colour);
  const std::string head = paint.bold(text(summary, "/run")) + "  " + text(summary, "/state");
  if (ranks.empty()) return head + "  no rank seen\n";
  const PassTotals passes[2] = {totals_of(ranks, kPasses[0]), totals_of(ranks, kPasses[1])};
  return head + "  step " + span_of(ranks, "/step") + "  loss " +
         formatted("%.4g", number(ranks[0], "/loss/last")) + "  ratio " +
         formatted("%.2f", passes[0].ratio_mean) + "/" + formatted("%.2f", passes[1].ratio_mean) + "  " +
         painted(verdict_of(passes, ranks), paint) + "\n";
}

void print_summary(const std::string& json, int descriptor) {
  const char* no_colour = std::getenv("NO_COLOR");
  const bool colour = isatty(descriptor) == 1 && (no_colour == nullptr || *no_colour == '\0');
  const std::string text = summary_text(json, colour);
  [[maybe_unused]] const ssize_t written = write(descriptor, text.data(), text.size());
}

bool lacks_record_lines(const std::string& json) {
  const Json summary = Json::parse(json, nullptr, false);
  return summary.is_object() && summary.contains("record_complete") && summary["record_complete"] == false;
}

std::string refused_line(const std::string& json) {
  const Json summary = Json::parse(json, nullptr, false);
  return summary.is_object() ? refused_text(summary) : "";
}

bool has_other_ranks(const std::string& json) {
  const Json summary = Json::parse(json, nullptr, false);
  return summary.is_object() && number(summary, "/other_ranks").value_or(0) > 0;
}

bool has_ranks(const std::string& json) {
  const Json summary = Json::parse(json, nullptr, false);
  return summary.is_object() && summary.contains("ranks") && summary["ranks"].is_array() &&
         !summary["ranks"].empty();
}

namespace {

using Json = nlohmann::json;

struct Sum {
  uint64_t count = 0;
  std::string text;  // "3 bias, 1 control"
};

Sum sum_of(const Json& flagged, const char* key) {
  Sum sum;
  if (!flagged.contains(key) || !flagged[key].is_object()) return sum;
  for (const auto& [name, count] : flagged[key].items()) {
    if (!count.is_number_unsigned()) continue;
    sum.count += count.get<uint64_t>();
    sum.text += (sum.text.empty() ? "" : ", ") + std::to_string(count.get<uint64_t>()) + " " + name;
  }
  return sum;
}

std::string text_in(const Json& flagged, const char* key) {
  return flagged.contains(key) && flagged[key].is_string() ? flagged[key].get<std::string>() : "";
}

}  // namespace

std::vector<std::string> flagged_lines(const std::string& json) {
  const Json summary = Json::parse(json, nullptr, false);
  if (!summary.is_object() || !summary.contains("flagged") || !summary["flagged"].is_object()) return {};
  const Json& flagged = summary["flagged"];
  const std::string folder = text_in(flagged, "directory"), problem = text_in(flagged, "problem");
  const Sum saved = sum_of(flagged, "saved"), dropped = sum_of(flagged, "dropped");
  std::vector<std::string> lines;
  if (saved.count > 0)
    lines.push_back(std::to_string(saved.count) + " flagged slices saved (" + saved.text +
                    "): foreshock judge " + folder + "/*.slice.safetensors");
  if (!problem.empty())
    lines.push_back("not every flagged slice could be saved (" + dropped.text + "): " + problem);
  return lines;
}

namespace {

using Json = nlohmann::json;

// Ranks of one job end within a step of each other: one may be killed before its last step is told.
constexpr int64_t kSameStep = 1;
constexpr size_t kMostNamed = 4;

int64_t whole(const Json& rank, const char* key, int64_t fallback) {
  return rank.contains(key) && rank[key].is_number() ? rank[key].get<int64_t>() : fallback;
}

std::string counted(size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

}  // namespace

std::string ranks_text(const Json& ranks) {
  std::set<int64_t> numbers, attempts;
  for (const Json& rank : ranks) {
    numbers.insert(whole(rank, "rank", -1));
    attempts.insert(whole(rank, "attempt", 0));
  }
  std::string text = counted(numbers.size(), "rank", "ranks");
  if (ranks.size() > numbers.size()) text += " in " + counted(ranks.size(), "process", "processes");
  if (attempts.size() > 1) text += " (" + counted(attempts.size(), "attempt", "attempts") + ")";
  return text;
}

std::string ended_early_text(const Json& ranks) {
  int64_t attempt = 0, furthest = -1;
  for (const Json& rank : ranks) attempt = std::max(attempt, whole(rank, "attempt", 0));
  std::map<int64_t, int64_t> reached;  // by rank
  for (const Json& rank : ranks) {
    if (whole(rank, "attempt", 0) != attempt) continue;
    int64_t& step = reached.emplace(whole(rank, "rank", -1), -1).first->second;
    step = std::max(step, whole(rank, "step", -1));
    furthest = std::max(furthest, step);
  }
  std::string text;
  size_t early = 0;
  for (const auto& [rank, step] : reached) {
    if (step + kSameStep >= furthest) continue;
    if (++early > kMostNamed) continue;
    text += (text.empty() ? "" : ", ") + ("rank " + std::to_string(rank)) +
            (step < 0 ? " before its first step" : " at step " + std::to_string(step));
  }
  if (early > kMostNamed) text += " and " + std::to_string(early - kMostNamed) + " more";
  return text.empty() ? "" : text + ", of " + std::to_string(furthest);
}

std::string given_up_text(const Json& ranks) {
  std::vector<int64_t> steps;
  for (const Json& rank : ranks)
    if (const int64_t step = whole(rank, "tensors_given_up_step", -1); step >= 0) steps.push_back(step);
  if (steps.empty()) return "";
  const int64_t first = *std::min_element(steps.begin(), steps.end());
  const std::string since = "from step " + std::to_string(first) + " on";
  if (steps.size() == ranks.size()) return since;
  return since + " in " + std::to_string(steps.size()) + " of " + counted(ranks.size(), "rank", "ranks");
}

namespace {

void add(std::optional<double>* total, std::optional<double> value) {
  if (value) *total = total->value_or(0) + *value;
}

// Both, as the alarm of a layer.
bool is_beyond(std::optional<double> ulp, std::optional<double> z) {
  return std::fabs(ulp.value_or(0)) > kBiasUlp && std::fabs(z.value_or(0)) > kBiasZ;
}

// A large bias of one rank, from few slices, hides no sure one of another.
// `is_mixed`: the rank pools calls of unlike kind, of which a mean error says nothing.
void add_bias(const Json& pass, bool is_mixed, PassTotals* totals) {
  const std::optional<double> bias = number(pass, "/bias_ulp"), z = number(pass, "/bias_z"),
                              control = number(pass, "/rounded_reference_bias_ulp"),
                              control_z = number(pass, "/rounded_reference_bias_z");
  if (!bias) return;
  const std::optional<double> excess = number(pass, "/excess_bias_ulp"),
                              excess_z = number(pass, "/excess_bias_z");
  // What a sound algorithm shows too on the same slices, or the reference when it is merely rounded, is no
  // fault of the kernel. Older agents tell nothing of the first.
  const bool exceeds = !excess || (is_beyond(excess, excess_z) && (*excess > 0) == (*bias > 0));
  const bool biased = is_beyond(bias, z) && exceeds && !is_beyond(control, control_z) && !is_mixed;
  const bool larger = !totals->bias || std::fabs(*bias) > std::fabs(*totals->bias);
  if (biased == totals->biased ? !larger : !biased) return;
  totals->biased = biased;
  totals->bias = bias;
  totals->bias_z = z;
}

}  // namespace

std::optional<double> number(const Json& json, const std::string& pointer) {
  const Json::json_pointer path(pointer);
  if (!json.contains(path) || !json[path].is_number()) return std::nullopt;
  return json[path].get<double>();
}

std::string text(const Json& json, const std::string& pointer) {
  const Json::json_pointer path(pointer);
  std::string found = json.contains(path) && json[path].is_string() ? json[path].get<std::string>() : "";
  std::replace_if(
      found.begin(), found.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return found;
}

void add_reasons(std::map<std::string, double>* total, const Json& json, const std::string& pointer) {
  const Json::json_pointer path(pointer);
  if (!json.contains(path) || !json[path].is_object()) return;
  for (const auto& [reason, value] : json[path].items()) {
    if (value.is_number() && value.get<double>() > 0) (*total)[reason] += value.get<double>();
  }
}

PassTotals totals_of(const Json& ranks, const std::string& pass) {
  PassTotals totals;
  double weight = 0, error = 0, ratio = 0;
  for (const Json& rank : ranks) {
    const std::string at = "/attention/" + pass;
    add(&totals.calls, number(rank, at + "/calls"));
    add(&totals.unsampled, number(rank, at + "/unsampled"));
    add(&totals.sampled, number(rank, at + "/sampled"));
    add(&totals.judged, number(rank, at + "/judged"));
    add(&totals.nonfinite, number(rank, at + "/nonfinite"));
    add(&totals.in_flight, number(rank, at + "/in_flight"));
    add_reasons(&totals.skipped, rank, at + "/skipped");
    add_reasons(&totals.lost, rank, at + "/lost");
    const std::optional<double> judged = number(rank, at + "/judged"),
                                mean = number(rank, at + "/deviation_ratio/mean"),
                                relative = number(rank, at + "/relative_error/mean"),
                                max = number(rank, at + "/deviation_ratio/max");
    totals.compared = totals.compared || relative.has_value();
    if (judged && mean && relative) {
      weight += *judged;
      ratio += *judged * *mean;
      error += *judged * *relative;
    }
    add(&totals.partial, number(rank, at + "/partial"));
    if (const auto layers = number(rank, at + "/layers_judged"))
      totals.layers = std::max(totals.layers.value_or(0), *layers);
    if (max) totals.ratio_max = std::max(totals.ratio_max.value_or(*max), *max);
    const bool is_mixed = rank.contains("layers_mixed") && rank["layers_mixed"] == true;
    if (const Json::json_pointer path(at); rank.contains(path)) add_bias(rank[path], is_mixed, &totals);
  }
  if (weight > 0) {
    totals.ratio_mean = ratio / weight;
    totals.error_mean = error / weight;
  }
  return totals;
}

}  // namespace foreshock::cli
