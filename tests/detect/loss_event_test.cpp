#include "detect/loss_event.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <type_traits>
#include <vector>

namespace foreshock {
namespace {

static_assert(std::is_trivially_copyable_v<LossEventRule>);

// A healthy loss: slowly falling with normal noise, seeded.
class Healthy {
 public:
  explicit Healthy(uint64_t seed = 1) : engine_(seed) {}
  double next() { return 2 + 2 * std::exp(-step_++ / 3000.0) + 0.05 * normal_(engine_); }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
  int step_ = 0;
};

struct Series {
  LossEventRule rule;
  Healthy healthy;
  int64_t step = 0;
  std::vector<LossEvent> events;
  LossVerdict last;

  void feed(double loss) {
    last = rule.observe(step++, loss);
    if (last.event) events.push_back(*last.event);
  }
  void warm_up(int steps = 300) {
    for (int i = 0; i < steps; ++i) feed(healthy.next());
  }
};

TEST(LossEvent, HealthyRunsAreQuiet) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Series run;
    run.healthy = Healthy(seed);
    run.warm_up(10000);
    EXPECT_TRUE(run.events.empty()) << seed;
  }
}

TEST(LossEvent, ThreeHighLossesAreASpikeWithItsOnset) {
  Series run;
  run.warm_up();
  run.feed(9);
  run.feed(9);
  EXPECT_TRUE(run.last.high);
  EXPECT_FALSE(run.last.in_event);
  run.feed(9);
  ASSERT_EQ(run.events.size(), 1u);
  EXPECT_EQ(run.events[0].kind, LossEventKind::kSpike);
  EXPECT_EQ(run.events[0].onset_step, 300);
  EXPECT_EQ(run.events[0].declared_step, 302);
  EXPECT_TRUE(run.last.in_event);
  EXPECT_EQ(run.rule.spikes(), 1u);
}

TEST(LossEvent, TwoHighLossesAreNone) {
  Series run;
  run.warm_up();
  for (int i = 0; i < 20; ++i) {
    run.feed(9);
    run.feed(9);
    run.feed(run.healthy.next());
  }
  EXPECT_TRUE(run.events.empty());
}

TEST(LossEvent, ALongSpikeIsOneEvent) {
  Series run;
  run.warm_up();
  for (int i = 0; i < 60; ++i) run.feed(i % 10 == 9 ? run.healthy.next() : 9);  // dips do not end it
  EXPECT_EQ(run.events.size(), 1u);
  EXPECT_TRUE(run.last.in_event);
  for (int i = 0; i < 3; ++i) run.feed(run.healthy.next());
  EXPECT_FALSE(run.last.in_event);
  for (int i = 0; i < 3; ++i) run.feed(9);
  EXPECT_EQ(run.events.size(), 2u);
}

TEST(LossEvent, SixSigmaIsTheEdge) {
  Series run;
  for (int i = 0; i < 128; ++i) run.feed(i % 2 == 0 ? 1.0 : 3.0);
  const double std = std::sqrt(128.0 / 127);
  LossEventRule copy = run.rule;
  EXPECT_FALSE(copy.observe(0, 2 + 5.999 * std).high);
  copy = run.rule;
  EXPECT_TRUE(copy.observe(0, 2 + 6.001 * std).high);
  copy = run.rule;
  EXPECT_NEAR(*copy.observe(0, 2 + 4 * std).z, 4, 1e-12);
}

TEST(LossEvent, NothingIsHighBeforeTheWindowIsFull) {
  Series run;
  run.warm_up(127);
  for (int i = 0; i < 3; ++i) {
    run.feed(1e6);
    if (i == 0) {
      EXPECT_FALSE(run.last.high);
      EXPECT_FALSE(run.last.z.has_value());
    }
  }
  EXPECT_TRUE(run.events.empty());
}

TEST(LossEvent, ThreeNonFiniteLossesDiverge) {
  Series run;
  run.warm_up(10);
  for (int i = 0; i < 2; ++i) run.feed(std::nan(""));
  EXPECT_TRUE(run.events.empty());
  run.feed(INFINITY);
  for (int i = 0; i < 500; ++i) run.feed(std::nan(""));
  ASSERT_EQ(run.events.size(), 1u);
  EXPECT_EQ(run.events[0].kind, LossEventKind::kDivergence);
  EXPECT_EQ(run.events[0].onset_step, 10);
  EXPECT_EQ(run.rule.divergences(), 1u);
  EXPECT_TRUE(run.last.in_event);
  EXPECT_FALSE(run.last.z.has_value());
}

TEST(LossEvent, ASpikeThatEndsInNaNIsBoth) {
  Series run;
  run.warm_up();
  for (int i = 0; i < 5; ++i) run.feed(9);
  for (int i = 0; i < 5; ++i) run.feed(std::nan(""));
  ASSERT_EQ(run.events.size(), 2u);
  EXPECT_EQ(run.events[1].kind, LossEventKind::kDivergence);
  EXPECT_EQ(run.events[1].onset_step, run.events[0].onset_step);
}

TEST(LossEvent, ALossThatStaysUpDivergesAndThenHasANewLevel) {
  Series run;
  run.warm_up();
  for (int i = 0; i < 400; ++i) run.feed(6 + run.healthy.next());
  ASSERT_EQ(run.events.size(), 2u);
  EXPECT_EQ(run.events[1].kind, LossEventKind::kDivergence);
  EXPECT_EQ(run.events[1].declared_step, 300 + 127);
  EXPECT_EQ(run.events[1].onset_step, 300);
  EXPECT_FALSE(run.last.in_event);
  for (int i = 0; i < 3; ++i) run.feed(30);
  EXPECT_EQ(run.events.size(), 3u);
}

TEST(LossEvent, AConstantLossIsQuiet) {
  Series run;
  for (int i = 0; i < 500; ++i) run.feed(static_cast<float>(0.7) * (1 + 1e-7 * (i % 3)));
  EXPECT_TRUE(run.events.empty());
  for (int i = 0; i < 3; ++i) run.feed(0.71);
  EXPECT_EQ(run.events.size(), 1u);
}

TEST(LossEvent, ZeroLossIsHandled) {
  Series run;
  for (int i = 0; i < 200; ++i) run.feed(0);
  EXPECT_TRUE(run.events.empty());
  EXPECT_FALSE(run.last.z.has_value());
}

TEST(LossEvent, ACopyGoesOnAlike) {
  Series run;
  run.warm_up();
  run.feed(9);
  Series copy = run;
  for (int i = 0; i < 4; ++i) {
    run.feed(9);
    copy.feed(9);
  }
  ASSERT_EQ(copy.events.size(), 1u);
  EXPECT_EQ(copy.events[0].onset_step, run.events[0].onset_step);
}

}  // namespace
}  // namespace foreshock
