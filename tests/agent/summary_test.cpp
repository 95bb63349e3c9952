#include "agent/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "agent/findings.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr uint64_t kSecond = 1'000'000'000;

// A rank that trained for 172 steps and 70 s, 126 calls of each pass checked in each of two layers.
RankStatistics healthy_rank(int number = 0) {
  RankStatistics rank;
  rank.run = "demo";
  rank.identity.rank = number;
  rank.identity.world_size = 1;
  rank.identity.start_time_ns = 1000 * kSecond;
  rank.identity.max_slowdown = 0.01;
  rank.identity.slots_given = rank.identity.slots_wanted = 8;
  rank.ops = {{"attention", 0, 1}, {"attention_backward", 1, 1}};
  rank.totals.calls[0] = rank.totals.calls[1] = 1032;
  rank.steps = 172;
  rank.last_step.sequence = 172;
  rank.last_step.step = 172;
  rank.last_step.time_ns = 1070 * kSecond;
  rank.last_step.interval = 8;
  rank.state = RunState::kFinished;
  rank.first_loss = 5.63;
  rank.last_loss = 2.39;
  rank.loss_source = 2;  // nll
  rank.gradient_norm = 0.64;
  rank.cost = {.train_seconds = 100, .own_seconds = 0.53, .agent_seconds = 0};
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    rank.judged[pass] = rank.totals.sampled[pass] = 126;
    rank.pass[pass].judged = rank.pass[pass].decided = 126;
    rank.pass[pass].add_fused_ratio(pass == 0 ? 0.69 : 0.56, kDeviationRatioForward);
    rank.pass[pass].relative_error_mean.add(0.002);
    for (const char* label : {"000", "001"}) {
      LayerStatistics* layer = rank.layer_of(label);
      layer->label = label;
      layer->pass[pass].judged = layer->pass[pass].decided = 63;
      layer->pass[pass].relative_error_mean.add(0.002);
      for (uint32_t tensor : {2u, 3u})
        statistics_of(tensor, layer).judged = statistics_of(tensor, layer).decided = 30;
    }
  }
  for (uint32_t tensor : {2u, 3u}) statistics_of(tensor, &rank).judged = 60;
  rank.coverage.inventory_is_known = 1;
  rank.coverage.attention_layers = 2;
  constexpr uint32_t kAttention =
      segment::kHasAttention | segment::kTrainsAttention | segment::kForwardSeen | segment::kBackwardSeen;
  rank.layer_names = {{"000", "", kAttention}, {"001", "", kAttention}};
  return rank;
}

SummaryInput input_of(const std::vector<const RankStatistics*>& ranks) {
  SummaryInput input;
  input.run = "demo";
  input.state = RunState::kFinished;
  input.ranks = ranks;
  return input;
}

std::string text_of(const RankStatistics& rank) { return summary_text(input_of({&rank})); }

// The same with some of its backward slices judged by dK and dV.
RankStatistics rank_with_keys(double key_ratio, double value_ratio) {
  RankStatistics rank = healthy_rank();
  for (uint32_t tensor : {2u, 3u}) {
    statistics_of(tensor, &rank).add_fused_ratio(tensor == 2 ? key_ratio : value_ratio, kDeviationRatioKeys);
  }
  return rank;
}

// Words wrapped at the end of a line are joined again.
std::string unwrapped(const std::string& text) {
  std::string out;
  for (char c : text)
    if (c != ' ' || out.empty() || out.back() != ' ') out += c == '\n' ? ' ' : c;
  return out;
}

size_t longest_line(const std::string& text) {
  size_t longest = 0, begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    longest = std::max(longest, end - begin);
  return longest;
}

void set_fault(RankStatistics* rank, AlarmKind of, double most, bool is_past) {
  LayerStatistics* layer = rank->layer_of("001");
  layer->pass[0].past[of] = {40, is_past ? 60 : 172, most};
  if (is_past) return;
  for (int n = 0; n < 4; ++n) layer->pass[0].add_fused_ratio(most, kDeviationRatioForward);
}

TEST(Summary, ANormThatIsNotFiniteIsWrittenWithoutTheSignOfNan) {
  RankStatistics rank = healthy_rank();
  rank.gradient_norm = -NAN;
  rank.nonfinite_gradient = 3;
  EXPECT_THAT(unwrapped(text_of(rank)),
              HasSubstr("norm NaN before clipping at the last step, not finite in 3 steps"));
  rank.gradient_norm = INFINITY;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("norm Inf before"));
}

TEST(Summary, HealthyRunFitsTenLinesOfEightyColumns) {
  const std::string text = text_of(healthy_rank());
  EXPECT_THAT(text, StartsWith("foreshock  demo finished, 172 steps in 70 s"));
  for (const char* part :
       {"healthy\n", "mean error 0.69x forward, 0.56x backward (dQ)", "(alarm above 2 forward, 3 backward)",
        "126 forward and 126 backward", "in 2 of 2 layers", "60 of the backward by dK and dV as well as dQ",
        "5.63 -> 2.39 (nll), no spike", "norm 0.64 before clipping at the last step, all finite",
        "0.53 % of 1 % allowed; 1 step in 8 sampled"})
    EXPECT_THAT(unwrapped(text), HasSubstr(unwrapped(part))) << text;
  EXPECT_LE(longest_line(text), kSummaryColumns) << text;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 10) << text;
  EXPECT_THAT(text, Not(HasSubstr("unknown")));
  RankStatistics packed = healthy_rank();
  packed.columns_skipped[segment::kColumnsPacked] = 120;
  packed.columns_skipped[segment::kColumnsTooLarge] = 6;
  packed.keys.clear();
  for (const char* label : {"000", "001"}) {
    packed.layer_of(label)->keys.clear();
    packed.layer_of(label)->columns_skipped[segment::kColumnsPacked] = 60;
  }
  EXPECT_THAT(unwrapped(text_of(packed)), HasSubstr("dK and dV not checked (120 packed, 6 too large)"));
  EXPECT_THAT(text_of(packed), HasSubstr("PARTLY CHECKED\n"));
  EXPECT_THAT(unwrapped(text_of(packed)),
              HasSubstr("layers 000, 001: dK and dV not judged; no key is judged: packed. Do: look up this"));
}

TEST(Summary, TheLimitOfTheSlowdownIsForLongerRuns) {
  RankStatistics rank = healthy_rank();
  rank.cost = {.train_seconds = 5, .own_seconds = 0.075, .agent_seconds = 0};
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("1.52 % (the limit of 1 % is for 500 steps or more)"));
  RankStatistics slow = healthy_rank();
  slow.cost.own_seconds = 1.5;
  EXPECT_THAT(unwrapped(text_of(slow)), HasSubstr("1.52 %, above the 1 % allowed")) << "of 100 s";
  rank.steps = 500;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("1.52 %, above the 1 % allowed"));
}

TEST(Summary, SamplesAreAdvisedOnlyIfTheBudgetWasTheReason) {
  RankStatistics rank = healthy_rank();
  rank.judged[0] = rank.judged[1] = 0;
  rank.totals.skipped[0][0] = 3;  // budget
  rank.totals.skipped[0][6] = 2;  // mask
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("one sample costs more than --max-slowdown allows"));
  rank.totals.skipped[0][6] = 40;
  EXPECT_THAT(unwrapped(text_of(rank)), Not(HasSubstr("one sample costs more than --max-slowdown allows")));
}

TEST(Summary, AttentionThatRanUnseenIsNamedOnce) {
  RankStatistics rank = healthy_rank();
  rank.totals = {};
  segment::UnseenName unseen = {};
  std::strcpy(unseen.name, "flex_attention");
  unseen.evidence = 1;
  rank.unseen = {unseen};
  const std::string text = unwrapped(text_of(rank));
  EXPECT_THAT(text, HasSubstr("flex_attention (used)"));
  EXPECT_THAT(text, Not(HasSubstr("any attention call")));
}

TEST(Summary, SaysHowMuchWasJudgedByTheGradientsOfKeys) {
  const std::string text = unwrapped(text_of(rank_with_keys(1.25, 1.5)));
  EXPECT_THAT(text, HasSubstr("mean error 1.25x dK, 1.50x dV of fused attention (alarm above 6)"));
  EXPECT_THAT(text, HasSubstr("60 of the backward by dK and dV as well as dQ"));
  EXPECT_THAT(text, Not(HasSubstr("not checked")));
}

TEST(Summary, RatiosBeyondAMeaningAreNotPrinted) {
  const std::string text = unwrapped(text_of(rank_with_keys(15923545, 1.5)));
  EXPECT_THAT(text, HasSubstr("mean error over 1000x dK, 1.50x dV of fused attention"));
  EXPECT_THAT(text, Not(HasSubstr("15923545")));
}

TEST(Summary, ErrorsAreComparedWithWhatTheOperationsMayHave) {
  RankStatistics rank = rank_with_keys(1.25, 1.5);
  for (PassStatistics* each :
       {&rank.pass[0], &rank.pass[1], &statistics_of(2, &rank), &statistics_of(3, &rank)})
    each->written_out = each->judged;
  const std::string text = unwrapped(text_of(rank));
  EXPECT_THAT(text, HasSubstr("0.56x backward (dQ) of plain attention rounded as this one (alarm"));
  EXPECT_THAT(text, HasSubstr("1.50x dV of plain attention rounded as this one (alarm"));
  EXPECT_THAT(text, Not(HasSubstr("fused attention")));
  rank.pass[0].written_out = 7;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("0.56x backward (dQ) of sound attention (alarm"));
}

TEST(Summary, StepsOfARankAreThoseOfAllItsProcesses) {
  const RankStatistics first = healthy_rank(), again = healthy_rank(), other = healthy_rank(1);
  EXPECT_THAT(summary_text(input_of({&first, &again, &other})),
              HasSubstr("2 ranks in 3 processes, 344 steps"));
}

TEST(Summary, ATrainingThatFailedIsHealthyOnlyUntilThen) {
  const RankStatistics rank = healthy_rank();
  SummaryInput input = input_of({&rank});
  input.state = RunState::kFailed;
  EXPECT_THAT(summary_text(input), HasSubstr("demo failed, 172 steps in 70 s"));
  EXPECT_THAT(summary_text(input), HasSubstr("  healthy until it failed\n"));
  EXPECT_THAT(summary_line(input), testing::EndsWith("  healthy until it failed\n"));
}

TEST(Summary, GradientsThatWereNotFiniteOnAnyRankAreCounted) {
  RankStatistics first = healthy_rank(), second = healthy_rank(1);
  EXPECT_THAT(summary_text(input_of({&first, &second})), HasSubstr("at the last step, all finite"));
  second.nonfinite_gradient = 2;
  EXPECT_THAT(unwrapped(summary_text(input_of({&first, &second}))),
              HasSubstr("at the last step, not finite in 2 steps"));
}

TEST(Summary, NamesTheGradientThatIsWrong) {
  RankStatistics rank = rank_with_keys(1.25, 1.5);
  PassStatistics& keys = statistics_of(2, rank.layer_of("001"));
  for (int n = 0; n < kSlicesBeyondKeys; ++n) keys.add_fused_ratio(20, kDeviationRatioKeys);
  keys.past[AlarmKind::kFusedRatio] = {40, 172, 20};
  const std::string text = unwrapped(text_of(rank));
  EXPECT_THAT(text, HasSubstr("ATTENTION FAULT"));
  EXPECT_THAT(
      text,
      HasSubstr("layer 001: dK is wrong by up to 20x the error of fused attention since step 40. Do: "));
}

TEST(Summary, FaultNamesLayerPassAndFirstStepBeforeAllElse) {
  RankStatistics rank = healthy_rank();
  set_fault(&rank, AlarmKind::kFusedRatio, 18, false);
  const std::string text = text_of(rank);
  EXPECT_THAT(text.substr(0, text.find('\n')), testing::EndsWith("ATTENTION FAULT"));
  EXPECT_THAT(text,
              HasSubstr("\n  finding     layer 001: the output is wrong by up to 18x the error of fused\n"
                        "              attention since step 40. Do: "));
}

TEST(Summary, PastFaultIsToldWithItsSteps) {
  RankStatistics rank = healthy_rank();
  set_fault(&rank, AlarmKind::kBias, -0.31, true);
  EXPECT_THAT(text_of(rank), HasSubstr("healthy")) << "a kernel's bias does not end so soon";
  rank.layer_of("001")->pass[0].past[AlarmKind::kBias].slices = BiasPool::kSlices;
  EXPECT_THAT(unwrapped(text_of(rank)),
              HasSubstr("layer 001: the output is biased by -0.31 ulp in steps 40 to 60, not since. Do: "));
  EXPECT_THAT(text_of(rank), HasSubstr("ATTENTION FAULT"));
}

TEST(Summary, NonfiniteOutputComesBeforeALargerError) {
  RankStatistics rank = healthy_rank();
  set_fault(&rank, AlarmKind::kFusedRatio, 18, false);
  rank.layer_of("000")->pass[1].past[AlarmKind::kNonfinite] = {7, 9, std::nullopt};
  const std::string text = text_of(rank);
  EXPECT_THAT(
      unwrapped(text),
      HasSubstr("finding layer 000: dQ has NaN or Inf where the fp64 reference has none in steps 7 to 9"))
      << text;
  EXPECT_LT(text.find("layer 000"), text.find("layer 001"));
}

TEST(Summary, NothingUnjudgedIsCalledHealthy) {
  RankStatistics rank = healthy_rank();
  rank.judged[0] = rank.judged[1] = kLeastJudged - 1;
  EXPECT_THAT(text_of(rank), HasSubstr("too few samples for a verdict\n"));
  rank.judged[0] = rank.judged[1] = 0;
  EXPECT_THAT(text_of(rank), HasSubstr("attention not checked\n"));
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("backward not checked"));
  RankStatistics rows = healthy_rank();
  rows.keys.clear();
  for (const char* label : {"000", "001"}) rows.layer_of(label)->keys.clear();
  EXPECT_THAT(text_of(rows), HasSubstr("PARTLY CHECKED\n"));
  EXPECT_THAT(unwrapped(text_of(rows)), HasSubstr("dK and dV not checked"));
  RankStatistics dropout = healthy_rank();
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) dropout.pass[pass] = {};
  EXPECT_THAT(text_of(dropout), HasSubstr("attention output not checked\n"));
  EXPECT_THAT(text_of(dropout), Not(HasSubstr("healthy")));
}

TEST(Summary, BackwardLayersThatWereNotCheckedAreCounted) {
  RankStatistics rank = healthy_rank();
  rank.layer_of("001")->pass[1].judged = rank.layer_of("001")->pass[1].decided = 0;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("in 2 of 2 layers (backward 1)"));
  rank.judged[0] = kLeastJudged - 1;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("in 2 of 2 layers (backward 1); forward: too few samples"));
}

// The detectors after 300 calm steps, then `high` steps of a loss that is far above, then calm ones again.
void show_losses(int high, RankWatch* watch) {
  std::vector<WatchEvent> events;
  for (int64_t step = 1; step <= 300 + high + 20; ++step)
    watch->observe_step(step,
                        step > 300 && step <= 300 + high ? 9.0 : 2.0 + 0.01 * static_cast<double>(step % 7),
                        0.5, &events);
}

TEST(Summary, SpikeIsAVerdictWithItsStep) {
  RankWatch watch;
  show_losses(4, &watch);
  RankStatistics rank = healthy_rank();
  rank.watch = &watch;
  const std::string text = text_of(rank);
  EXPECT_THAT(text, HasSubstr("LOSS SPIKE\n"));
  EXPECT_THAT(text, HasSubstr("finding     loss spike at step 301"));
  EXPECT_THAT(text, HasSubstr(", 1 spike at step 301\n"));
}

TEST(Summary, WarningsOfExperimentalDetectorsAreMarkedAndComeLast) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  for (int64_t step = 1; step <= 300; ++step) {
    watch.observe(DetectorId::kDeviationForward, "001", "001", step, step > 250 ? 9 : 1, 0, &events);
    watch.observe(DetectorId::kDeviationBackward, "001", "001", step, step > 250 ? 9 : 1, 0, &events);
  }
  RankStatistics rank = healthy_rank();
  rank.watch = &watch;
  const std::string text = unwrapped(text_of(rank));
  EXPECT_THAT(text, HasSubstr("detectors deviation_backward warned 1 time, last at step "));
  EXPECT_THAT(text, HasSubstr("; deviation_forward (experimental) warned 1 time, last at step "));
  EXPECT_THAT(text_of(rank), HasSubstr("healthy\n")) << "a detector is never the headline";
}

TEST(Summary, LossesOfOptimizersThatTakeTurnsAreNotJudged) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  for (int64_t step = 1; step <= 700; ++step)
    watch.observe_step(step, step > 300 ? 9.0 : 2.0, 0.5, &events, {}, {}, {{"loss of optimizer 2", 1.0}});
  RankStatistics rank = healthy_rank();
  rank.watch = &watch;
  const std::string text = unwrapped(text_of(rank));
  EXPECT_THAT(text, HasSubstr("(nll), not judged: optimizers take turns"));
  EXPECT_THAT(text, Not(HasSubstr("no spike")));
}

TEST(Summary, DivergenceAndItsSpikeAreOneEvent) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  for (int64_t step = 1; step <= 700; ++step)
    watch.observe_step(step, step > 300 ? 9.0 : 2.0 + 0.01 * static_cast<double>(step % 7), 0.5, &events);
  ASSERT_GT(watch.losses(WatchEventKind::kDivergence).count, 0u);
  RankStatistics rank = healthy_rank();
  rank.watch = &watch;
  const std::string text = text_of(rank);
  EXPECT_THAT(text, HasSubstr("LOSS DIVERGED\n"));
  EXPECT_THAT(text, HasSubstr("finding     loss diverged at step 301"));
  EXPECT_THAT(unwrapped(text), HasSubstr("(nll), diverged at step 301"));
  EXPECT_THAT(text, Not(HasSubstr("spike")));
}

TEST(Summary, LastLossThatIsNotFiniteIsAVerdict) {
  RankStatistics rank = healthy_rank();
  rank.last_loss = std::numeric_limits<double>::quiet_NaN();
  rank.nonfinite_loss = 3;
  EXPECT_THAT(text_of(rank), HasSubstr("LOSS NOT FINITE\n"));
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("not finite in 3 steps, the last one included"));
  EXPECT_THAT(text_of(rank), HasSubstr("5.63 -> NaN"));
}

TEST(Summary, LossesThatAreNotFiniteOnSeveralRanksAreOneFinding) {
  RankStatistics first = healthy_rank(0), second = healthy_rank(1);
  first.last_loss = second.last_loss = std::numeric_limits<double>::quiet_NaN();
  const std::string text = unwrapped(summary_text(input_of({&first, &second})));
  const size_t at = text.find("loss is not finite");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.find("loss is not finite", at + 1), std::string::npos) << text;
}

TEST(Summary, ALossThatIsNotFiniteIsListedBesideAnotherRanksSpike) {
  RankWatch watch;
  show_losses(4, &watch);
  RankStatistics first = healthy_rank(0), second = healthy_rank(1);
  first.watch = &watch;
  second.last_loss = std::numeric_limits<double>::quiet_NaN();
  const std::string text = unwrapped(summary_text(input_of({&first, &second})));
  EXPECT_THAT(text, HasSubstr("LOSS NOT FINITE"));
  EXPECT_THAT(text, HasSubstr("loss is not finite"));
  EXPECT_THAT(text, HasSubstr("loss spike at step 301"));
}

TEST(Summary, SpikesAreUnknownWhereAnAgentBeforeMayHaveSeenThem) {
  RankStatistics rank = healthy_rank();
  rank.loss_events_known = false;
  rank.taken_up_step = 100;
  EXPECT_THAT(text_of(rank), HasSubstr(", spikes unknown"));
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("the agent was restarted at step 100"));
}

TEST(Summary, SkippedAndLostCallsAreCountedByReason) {
  RankStatistics rank = healthy_rank();
  rank.totals.skipped[0][0] = 12;
  rank.totals.skipped[0][6] = 3;
  rank.lost[1][0] = 2;
  EXPECT_THAT(text_of(rank), HasSubstr("forward skipped: 12 budget, 3 mask"));
  EXPECT_THAT(text_of(rank), HasSubstr("backward lost: 2 torn"));
}

TEST(Summary, SeveralRanksAreListedAndCounted) {
  std::vector<RankStatistics> all;
  for (int n = 0; n < 6; ++n) all.push_back(healthy_rank(n));
  all[3].last_step.step = 120;
  all[5].identity.attempt = all[4].identity.attempt = all[3].identity.attempt = all[2].identity.attempt =
      all[1].identity.attempt = all[0].identity.attempt = 1;
  std::vector<const RankStatistics*> ranks;
  for (const RankStatistics& rank : all) ranks.push_back(&rank);
  const RankStatistics before = healthy_rank();
  ranks.insert(ranks.begin(), &before);
  const std::string text = summary_text(input_of(ranks));
  EXPECT_THAT(text, HasSubstr("6 ranks in 7 processes (2 attempts), 344 steps"));
  EXPECT_THAT(unwrapped(text), HasSubstr("ended early rank 3 at step 120, of 172"));
  EXPECT_THAT(text, HasSubstr("and 3 processes more"));
  EXPECT_LE(longest_line(text), kSummaryColumns) << text;
}

TEST(Summary, WhatWasNotSeenIsNamedWithWhatToDo) {
  RankStatistics rank = healthy_rank();
  rank.totals.calls[0] = rank.totals.calls[1] = 0;
  rank.judged[0] = rank.judged[1] = 0;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("attention no call seen"));
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("foreshock.tap reports one"));
  rank = healthy_rank();
  rank.steps = 0;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("foreshock_annotate_step()"));
  rank = healthy_rank();
  rank.identity.slots_given = 0;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("raise --memory"));
  rank.identity.slots_wanted = 0;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("--slices off: calls are counted"));
  rank = healthy_rank();
  rank.judged[0] = rank.judged[1] = 0;
  rank.totals.skipped[0][0] = 5;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("--max-slowdown 10%"));
}

TEST(Summary, SlicesWithoutALayerHaveAReason) {
  RankStatistics rank = healthy_rank();
  rank.layer_source = "parameter";
  rank.judged[0] = 50;
  rank.judged[1] = 12;
  EXPECT_THAT(unwrapped(text_of(rank)), Not(HasSubstr("no layer")));
  rank.slices_without_layer = {{"unnamed_parameter", 8}, {"unknown", 4}};
  EXPECT_THAT(
      unwrapped(text_of(rank)),
      HasSubstr(
          "12 of 62 slices: 8 read a parameter that has no name, 4 have no parameter in their history (none "
          "is kept without gradient)"));
  rank.layer_source = "ordinal";
  EXPECT_THAT(unwrapped(text_of(rank)), Not(HasSubstr("no layer"))) << "no layer has a name";
}

TEST(Summary, CoverageNotesCountGraphsKernelsAndUnseenOperations) {
  RankStatistics rank = healthy_rank();
  rank.coverage.launched_calls[0] = 40;
  rank.coverage.graph_launches = 20;
  rank.coverage.unknown_launches = 3;
  rank.coverage.kernel_count_state = static_cast<uint32_t>(segment::KernelCountState::kTaken);
  std::strcpy(rank.coverage.kernel_count_holder, "nsys");
  rank.coverage.parameters_unnamed = 7;
  rank.coverage.norms_untold = 9;
  rank.coverage.numbers_fetched = 100;
  rank.coverage.numbers_late = 5;
  segment::UnseenName unseen = {};
  std::strcpy(unseen.name, "flex_attention");
  unseen.evidence = 1;
  rank.unseen = {unseen};
  std::strcpy(rank.ops[0].name, "_scaled_dot_product_attention_math");
  const std::string text = text_of(rank);
  for (const char* part :
       {"40 calls ran in 20 launches of CUDA graphs, not sampled; the content of 3 more launches is unknown",
        "not counted: another tool uses CUPTI (nsys)", "7 parameters beyond the limit",
        "9 steps with more gradients than the limit", "5 of 100 losses and norms on a device: 5 late",
        "flex_attention (used)",
        "1 032 forward calls that no fused kernel takes (dropout, some masks, values of another head size)"})
    EXPECT_THAT(unwrapped(text), HasSubstr(unwrapped(part))) << text;
  EXPECT_LE(longest_line(text), kSummaryColumns) << text;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), static_cast<long>(kSummaryLines)) << text;
}

TEST(Summary, SeveralTrainingsInOneProcessAreTold) {
  RankStatistics one = healthy_rank(), other = healthy_rank(1);
  other.last_step.step = 60;
  EXPECT_THAT(summary_text(input_of({&one, &other})), HasSubstr("ended early"));
  one.step_restarts = 2;
  const std::string text = summary_text(input_of({&one, &other}));
  EXPECT_THAT(unwrapped(text), HasSubstr("or the step number fell, 2 times in a process: losses, norms and"));
  EXPECT_THAT(text, Not(HasSubstr("ended early")));
}

TEST(Summary, OverheadOfAFewSecondsNamesThem) {
  RankStatistics rank = healthy_rank();
  EXPECT_THAT(text_of(rank), Not(HasSubstr("s in steps")));
  rank.cost.train_seconds = 3.21;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr(" of 3.21 s in steps; 1 step in 8 sampled"));
}

TEST(Summary, EveryStepIsSampledOnlyIfNoCallWasLeftOut) {
  RankStatistics rank = healthy_rank();
  rank.last_step.interval = 1;
  EXPECT_THAT(text_of(rank), HasSubstr("; every step sampled\n"));
  rank.totals.unsampled[1] = 1;
  EXPECT_THAT(text_of(rank), HasSubstr("; every step sampled at the end\n"));
}

TEST(Summary, StoppedHelperSaysSinceWhenAndWhy) {
  RankStatistics one = healthy_rank(), other = healthy_rank(1);
  one.tensors_given_up_step = 96;
  EXPECT_THAT(unwrapped(summary_text(input_of({&one, &other}))),
              HasSubstr("from step 96 on in 1 of 2 ranks: they cost several times --max-slowdown"));
  one.tensors_given_up_failed = true;
  EXPECT_THAT(unwrapped(text_of(one)), HasSubstr("from step 96 on: a model's tensors could not be named"));
}

TEST(Summary, LostStepsAndPausedRanksAreTold) {
  RankStatistics rank = healthy_rank();
  rank.steps_lost = 1024;
  rank.switched_on = false;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("1 024 of 1 196 steps: the agent came too late"));
  EXPECT_THAT(text_of(rank), Not(HasSubstr("foreshock resume"))) << "the run has ended";
  SummaryInput input = input_of({&rank});
  input.state = RunState::kRunning;
  EXPECT_THAT(summary_text(input), HasSubstr("rank 0; foreshock resume continues"));
}

TEST(Summary, UnfollowedProcessesAreToldWithAndWithoutRanks) {
  SummaryInput input = input_of({});
  input.refused_segments = 2;
  input.refusal = "its layout is newer\nthan this agent's";
  EXPECT_EQ(summary_text(input),
            "foreshock  demo finished, no rank seen\n"
            "  refused     2 processes cannot be followed: its layout is newer?than this\n"
            "              agent's\n");
  const RankStatistics rank = healthy_rank();
  input.ranks = {&rank};
  EXPECT_THAT(summary_text(input), HasSubstr("2 processes cannot be followed"));
}

TEST(Summary, ProcessesLeftOutAreCounted) {
  const RankStatistics rank = healthy_rank();
  SummaryInput input = input_of({&rank});
  input.processes_left_out = 3;
  EXPECT_THAT(unwrapped(summary_text(input)),
              HasSubstr("3 earlier processes of this run: it started too many"));
}

TEST(Summary, FlaggedSlicesAndTheRecordHaveACommand) {
  const RankStatistics rank = healthy_rank();
  SummaryInput input = input_of({&rank});
  input.record = "/tmp/run.jsonl";
  input.flagged.emplace();
  input.flagged->saved[2] = 3;
  input.flagged->dropped[2] = 1;
  input.flagged->problem = "the quota is used up";
  input.flagged_directory = "/tmp/flagged";
  const std::string text = summary_text(input);
  EXPECT_THAT(unwrapped(text),
              HasSubstr("3 slices saved (3 bias): foreshock judge /tmp/flagged/*.slice.safetensors"));
  EXPECT_THAT(unwrapped(text), HasSubstr("not flagged 1 quota: the quota is used up"));
  EXPECT_THAT(text, HasSubstr("\n  more        foreshock report /tmp/run.jsonl\n"));
}

TEST(Summary, NamesCannotReachATerminalAsCommands) {
  RankStatistics rank = healthy_rank();
  SummaryInput input = input_of({&rank});
  input.run = "a\033[31mb";
  EXPECT_THAT(summary_text(input), StartsWith("foreshock  a?[31mb finished"));
  EXPECT_THAT(summary_line(input), StartsWith("a?[31mb  finished"));
}

TEST(Summary, LineOfARunHasStepLossErrorAndVerdict) {
  const RankStatistics rank = healthy_rank();
  EXPECT_EQ(summary_line(input_of({&rank})),
            "demo  finished  step 172  loss 2.39  error 0.69x, 0.56x  healthy\n");
  EXPECT_EQ(summary_line(input_of({})), "demo  finished  no rank seen\n");
}

TEST(Summary, LongSummaryIsCutAtThirtyLines) {
  std::vector<RankStatistics> all;
  std::vector<const RankStatistics*> ranks;
  for (int n = 0; n < 8; ++n) all.push_back(healthy_rank(n));
  for (RankStatistics& rank : all) {
    set_fault(&rank, AlarmKind::kFusedRatio, 18, false);
    for (uint32_t n = 0; n < segment::kSkipReasons; ++n)
      rank.totals.skipped[0][n] = rank.totals.skipped[1][n] = 9;
    rank.steps_lost = 5;
    rank.taken_up_step = 7;
    rank.tensors_given_up_step = 9;
    rank.coverage.graph_launches = 2;
    rank.coverage.unknown_launches = 3;
    rank.coverage.parameters_unnamed = 4;
    rank.coverage.norms_untold = 5;
    ranks.push_back(&rank);
  }
  SummaryInput input = input_of(ranks);
  input.refused_segments = 4;
  input.refusal =
      "a reason that takes more than one line of eighty columns, since it names all that is missing";
  const std::string text = summary_text(input);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), static_cast<long>(kSummaryLines)) << text;
  EXPECT_LE(longest_line(text), kSummaryColumns) << text;
}

TEST(Summary, FirstLookIsShownBesideTheOverhead) {
  RankStatistics rank = healthy_rank();
  EXPECT_THAT(text_of(rank), Not(HasSubstr("first look")));
  rank.first_look.own_seconds = 0.123;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("first look 0.12 s of 0.5 s granted, not included"));
}

TEST(Summary, SamplingWithoutALimitIsNotMeasuredAgainstOne) {
  RankStatistics rank = healthy_rank();
  rank.identity.max_slowdown = 1;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("0.53 %, no limit given"));
}

TEST(Summary, CtrlCIsNotPreemption) {
  RankStatistics rank = healthy_rank();
  SummaryInput input = input_of({&rank});
  input.state = RunState::kInterrupted;
  EXPECT_THAT(summary_text(input), StartsWith("foreshock  demo interrupted, 172 steps"));
}

TEST(Summary, ProcessesOfOneRankAreToldApart) {
  RankStatistics first = healthy_rank(), second = healthy_rank();
  first.identity.pid = 4711;
  second.identity.pid = 4712;
  second.steps = 40;
  const std::string text = unwrapped(summary_text(input_of({&first, &second})));
  EXPECT_THAT(text, HasSubstr("rank 0 process 4711, 172 steps: error 0.69x"));
  EXPECT_THAT(text, HasSubstr("rank 0 process 4712, 40 steps: error 0.69x"));
  const RankStatistics other = healthy_rank(1);
  EXPECT_THAT(summary_text(input_of({&first, &other})), Not(HasSubstr("process 4711")));
}

TEST(Summary, StepsThatAScalerSkippedAreCounted) {
  RankStatistics rank = healthy_rank();
  EXPECT_THAT(text_of(rank), Not(HasSubstr("gradient scaler")));
  rank.last_step.skipped_steps = 3;
  EXPECT_THAT(unwrapped(text_of(rank)),
              HasSubstr("skipped 3 optimizer steps by a gradient scaler: gradients were not finite"));
  rank.last_step.given = segment::kSkipsUnseen;
  EXPECT_THAT(text_of(rank), Not(HasSubstr("gradient scaler"))) << "how many is not known";
}

TEST(Summary, TooShortATrainingIsGivenAsTheReason) {
  RankStatistics rank = healthy_rank();
  rank.judged[0] = rank.judged[1] = rank.totals.sampled[0] = rank.totals.sampled[1] = 0;
  rank.steps = 1;
  EXPECT_THAT(unwrapped(text_of(rank)),
              HasSubstr("not sampled the training ended after 1 step, and sampling begins after the first"));
  rank.steps = 3;
  rank.identity.fixed_interval = 8;
  EXPECT_THAT(unwrapped(text_of(rank)),
              HasSubstr("the training ended after 3 steps, and --every 8 samples none of them"));
  rank.steps = 8;
  EXPECT_THAT(text_of(rank), Not(HasSubstr("the training ended")));
}

TEST(Summary, StepsThatAreTooShortAreToldFromWhichLengthOnTheyFit) {
  RankStatistics rank = healthy_rank();
  for (int n = 0; n < 16; ++n) {
    rank.step_seconds.add(0.004);
    rank.other_step_cost.add(0.00008);
  }
  EXPECT_THAT(unwrapped(text_of(rank)),
              HasSubstr("a step costs at least 0.08 ms, which steps of 8 ms or longer allow for"));
  for (int n = 0; n < 2000; ++n) rank.step_seconds.add(0.010);
  EXPECT_THAT(text_of(rank), Not(HasSubstr("a step costs")));
}

TEST(Summary, LayersThatWereNotCheckedAreNamedWithWhatToDo) {
  RankStatistics rank = healthy_rank();
  rank.coverage.attention_layers = 4;
  for (const char* label : {"002", "003"})
    rank.layer_names.push_back({label, "", segment::kHasAttention | segment::kTrainsAttention});
  const std::string text = text_of(rank);
  EXPECT_THAT(text, HasSubstr("PARTLY CHECKED\n  not checked layers 002, 003: forward not judged; "));
  EXPECT_THAT(unwrapped(text), HasSubstr("no call reached a hook. Do: add foreshock.tap to this attention"));
  EXPECT_THAT(unwrapped(text), HasSubstr("in 2 of 4 layers"));
  EXPECT_THAT(summary_line(input_of({&rank})), HasSubstr("PARTLY CHECKED\n"));
  rank.coverage.inventory_is_known = 0;
  rank.layer_names.resize(2);
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("in 2 of 2 layers (counted from calls)"));
}

TEST(Summary, AFindingComesBeforeLayersThatWereNotChecked) {
  RankStatistics rank = healthy_rank();
  set_fault(&rank, AlarmKind::kFusedRatio, 18, false);
  rank.layer_of("000")->keys.clear();
  const std::string text = text_of(rank);
  EXPECT_THAT(text, HasSubstr("ATTENTION FAULT\n"));
  EXPECT_LT(text.find("finding"), text.find("not checked"));
  EXPECT_THAT(unwrapped(text),
              HasSubstr("not checked layer 000: dK and dV not judged; too few samples yet."));
}

TEST(Summary, OtherMixersAreNamed) {
  RankStatistics rank = healthy_rank();
  rank.coverage.other_mixers = 6;
  std::strcpy(rank.coverage.mixer_names, "MambaMixer");
  EXPECT_THAT(unwrapped(text_of(rank)),
              HasSubstr("no attention 6 modules are linear attention or state space, "
                        "which is not checked: MambaMixer"));
}

TEST(Summary, AModelWithoutAttentionIsNotAskedForATap) {
  RankStatistics rank = healthy_rank();
  rank.layers.clear();
  rank.layer_names.clear();
  rank.coverage.attention_layers = 0;
  rank.totals.calls[0] = rank.totals.calls[1] = rank.judged[0] = rank.judged[1] = 0;
  EXPECT_THAT(unwrapped(text_of(rank)), HasSubstr("the model has no attention"));
  EXPECT_THAT(text_of(rank), Not(HasSubstr("foreshock.tap")));
}

}  // namespace
}  // namespace foreshock
