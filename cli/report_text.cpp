// Makes the texts of `foreshock report`. An "episode" is a period of a detector above level quiet. A "sign"
// is an episode before a loss event. A "clue" is a circumstance of the event. The "onset" is the event's
// first step. A detector is "proven" if the benchmark of detectors shows that it is reliable, else
// experimental.
#include "cli/report_text.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>

#include "agent/condition_list.h"
#include "agent/detection.h"
#include "agent/text.h"
#include "cli/terminal.h"
#include "detect/detector.h"

namespace foreshock::cli {
namespace {

// Reasons why a detector may have had no value, by the kind of values that it watches.
constexpr const char* kNoForward = "No forward slice of an attention call was judged.";
constexpr const char* kNoBackward = "No backward slice of an attention call was judged.";
constexpr const char* kNoNorm =
    "No gradient norm was seen: the training computes none (clipping does), or gradients are sharded.";
constexpr const char* kNoWeights =
    "No weights were followed: --weights off, a device that could not be asked, or too short a run.";

struct DetectorText {
  DetectorId id;
  ReportText text;             // in order: plain, consistent_with, not_excluded, to_try
  const char* without_values;  // why the detector may have had no value
};

// The index is the DetectorId.
constexpr DetectorText kDetectorTexts[] = {
    {DetectorId::kBias,
     {"attention's output is biased",
      "Rounding in this layer's attention kernel with a bias, as is possible if the largest scores of a row "
      "are nearly equal.",
      "That the error does no harm: an error to one side that has nothing to do with the gradient left the "
      "loss alone in small test trainings.",
      "Train on from a checkpoint before the first sign with this layer's attention in fp32, or unfused: if "
      "the event stays away, the kernel had a part in it."},
     kNoForward},
    {DetectorId::kOutputErrorDrift,
     {"the error of attention's output followed its gradient",
      "Low precision in attention that harms: an error that keeps the sign of the gradient adds up from step "
      "to step.",
      "That something else drove the scores or the gradients of this layer up, and the error followed.",
      "Train on from a checkpoint before the first sign with the output of this layer's attention in fp32: "
      "if the event stays away, precision had a part in it."},
     kNoBackward},
    {DetectorId::kDeviationForward,
     {"the error of attention's output exceeds what its precision explains",
      "A defect of the attention kernel, or of the hardware, for what this layer feeds it.",
      "Inputs of unusual range or nearly equal scores, for which unfused attention happens to have a small "
      "error.",
      "Look whether `foreshock doctor` lists a defect of this version; let another kernel or version train "
      "over the same steps."},
     kNoForward},
    {DetectorId::kDeviationBackward,
     {"the error of the query's gradient exceeds what its precision explains",
      "A defect of the attention kernel's backward pass, or of the hardware, for what this layer feeds it.",
      "Long rows: on the CPU the error of the backward pass in bf16 grows with the number of keys.",
      "Look whether `foreshock doctor` lists a defect of this version; let another kernel or version train "
      "over the same steps."},
     kNoBackward},
    {DetectorId::kMaxLogit,
     {"attention scores became very large",
      "Scores that grow without bound, until the softmax saturates and its gradients vanish or jump.",
      "That large scores are the effect of too high a learning rate, or harmless in this head.",
      "Normalise queries and keys, cap the scores, or lower the rate or raise the weight decay of these "
      "projections."},
     kNoForward},
    {DetectorId::kLogitGrowth,
     {"attention scores grew steadily", "Scores on their way out of the range that a softmax bears.",
      "Ordinary growth early in a training, which ends by itself.",
      "Normalise queries and keys, cap the scores, or lower the rate or raise the weight decay of these "
      "projections."},
     kNoForward},
    {DetectorId::kEntropyDrop,
     {"attention narrowed to few keys suddenly",
      "Attention of this layer that collapses on few keys, as when scores or the learning rate run away.",
      "Batches of another kind, for which attention is narrow by right; a layer that has just learned to "
      "attend.",
      "Compare the batches before and after; normalise queries and keys, or lower the learning rate."},
     kNoForward},
    {DetectorId::kGradientNorm,
     {"the gradient norm jumped far above what it was",
      "Batches unlike those before them, or a step that went too far.",
      "That the gradient is large because the loss was already on its way up: a norm does not show which "
      "came first.",
      "Look at the batches just before; clip the gradient lower, or leave out steps whose norm is an "
      "outlier."},
     kNoNorm},
    {DetectorId::kGradientGrowth,
     {"the gradient norm grew steadily",
      "A learning rate beyond what the curvature bears, while the optimizer still remembers smaller "
      "gradients.",
      "Growth that has another reason: data of another kind, scores or weights that run away.",
      "From a checkpoint well before, train with a lower learning rate, a smaller beta2 (0.95) or a larger "
      "eps."},
     kNoNorm},
    {DetectorId::kWeightShift,
     {"weights moved faster than they used to",
      "Steps that have become larger: a higher learning rate, larger gradients, or an optimizer out of step "
      "with them.",
      "A schedule that means it: warm-up, a new phase, another rate.",
      "Look at the learning rate and the gradient norm at that step; lower the rate of this tensor's group."},
     kNoWeights},
};
static_assert(std::size(kDetectorTexts) == kDetectors,
              "a detector needs a row here: what its warning may mean");

constexpr ReportText kSpike = {
    "The loss jumped",
    "A single bad batch, or one step that was too large: both leave a spike that may heal by itself.",
    "The data: only the same batches, run again, can show it.",
    "Go back to a checkpoint before it and train over the same steps twice, with the same batches and "
    "without those just before it."};
constexpr ReportText kDivergence = {
    "The loss diverged",
    "A training that has left the region in which its steps make sense, or a value that overflowed.",
    "The data, and every setting that changed shortly before.",
    "Do not train on from here: go back to a checkpoint before the first sign, and change one thing at a "
    "time."};
constexpr ReportText kRise = {"The loss rose slowly",
                              "A failure that adds up over many steps, such as a rate that is too high or an "
                              "error that always has the same sign.",
                              "Data that have become harder: compare with the loss on a held-out set.",
                              "Evaluate checkpoints from before and after on the same held-out data; if they "
                              "differ, go back to the one before the first sign."};

struct ClueText {
  Clue clue;
  ReportText text;
};
// The index is the Clue.
constexpr ClueText kClueTexts[] = {
    {Clue::kNothingBefore,
     {"no detector spoke before it",
      "A sudden reason, such as one batch, a changed setting or a fault of the hardware: these have no "
      "forerunner.",
      "A forerunner that is not watched here, or that fell between two sampled steps.",
      "Sample more often (--every 1) over the same steps, from a checkpoint before them."}},
    {Clue::kLearningRate,
     {"the learning rate had changed", "A learning rate that the training does not bear.",
      "That the change of the rate is a coincidence of the schedule.",
      "Repeat the steps with the rate that held before."}},
    {Clue::kNonfinite,
     {"values that are no numbers came first", "An overflow, or a division by nothing, that then spread.",
      "That the place named is where it was first looked at, not where it began.",
      "Go back, and look at the layer that was first not finite: its inputs, its scale, its precision."}},
    {Clue::kReplicasDiffer,
     {"replicas that should hold equal weights did not",
      "A rank whose memory, arithmetic or communication has gone wrong.",
      "Code that updates replicas differently by design.",
      "Take the node of the rank that differs out, test its hardware, and go back to a checkpoint before "
      "it."}},
    {Clue::kResumed,
     {"the training had just gone back to a checkpoint",
      "A checkpoint that lacks something: optimizer state, schedule, or the place in the data.",
      "That the steps would have failed in any case: they may lead there again.",
      "Compare loss, learning rate and gradient norm of the first steps after it with those of the first "
      "time."}},
    {Clue::kSkippedSteps,
     {"steps had been left out", "Gradients that overflowed in fp16, so that the scaler left steps out.",
      "That this is the scaler finding its range, as it does at the start.",
      "Look at the scale over time; train in bf16, or bound the scale's growth."}},
    {Clue::kOneRank,
     {"only some ranks had it", "The data of these ranks, or a fault of their hardware.",
      "That the others saw it below the threshold.",
      "Look at the batches of these ranks; run them on another node."}},
    {Clue::kCameAgain,
     {"the same steps, run again, gave it again",
      "Something that repeats: the data in this order, the settings, or the state of the checkpoint.",
      "That a fault of the hardware struck the same machine again.",
      "Run the steps again without the batches just before it, and once on other machines."}},
    {Clue::kDidNotComeAgain,
     {"the same steps, run again, did not give it",
      "Something that does not repeat: a fault of the hardware, or an order of operations that varies.",
      "That data or settings were changed for the second time.",
      "Note which machines took part the first time; test them."}},
    {Clue::kMonitorGap,
     {"steps before it were not seen", "Nothing: what happened in steps that were not seen is not known.",
      "A forerunner in the steps that are missing.",
      "See why the agent missed them: `foreshock status`, and the log of the agent."}},
};
static_assert(std::size(kClueTexts) == kClues, "a clue needs a row here");

constexpr int kLossesOfRecovery = 3;       // a loss has recovered after so many consecutive low losses
constexpr double kUnrecoveredShare = 0.1;  // a slow rise has recovered if at most this share of it remains
constexpr int kUsualSteps = 32;  // losses that show what is usual; few, because older losses are higher

std::string number(double value) { return formatted("%.4g", value); }
std::string step_text(int64_t step) { return grouped(step); }

const char* name_of_event(WatchEventKind kind) {
  return kind == WatchEventKind::kLossRise     ? "Slow rise of the loss"
         : kind == WatchEventKind::kDivergence ? "Loss diverged"
                                               : "Loss spike";
}

struct Usual {  // mean and highest value of the losses in the kUsualSteps steps before the onset
  double mean = 0, highest = 0;
  size_t count = 0;  // number of known and finite losses; 0: mean and highest are not set
};
Usual usual_of(const ReportEvent& event) {
  Usual usual;
  for (const TrailStep& step : event.steps) {  // the steps around the event
    const int64_t lead = steps_between(step.step, event.onset_step);
    if (lead <= 0 || lead > kUsualSteps || !step.loss || !std::isfinite(*step.loss)) continue;
    usual.highest = usual.count == 0 ? *step.loss : std::max(usual.highest, *step.loss);
    usual.mean += *step.loss;
    ++usual.count;
  }
  if (usual.count > 0) usual.mean /= static_cast<double>(usual.count);
  return usual;
}

// Returns the step at which the loss has recovered: the first of kLossesOfRecovery consecutive losses after
// the peak that are at most `highest`, the highest loss before the onset. -1: not recovered. Must not be used
// for slow rises: their first losses are below `highest`, so they would count as recovered at once.
int64_t recovered_at(const ReportEvent& event, int64_t peak_at, double highest) {
  int consecutive = 0;
  int64_t first = -1;
  for (const TrailStep& step : event.steps) {
    if (step.step < peak_at || !step.loss) continue;
    if (!(*step.loss <= highest)) {  // also for NaN
      consecutive = 0;
      continue;
    }
    if (consecutive == 0) first = step.step;
    ++consecutive;
    if (consecutive == kLossesOfRecovery) return first;
  }
  return -1;
}

// Moving means of kUsualSteps losses from the onset on, since single losses vary too much to show a slow
// rise. The rise is the highest mean minus the usual loss. The loss has recovered in the first mean after the
// highest one that is at most usual + kUnrecoveredShare * rise.
struct Means {
  double highest = -INFINITY;   // until there are kUsualSteps losses
  int64_t highest_from = 0;     // first step of the highest mean
  int64_t recovered_from = -1;  // first step of the mean in which the loss has recovered; -1: not yet
};
Means means_of(const ReportEvent& event, double usual) {
  Means found;
  std::vector<const TrailStep*> finite_steps;  // steps with a finite loss
  constexpr size_t kWindow = kUsualSteps;      // unsigned, as sizes are
  double sum = 0;                              // of the last kWindow losses
  for (const TrailStep& step : event.steps) {
    if (step.step < event.onset_step || !step.loss || !std::isfinite(*step.loss)) continue;
    finite_steps.push_back(&step);
    sum += *step.loss;
    if (finite_steps.size() > kWindow) sum -= *finite_steps[finite_steps.size() - kWindow - 1]->loss;
    if (finite_steps.size() < kWindow) continue;
    const double mean = sum / kUsualSteps;
    const int64_t from = finite_steps[finite_steps.size() - kWindow]->step;
    if (mean > found.highest) found = {mean, from, -1};
    if (mean <= usual + kUnrecoveredShare * (found.highest - usual) && found.recovered_from < 0)
      found.recovered_from = from;
  }
  return found;
}

// Returns " in layer ...". Cuts the name, since names come from a trainer and may be long.
std::string in_layer(const std::string& layer) {
  constexpr size_t kLongest = 64;
  return layer.empty() ? "" : " in layer " + layer.substr(0, kLongest);
}

// Returns a clause about the warnings of the run. Those of experimental detectors are only counted.
std::string warnings_text(const Report& report, const RunCounts& counts) {
  if (counts.warnings == 0) return ", and no detector warned";
  const RankEpisode* first = nullptr;
  uint64_t proven = 0;
  for (const RankEpisode& each : report.episodes) {
    if (each.warn_step < 0 || !is_proven(each.detector)) continue;
    ++proven;
    if (first == nullptr || each.warn_step < first->warn_step) first = &each;
  }
  const auto times = [](uint64_t number) { return grouped(number) + (number == 1 ? " time" : " times"); };
  if (first == nullptr) return "; only experimental detectors warned (" + times(counts.warnings) + ")";
  return "; detectors warned " + times(proven) + ", first at step " + step_text(first->warn_step) + ": " +
         text_of(first->detector).plain + in_layer(first->layer);
}

std::string verdict_without_events(const Report& report, const RunCounts& counts) {
  const std::string begin = counts.losses == 0
                                ? "The loss of this run is unknown, so loss events cannot be detected"
                                : "No loss event in " + steps_text(static_cast<int64_t>(counts.steps));
  return begin + warnings_text(report, counts) + ".";
}

// Returns the text of course_of() for a slow rise. `usual`: the mean loss before the onset.
std::string course_of_rise(const ReportEvent& event, double usual) {
  const std::string window = "mean of " + step_text(kUsualSteps) + " steps";
  std::string text = "The loss was " + number(usual) + " in the " + window + " just before";
  const Means means = means_of(event, usual);
  if (!std::isfinite(means.highest)) return text + "; what came after is not in the record.";
  text += "; the highest such mean since was " + number(means.highest) + ", from step " +
          step_text(means.highest_from) + " on. ";
  const bool has_recovered = means.recovered_from >= 0;
  text += has_recovered ? "It was back " + steps_text(steps_between(event.onset_step, means.recovered_from)) +
                              " after the onset."
                        : "It had not come back " +
                              steps_text(steps_between(event.onset_step, event.steps.back().step)) +
                              " after the onset.";
  return text + " Such a rise is seen late: here at step " + step_text(event.declared_step) + ".";
}

std::string name_of_tensor(const std::string& tensor) {
  return tensor == "out" ? "output" : tensor == "grad_query" ? "dQ" : tensor == "grad_key" ? "dK" : "dV";
}

// Returns "attention's output in layer 003" or "attention's dQ in layer 003", for example.
std::string tensor_of(const LargestError& error) {
  return "attention's " + name_of_tensor(error.tensor) + in_layer(error.layer);
}

// The record may have events of the loss that this version does not find.
std::string loss_verdict_of(const Report& report, const RunCounts& counts) {
  if (counts.steps == 0) return "The record has no step of the training: nothing can be said of its loss.";
  if (report.events.empty()) return verdict_without_events(report, counts);
  const std::string first = title_of(report.events.front());
  if (report.events.size() == 1) return first + ".";
  return first + ": the first of " + grouped(report.events.size()) + " loss events.";
}

// Returns the first finding with its action, and the number of the others.
std::string verdict_of_findings(const std::vector<FindingLine>& findings) {
  const FindingLine& first = findings.front();
  const size_t more = findings.size() - 1;
  return first.headline + ": " + first.text + "." +
         (first.action.empty() ? "" : " Do: " + first.action + ".") +
         (more == 0   ? ""
          : more == 1 ? " There is one more finding."
                      : " There are " + std::to_string(more) + " more findings.");
}

// Returns "NO STEP IS TAKEN: <sentence>. Do: <action>. " for the first condition that is a fault; "" if there
// is none. The conditions of an older agent's record have no finding.
std::string condition_fault_of(const Report& report) {
  if (report.conditions.empty() || !is_fault(report.conditions.front())) return "";
  const Condition& first = report.conditions.front();
  return std::string(info_of(first.id).headline) + ": " + text_of(first) + " ";
}

std::string verdict_without_findings(const Report& report, const RunCounts& counts) {
  const auto first_look =
      std::find_if(report.conditions.begin(), report.conditions.end(), std::not_fn(is_fault));
  const auto looks =
      static_cast<size_t>(std::count_if(first_look, report.conditions.end(), std::not_fn(is_fault)));
  std::string verdicts;
  for (const std::string& verdict : report.agent_verdicts)
    verdicts += (verdicts.empty() ? "" : "; on another node: ") +
                headline_with_looks(verdict, verdict == "healthy", looks);
  verdicts[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(verdicts[0])));
  // The words may be those of the record, in which this version need not find a condition.
  const bool names_look = looks > 0 && verdicts.ends_with(" worth a look");
  const std::string look = names_look ? ": " + text_of(*first_look) + " " : std::string(". ");
  return condition_fault_of(report) + verdicts + look + verdict_without_events(report, counts);
}

}  // namespace

const ReportText& text_of(DetectorId detector) { return kDetectorTexts[static_cast<size_t>(detector)].text; }

const ReportText& text_of(WatchEventKind kind) {
  if (kind == WatchEventKind::kDivergence) return kDivergence;
  return kind == WatchEventKind::kLossRise ? kRise : kSpike;
}

const ReportText& text_of(Clue clue) { return kClueTexts[static_cast<size_t>(clue)].text; }

const char* why_without_values(DetectorId detector) {
  return kDetectorTexts[static_cast<size_t>(detector)].without_values;
}

std::optional<DetectorId> detector_of(std::string_view name) {
  for (const DetectorInfo& info : kDetectorTable)
    if (name == info.name) return info.id;
  return std::nullopt;
}

std::string steps_text(int64_t number) { return grouped(number) + (number == 1 ? " step" : " steps"); }

std::string title_of(const ReportEvent& event) {
  return std::string(name_of_event(event.kind)) + " at step " + step_text(event.onset_step);
}

std::string course_of(const ReportEvent& event) {
  // Only the first events of a run keep the steps around them.
  if (event.steps.empty()) return "The run has more events than are listed one by one.";
  const Usual usual = usual_of(event);
  double highest = -INFINITY;  // of the losses from the onset to the first one that is not finite
  int64_t highest_at = 0;
  const TrailStep* first_nonfinite = nullptr;  // the first step from the onset on whose loss is not finite
  for (const TrailStep& step : event.steps) {
    if (step.step < event.onset_step || !step.loss) continue;
    if (!std::isfinite(*step.loss)) {
      first_nonfinite = &step;
      break;
    }
    if (*step.loss <= highest) continue;
    highest = *step.loss;
    highest_at = step.step;
  }
  if (event.kind == WatchEventKind::kLossRise && usual.count > 0 && first_nonfinite == nullptr)
    return course_of_rise(event, usual.mean);
  std::string text = usual.count > 0
                         ? "The loss was " + number(usual.mean) + " on average in the steps just before"
                         : "The loss";
  const bool has_peak = std::isfinite(highest);
  if (!has_peak && first_nonfinite == nullptr) return text + "; what came after is not in the record.";
  if (has_peak)
    text += (usual.count > 0 ? " and rose to " : " rose to ") + number(highest) + " at step " +
            step_text(highest_at);
  if (first_nonfinite != nullptr)
    return text + (has_peak || usual.count > 0 ? "; from step " : ", from step ") +
           step_text(first_nonfinite->step) + " on it was NaN or infinite.";
  text += ".";
  const int64_t back = usual.count > 0 ? recovered_at(event, highest_at, usual.highest) : -1;
  if (back >= 0)
    return text + " It was back " + steps_text(steps_between(event.onset_step, back)) + " after the onset.";
  return text + " It had not come back " +
         steps_text(steps_between(event.onset_step, event.steps.back().step)) + " after the onset.";
}

bool is_proven(DetectorId detector) {
  const Measured* measured = measured_of(info_of(detector).name);  // the benchmark's results
  return measured != nullptr && measured->is_proven();
}

std::string how_sure(const Measured* measured) {
  if (measured == nullptr) return "Experimental: the benchmark has no figure for it.";
  const std::string begin = measured->is_proven() ? "" : "Experimental. ";
  const auto number = [](double count) { return grouped(static_cast<uint64_t>(count)); };
  const std::string events = number(measured->events) + " loss events";
  if (!(measured->alarms > 0)) return begin + "In the benchmark it warned before none of " + events + ".";
  std::string text = begin + "In the benchmark it warned before " + number(measured->hits) + " of " + events +
                     "; " + number(measured->right) + " of its " + number(measured->alarms) +
                     (measured->alarms == 1 ? " warning was" : " warnings were") + " followed by one";
  if (std::isfinite(measured->lift))
    text += ", " + formatted("%.2g", measured->lift) + " times what chance gives";
  return text + ".";
}

std::string first_sign_of(const ReportEvent& event) {
  if (event.signs.empty()) return "nothing";
  const ReportSign& sign = event.signs.front();  // sort_signs() has put the most reliable sign first
  return text_of(sign.detector).plain + in_layer(sign.layer) + ", " +
         steps_text(steps_between(sign.since_step, event.onset_step)) + " before" +
         (is_proven(sign.detector) ? "" : " (an experimental detector)");
}

std::string attention_text(const LargestError& largest) {
  if (largest.slices == 0) return "No error of attention is known: no slice was compared.";
  return "The largest error was " + formatted("%.2g", largest.value) + " of the alarm limit, of " +
         tensor_of(largest) + " at step " + step_text(largest.at_step) + ".";
}

void sort_findings(std::vector<FindingLine>* findings) {
  // The headlines from the most severe on (Severity in agent/findings.h). Unknown ones, of a newer agent,
  // come first: they may be severe.
  constexpr std::string_view kHeadlines[] = {"REPLICAS DIFFER",    "NO STEP IS TAKEN", "NOTHING IS TRAINED",
                                             "WEIGHTS NOT FINITE", "ATTENTION FAULT",  "LOSS NOT FINITE",
                                             "LOSS DIVERGED",      "LOSS SPIKE",       "LOSS RISES"};
  const auto order = [&](const FindingLine& line) {
    const auto found = std::find(std::begin(kHeadlines), std::end(kHeadlines), line.headline);
    return found != std::end(kHeadlines) ? found - std::begin(kHeadlines) : -1;
  };
  // Stable, since each agent has written its findings in the order of their severity.
  std::stable_sort(findings->begin(), findings->end(),
                   [&](const FindingLine& a, const FindingLine& b) { return order(a) < order(b); });
}

std::string verdict_of(const Report& report, const RunCounts& counts) {
  if (!report.findings.empty()) return verdict_of_findings(report.findings);
  if (!report.agent_verdicts.empty()) return verdict_without_findings(report, counts);
  return loss_verdict_of(report, counts);
}

}  // namespace foreshock::cli
