#include "detect/conditions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <random>

#include "detect/state.h"

namespace foreshock {
namespace {

constexpr double kPi = std::numbers::pi;

// A training of one rank whose numbers are functions of the step.
struct Training {
  RunConditions conditions;
  std::vector<Condition> begun;

  void step(const StepFacts& facts, int64_t rank = 0) { conditions.observe_step(rank, facts, &begun); }
  void rates(int64_t steps, const std::function<double(int64_t)>& rate) {
    for (int64_t n = 1; n <= steps; ++n) step({.step = n, .learning_rate = rate(n)});
  }
  void losses(int64_t steps, const std::function<double(int64_t)>& loss) {
    for (int64_t n = 1; n <= steps; ++n) step({.step = n, .loss = loss(n)});
  }
  // The name of the only condition; "" without one, all names if there are several.
  std::string name() const {
    std::string text;
    for (const Condition& each : conditions.found())
      text += (text.empty() ? "" : ", ") + std::string(info_of(each.id).name);
    return text;
  }
  Condition only() const {
    const auto found = conditions.found();
    return found.size() == 1 ? found[0] : Condition{};
  }
};

double warm_cosine(double t, double warm, double total) {
  return std::min(1.0, t / warm) * 0.5 * (1 + std::cos(kPi * t / total));
}

TEST(Conditions, TableIsOrderedById) {
  for (size_t n = 0; n < kConditions; ++n) {
    EXPECT_EQ(static_cast<size_t>(kConditionTable[n].id), n);
    EXPECT_EQ(*kConditionTable[n].headline != 0, kConditionTable[n].kind == ConditionKind::kFault);
  }
}

TEST(Conditions, ARateOfZeroIsNamedWithItsFirstStep) {
  Training training;
  training.rates(200, [](int64_t n) { return n < 60 ? 1e-3 : 0; });
  EXPECT_EQ(training.name(), "rate_zero");
  EXPECT_EQ(training.only().since_step, 60);
  EXPECT_EQ(training.only().last_step, 200);
  EXPECT_EQ(sentence_of(training.only()),
            "the learning rate of the first parameter group is 0 since step 60 (largest before: 0.001)");
  ASSERT_EQ(training.begun.size(), 1u);
  training.step({.step = 201, .learning_rate = 1e-3});
  EXPECT_EQ(
      sentence_of(training.only()),
      "the learning rate of the first parameter group is 0 from step 60 to 200 (largest before: 0.001)");
}

TEST(Conditions, AWarmUpFromZeroAndADecayToZeroAreSound) {
  Training training;
  training.rates(300, [](int64_t n) { return 1e-3 * warm_cosine(static_cast<double>(n - 1), 20, 299); });
  EXPECT_EQ(training.name(), "");
}

TEST(Conditions, ReportsARateThatRisesAfterItsEnd) {
  Training training;
  // The scheduler is stepped twice per step, so that the cosine is at its end after 150 steps.
  training.rates(300,
                 [](int64_t n) { return 1e-2 * warm_cosine(2.0 * static_cast<double>(n - 1), 20, 300); });
  EXPECT_EQ(training.name(), "rate_comes_back");
  EXPECT_EQ(training.only().since_step, 151);
  EXPECT_LE(training.begun.at(0).last_step, 205);  // a quarter of the maximum is reached after a third
}

TEST(Conditions, SoundSchedulesThatRiseAreNotNamed) {
  const std::map<std::string, std::function<double(int64_t)>> schedules = {
      {"constant", [](int64_t) { return 0.1; }},
      {"warm restarts",
       [](int64_t n) { return 0.5 * (1 + std::cos(kPi * static_cast<double>(n % 100) / 99)); }},
      {"warm restarts with a warm-up",
       [](int64_t n) {
         const auto t = static_cast<double>(n % 100);
         return t < 20 ? t / 20 : 0.5 * (1 + std::cos(kPi * (t - 20) / 79));
       }},
      {"warm restarts to a lower maximum",
       [](int64_t n) {
         const auto t = static_cast<double>(n % 100);
         const double most = std::pow(0.7, static_cast<double>(n / 100));
         return most * (t < 8 ? t / 8 : 0.5 * (1 + std::cos(kPi * (t - 8) / 91)));
       }},
      {"cyclic", [](int64_t n) { return 1.001 - std::abs(static_cast<double>(n % 200) - 100) / 100; }},
      {"one cycle",
       [](int64_t n) {
         const auto t = static_cast<double>(n);
         return t < 90 ? 0.04 + 0.96 * 0.5 * (1 - std::cos(kPi * t / 90))
                       : 1e-5 + 0.5 * (1 + std::cos(kPi * (t - 90) / 910));
       }},
      {"steps", [](int64_t n) { return std::pow(0.1, static_cast<double>(n / 300)); }},
      {"stepwise warm-up", [](int64_t n) { return n < 100 ? 0.01 : 0.1; }},
      {"linear to 0, then 0 for a few steps",
       [](int64_t n) { return std::max(0.0, 1 - static_cast<double>(n) / 980); }},
      {"inverse root",
       [](int64_t n) {
         const auto t = static_cast<double>(n);
         return std::min(t * std::pow(400, -1.5), 1 / std::sqrt(t));
       }},
  };
  for (const auto& [name, rate] : schedules) {
    Training training;
    training.rates(1000, rate);
    EXPECT_EQ(training.name(), "") << name;
  }
}

TEST(Conditions, AJumpOfTheRateIsNamed) {
  Training training;
  training.rates(200, [](int64_t n) { return n < 120 ? 3e-3 : 0.3; });
  EXPECT_EQ(training.name(), "rate_jump");
  EXPECT_EQ(sentence_of(training.only()),
            "the learning rate jumps at step 120 to 0.3, its largest value before was 0.003");
}

// The name of the condition if a new process begins at `first` and continues with `again`.
std::string name_of_restart(int64_t first, const std::function<double(int64_t)>& rate,
                            const std::function<double(int64_t)>& again) {
  Training training;
  training.conditions.observe_process(0, 100);
  training.rates(300, rate);
  training.conditions.observe_process(0, 101);
  for (int64_t n = first; n < first + 100; ++n) training.step({.step = n, .learning_rate = again(n)});
  return training.name();
}

TEST(Conditions, ARateThatANewProcessHasNotRestoredIsNamed) {
  const auto cosine = [](int64_t n) { return 1e-3 * warm_cosine(static_cast<double>(n - 1), 20, 500); };
  const auto from = [&](int64_t first) { return [=](int64_t n) { return cosine(n - first + 21); }; };
  EXPECT_EQ(name_of_restart(301, cosine, from(301)), "rate_not_restored");
  EXPECT_EQ(name_of_restart(281, cosine, from(281)), "rate_not_restored");  // from an earlier checkpoint
  EXPECT_EQ(name_of_restart(301, cosine, cosine), "");
  EXPECT_EQ(name_of_restart(101, cosine, cosine), "");
  EXPECT_EQ(name_of_restart(1, cosine, cosine), "");
  EXPECT_EQ(name_of_restart(1, cosine, [](int64_t) { return 0.1; }), "");  // another training
  const auto warm = [](int64_t n) { return 1e-6 * static_cast<double>(n - 300); };
  EXPECT_EQ(name_of_restart(301, cosine, warm), "");  // a new warm-up
  const auto restarts = [](int64_t n) { return 0.1 * warm_cosine(static_cast<double>(n % 80), 8, 80); };
  EXPECT_EQ(name_of_restart(301, restarts, restarts), "");
  EXPECT_EQ(name_of_restart(241, restarts, restarts), "");
}

TEST(Conditions, ReportsThatNoStepIsTakenIfTheScalerSkipsAll) {
  Training training;
  for (int64_t n = 1; n <= 149; ++n) training.step({.step = n, .skipped_steps = 0});
  training.conditions.observe_skipped(0, 149, 20, &training.begun);
  EXPECT_EQ(training.name(), "");
  training.conditions.observe_skipped(0, 149, 40, &training.begun);
  training.conditions.observe_skipped(0, 149, 151, &training.begun);
  EXPECT_EQ(training.begun.size(), 1u);
  EXPECT_EQ(training.name(), "no_step_taken");
  EXPECT_EQ(sentence_of(training.only()),
            "no optimizer step is taken since step 150: the gradient scaler has skipped 151 in a row");
  training.step({.step = 150, .skipped_steps = 151});
  EXPECT_TRUE(training.only().is_over);
}

TEST(Conditions, StepsThatStopWhileBackwardPassesGoOnAreNamed) {
  Training training;
  const auto stop = [&](int64_t step, uint64_t calls) {
    training.conditions.observe_backward_calls(0, step, calls, &training.begun);
  };
  for (int64_t n = 1; n <= 100; ++n) {
    training.step({.step = n, .attention_calls = n % 2 != 0 ? 4 : 8});
    stop(n, n < 8 ? 1000 : 511);  // the first steps are too few to compare with
  }
  EXPECT_EQ(training.name(), "");
  stop(100, 512);
  stop(100, 1024);
  ASSERT_EQ(training.begun.size(), 1u);
  EXPECT_EQ(training.name(), "steps_stopped");
  EXPECT_EQ(
      sentence_of(training.only()),
      "no step has ended since step 100, and backward passes go on: 1024 backward calls of attention, no "
      "step before had more than 8 calls");
  training.step({.step = 101, .attention_calls = 1028});
  EXPECT_TRUE(training.only().is_over);
  stop(101, 60'000);  // one step was as long
  EXPECT_EQ(training.only().episodes, 1u);
}

TEST(Conditions, ATrainingWithoutAttentionHasNoBackwardCallsToCompare) {
  Training training;
  for (int64_t n = 1; n <= 100; ++n) training.step({.step = n, .attention_calls = 0});
  EXPECT_FALSE(training.conditions.have_steps_stopped(0, 1'000'000));
}

TEST(Conditions, AScalerThatSkipsManyStepsIsNamed) {
  const auto named = [](uint64_t skips_each, int64_t steps_each) {
    Training training;
    uint64_t skipped = 16;  // the search for the first scale
    for (int64_t n = 1; n <= 600; ++n) {
      if (n % steps_each == 0) skipped += skips_each;
      training.step({.step = n, .skipped_steps = skipped});
    }
    return training.name();
  };
  EXPECT_EQ(named(1, 2), "steps_skipped");
  EXPECT_EQ(named(0, 1), "");
  EXPECT_EQ(named(1, 10), "");  // a growth interval of 10 steps
}

TEST(Conditions, ReportsASingleLossThatStandsOut) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> noise(0, 0.05);
  Training training;
  training.losses(320, [&](int64_t n) {
    return n == 200 || n == 260 ? 6.1 : 1.5 + 2.5 * std::exp(-static_cast<double>(n) / 40) + noise(engine);
  });
  EXPECT_EQ(training.name(), "lone_loss");
  const Condition found = training.only();
  EXPECT_EQ(found.since_step, 200);
  EXPECT_EQ(found.last_step, 260);
  EXPECT_EQ(found.episodes, 2u);
  EXPECT_EQ(found.value, 6.1);
  EXPECT_NEAR(found.usual, 1.53, 0.05);
}

TEST(Conditions, OrdinaryLossesDoNotStandOut) {
  std::mt19937_64 engine(7);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential;
  const std::map<std::string, std::function<double(int64_t)>> losses = {
      {"normal", [&](int64_t) { return 2 + 0.1 * normal(engine); }},
      {"exponential tail", [&](int64_t) { return exponential(engine); }},
      {"falling",
       [&](int64_t n) { return 10 * std::exp(-static_cast<double>(n) / 100) + 0.1 * normal(engine); }},
      {"constant", [](int64_t) { return 0.693147; }},
      {"constant but for rounding",
       [](int64_t n) { return 0.693147 * (1 + 1e-7 * static_cast<double>(n % 3)); }},
      {"negative", [&](int64_t) { return -3 + normal(engine); }},
      {"spike of three", [&](int64_t n) { return (n % 500 < 3 && n > 100 ? 9 : 2) + 0.1 * normal(engine); }},
      {"new level", [&](int64_t n) { return (n > 300 ? 9 : 2) + 0.1 * normal(engine); }},
  };
  for (const auto& [name, loss] : losses) {
    Training training;
    training.losses(20'000, loss);
    EXPECT_EQ(training.name(), "") << name;
  }
}

TEST(Conditions, ALossAndAGradientOfExactlyZeroAreNamed) {
  Training training;
  const auto step = [&](int64_t n, double loss, double norm, bool is_local) {
    training.step({.step = n, .loss = loss, .gradient_norm = norm, .is_local_loss = is_local});
  };
  for (int64_t n = 1; n <= 20; ++n) step(n, 0, 1, true);    // an advantage of 0 has a gradient
  for (int64_t n = 21; n <= 40; ++n) step(n, 0, 0, false);  // a logged value
  for (int64_t n = 41; n <= 47; ++n) step(n, 0, 0, true);
  EXPECT_EQ(training.name(), "");
  step(48, 0, 0, true);
  EXPECT_EQ(training.name(), "zero_loss");
  EXPECT_EQ(sentence_of(training.only()), "loss and gradient are exactly 0 since step 41");
}

TEST(Conditions, AGradientOfZeroWithoutALossOfZeroIsNamed) {
  Training training;
  const auto step = [&](int64_t n, double norm) {
    training.step({.step = n, .loss = 2.3, .gradient_norm = norm, .is_local_loss = true});
  };
  for (int64_t n = 1; n <= 40; ++n) step(n, n % 8 == 0 ? 1e-30 : 0);
  EXPECT_EQ(training.name(), "");
  for (int64_t n = 41; n <= 48; ++n) step(n, 0);
  EXPECT_EQ(training.name(), "zero_norm");
  EXPECT_EQ(sentence_of(training.only()),
            "the gradient norm is exactly 0 since step 41, and the loss is not");
  step(49, 1);
  EXPECT_TRUE(training.only().is_over);
}

TEST(Conditions, ReportsALossThatRisesInTheFirstSteps) {
  Training training;
  for (int64_t n = 1; n <= 600; ++n)
    training.step({.step = n, .loss = n < 30 ? 1.65 - 0.01 * static_cast<double>(n) : 4.6, .is_nll = true});
  EXPECT_EQ(training.name(), "early_rise");
  EXPECT_EQ(training.begun.size(), 1u);
  EXPECT_EQ(sentence_of(training.only()),
            "the loss is above its first values since step 30: up to 4.6, the first ones were at most 1.64");
  EXPECT_EQ(training.only().last_step, 600);
}

TEST(Conditions, ReportsALossThatExplodesInTheVeryFirstSteps) {
  Training training;
  const double first[] = {1.39, 121.7, 1582.9, 544.3, 371.5, 310.8, 126.8, 65.9};
  for (int64_t n = 1; n <= 40; ++n)
    training.step({.step = n, .loss = n <= 8 ? first[n - 1] : 6.0, .is_nll = true});
  EXPECT_EQ(sentence_of(training.only()),
            "the loss is above its first values since step 2: up to 1583, the first ones were at most 1.39");
}

TEST(Conditions, FirstLossesOfSoundTrainingsAreNoRise) {
  std::mt19937_64 engine(11);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential;
  for (int seed = 0; seed < 200; ++seed) {
    Training noisy, tail, spikes, late, warm_up, adversary, low_first;
    for (int64_t n = 1; n <= 600; ++n) {
      const auto t = static_cast<double>(n);
      const auto nll = [&](Training* of, double loss) {
        of->step({.step = n, .loss = loss, .is_nll = true});
      };
      nll(&noisy, 2 + 0.4 * normal(engine));
      nll(&tail, exponential(engine));
      nll(&spikes, n % 40 < 10 && n > 20 ? 9 : 2);
      nll(&late, n > 260 ? 4 : 2);  // found by the rules for loss events
      nll(&low_first, n == 1 ? 0.001 : 0.5 + exponential(engine));
      nll(&warm_up, 2 + (n < 40 ? 0.01 * t : 0) - 1e-3 * t);
      adversary.step({.step = n, .loss = 0.7 + 0.05 * t, .is_local_loss = true});
    }
    for (const Training* sound : {&noisy, &tail, &spikes, &late, &warm_up, &adversary, &low_first})
      ASSERT_NE(sound->name(), "early_rise");
  }
}

// Backward calls of 64 queries and `keys` keys, in which a query sees so many more keys than its position.
std::string name_of_causal(int64_t keys, int64_t more, int64_t calls = 8, std::string* sentence = nullptr) {
  Training training;
  for (int64_t n = 1; n <= calls; ++n) {
    const int64_t last = 20 + n * 5 % 44;
    training.conditions.observe_attention(0,
                                          {.step = n,
                                           .layer = "003",
                                           .last_position = last,
                                           .seen_keys = std::min(keys, last + more),
                                           .queries = 64,
                                           .keys = keys},
                                          &training.begun);
  }
  if (sentence != nullptr) *sentence = sentence_of(training.only());
  return training.name();
}

TEST(Conditions, ReportsKeysHiddenFromAllQueries) {
  std::string sentence;
  EXPECT_EQ(name_of_causal(80, 1, 8, &sentence), "unseen_keys");
  EXPECT_EQ(
      sentence,
      "causal attention hides the last 16 of 80 keys from all queries since step 1, first seen in layer 003");
  EXPECT_EQ(name_of_causal(80, 1, 2), "");  // two odd batches
  EXPECT_EQ(name_of_causal(64, 1), "");     // as many keys as queries
  EXPECT_EQ(name_of_causal(48, 1), "");     // fewer
  EXPECT_EQ(name_of_causal(80, 17), "");    // aligned to the last key
  EXPECT_EQ(name_of_causal(80, 80), "");    // no causal mask
}

TEST(Conditions, AGradientNormThatRisesAndStaysIsNamed) {
  Training training;
  const auto norm = [](int64_t n) { return n < 600 ? 1.5 : 1.5 * std::exp((n - 600) / 60.0); };
  for (int64_t n = 1; n <= 1000; ++n) training.step({.step = n, .gradient_norm = norm(n)});
  EXPECT_EQ(training.name(), "gradient_rise");
  // The norm exceeds 15 from step 739 on, the median of a block of 32 from the block of step 737 on.
  EXPECT_EQ(training.only().since_step, 737);
  EXPECT_EQ(training.only().usual, 1.5);
  EXPECT_GT(training.only().value, 700);
}

TEST(Conditions, GradientNormsOfSoundTrainingsAreNoRise) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> noise(0, 1);
  Training falls, spikes, grows, slowly;
  for (int64_t n = 1; n <= 20000; ++n) {
    const double factor = std::exp(0.5 * noise(engine));
    falls.step({.step = n, .gradient_norm = factor * 10 / std::sqrt(static_cast<double>(n))});
    spikes.step({.step = n, .gradient_norm = n % 50 == 0 ? 1e6 : factor});
    grows.step({.step = n, .gradient_norm = factor * std::min(8.0, 1 + 1e-3 * static_cast<double>(n))});
    slowly.step({.step = n, .gradient_norm = factor * std::sqrt(static_cast<double>(n))});
  }
  for (const Training* sound : {&falls, &spikes, &grows, &slowly}) EXPECT_EQ(sound->name(), "");
}

// A job of data-parallel ranks, each with two tensors that are looked at once in 64 steps.
struct Job {
  Training training;
  uint64_t parts = 1;  // of each tensor
  std::mt19937_64 engine{17};
  std::normal_distribution<double> noise{0, 0.05};

  // `is_same`: whether rank 1 and 2 have the batch of rank 0. `late`: steps by which ranks 1 and 2 are read
  // later.
  void run(int64_t first, int64_t last, bool is_same, int64_t late = 0, double spread = 1) {
    const auto loss_of = [&] { return 2 + spread * noise(engine); };
    std::vector<double> losses;
    for (int64_t n = first; n <= last + late; ++n) {
      if (n % 64 == 7 || n % 64 == 20)
        training.conditions.observe_tensor(
            {.tensor = n % 64 == 7 ? "a" : "b", .step = n, .update_max = 1, .parts = parts});
      if (n <= last) {
        losses.push_back(loss_of());
        training.step({.step = n, .loss = losses.back(), .is_local_loss = true}, 0);
      }
      if (n - late < first) continue;
      const double own = losses[static_cast<size_t>(n - late - first)];
      for (const int64_t rank : {1, 2})
        training.step({.step = n - late, .loss = is_same ? own : loss_of(), .is_local_loss = true}, rank);
    }
  }
};

TEST(Conditions, AConstantFactorOfTheLossIsNamed) {
  Training training;
  for (int64_t n = 1; n <= 64; ++n) training.step({.step = n, .loss = 2});
  EXPECT_EQ(training.name(), "");
  training.step({.step = 65, .loss = 2, .loss_factor = 0.25});
  EXPECT_EQ(training.name(), "loss_factor");
  EXPECT_EQ(sentence_of(training.only()),
            "the gradient is that of 0.25 times the mean cross-entropy of the step since step 65");
}

TEST(Conditions, RanksWithTheSameLossesAreNamed) {
  for (const int64_t late : {0, 50}) {
    Job job;
    job.run(1, 200, true, late);
    EXPECT_EQ(job.training.name(), "same_losses");
    EXPECT_EQ(sentence_of(job.training.only()),
              "ranks 0, 1, 2 have the same loss, bit for bit, since step 1");
    job.run(201, 300, false);
    EXPECT_EQ(sentence_of(job.training.only()),
              "ranks 0, 1, 2 had the same loss, bit for bit, from step 1 to 200");
  }
}

TEST(Conditions, RanksWithTheirOwnBatchesAreSound) {
  Job own, briefly, parts, constant;
  own.run(1, 400, false);
  EXPECT_EQ(own.training.name(), "");
  briefly.run(1, 70, true);  // no tensor was looked at twice
  briefly.run(71, 400, false);
  EXPECT_EQ(briefly.training.name(), "");
  parts.parts = 2;  // ranks that hold parts of one model
  parts.run(1, 400, true);
  EXPECT_EQ(parts.training.name(), "");
  constant.run(1, 400, true, 0, 0);
  EXPECT_EQ(constant.training.name(), "");
}

// The name of the condition if the losses of two ranks are these functions.
std::string name_of_losses(const std::function<double(int64_t)>& own,
                           const std::function<double(int64_t)>& other) {
  Training training;
  for (int64_t n = 1; n <= 300; ++n)
    for (const int64_t turn : {0, 1}) {
      const int64_t rank = n % 3 == 0 ? 1 - turn : turn;  // either rank may be read first
      training.step({.step = n, .loss = rank == 0 ? own(n) : other(n), .is_local_loss = true}, rank);
    }
  return training.name();
}

TEST(Conditions, ARankWhoseLossIsApartIsNamed) {
  std::mt19937_64 engine(21);
  std::exponential_distribution<double> tail(1);
  const auto usual = [&](int64_t) { return 1 + tail(engine); };
  const auto usually_until = [&](int64_t last, double later) {
    return [&usual, last, later](int64_t n) { return n <= last ? usual(n) : later; };
  };
  EXPECT_EQ(name_of_losses(usual, usually_until(100, 0)), "rank_apart");  // no label counts
  EXPECT_EQ(name_of_losses(usually_until(100, 90), usual), "rank_apart");
  EXPECT_EQ(name_of_losses(usual, usual), "");
  const auto small = [&](int64_t) { return 1e-4 * tail(engine); };
  EXPECT_EQ(name_of_losses(small, small), "");
  EXPECT_EQ(name_of_losses([](int64_t) { return 1.8; }, [](int64_t) { return 1.0; }), "");  // other data
  EXPECT_EQ(name_of_losses([](int64_t) { return -5; }, [](int64_t) { return 0.1; }), "");
}

// Losses of `ranks` ranks that fall from 4 to 2 with a little noise; of the last rank as `of_last` says.
// Returns the sentence of the condition, "" for none.
std::string sentence_of_losses(int64_t ranks, const std::function<double(int64_t, double)>& of_last,
                               int64_t steps = 300) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> noise(0, 0.05);
  Training training;
  for (int64_t n = 1; n <= steps; ++n)
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const double usual = 2 + 2 * std::exp(-static_cast<double>(n) / 60);
      const double loss = (rank + 1 < ranks ? usual : of_last(n, usual)) + noise(engine);
      training.step({.step = n, .loss = loss, .is_local_loss = true}, rank);
    }
  return training.name().empty() ? "" : sentence_of(training.only());
}

TEST(Conditions, ARankWhoseLossDoesNotFallWithTheOthersIsNamed) {
  const auto shuffled = [](int64_t n, double) { return 4 + 0.001 * static_cast<double>(n); };
  for (const int64_t ranks : {2, 3, 4, 8}) {
    const std::string sentence = sentence_of_losses(ranks, shuffled);
    const std::string begin = "the loss of rank " + std::to_string(ranks - 1) +
                              " is apart from those of the other ranks since step ";
    EXPECT_EQ(sentence.substr(0, begin.size()), begin) << sentence;
    EXPECT_NE(sentence.find(": 4."), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(", the median of the ranks is 2.0"), std::string::npos) << sentence;
  }
  // What can be learned from wrong labels alone has been learned at 3.
  EXPECT_NE(sentence_of_losses(4, [](int64_t, double usual) { return std::max(usual, 3.0); }), "");
}

TEST(Conditions, RanksWithDataOfTheirOwnThatLearnAreSound) {
  const auto name = [](const std::function<double(int64_t, double)>& of_last) {
    return sentence_of_losses(4, of_last, 2000);
  };
  EXPECT_EQ(name([](int64_t, double usual) { return usual; }), "");
  EXPECT_EQ(name([](int64_t, double usual) { return 1.5 * usual; }), "");          // harder data
  EXPECT_EQ(name([](int64_t, double usual) { return 0.6 * usual; }), "");          // easier data
  EXPECT_EQ(name([](int64_t, double usual) { return 3 + (usual - 2) / 2; }), "");  // learned half as much
}

// `again`: the loss of the second process as a function of its steps.
std::string name_after_restart(int64_t first_step, double again, int announced = 1, bool is_counted = false) {
  Training training;
  std::mt19937_64 engine(3);
  std::normal_distribution<double> noise(0, 0.05);
  training.conditions.observe_process(0, 100);
  training.losses(
      300, [&](int64_t n) { return 1.5 + 2.7 * std::exp(-static_cast<double>(n) / 50) + noise(engine); });
  for (int times = 0; times < announced; ++times) training.conditions.observe_process(0, 101);
  for (int64_t n = first_step; n < first_step + 40; ++n)
    training.step({.step = n, .loss = again + noise(engine), .is_counted = is_counted});
  return training.name();
}

TEST(Conditions, ATrainingThatGoesOnWithoutTheOptimizersStateIsNamed) {
  EXPECT_EQ(name_after_restart(1, 1.6), "optimizer_began_again");
  EXPECT_EQ(name_after_restart(301, 1.6), "");                        // the state was restored
  EXPECT_EQ(name_after_restart(201, 1.6), "");                        // from an earlier checkpoint
  EXPECT_EQ(name_after_restart(1, 4.2), "");                          // another training with new weights
  EXPECT_EQ(name_after_restart(1, 1.6, 2), "optimizer_began_again");  // a restarted agent announces it again
  EXPECT_EQ(name_after_restart(1, 1.6, 1, true), "");                 // the optimizer counts no steps
}

TEST(Conditions, ATrainingThatGoesOnWithANewOptimizerInTheSameProcessIsNamed) {
  EXPECT_EQ(name_after_restart(1, 1.6, 0), "optimizer_began_again");
  EXPECT_EQ(name_after_restart(201, 1.6, 0), "");  // the process has loaded a checkpoint
  EXPECT_EQ(name_after_restart(1, 4.2, 0), "");    // another training with new weights
}

// Looks at tensors, each once in 64 steps. A look is described by a function that changes the usual facts.
struct Looks {
  Training training;
  std::vector<std::string> names;
  std::function<void(const std::string&, int64_t, TensorFacts*, OptimizerFacts*)> change;

  std::string run(int64_t steps, int64_t first = 1) {
    for (int64_t step = first; step <= steps; ++step)
      for (size_t n = 0; n < names.size(); ++n) {
        if (step % 64 != static_cast<int64_t>(n * 64 / names.size())) continue;
        TensorFacts values = {.tensor = names[n],
                              .step = step,
                              .update_max = 1e-3,
                              .histogram_hash = std::to_string(step),
                              .sample_elements = step > 64 ? std::optional<uint64_t>(32) : std::nullopt,
                              .sample_unmoved = 0,
                              .nonfinite = 0};
        OptimizerFacts optimizer = {.tensor = names[n],
                                    .step = step,
                                    .gradient = GradientState::kPresent,
                                    .gradient_rms = 0.01,
                                    .epsilon_dominated = 0,
                                    .learning_rate = 1e-3,
                                    .nonfinite_gradient = 0,
                                    .optimizer_step = step};
        if (change) change(names[n], step, &values, &optimizer);
        training.conditions.observe_tensor(values);
        training.conditions.observe_optimizer(optimizer, &training.begun);
      }
    return training.name();
  }
};

const std::vector<std::string> kNames = {
    "emb.weight",           "blocks.0.norm.weight", "blocks.0.up.weight", "blocks.0.experts.0.w",
    "blocks.0.experts.1.w", "blocks.1.norm.weight", "blocks.1.up.weight", "blocks.1.experts.0.w",
    "blocks.1.experts.1.w", "norm.weight",          "head.weight",
};

void stands_still(TensorFacts* values) {
  values->update_max = 0;
  values->histogram_hash = "same";
}

void has_no_gradient(TensorFacts* values, OptimizerFacts* optimizer, GradientState state) {
  stands_still(values);
  optimizer->gradient = state;
  optimizer->gradient_rms = optimizer->epsilon_dominated = std::nullopt;
  optimizer->optimizer_step.reset();
}

TEST(Conditions, ASoundTrainingHasNoTensorConditions) {
  EXPECT_EQ((Looks{.training = {}, .names = kNames, .change = {}}).run(2000), "");
}

TEST(Conditions, ParametersWithoutGradientAreOneCondition) {
  Looks looks = {
      .training = {}, .names = kNames, .change = [](auto& name, auto, auto* values, auto* optimizer) {
        if (name.find("norm") != std::string::npos)
          has_no_gradient(values, optimizer, GradientState::kAbsent);
      }};
  EXPECT_EQ(looks.run(150), "no_gradient");
  EXPECT_EQ(sentence_of(looks.training.only()),
            "3 parameters got no gradient since step 5: blocks.*.norm.weight (2), norm.weight");
}

TEST(Conditions, FrozenAndUnusedParametersAreSound) {
  const auto name_with = [](const char* part, GradientState state, int64_t from, int64_t to) {
    Looks looks = {.training = {},
                   .names = kNames,
                   .change = [=](auto& name, int64_t step, auto* values, auto* optimizer) {
                     if (name.find(part) != std::string::npos && step >= from && step < to)
                       has_no_gradient(values, optimizer, state);
                   }};
    return looks.run(600);
  };
  EXPECT_EQ(name_with("up", GradientState::kNotRequired, 0, 600), "");  // a frozen base
  EXPECT_EQ(name_with("up", GradientState::kUnknown, 0, 600), "");
  EXPECT_EQ(name_with("experts.1", GradientState::kAbsent, 0, 200), "");    // chosen later
  EXPECT_EQ(name_with("experts.1", GradientState::kAbsent, 300, 600), "");  // was trained
  EXPECT_EQ(name_with("blocks.1.experts.1", GradientState::kAbsent, 0, 400), "");
  // Gradients that are kept elsewhere are absent for all tensors, which change all the same.
  Looks elsewhere = {.training = {}, .names = kNames, .change = [](auto&, auto, auto*, auto* optimizer) {
                       optimizer->gradient = GradientState::kAbsent;
                       optimizer->gradient_rms.reset();
                     }};
  EXPECT_EQ(elsewhere.run(600), "");
}

TEST(Conditions, AGradientOfExactlyZeroIsNamed) {
  const auto name_if = [](bool was_trained) {
    Looks looks = {.training = {}, .names = kNames, .change = [=](auto& name, auto, auto*, auto* optimizer) {
                     if (name != "head.weight") return;
                     optimizer->gradient_rms = 0;
                     optimizer->epsilon_dominated = was_trained ? 0.2 : 1;
                   }};
    return looks.run(300);
  };
  EXPECT_EQ(name_if(false), "zero_gradient");
  EXPECT_EQ(name_if(true), "");
}

// AdamW and Adafactor count steps, SGD and Lion do not, and Muon beside AdamW has counts for a part of the
// tensors only. Without a second moment (SGD, Lion, Muon) it is not known which values epsilon dominates.
TEST(Conditions, FaultsOfATensorAreNamedWhateverTheOptimizerKeeps) {
  using Fault = std::function<void(int64_t, TensorFacts*, OptimizerFacts*)>;
  const std::vector<std::pair<std::string, Fault>> faults = {
      {"", [](auto, auto*, auto*) {}},
      {"no_gradient", [](auto, auto* values,
                         auto* optimizer) { has_no_gradient(values, optimizer, GradientState::kAbsent); }},
      {"zero_gradient",
       [](auto, auto* values, auto* optimizer) {
         stands_still(values);
         optimizer->gradient_rms = 0;
         if (optimizer->epsilon_dominated) optimizer->epsilon_dominated = 1;
       }},
      {"gradient_unused",
       [](auto, auto* values, auto* optimizer) {
         stands_still(values);
         values->rms = optimizer->gradient_rms = 1;
       }},
      {"weights_nonfinite",
       [](int64_t step, auto* values, auto*) {
         if (step > 150) values->nonfinite = 3;
       }},
  };
  for (const auto& [name, fault] : faults)
    for (const std::string counted : {"", "norm", "weight"}) {  // part of the names of these tensors
      Looks looks = {.training = {},
                     .names = {"emb.weight", "blocks.0.norm", "blocks.0.up.weight", "norm", "head.weight"},
                     .change = [&, apply = fault](auto& tensor, auto step, auto* values, auto* optimizer) {
                       if (counted.empty() || tensor.find(counted) == std::string::npos) {
                         optimizer->optimizer_step.reset();
                         optimizer->epsilon_dominated.reset();
                       }
                       if (tensor == "head.weight") apply(step, values, optimizer);
                     }};
      looks.training.step({.step = 1, .learning_rate = 1e-2});
      EXPECT_EQ(looks.run(400), name) << counted;
    }
}

TEST(Conditions, NothingIsTrainedWithARateOfZero) {
  Looks looks = {.training = {}, .names = kNames, .change = [](auto&, auto, auto* values, auto* optimizer) {
                   stands_still(values);
                   optimizer->learning_rate = 0;
                 }};
  EXPECT_EQ(looks.run(60), "");
  EXPECT_EQ(looks.run(100), "nothing_trained");
  EXPECT_EQ(sentence_of(looks.training.only()),
            "nothing is trained since step 5: none of 11 tensors has changed; the learning rate is 0");
}

TEST(Conditions, SnapshotsTooCoarseForAChangeAreNotJudged) {
  Looks looks = {.training = {}, .names = kNames, .change = [](auto&, auto, auto* values, auto*) {
                   values->update_max.reset();  // on a device
                   values->histogram_hash = "";
                 }};
  EXPECT_EQ(looks.run(300), "");
}

TEST(Conditions, WeightsBelowHalfASpacingAreNamed) {
  const auto name_if = [](bool is_16_bit, uint64_t unmoved, const std::function<double(int64_t)>& rate) {
    Looks looks = {
        .training = {}, .names = kNames, .change = [=](auto&, int64_t step, auto* values, auto* optimizer) {
          values->is_16_bit = is_16_bit;
          values->sample_unmoved = unmoved;
          optimizer->learning_rate = rate(step);
        }};
    for (int64_t n = 1; n <= 300; ++n) looks.training.step({.step = n, .learning_rate = rate(n)});
    return looks.run(300);
  };
  const auto constant = [](int64_t) { return 1e-4; };
  EXPECT_EQ(name_if(true, 24, constant), "weights_stuck");
  EXPECT_EQ(name_if(true, 8, constant), "");
  EXPECT_EQ(name_if(false, 24, constant), "");
  EXPECT_EQ(name_if(true, 24, [](int64_t n) { return n < 60 ? 1e-2 : 1e-3; }), "");  // the end of a decay
}

TEST(Conditions, AnOptimizerThatBeganAgainIsNamed) {
  Looks looks = {.training = {}, .names = kNames, .change = [](auto&, int64_t step, auto*, auto* optimizer) {
                   if (step > 300) optimizer->optimizer_step = step - 300;
                 }};
  EXPECT_EQ(looks.run(500), "optimizer_began_again");
  EXPECT_EQ(looks.training.only().since_step, 301);
  EXPECT_EQ(looks.training.only().count, 11u);
}

TEST(Conditions, AStateThatIsLostForSomeTensorsIsNamed) {
  Looks looks = {
      .training = {}, .names = kNames, .change = [](auto& name, int64_t step, auto*, auto* optimizer) {
        if (name.starts_with("blocks.1.") && step > 300) optimizer->optimizer_step = step - 300;
      }};
  EXPECT_EQ(looks.run(500), "optimizer_began_again");
  EXPECT_EQ(looks.training.only().count, 4u);
}

TEST(Conditions, WeightsThatAreNotFiniteAreNamedWhileGradientsAre) {
  const auto name_if = [](double loss) {
    Looks looks = {
        .training = {}, .names = kNames, .change = [](auto& name, int64_t step, auto* values, auto*) {
          if (name == "head.weight" && step > 150) values->nonfinite = 3;
        }};
    looks.training.step({.step = 1, .loss = loss});
    return looks.run(300);
  };
  EXPECT_EQ(name_if(2), "weights_nonfinite");
  EXPECT_EQ(name_if(NAN), "");
}

TEST(Conditions, AParameterThatGetsGradientsAndDoesNotChangeIsNamed) {
  // head.weight does not change; its gradient has this rms, its values have rms 1.
  const auto name_if = [](double gradient, std::optional<double> rate, bool is_16_bit) {
    Looks looks = {
        .training = {}, .names = kNames, .change = [=](auto& name, auto, auto* values, auto* optimizer) {
          if (name != "head.weight") return;
          stands_still(values);
          values->rms = 1;
          values->is_16_bit = is_16_bit;
          optimizer->gradient_rms = gradient;
          optimizer->learning_rate = rate;
        }};
    looks.training.step({.step = 1, .learning_rate = 1e-2});
    return looks.run(400);
  };
  EXPECT_EQ(name_if(0.1, std::nullopt, false), "gradient_unused");  // it is in no optimizer
  EXPECT_EQ(name_if(0.1, 0, false), "gradient_unused");
  EXPECT_EQ(name_if(0.1, 1e-2, false), "gradient_unused");  // something restores its values
  EXPECT_EQ(name_if(1e-6, 1e-2, false), "");                // the update is below the spacing of the format
  EXPECT_EQ(name_if(0.1, 1e-2, true), "");
}

// At step 200 the head is replaced by a parameter that no optimizer has, or it is only kept.
TEST(Conditions, AParameterThatIsReplacedAndNotTrainedIsNamed) {
  const auto name_if = [](bool keeps_count, int64_t steps) {
    Looks looks = {
        .training = {}, .names = kNames, .change = [=](auto& name, auto step, auto* values, auto* optimizer) {
          if (name != "head.weight" || step < 200) return;
          stands_still(values);
          values->rms = 1;
          optimizer->gradient_rms = 0.1;
          if (!keeps_count) optimizer->optimizer_step.reset();
        }};
    looks.training.step({.step = 1, .learning_rate = 1e-2});
    return looks.run(steps);
  };
  EXPECT_EQ(name_if(false, 500), "gradient_unused");
  EXPECT_EQ(name_if(false, 310), "") << "two looks";
  EXPECT_EQ(name_if(true, 500), "") << "its group has a rate of 0 from then on";
}

TEST(Conditions, GradientsThatAreClippedAwayAreNamed) {
  // A gradient with a norm of 3 times `scale` before clipping and `used` after it, over 11 tensors of 100
  // values.
  const auto name_if = [](double scale, double used) {
    Looks looks = {.training = {}, .names = kNames, .change = [=](auto&, auto, auto*, auto* optimizer) {
                     optimizer->elements = 100;
                     optimizer->gradient_rms = used / std::sqrt(1100);
                   }};
    for (int64_t n = 1; n <= 200; ++n) {
      looks.training.step({.step = n, .gradient_norm = 3 * scale});
      looks.run(n, n);
    }
    return looks.training.name();
  };
  EXPECT_EQ(name_if(0x1p16, 0x1p-16), "clipped_away");
  EXPECT_EQ(name_if(1, 3), "");
  EXPECT_EQ(name_if(1000, 1), "");
}

TEST(Conditions, GainsThatWeightDecayShrinksAreNamed) {
  // Gains of norms, and matrices, lose these shares per step. Of that of gains, weight decay explains
  // `decay`.
  const auto name_if = [](double first, double loss, double decay, double of_matrices = 0) {
    Looks looks = {
        .training = {}, .names = kNames, .change = [=](auto& name, auto step, auto* values, auto* optimizer) {
          const bool is_gain = name.ends_with("norm.weight");
          values->shape = is_gain ? std::vector<int64_t>{32} : std::vector<int64_t>{64, 32};
          values->mean_abs = first * std::pow(1 - (is_gain ? loss : of_matrices), step);
          values->rms = (is_gain ? 1.001 : 1.2) * *values->mean_abs;
          optimizer->learning_rate = 1e-2;
          optimizer->weight_decay = decay / 1e-2;
        }};
    return looks.run(400);
  };
  EXPECT_EQ(name_if(1, 0.004, 0.005), "gains_decay");
  EXPECT_EQ(name_if(1, 0.001, 0.005), "");         // the gradient holds them
  EXPECT_EQ(name_if(1, 0.004, 0), "");             // the gradient shrinks them
  EXPECT_EQ(name_if(1, 0.004, 0.005, 0.004), "");  // the whole model decays
  EXPECT_EQ(name_if(1e-2, 0.004, 0.005), "");
}

TEST(Conditions, AMatrixThatWasTiedBeforeIsNamed) {
  // The second process, from step 201 on, has one tensor more.
  const auto name_if = [](const std::string& more, std::vector<int64_t> shape) {
    Looks looks = {
        .training = {}, .names = {"emb.weight", "norm.weight", "blocks.0.up.weight"}, .change = {}};
    looks.change = [&](auto& name, auto, auto* values, auto*) {
      values->shape = name == "norm.weight" ? std::vector<int64_t>{32} : std::vector<int64_t>{64, 32};
      if (name == more) values->shape = shape;
    };
    looks.training.conditions.observe_process(0, 100);
    looks.training.step({.step = 1});
    looks.run(200);
    looks.training.conditions.observe_process(0, 101);
    looks.names.push_back(more);
    return looks.run(400, 201);
  };
  EXPECT_EQ(name_if("head.weight", {64, 32}), "tied_apart");
  EXPECT_EQ(name_if("head.weight", {4, 32}), "");
  EXPECT_EQ(name_if("blocks.1.up.weight", {64, 32}), "");  // the model has grown
  EXPECT_EQ(name_if("head.bias", {64}), "");
}

// Looks at the gradients of one parameter, "b" unless another is named, beside "a", which is trained. Values
// and gradients of "b" are functions of the step.
struct GradientLooks {
  static constexpr std::array<int64_t, 8> kSteps = {2, 3, 5, 9, 17, 33, 132, 140};

  static Sketch sketch(double x) { return {.products = {x, -x, 2 * x, x / 2}, .norm = std::fabs(x)}; }

  Training training = {};
  std::function<double(int64_t)> value = [](int64_t) { return 1; };
  std::function<double(int64_t)> gradient = [](int64_t) { return 0.1; };  // NaN: none
  std::string name = "b";
  double rate = 1e-3, elements = 64;
  bool is_other_trained = true;

  void look(const std::string& tensor, int64_t step, double values, double gradients) {
    GradientFacts facts{.tensor = tensor, .shape = "64", .elements = elements, .step = step, .parameters = 2};
    facts.contributions = std::isnan(gradients) ? 0 : 1;
    facts.is_whole = true;
    facts.unit = 0x1p-24;
    facts.value = sketch(values);
    facts.used = sketch(gradients);
    facts.local = facts.last = sketch(std::isnan(gradients) ? 0 : gradients);
    training.conditions.observe_gradient(facts, &training.begun);
  }
  std::string run(double norm = 1) {
    for (int64_t step = 1; step <= 150; ++step) {
      if (std::ranges::find(kSteps, step) != kSteps.end()) {
        look("a", step, is_other_trained ? static_cast<double>(step) : 1.0, 0.1);
        look(name, step, value(step), gradient(step));
      }
      training.step({.step = step, .loss = 1, .gradient_norm = norm, .learning_rate = rate});
    }
    return training.name();
  }
};

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

TEST(Conditions, LooksAtGradientsFindParametersWithoutOne) {
  GradientLooks none{.gradient = [](int64_t) { return kNone; }};
  EXPECT_EQ(none.run(), "no_gradient");
  EXPECT_EQ(sentence_of(none.training.only()), "1 parameter got no gradient since step 2: b");
  GradientLooks at_times{.gradient = [](int64_t n) { return n == 33 ? 0.1 : kNone; }};
  EXPECT_EQ(at_times.run(), "");
  // It changes between the looks, so that it had a gradient there.
  GradientLooks changes{.value = [](int64_t n) { return n > 100 ? 2 : 1; },
                        .gradient = [](int64_t) { return kNone; }};
  EXPECT_EQ(changes.run(), "");
}

TEST(Conditions, LooksAtGradientsFindThoseOfExactlyZeroUnderWeightDecay) {
  GradientLooks decays{.value = [](int64_t n) { return std::pow(0.999, static_cast<double>(n)); },
                       .gradient = [](int64_t) { return 0.0; }};
  EXPECT_EQ(decays.run(), "zero_gradient");
  EXPECT_EQ(sentence_of(decays.training.only()), "the gradient of 1 parameter is exactly 0 since step 2: b");
  GradientLooks grows{.value = [](int64_t n) { return 1 + 1e-3 * static_cast<double>(n); },
                      .gradient = [](int64_t) { return 0.0; }};
  EXPECT_EQ(grows.run(), "");
}

TEST(Conditions, LooksAtGradientsFindParametersThatDoNotChange) {
  GradientLooks still;
  EXPECT_EQ(still.run(), "gradient_unused");
  EXPECT_EQ(sentence_of(still.training.only()),
            "1 parameter has gradients and does not change since step 3: b");
  GradientLooks tiny_gradient{.gradient = [](int64_t) { return 1e-6; }};  // below the spacing of the values
  EXPECT_EQ(tiny_gradient.run(), "");
  GradientLooks moves{.value = [](int64_t n) { return n > 20 ? 1.001 : 1; }};
  EXPECT_EQ(moves.run(), "");
}

TEST(Conditions, LooksAtGradientsFindThatNothingIsTrained) {
  GradientLooks all{.is_other_trained = false};
  EXPECT_EQ(all.run(), "nothing_trained");
  EXPECT_EQ(all.training.only().place, "");
  // Of large tensors only some values are read; others may change if these have no gradient.
  GradientLooks sampled{.gradient = [](int64_t) { return 0.0; }, .elements = 1e6, .is_other_trained = false};
  EXPECT_EQ(sampled.run(), "zero_gradient");
}

TEST(Conditions, LooksAtGradientsFindValuesThatAreNotFinite) {
  GradientLooks nan{.value = [](int64_t n) { return n < 100 ? static_cast<double>(n) : kNone; }};
  EXPECT_EQ(nan.run(), "weights_nonfinite");
  EXPECT_EQ(sentence_of(nan.training.only()),
            "weights hold NaN or Inf since step 33, while their gradients are finite: b");
}

TEST(Conditions, LooksAtGradientsFindThatClippingLeavesLittle) {
  const auto moves = [](int64_t n) { return static_cast<double>(n); };
  GradientLooks clipped{.value = moves}, usual{.value = moves};
  EXPECT_EQ(clipped.run(4000), "clipped_away");
  EXPECT_EQ(clipped.training.only().since_step, 2);
  EXPECT_EQ(usual.run(100), "");
}

// Two ranks with parts of one tensor, with equal losses, and with equal gradients if `is_same`.
std::string name_of_parts(bool is_same, const std::string& second_place = "0 0 0 ") {
  Training training;
  for (int64_t step = 1; step <= 150; ++step)
    for (const int64_t rank : {0, 1}) {
      if (std::ranges::find(GradientLooks::kSteps, step) != GradientLooks::kSteps.end()) {
        GradientFacts facts{.tensor = "a", .shape = "64", .part = std::to_string(rank), .mesh = 1};
        facts.step = step;
        facts.rank = rank;
        facts.world_size = 2;
        facts.parameters = facts.contributions = 1;
        facts.is_whole = true;
        facts.coordinates = rank == 0 ? "0 0 0 " : second_place;
        facts.local = facts.last = GradientLooks::sketch(is_same || rank == 0 ? 1 : 1.5);
        facts.value = GradientLooks::sketch(static_cast<double>(step + rank));
        training.conditions.observe_gradient(facts, &training.begun);
      }
      training.conditions.observe_tensor({.tensor = "a", .step = step, .update_max = 1, .parts = 2});
      training.step({.step = step, .loss = static_cast<double>(step % 7), .is_local_loss = true}, rank);
    }
  return training.name();
}

TEST(Conditions, RanksThatHoldPartsHaveTheSameBatchesIfTheirGradientsAreEqual) {
  EXPECT_EQ(name_of_parts(true), "same_losses");
  EXPECT_EQ(name_of_parts(false), "");
  EXPECT_EQ(name_of_parts(true, "1 0 0 "), "");  // tensor parallel
}

TEST(Conditions, ARateFarBelowItsMaximumCountsAsZero) {
  Training training;
  training.rates(300, [](int64_t n) { return 1e-3 * std::pow(0.9, static_cast<double>(n - 1)); });
  EXPECT_EQ(training.name(), "rate_zero");
  EXPECT_EQ(sentence_of(training.only()),
            "the learning rate of the first parameter group is below 1e-12 since step 198 (largest before: "
            "0.001)");
}

TEST(Conditions, OfTwoRanksWithLossesOfUnlikeSizeEitherMayBeWrongUnlessOneIsZero) {
  const auto sentence_if = [](double first, double second) {
    Training training;
    for (int64_t n = 1; n <= 200; ++n)
      for (const int64_t rank : {0, 1})
        training.step({.step = n,
                       .loss = n <= 50     ? 2
                               : rank == 0 ? first
                                           : second,
                       .is_local_loss = true},
                      rank);
    return sentence_of(training.only());
  };
  EXPECT_TRUE(sentence_if(5, 2).starts_with("the losses of ranks 0 and 1 are apart since step 51: "));
  EXPECT_TRUE(sentence_if(2, 5).starts_with("the losses of ranks 1 and 0 are apart since step 51: "));
  EXPECT_EQ(sentence_if(2, 0),
            "the loss of rank 1 is apart from those of the other ranks since step 51: 0, the median of the "
            "ranks is 2");
}

TEST(Conditions, ARestartedAgentContinues) {
  Training whole, first, second;
  std::mt19937_64 engine(11);
  std::normal_distribution<double> noise(0, 0.05);
  std::vector<StepFacts> facts;
  for (int64_t n = 1; n <= 300; ++n)
    facts.push_back({.step = n,
                     .loss = n == 150 ? 9 : 2 + noise(engine),
                     .learning_rate = n > 130 ? 0 : 1e-2,
                     .skipped_steps = static_cast<uint64_t>(n / 2)});
  for (const StepFacts& each : facts) whole.step(each);
  for (size_t n = 0; n < 151; ++n) first.step(facts[n]);
  StateWriter writer;
  first.conditions.fields(writer);
  StateReader reader(writer.bytes());
  second.conditions.fields(reader);
  ASSERT_TRUE(reader.good() && reader.at_end());
  for (size_t n = 151; n < facts.size(); ++n) second.step(facts[n]);
  EXPECT_EQ(whole.name(), "steps_skipped, rate_zero, lone_loss");
  const auto a = whole.conditions.found(), b = second.conditions.found();
  ASSERT_EQ(a.size(), b.size());
  for (size_t n = 0; n < a.size(); ++n) EXPECT_EQ(sentence_of(a[n]), sentence_of(b[n]));
}

}  // namespace
}  // namespace foreshock
