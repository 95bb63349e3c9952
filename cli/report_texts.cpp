#include "cli/report_texts.h"

#include <iterator>

namespace foreshock::cli {
namespace {

constexpr const char* kNoForward = "No forward slice of an attention call was judged.";
constexpr const char* kNoBackward = "No backward slice of an attention call was judged.";
constexpr const char* kNoNorm =
    "No gradient norm was seen: nobody computes it (as clipping does), or gradients are sharded.";
constexpr const char* kNoOptimizer =
    "No state of an Adam-like optimizer was seen: another optimizer, one on a device that keeps its step "
    "count "
    "there (fused, capturable), or --weights off.";
constexpr const char* kNoSpectrum =
    "No whole query and key projections were seen: sharded, large ones on a device, or --weights off.";
constexpr const char* kNoWeights =
    "No weights were followed: --weights off, a device that could not be asked, or too short a run.";

struct DetectorText {
  DetectorId id;
  ReportText text;
  const char* without_values;
};

constexpr DetectorText kDetectorTexts[] = {
    {DetectorId::kBias,
     {"attention's output erred to one side",
      "Rounding in this layer's attention kernel that errs to one side, as it can where the largest scores "
      "of "
      "a row are nearly equal.",
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
      "if "
      "the event stays away, precision had a part in it."},
     kNoBackward},
    {DetectorId::kDeviationForward,
     {"attention's output erred more than its precision explains",
      "A defect of the attention kernel, or of the hardware, for what this layer feeds it.",
      "Inputs of unusual range or nearly equal scores, for which plain attention happens to err little.",
      "Look whether `foreshock doctor` lists a defect of this version; let another kernel or version train "
      "over the same steps."},
     kNoForward},
    {DetectorId::kDeviationBackward,
     {"the gradient of attention's query erred more than its precision explains",
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
      "That the gradient is large because the loss was already on its way up: a norm does not tell which "
      "came "
      "first.",
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
    {DetectorId::kRmsStaleness,
     {"the optimizer's memory of gradient sizes was too small",
      "Updates that are too large since the second moment lags behind gradients that have grown.",
      "That the gradients grew for a reason of their own, such as the data, and the lag followed.",
      "A smaller beta2, or a bound on the size of each update; see whether the tensor is an embedding that "
      "was rarely used."},
     kNoOptimizer},
    {DetectorId::kUpdateSpectrum,
     {"updates of attention's projections fell into few directions",
      "A common direction that builds up from step to step in this layer's query and key projections.",
      "A training that has settled: less to learn gives updates of lower rank too.",
      "Compare with a run that is well; train on with this layer's attention in fp32 and see whether the "
      "rank "
      "comes back."},
     kNoSpectrum},
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
    "The data: only the same batches, run again, can tell.",
    "Go back to a checkpoint before it and train over the same steps twice, with the same batches and "
    "without "
    "those just before it."};
constexpr ReportText kDivergence = {
    "The loss was lost",
    "A training that has left the region in which its steps make sense, or a value that overflowed.",
    "The data, and every setting that changed shortly before.",
    "Do not train on from here: go back to a checkpoint before the first sign, and change one thing at a "
    "time."};
constexpr ReportText kRise = {
    "The loss rose slowly",
    "A failure that adds up over many steps, such as a rate that is too high or an error that always has the "
    "same sign.",
    "Data that have become harder: compare with the loss on a held-out set.",
    "Evaluate checkpoints from before and after on the same held-out data; if they differ, go back to the "
    "one "
    "before the first sign."};

struct ClueText {
  Clue clue;
  ReportText text;
};
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

}  // namespace foreshock::cli
