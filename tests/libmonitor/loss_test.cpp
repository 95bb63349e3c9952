#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <initializer_list>
#include <optional>

#include "foreshock/hook.h"
#include "libmonitor/step_numbers.h"

namespace foreshock {
namespace {

struct Taken {
  bool given;
  double loss;
  uint32_t source;
};

Taken take(LossTracker& follower) {
  Taken taken = {};
  taken.given = follower.take(&taken.loss, &taken.source);
  return taken;
}

// A micro-batch as the hooks see it: cross-entropy forward, then backward of `root`.
void micro_batch(LossTracker& follower, double nll, double root) {
  follower.observe(nll, FORESHOCK_LOSS_NLL);
  follower.observe(root, FORESHOCK_LOSS_BACKWARD_ROOT);
}

TEST(Loss, APlainStep) {
  LossTracker follower;
  micro_batch(follower, 4.25, 4.25);
  const Taken taken = take(follower);
  EXPECT_TRUE(taken.given);
  EXPECT_EQ(taken.loss, 4.25);
  EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_NLL});
  EXPECT_FALSE(take(follower).given);
}

TEST(Loss, WhatIsLoggedIsTheLossUntilABetterSourceIsSettled) {
  LossTracker follower;
  follower.observe(3.5, FORESHOCK_LOSS_LOGGED);
  const Taken logged = take(follower);
  EXPECT_EQ(logged.loss, 3.5);
  EXPECT_EQ(logged.source, uint32_t{FORESHOCK_LOSS_LOGGED});
  EXPECT_FALSE(take(follower).given) << "it is logged now and then";
  follower.observe(9, FORESHOCK_LOSS_LOGGED);
  micro_batch(follower, 4.25, 4.25);
  const Taken seen = take(follower);
  EXPECT_EQ(seen.loss, 4.25);
  EXPECT_EQ(seen.source, uint32_t{FORESHOCK_LOSS_NLL});
  follower.observe(9, FORESHOCK_LOSS_LOGGED);
  EXPECT_FALSE(take(follower).given);
}

TEST(Loss, AccumulationDividesTheRootAndNotTheLoss) {
  LossTracker follower;
  for (double nll : {4.0, 2.0, 3.0}) micro_batch(follower, nll, static_cast<float>(nll) / 3.f);
  const Taken taken = take(follower);
  EXPECT_EQ(taken.loss, 3.0);
  EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_NLL});
}

// Backward passes whose roots are the losses over `divisor`.
void divided_roots(LossTracker& follower, std::initializer_list<double> losses, double divisor) {
  for (const double loss : losses) {
    follower.observe_divisor(divisor);
    follower.observe(loss / divisor, FORESHOCK_LOSS_BACKWARD_ROOT);
  }
}

TEST(Loss, RootsDividedByTheirNumberAreAdded) {
  LossTracker follower;
  divided_roots(follower, {4, 2}, 2);
  EXPECT_EQ(take(follower).loss, 3.0);
  divided_roots(follower, {5, 2}, 2);
  EXPECT_EQ(take(follower).loss, 3.5);
}

TEST(Loss, AShorterLastStepCountsItsRootsUndivided) {
  LossTracker follower;
  divided_roots(follower, {4, 2, 1, 1}, 4);
  EXPECT_EQ(take(follower).loss, 2.0);
  divided_roots(follower, {5, 1, 3}, 4);
  EXPECT_DOUBLE_EQ(take(follower).loss, 3.0);
}

TEST(Loss, ADivisorThatIsNotTheNumberOfRootsIsPartOfTheLoss) {
  LossTracker follower;
  divided_roots(follower, {64}, 32);  // a sum over a batch of 32
  EXPECT_EQ(take(follower).loss, 2.0);
  divided_roots(follower, {64, 32}, 32);
  EXPECT_EQ(take(follower).loss, 1.5);
}

// LossTracker::factor() after `steps` steps of `micro_batches` each, whose roots are the nll times
// `factor(nll)`. A look finds that the gradient is the sum of `contributions`; 0: no look.
std::optional<double> factor_of(int steps, int micro_batches, const std::function<double(double)>& factor,
                                uint32_t contributions = 0) {
  LossTracker follower;
  if (contributions > 0) follower.observe_summed(contributions);
  for (int step = 1; step <= steps; ++step) {
    for (int n = 0; n < micro_batches; ++n) {
      const double nll = 2 + std::sin(step * 7 + n);
      micro_batch(follower, nll, nll * factor(nll));
    }
    take(follower);
  }
  return follower.factor();
}

TEST(Loss, AConstantFactorOfTheGradientIsKnownAfter64Steps) {
  EXPECT_EQ(factor_of(64, 1, [](double) { return 0.25; }), 0.25);
  EXPECT_EQ(factor_of(63, 1, [](double) { return 0.25; }), std::nullopt);
  EXPECT_NEAR(factor_of(
                  64, 4, [](double) { return 1; }, 4)
                  .value_or(0),
              4,
              1e-9);  // 4 micro-batches, undivided
  EXPECT_NEAR(factor_of(64, 1, [](double) { return 3; }).value_or(0), 3, 1e-9);
  EXPECT_EQ(factor_of(64, 1, [](double) { return 1; }), std::nullopt);
  EXPECT_EQ(factor_of(64, 4, [](double) { return 0.25; }), std::nullopt);
  EXPECT_EQ(factor_of(64, 1, [](double) { return 31.0 / 32; }), std::nullopt);  // a label without a target
  EXPECT_EQ(factor_of(64, 1, [](double nll) { return 1 + 0.1 / nll; }), std::nullopt);  // an auxiliary loss
}

TEST(Loss, SeveralRootsHaveAFactorOnlyIfTheirGradientsAreSummed) {
  const auto one = [](double) { return 1; };
  EXPECT_EQ(factor_of(64, 4, one), std::nullopt);
  EXPECT_EQ(factor_of(64, 4, one, 1), std::nullopt);  // adversarial training: three roots of autograd.grad()
  EXPECT_NEAR(factor_of(64, 4, one, 4).value_or(0), 4, 1e-9);
}

TEST(Loss, AFactorOfSummedCrossEntropies) {
  const auto factor = [](double divisor) {
    LossTracker follower;
    for (int step = 1; step <= 64; ++step) {
      const double sum = 200 + step;
      follower.observe_sum(sum, 100);
      follower.observe(sum / divisor, FORESHOCK_LOSS_BACKWARD_ROOT);
      take(follower);
    }
    return follower.factor();
  };
  EXPECT_EQ(factor(100), std::nullopt);
  EXPECT_EQ(factor(1), std::nullopt);  // the sum
  EXPECT_NEAR(factor(50).value_or(0), 2, 1e-9);
}

TEST(Loss, RootsOfDifferentDivisorsAreAveraged) {
  LossTracker follower;
  divided_roots(follower, {4}, 2);
  divided_roots(follower, {6}, 3);
  EXPECT_EQ(take(follower).loss, 2.0);
  divided_roots(follower, {4}, 2);
  follower.observe(3, FORESHOCK_LOSS_BACKWARD_ROOT);
  EXPECT_EQ(take(follower).loss, 2.5);
}

TEST(Loss, AGradientScalerMultipliesTheRoot) {
  LossTracker follower;
  micro_batch(follower, 2.5, 2.5f * 65536 / 4);
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_NLL});
}

TEST(Loss, LabelSmoothingAndAuxiliaryLossesMakeTheRootTheLoss) {
  for (double root : {2.5 * 0.9 + 0.4, 2.51, 2.4999, 5.003}) {
    LossTracker follower;
    micro_batch(follower, 2.5, root);
    const Taken taken = take(follower);
    EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT}) << root;
    EXPECT_EQ(taken.loss, root);
  }
}

TEST(Loss, SeveralCrossEntropiesBeforeOneBackwardAreNotTheLoss) {
  LossTracker follower;
  follower.observe(2, FORESHOCK_LOSS_NLL);
  micro_batch(follower, 3, 5);
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT});
}

TEST(Loss, ARootThatIsNotFiniteChoosesNoSource) {
  LossTracker follower;
  micro_batch(follower, 2.5, INFINITY);  // a gradient scaler overflows in the first steps
  const Taken first = take(follower);
  EXPECT_EQ(first.loss, 2.5);
  EXPECT_EQ(first.source, uint32_t{FORESHOCK_LOSS_NLL});
  micro_batch(follower, 2.5, 3.25);  // an auxiliary loss is part of the root
  const Taken second = take(follower);
  EXPECT_EQ(second.loss, 3.25);
  EXPECT_EQ(second.source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT});
}

TEST(Loss, ARootThatIsNotFiniteAndNotScaledIsTheLoss) {
  for (const double root : {double{INFINITY}, double{NAN}}) {
    LossTracker follower;
    follower.observe(2.5, FORESHOCK_LOSS_NLL);
    follower.observe_divisor(1);
    follower.observe(root, FORESHOCK_LOSS_BACKWARD_ROOT);
    const Taken first = take(follower);
    EXPECT_EQ(first.source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT});
    EXPECT_FALSE(std::isfinite(first.loss));
    micro_batch(follower, 2.5, 3.25);
    EXPECT_EQ(take(follower).loss, 3.25);
  }
  LossTracker follower;  // the nll shows nothing either
  follower.observe(NAN, FORESHOCK_LOSS_NLL);
  follower.observe_divisor(1);
  follower.observe(NAN, FORESHOCK_LOSS_BACKWARD_ROOT);
  EXPECT_TRUE(std::isnan(take(follower).loss));
  micro_batch(follower, 2.5, 2.5);
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_NLL});
}

TEST(Loss, TheSourceIsSettledOnce) {
  LossTracker follower;
  micro_batch(follower, 4, 4);
  take(follower);
  micro_batch(follower, 4, 3.7);  // would not look like the loss now
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_NLL});
}

TEST(Loss, AReportWins) {
  LossTracker follower;
  micro_batch(follower, 4, 4);
  follower.observe(1.5, FORESHOCK_LOSS_REPORTED);
  const Taken taken = take(follower);
  EXPECT_EQ(taken.loss, 1.5);
  EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_REPORTED});
}

TEST(Loss, WithoutBackwardRootsTheCrossEntropyIsTaken) {
  LossTracker follower;
  follower.observe(3, FORESHOCK_LOSS_NLL);
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_NLL});
}

// The same with the sum over `targets`, and that over `divisor` as the root.
void summed_micro_batch(LossTracker& follower, double mean, double targets, double divisor) {
  follower.observe_sum(mean * targets, targets);
  follower.observe(mean * targets / divisor, FORESHOCK_LOSS_BACKWARD_ROOT);
}

TEST(Loss, SharesOfAStepAreAdded) {
  LossTracker follower;
  for (int step = 0; step < 2; ++step) {
    summed_micro_batch(follower, 4, 100, 400);
    summed_micro_batch(follower, 2, 300, 400);
    const Taken taken = take(follower);
    EXPECT_EQ(taken.loss, 2.5);
    EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT});
    EXPECT_FALSE(take(follower).given);
  }
  follower.observe(0.75, FORESHOCK_LOSS_BACKWARD_ROOT);
  follower.observe(1.5, FORESHOCK_LOSS_BACKWARD_ROOT);
  EXPECT_EQ(take(follower).loss, 2.25) << "also without their sums";
}

// Two passes with means of 5 over 64 targets; what is added to each root; what the loss of the step is.
TEST(Loss, RootsAreSharesOrEachTheWholeLoss) {
  struct Case {
    double divisor, added, loss;
  };
  const Case cases[] = {
      {128, 0, 5},             // the targets of the step
      {132, 0, 640. / 132},    // and some that are none (one too many of each sequence)
      {110, 0, 640. / 110},    // of two ranks this one has more of them
      {128, 0.25, 5.5},        // an auxiliary loss that nobody divides by the passes
      {64, 0, 5},              // each pass by itself
      {64, 0.25, 5.25},        //
      {64, -0.5, 4.5},         // label smoothing
      {1, 0, 320},             // the sums themselves
      {32, 0, 10},             // by sequences
      {128. / 1024, 0, 2560},  // scaled
  };
  for (const Case& each : cases) {
    LossTracker follower;
    for (int pass = 0; pass < 2; ++pass) {
      follower.observe_sum(320, 64);
      follower.observe(320 / each.divisor + each.added, FORESHOCK_LOSS_BACKWARD_ROOT);
    }
    const Taken taken = take(follower);
    EXPECT_DOUBLE_EQ(taken.loss, each.loss) << each.divisor;
    EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT});
  }
}

TEST(Loss, WhatRootsAreIsSettledOnceByAStepThatTells) {
  LossTracker follower;
  summed_micro_batch(follower, 3, 400, 400);
  EXPECT_EQ(take(follower).loss, 3) << "one micro-batch tells nothing";
  summed_micro_batch(follower, NAN, 100, 400);
  summed_micro_batch(follower, 2, 300, 400);
  EXPECT_TRUE(std::isnan(take(follower).loss));
  summed_micro_batch(follower, 0, 0, 400);  // no target counts
  summed_micro_batch(follower, 0, 0, 400);
  EXPECT_EQ(take(follower).loss, 0);
  summed_micro_batch(follower, 0, 0, 400);
  summed_micro_batch(follower, 3, 400, 400);
  EXPECT_EQ(take(follower).loss, 3);
  summed_micro_batch(follower, 3, 200, 200);  // would look whole now
  summed_micro_batch(follower, 3, 200, 200);
  EXPECT_EQ(take(follower).loss, 6);
}

TEST(Loss, PiecesOfASumAreAdded) {
  LossTracker follower;
  for (int pass = 0; pass < 2; ++pass) {
    follower.observe_sum(60, 10);
    follower.observe_sum(20, 30);
    follower.observe(1, FORESHOCK_LOSS_BACKWARD_ROOT);
  }
  EXPECT_EQ(take(follower).loss, 2) << "beside 2 in the mean over all, 2/3 over the last ones";
}

TEST(Loss, WeightsThatAreNoneAreLeftOut) {
  LossTracker follower;
  for (const double weight : {-1., double{NAN}, double{INFINITY}}) follower.observe_sum(7, weight);
  follower.observe_sum(6, 2);
  EXPECT_EQ(take(follower).loss, 3);
}

// What a training computes beside its loss is not its loss.
TEST(Loss, ASumBesideAMeanChangesNothing) {
  for (const double root : {4.0, 2.0, 3.7, 1.3}) {
    LossTracker with, without;
    for (LossTracker* follower : {&with, &without}) {
      for (int pass = 0; pass < 2; ++pass) {
        if (follower == &with) follower->observe_sum(60, 10);
        micro_batch(*follower, 4, root);
      }
    }
    const Taken taken = take(with), expected = take(without);
    EXPECT_EQ(taken.loss, expected.loss);
    EXPECT_EQ(taken.source, expected.source);
  }
}

TEST(Loss, WithoutBackwardRootsTheMeanOverTheTargetsIsTaken) {
  LossTracker follower;
  follower.observe_sum(60, 10);
  follower.forget_step();
  EXPECT_FALSE(take(follower).given);
  follower.observe_sum(0, 0);
  EXPECT_FALSE(take(follower).given) << "of no target";
  follower.observe_sum(60, 10);
  follower.observe_sum(40, 30);
  const Taken taken = take(follower);
  EXPECT_EQ(taken.loss, 2.5);
  EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_NLL});
}

TEST(Loss, NonFiniteValuesPassThroughAndDecideNothing) {
  LossTracker follower;
  micro_batch(follower, NAN, NAN);
  const Taken first = take(follower);
  EXPECT_TRUE(first.given);
  EXPECT_TRUE(std::isnan(first.loss));
  follower = {};
  summed_micro_batch(follower, NAN, 64, 64);
  EXPECT_FALSE(take(follower).given);
  summed_micro_batch(follower, 2, 64, 64);
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT});
}

}  // namespace
}  // namespace foreshock
