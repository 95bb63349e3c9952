#include "libmonitor/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "foreshock/hook.h"

namespace foreshock {
namespace {

struct Taken {
  bool given;
  double loss;
  uint32_t source;
};

Taken take(LossFollower& follower) {
  Taken taken = {};
  taken.given = follower.take(&taken.loss, &taken.source);
  return taken;
}

// A micro-batch as the hooks see it: cross-entropy forward, then backward of `root`.
void micro_batch(LossFollower& follower, double nll, double root) {
  follower.observe(nll, FORESHOCK_LOSS_NLL);
  follower.observe(root, FORESHOCK_LOSS_BACKWARD_ROOT);
}

TEST(Loss, APlainStep) {
  LossFollower follower;
  micro_batch(follower, 4.25, 4.25);
  const Taken taken = take(follower);
  EXPECT_TRUE(taken.given);
  EXPECT_EQ(taken.loss, 4.25);
  EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_NLL});
  EXPECT_FALSE(take(follower).given);
}

TEST(Loss, WhatIsLoggedIsTheLossUntilABetterSourceIsSettled) {
  LossFollower follower;
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
  LossFollower follower;
  for (double nll : {4.0, 2.0, 3.0}) micro_batch(follower, nll, static_cast<float>(nll) / 3.f);
  const Taken taken = take(follower);
  EXPECT_EQ(taken.loss, 3.0);
  EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_NLL});
}

TEST(Loss, AGradientScalerMultipliesTheRoot) {
  LossFollower follower;
  micro_batch(follower, 2.5, 2.5f * 65536 / 4);
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_NLL});
}

TEST(Loss, LabelSmoothingAndAuxiliaryLossesMakeTheRootTheLoss) {
  for (double root : {2.5 * 0.9 + 0.4, 2.51, 2.4999, 5.003}) {
    LossFollower follower;
    micro_batch(follower, 2.5, root);
    const Taken taken = take(follower);
    EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT}) << root;
    EXPECT_EQ(taken.loss, root);
  }
}

TEST(Loss, SeveralCrossEntropiesBeforeOneBackwardAreNotTheLoss) {
  LossFollower follower;
  follower.observe(2, FORESHOCK_LOSS_NLL);
  micro_batch(follower, 3, 5);
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_BACKWARD_ROOT});
}

TEST(Loss, TheSourceIsSettledOnce) {
  LossFollower follower;
  micro_batch(follower, 4, 4);
  take(follower);
  micro_batch(follower, 4, 3.7);  // would not look like the loss now
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_NLL});
}

TEST(Loss, AReportWins) {
  LossFollower follower;
  micro_batch(follower, 4, 4);
  follower.observe(1.5, FORESHOCK_LOSS_REPORTED);
  const Taken taken = take(follower);
  EXPECT_EQ(taken.loss, 1.5);
  EXPECT_EQ(taken.source, uint32_t{FORESHOCK_LOSS_REPORTED});
}

TEST(Loss, WithoutBackwardRootsTheCrossEntropyIsTaken) {
  LossFollower follower;
  follower.observe(3, FORESHOCK_LOSS_NLL);
  EXPECT_EQ(take(follower).source, uint32_t{FORESHOCK_LOSS_NLL});
}

TEST(Loss, NonFiniteValuesPassThroughAndDecideNothing) {
  LossFollower follower;
  micro_batch(follower, NAN, NAN);
  const Taken first = take(follower);
  EXPECT_TRUE(first.given);
  EXPECT_TRUE(std::isnan(first.loss));
}

}  // namespace
}  // namespace foreshock
