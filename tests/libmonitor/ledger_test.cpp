// The ledger as a whole: earning, charging and admission.
#include "libmonitor/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "libmonitor/sampling.h"

namespace foreshock {
namespace {

// A training of 10 ms steps, in each of which `base` seconds are ours, and `cost` more in every `interval`-th
// if the ledger `allows` it. Returns our share.
double share_of(double cost, double limit, int interval, int steps, double base = 0,
                const std::function<bool(const Ledger&)>& allows = &Ledger::pays_for_sample) {
  Ledger ledger(limit);
  double ours = 0;
  for (int step = 1; step <= steps; ++step) {
    const double own = base + (step % interval == 0 && allows(ledger) ? cost : 0);
    ledger.end_step({0.010 + own, own}, static_cast<uint64_t>(interval));
    ours += own;
  }
  return ours / (0.010 * steps);
}

TEST(Ledger, CheapSamplingIsNeverStopped) {
  // 0.4 ms every 8 steps of 10 ms is 0.5 %.
  EXPECT_NEAR(share_of(0.0004, 0.01, 8, 8000), 0.005, 1e-4);
}

TEST(Ledger, DearSamplingIsHeldToTheLimit) {
  for (double cost : {0.001, 0.002, 0.005, 0.020}) {
    const double share = share_of(cost, 0.01, 8, 80000);
    EXPECT_LE(share, 0.0101) << cost;
    EXPECT_GE(share, 0.008) << cost;  // held, not stopped
  }
}

TEST(Ledger, WhatEveryStepCostsIsPaidFirst) {
  // 0.06 ms in every step leave 0.04 ms a step for sampling.
  EXPECT_LE(share_of(0.002, 0.01, 8, 80000, 0.00006), 0.0101);
  // More than the limit in every step: nothing is left, and nothing is sampled on top of it.
  EXPECT_NEAR(share_of(0.002, 0.01, 8, 8000, 0.0002), 0.02, 1e-3);
}

TEST(Ledger, AShareOfOnesOwnIsSpentWithinTheLimitOfAll) {
  // 0.25 % on top of what cannot be refused: all of it while that leaves room for it, then what is left, then
  // nothing but the patience of 256 steps' earnings, 1.3e-4 of 20000 steps, and one more of 0.2 ms.
  constexpr double kPatience = 256 * 0.01 / 20000 + 1e-6;
  const auto share = [](double base) {
    return share_of(0.0002, 0.01, 8, 20000, base,
                    [](const Ledger& ledger) { return !ledger.is_overdrawn(); });
  };
  EXPECT_NEAR(share(0.00005), 0.0075, 1e-6);
  EXPECT_NEAR(share(0.00009), 0.01, kPatience);
  EXPECT_NEAR(share(0.0002), 0.02, kPatience);
}

// What cannot be refused takes 0.9 %. A sample may be taken where nothing is owed, now and then.
TEST(Ledger, AShareOfOnesOwnLeavesSomethingForSamples) {
  Ledger ledger(0.01);
  int allowed = 0;
  for (int step = 1; step <= 20000; ++step) {
    const double own = 0.00009 + (step % 8 == 0 && !ledger.is_overdrawn() ? 0.0002 : 0);
    ledger.end_step({0.010 + own, own}, 8);
    if (step > 5000 && ledger.pays_for_sample()) ++allowed;
  }
  EXPECT_GT(allowed, 0);
}

TEST(Ledger, AStallOverdrawsFor512StepsAtMostWhateverTheInterval) {
  for (const uint64_t interval : {uint64_t{8}, uint64_t{64}, uint64_t{65536}}) {
    Ledger ledger(0.01);
    for (int step = 0; step < 20; ++step) ledger.end_step({0.010, 0}, interval);
    ledger.end_step({100, 99.99}, interval);
    int waited = 0;
    for (; ledger.is_overdrawn() && waited < 100000; ++waited) ledger.end_step({0.010, 0}, interval);
    EXPECT_NEAR(waited, 512, 1) << interval;  // rounding of the sum
  }
}

TEST(Ledger, IsNotOverdrawnByASampleDearerThanExpected) {
  Ledger ledger(0.01);
  for (int step = 0; step < 20; ++step) ledger.end_step({0.010, 0}, 8);
  ledger.end_step({0.010 + 0.008, 0.008}, 8);  // ten times what an interval earns
  EXPECT_FALSE(ledger.pays_for_sample());
  EXPECT_FALSE(ledger.is_overdrawn());
  ledger.end_step({10, 9.99}, 8);
  EXPECT_TRUE(ledger.is_overdrawn());
  Ledger unlimited(1);
  for (int step = 0; step < 20; ++step) unlimited.end_step({10, 9.99}, 8);
  EXPECT_FALSE(unlimited.is_overdrawn());
}

TEST(Ledger, ABurstMayCostMoreAndWhatFollowsNot) {
  Ledger ledger(0.01);
  const auto train = [&](int steps, uint64_t every) {
    double ours = 0;
    for (int step = 1; step <= steps; ++step) {
      const double own = step % static_cast<int>(every) == 0 && ledger.pays_for_sample() ? 0.002 : 0;
      ledger.end_step({0.010 + own, own}, 8);
      ours += own;
    }
    return ours / (0.010 * steps);
  };
  train(8000, 8);
  ledger.set_rate(3);
  // One sample of 0.2 of a step, and what was saved up, beyond 3 %: over 4000 steps 1e-4 at most.
  EXPECT_NEAR(train(4000, 1), 0.03, 1e-4);
  ledger.set_rate(1);
  EXPECT_LE(train(8000, 8), 0.0101);
}

TEST(Ledger, OneStallDoesNotSilenceForGood) {
  Ledger ledger(0.01);
  for (int step = 0; step < 20; ++step) ledger.end_step({0.010, 0}, 8);
  ledger.end_step({10, 9.99}, 8);  // a hundred thousand times its allowance
  int waited = 0;
  for (; !ledger.pays_for_sample(); ++waited) ledger.end_step({0.010, 0}, 8);
  EXPECT_LE(waited, 64 * 8);
  EXPECT_GE(waited, 8);
}

TEST(Ledger, SetUpIsNotHeldAgainstSampling) {
  Ledger ledger(0.01);
  ledger.end_step({1.0, 0.5}, 8);
  EXPECT_TRUE(ledger.pays_for_sample());
}

TEST(Ledger, AHundredPercentMeansNoLimit) {
  for (const double limit : {0.6, 1.0}) {
    Ledger ledger(limit);
    ledger.set_rate(3);
    for (int step = 0; step < 10; ++step) ledger.end_step({0.011, 0.01}, 1);
    EXPECT_EQ(ledger.pays_for_sample(), limit >= 1) << "a burst does not lift a limit";
  }
}

TEST(Ledger, ADeviceCostsOnTopOfTheHost) {
  Ledger ledger(0.01);
  ledger.expect_slice(100e-6);
  ledger.observe_device(2, 60e-6);
  EXPECT_NEAR(ledger.slice_seconds(), 130e-6, 1e-6) << "known from the first one on";
  for (int n = 0; n < 60; ++n) ledger.observe_device(1, 50e-6);
  EXPECT_NEAR(ledger.slice_seconds(), 150e-6, 1e-6);
  ledger.observe_device(1, 10);
  EXPECT_LT(ledger.slice_seconds(), 181e-6);  // a fifth of it, counted as four times the expected
}

// Ends `count` steps of 10 s whose cost, without slices, is `seconds`.
void end_steps(Ledger* ledger, int count, bool was_sampled, double seconds) {
  for (int n = 0; n < count; ++n)
    ledger->end_step(
        {.seconds = 10, .cost_seconds = seconds, .rest_seconds = seconds, .was_sampled = was_sampled}, 8);
}

TEST(Ledger, OneStallMovesNoCostOfASampledStep) {
  Ledger ledger(0.01);
  end_steps(&ledger, 5, true, 200e-6);
  end_steps(&ledger, 1, true, 10);
  EXPECT_NEAR(ledger.sampled_step_extra_seconds(), 200e-6, 1e-9);
}

TEST(Ledger, WhatASampledStepCostsByItself) {
  Ledger ledger(0.01);
  EXPECT_EQ(ledger.sampled_step_extra_seconds(), 0);
  end_steps(&ledger, 50, false, 50e-6);
  end_steps(&ledger, 1, true, 350e-6);
  EXPECT_NEAR(ledger.sampled_step_extra_seconds(), 300e-6, 1e-9);
  // The savings pay for three slices, each of 2 / 7 of what the sampled step leaves.
  ledger.expect_slice((ledger.balance() - 300e-6) / 3.5);
  EXPECT_EQ(ledger.plan_slices(1).rows, 3u);
  ledger.expect_slice(2 * ledger.balance());
  EXPECT_EQ(ledger.plan_slices(1).rows, 0u);
}

// The set-up takes 0.1 s, later a stall 20 ms. Both are forgotten at once.
TEST(Ledger, WhatABareStepCosts) {
  Ledger ledger(0.01);
  EXPECT_EQ(ledger.bare_seconds(), 0) << "unknown";
  end_steps(&ledger, 1, true, 400e-6);
  EXPECT_NEAR(ledger.sampled_step_extra_seconds(), 400e-6, 1e-9);
  end_steps(&ledger, 1, false, 0.1);
  EXPECT_EQ(ledger.sampled_step_extra_seconds(), 0);
  end_steps(&ledger, 20, false, 50e-6);
  EXPECT_NEAR(ledger.bare_seconds(), 50e-6, 1e-9);
  EXPECT_NEAR(ledger.sampled_step_extra_seconds(), 350e-6, 1e-9) << "of the step that was sampled before";
  end_steps(&ledger, 1, false, 0.02);
  EXPECT_LE(ledger.bare_seconds(), 80e-6 + 1e-9) << "a fifth of four times the usual cost";
  end_steps(&ledger, 20, false, 50e-6);
  EXPECT_NEAR(ledger.bare_seconds(), 50e-6, 1e-6);
  end_steps(&ledger, 20, false, 500e-6);
  EXPECT_NEAR(ledger.bare_seconds(), 500e-6, 50e-6) << "what stays is learned";
}

// A training whose calls and costs are known, with a ledger.
struct Synthetic {
  double step = 0.010, call = 30e-6, per_byte = 0.2e-9, cold_per_byte = 0.4e-9;
  double sampled_step = 100e-6, every_step = 30e-6;
  uint64_t bytes = 1 << 20, calls = 48, slots = 60, interval = 8;
  double noise = 0.5;  // relative, uniform
  double slice(bool cold) const {
    return call + (per_byte + (cold ? cold_per_byte : 0)) * static_cast<double>(bytes);
  }
};

struct Outcome {
  double share = 0;  // ours over theirs, at the end
  double worst = 0;  // the most we were over the limit at any time, in seconds
  uint64_t slices = 0;
  uint64_t first_sample = 0;  // step
};

Outcome simulate(const Synthetic& s, double limit, uint64_t steps) {
  Ledger ledger(limit);
  SliceCost slice;
  slice.expect(2 * s.bytes);  // slots are made for the worst mask
  Outcome outcome;
  uint64_t random = 1;
  double ours = 0, theirs = 0;
  const auto uniform = [&] { return static_cast<double>(mix(7, ++random, 0, 0) >> 11) * 0x1p-53; };
  for (uint64_t step = 1; step <= steps; ++step) {
    double own = s.every_step, on_slices = 0;
    const bool cold = outcome.slices < s.slots;
    ledger.expect_slice(slice.seconds(cold));
    const uint32_t paid = step % s.interval == 0 ? ledger.plan_slices(s.calls).rows : 0;
    for (uint64_t call = 0; paid > 0 && call < s.calls; ++call) {
      if (!is_sampled_call(3, static_cast<int64_t>(step), call, std::min<uint32_t>(paid, s.slots), s.calls))
        continue;
      const bool is_cold = outcome.slices < s.slots;
      const double cost = s.slice(is_cold) * (1 + s.noise * (uniform() - 0.5));
      slice.observe(s.bytes, is_cold, cost);
      on_slices += cost;
      ++outcome.slices;
      if (outcome.first_sample == 0) outcome.first_sample = step;
    }
    if (paid > 0) own += s.sampled_step;
    const double rest = own;
    own += on_slices;
    ledger.expect_slice(slice.seconds(outcome.slices < s.slots));
    ledger.end_step(
        {.seconds = s.step + own, .cost_seconds = own, .rest_seconds = rest, .was_sampled = paid > 0},
        s.interval);
    ours += own;
    theirs += s.step;
    outcome.worst = std::max(outcome.worst, ours - limit * theirs);
  }
  outcome.share = ours / theirs;
  return outcome;
}

TEST(Ledger, TheLimitHoldsFromTheFirstSampleOnAndIsUsed) {
  for (double limit : {0.005, 0.01, 0.02}) {
    for (uint64_t interval : {1, 8, 64}) {
      Synthetic s;
      s.interval = interval;
      const Outcome outcome = simulate(s, limit, 8000);
      EXPECT_LE(outcome.share, 1.01 * limit) << limit << " " << interval;
      EXPECT_GE(outcome.share, 0.9 * limit)
          << limit << " " << interval;  // there is more to sample than is paid for
      // At no time more ahead than by the two first steps, which are not held against sampling, by the first
      // sampled one, of which nothing is known but its slices, and by how much dearer than expected the
      // slices of one step were: a quarter, of at most what may be saved up.
      const double least = 1.5 * (s.sampled_step + 1.25 * s.slice(true));
      const double saved = limit * s.step * static_cast<double>(interval) + least;
      EXPECT_LE(outcome.worst, 2 * s.every_step + s.sampled_step + 0.25 * saved) << limit << " " << interval;
    }
  }
}

TEST(Ledger, CheapSamplesAreAllTaken) {
  Synthetic s;
  s.bytes = 20'000;
  s.calls = 4;
  s.interval = 8;
  const Outcome outcome = simulate(s, 0.01, 8000);
  EXPECT_GE(outcome.slices, 4u * 990);
  EXPECT_LE(outcome.share, 0.01);
}

TEST(Ledger, ASampleThatCostsMoreThanAnIntervalEarnsIsSavedUpFor) {
  Synthetic s;
  s.bytes = 64 << 20;  // 13 ms, and 40 while the slots are cold, where eight steps earn 0.8 ms
  const Outcome outcome = simulate(s, 0.01, 40000);
  EXPECT_GE(outcome.slices, 80u);
  EXPECT_LE(outcome.share, 0.0105);
  EXPECT_GE(outcome.share, 0.008);
}

TEST(Ledger, WhereEveryStepCostsMoreThanTheLimitNothingIsSampled) {
  Synthetic s;
  s.every_step = 0.00012;
  EXPECT_EQ(simulate(s, 0.01, 8000).slices, 0u);
}

// Ends a step of `seconds` in which measuring `bytes` of `all_bytes` bytes cost `cost` seconds.
void end_step(Ledger* ledger, double seconds, double cost, double bytes, double all_bytes) {
  ledger->end_step({.seconds = seconds, .cost_seconds = cost, .rest_seconds = cost, .weights_seconds = cost},
                   8, {}, {static_cast<uint64_t>(bytes), static_cast<uint64_t>(all_bytes)});
}

TEST(WeightLedger, BecomesLongerUntilAQuarterOfTheLimitPaysForIt) {
  Ledger ledger(0.01);
  EXPECT_FALSE(ledger.weights().measurements) << "before anything is known of a step";
  end_step(&ledger, 0.1, 0, 0, 4e6);  // 1 ms at the first guess; 64 steps earn 16 ms
  EXPECT_TRUE(ledger.weights().measurements);
  EXPECT_EQ(ledger.weights().interval, 64u);
  end_step(&ledger, 0.1, 0, 0, 4e8);  // 100 ms need 400 steps
  EXPECT_EQ(ledger.weights().interval, 512u);
}

// 10 ms to measure. Steps of 0.1 s have 1 ms each, of which the share is a quarter of what is left.
TEST(WeightLedger, GetsAShareOfWhatUnavoidableCostsLeave) {
  const auto interval_with = [](double unavoidable) {
    Ledger ledger(0.01);
    ledger.end_step({.seconds = 0.1, .cost_seconds = unavoidable, .rest_seconds = unavoidable}, 8, {},
                    {0, 40'000'000});
    return ledger.weights().interval;
  };
  EXPECT_EQ(interval_with(0), 64u) << "0.25 ms a step pay in 40 steps";
  EXPECT_EQ(interval_with(0.0008), 256u) << "0.05 ms a step pay in 200 steps";
  EXPECT_EQ(interval_with(0.05), 512u) << "nothing is left, but an eighth of the share pays in 320 steps";
}

// Steps of `seconds`, each of which reads a 64th of `bytes` at 0.25 ns a byte.
void train(Ledger* ledger, int steps, double seconds, double bytes) {
  for (int n = 0; n < steps; ++n) {
    const WeightAllowance allowed = ledger->weights();
    const double read = allowed.measurements ? bytes / static_cast<double>(allowed.interval) : 0;
    end_step(ledger, seconds, 2.5e-10 * read, read, bytes);
  }
}

TEST(WeightLedger, ABurstOfShortStepsIsForgottenWithinFiveHundred) {
  Ledger ledger(0.01), control(0.01);
  train(&ledger, 2000, 0.0005, 8e8);
  EXPECT_GE(ledger.weights().interval, 32768u);
  train(&ledger, 500, 0.1, 8e8);
  train(&control, 2500, 0.1, 8e8);
  EXPECT_EQ(control.weights().interval, 1024u);
  EXPECT_EQ(ledger.weights().interval, control.weights().interval);
}

// A bias of 4 KiB whose look takes 20 ms, since another process had the core.
TEST(WeightLedger, OnePreemptedLookChangesNothing) {
  Ledger ledger(0.01);
  train(&ledger, 1000, 0.1, 8e8);
  const uint64_t before = ledger.weights().interval;
  end_step(&ledger, 0.1, 0.02, 4096, 8e8);
  EXPECT_EQ(ledger.weights().interval, before);
}

TEST(WeightLedger, WhatCostsMoreForGoodMakesTheIntervalLonger) {
  Ledger ledger(0.01);
  train(&ledger, 1000, 0.1, 8e8);
  const uint64_t before = ledger.weights().interval;
  for (int n = 0; n < 300; ++n) end_step(&ledger, 0.1, 2.5e-9 * 8e5, 8e5, 8e8);
  EXPECT_GE(ledger.weights().interval, 8 * before);
}

// Steps near the edge between two intervals: one that changes all the time is learned by no detector.
TEST(WeightLedger, NoiseAtTheEdgeChangesItRarely) {
  Ledger ledger(0.01);
  int changes = 0;
  uint64_t before = 0;
  for (int n = 0; n < 20000; ++n) {
    end_step(&ledger, n % 7 < 3 ? 0.08 : 0.115, 0, 0, 1.024e9);  // 0.256 s: 1024 steps of 0.1 s
    changes += ledger.weights().interval != before;
    before = ledger.weights().interval;
  }
  EXPECT_LE(changes, 8);
}

TEST(WeightLedger, AFixedOneStaysAndSkipsInstead) {
  Ledger ledger(0.01, 4);
  for (int step = 0; step < 50; ++step) end_step(&ledger, 0.1, 0.01, 1e6, 1e9);
  EXPECT_EQ(ledger.weights().interval, 4u);
  EXPECT_FALSE(ledger.weights().measurements);
}

TEST(WeightLedger, WaitsWhileTheBudgetOfAllIsOverdrawn) {
  for (const double limit : {0.01, 1.0}) {
    Ledger ledger(limit);
    for (int step = 0; step < 3; ++step) ledger.end_step({0.1, 0}, 8);
    ledger.end_step({10, 9.9}, 8);
    EXPECT_EQ(ledger.weights().measurements, limit >= 1) << "without a limit nothing waits";
    for (int step = 0; step < 600; ++step) ledger.end_step({0.1, 0}, 8);
    EXPECT_TRUE(ledger.weights().measurements);
  }
}

TEST(WeightLedger, ALimitOfZeroAllowsNothing) {
  for (const uint64_t fixed : {0, 4}) {
    Ledger ledger(0, fixed);
    for (int step = 0; step < 50; ++step) {
      ledger.end_step({0.1, 0}, 8, {}, {.keeps_interval = true});
      EXPECT_FALSE(ledger.weights().measurements) << step;
    }
  }
}

}  // namespace
}  // namespace foreshock
