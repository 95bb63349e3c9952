#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <utility>

#include "libmonitor/process.h"
#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {
namespace {

using Monitor = MonitorTest;

struct Sums {
  uint64_t calls = 0, unsampled = 0, sampled = 0, skipped = 0;
};
Sums sums_of(const segment::Totals& totals, uint32_t op, uint32_t pass) {
  Sums sums = {totals.calls[op], totals.unsampled[pass], totals.sampled[pass], 0};
  for (uint64_t count : totals.skipped[pass]) sums.skipped += count;
  return sums;
}

TEST_F(Monitor, CountsEveryCallAndSamplesAfterTheFirstStep) {
  in_child({}, [] {
    Trainer trainer;
    for (int n = 1; n <= 5; ++n) trainer.step(n, 3);
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  const segment::Totals totals = reader->totals();
  for (uint32_t pass : {0u, 1u}) {
    const Sums sums = sums_of(totals, pass, pass);
    EXPECT_EQ(sums.calls, 15u);
    EXPECT_EQ(sums.calls, sums.unsampled + sums.sampled + sums.skipped);
    EXPECT_EQ(sums.sampled, 12u);  // the first step had no number yet
  }
  const auto steps = reader->new_steps();
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_EQ(steps[4].step, 5);
  EXPECT_EQ(steps[4].calls, 6u);
  EXPECT_EQ(steps[4].loss, 0.2);
  SegmentReader::Ready ready;
  int judged = 0;
  while (reader->next_ready(&ready)) {
    ASSERT_EQ(ready.why, nullptr) << ready.why;
    EXPECT_GE(ready.view.header.step, 2);
    EXPECT_LE(ready.view.header.step, 5);
    reader->consume_judged(ready);
    ++judged;
  }
  EXPECT_EQ(judged, 24);
}

TEST_F(Monitor, BackwardCallsGiveRowsAndSomeKeyPositionsToo) {
  in_child({}, [] {
    Trainer trainer;
    trainer.gives_key_gradients = true;
    for (int n = 1; n <= 4; ++n) trainer.step(n, 7);
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  SegmentReader::Ready ready;
  int slices[2] = {}, without_keys = 0;
  std::set<std::pair<int64_t, uint64_t>> with_rows;
  std::set<int32_t> layers_with_keys;
  while (reader->next_ready(&ready)) {
    ASSERT_EQ(ready.why, nullptr) << ready.why;
    const segment::Slot& slot = ready.view.header;
    if (slot.pass == 1) ++slices[slot.columns];
    if (slot.pass == 1 && slot.columns == 0) {
      with_rows.insert({slot.step, slot.call});
      without_keys += slot.columns_skip == segment::kColumnsNotChosen;
      // The first sampled call of a layer always gives some.
      if (layers_with_keys.insert(slot.layer).second) {
        EXPECT_EQ(slot.columns_skip, segment::kColumnsTaken);
      }
    } else {
      EXPECT_EQ(slot.columns_skip, segment::kColumnsTaken);
    }
    if (slot.columns == 1) {
      EXPECT_TRUE(with_rows.contains({slot.step, slot.call}));
      EXPECT_EQ(slot.pass, 1u);
      EXPECT_EQ(slot.rows, 8u);
      EXPECT_EQ(slot.keys, 8u);
      EXPECT_EQ(ready.view.payload[segment::kGradKey].size(), 8u * 16 * sizeof(float));
      EXPECT_EQ(reinterpret_cast<const float*>(ready.view.payload[segment::kGradOut].data())[5], 0.5f);
    }
    reader->consume_judged(ready);
  }
  EXPECT_EQ(slices[0], 21);
  // 7 of the first step, and a chance of one half for each of 14: fewer than 2, or more than 12, in one seed
  // of 550.
  EXPECT_GE(slices[1], 9);
  EXPECT_LE(slices[1], 19);
  EXPECT_EQ(slices[0], slices[1] + without_keys);
  // Only calls count.
  EXPECT_EQ(reader->judged(1), 21u);
  EXPECT_EQ(reader->totals().sampled[1], 21u);
}

TEST_F(Monitor, LoggedScalarsRideOnTheStepThatEndsNext) {
  in_child({}, [] {
    Trainer trainer;
    foreshock_scalar given[2] = {{sizeof(foreshock_scalar), FORESHOCK_ABI_VERSION, "train/loss", 2.5, 0},
                                 {sizeof(foreshock_scalar), FORESHOCK_ABI_VERSION, "lr", 1e-3, -1}};
    EXPECT_EQ(foreshock_observe_scalars(given, 2), 0);  // no segment yet
    trainer.step(1, 1);
    EXPECT_EQ(foreshock_observe_scalars(given, 2), 2);
    trainer.step(2, 1);
    trainer.step(3, 1);
    EXPECT_EQ(foreshock_observe_scalars(nullptr, 1), 0);
    given[0].size = 8;  // of another release
    EXPECT_EQ(foreshock_observe_scalars(given, 1), 0);
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->scalar_names(), std::vector<std::string>({"train/loss", "lr"}));
  const auto steps = reader->new_steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].scalars_given, 0u);
  EXPECT_EQ(steps[1].scalars_given, 3u);
  EXPECT_EQ(steps[1].scalars[0], 2.5);
  EXPECT_EQ(steps[1].scalar_step[0], 0);
  EXPECT_EQ(steps[1].scalar_step[1], -1);
  EXPECT_EQ(steps[2].scalars_given, 0u);
}

TEST_F(Monitor, WhatIsLoggedIsTheGradientNormWhileNoneIsSeen) {
  in_child({}, [] {
    Trainer trainer;
    const auto log = [](double value) {
      foreshock_scalar given = {sizeof(foreshock_scalar), FORESHOCK_ABI_VERSION, "grad_norm", value, 0};
      foreshock_observe_scalars(&given, 1);
    };
    trainer.step(1, 1);
    log(3);
    trainer.step(2, 1);
    trainer.step(3, 1);
    foreshock_gradient seen = {};
    seen.size = sizeof seen;
    seen.version = FORESHOCK_ABI_VERSION;
    seen.sum_of_squares = 4;
    foreshock_observe_gradients(&seen, 1);
    log(5);
    trainer.step(4, 1);
    log(6);
    trainer.step(5, 1);
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  const auto steps = reader->new_steps();
  ASSERT_EQ(steps.size(), 5u);
  const auto norm = [&](size_t n) {
    return (steps[n].given & FORESHOCK_GIVEN_GRADIENT_NORM) != 0 ? steps[n].gradient_norm : -1;
  };
  EXPECT_EQ(norm(0), -1);
  EXPECT_EQ(norm(1), 3);
  EXPECT_EQ(norm(2), -1) << "nothing was logged";
  EXPECT_EQ(norm(3), 2);
  EXPECT_EQ(norm(4), -1) << "of one that is seen now and then the others are not filled up";
}

TEST_F(Monitor, AProcessThatNeverTrainsLeavesNothing) {
  in_child({}, [] {
    Trainer trainer;
    for (int n = 0; n < 100; ++n) trainer.attention(false);
    EXPECT_EQ(trainer.described, 0);
    EXPECT_EQ(foreshock_enabled(), 0);
  });
  EXPECT_TRUE(fs::is_empty(base_ + "/r"));
}

TEST_F(Monitor, SwitchedOffByTheEnvironment) {
  in_child({{"FORESHOCK", "0"}}, [] {
    Trainer trainer;
    for (int n = 1; n <= 3; ++n) trainer.step(n, 2);
    EXPECT_EQ(foreshock_enabled(), 0);
  });
  EXPECT_TRUE(fs::is_empty(base_ + "/r"));
}

TEST_F(Monitor, AnUnwritableDirectoryIsOffWithoutAWord) {
  in_child({{"FORESHOCK_RUN_ID", "missing"}}, [] {
    Trainer trainer;
    for (int n = 1; n <= 3; ++n) trainer.step(n, 2);
    EXPECT_EQ(foreshock_enabled(), 0);
  });
}

TEST_F(Monitor, EveryReasonToSkipIsCountedAsItself) {
  in_child({}, [] {
    Trainer trainer;
    trainer.step(1, 1);
    const auto enter = [&] {
      return foreshock_attention_enter(trainer.forward_op, FORESHOCK_NEEDS_GRADIENT);
    };
    ASSERT_NE(enter(), 0);
    foreshock_attention_call call = trainer.call(trainer.forward_op, false);
    call.dropout = -1;  // none that anybody could take into account
    foreshock_attention_leave(&call);
    // One call a step was seen: the second in this step is sampled by chance only, so a new step begins.
    trainer.end(2);
    ASSERT_NE(enter(), 0);
    call = trainer.call(trainer.forward_op, false);
    call.mask = call.query;
    foreshock_attention_leave(&call);
    trainer.end(3);
    ASSERT_NE(enter(), 0);
    foreshock_attention_skip(trainer.forward_op, FORESHOCK_SKIP_UNKNOWN);
  });
  const segment::Totals totals = open()->totals();
  EXPECT_EQ(totals.skipped[0][FORESHOCK_SKIP_DROPOUT], 1u);
  EXPECT_EQ(totals.skipped[0][FORESHOCK_SKIP_MASK], 1u);
  EXPECT_EQ(totals.skipped[0][FORESHOCK_SKIP_UNKNOWN], 1u);
  EXPECT_EQ(totals.calls[0], 4u);
}

TEST_F(Monitor, AFullRingIsCountedAndForgotten) {
  in_child({}, [] {
    Trainer trainer;
    for (int n = 1; n <= 200; ++n) trainer.step(n, 4);  // nobody reads
  });
  const segment::Totals totals = open()->totals();
  for (uint32_t pass : {0u, 1u}) {
    const Sums sums = sums_of(totals, pass, pass);
    EXPECT_EQ(sums.calls, 800u);
    EXPECT_EQ(sums.calls, sums.unsampled + sums.sampled + sums.skipped);
  }
  EXPECT_EQ(totals.sampled[0] + totals.sampled[1], uint64_t{segment::kMaxSlots});
}

TEST_F(Monitor, OnlyMultiplesOfTheIntervalAreSampled) {
  in_child({{"FORESHOCK_EVERY", "4"}}, [] {
    Trainer trainer;
    for (int n = 1000; n <= 1012; ++n) trainer.step(n, 1);
  });
  auto reader = open();
  SegmentReader::Ready ready;
  std::vector<int64_t> steps;
  while (reader->next_ready(&ready)) {
    steps.push_back(ready.view.header.step);
    reader->consume_judged(ready);
  }
  EXPECT_EQ(steps, std::vector<int64_t>({1004, 1004, 1008, 1008, 1012, 1012}));
}

TEST_F(Monitor, OneOperationByTwoWaysHasOneNumber) {
  in_child({}, [] {
    Trainer trainer;
    EXPECT_EQ(foreshock_register_op("test::forward", FORESHOCK_FORWARD), trainer.forward_op);
    EXPECT_EQ(foreshock_register_op("test::backward", FORESHOCK_BACKWARD), trainer.backward_op);
    EXPECT_NE(foreshock_register_op("test::forward", FORESHOCK_BACKWARD), trainer.forward_op);
  });
}

// Another thread may register it, for example when a library is imported late.
TEST_F(Monitor, AnOperationThatComesWhileTheSegmentIsCreatedIsInIt) {
  in_child({}, [] {
    foreshock_register_op("test::early", FORESHOCK_FORWARD);
    ASSERT_TRUE(
        g_process.create_segment_once(0, [] { foreshock_register_op("test::late", FORESHOCK_FORWARD); }));
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->ops().size(), 2u);
}

TEST_F(Monitor, TheLastOperationThatThereIsRoomForIsCountedToo) {
  in_child({{"FORESHOCK_EVERY", "1000"}}, [] {
    Trainer trainer;
    for (uint32_t n = 2; n < segment::kMaxOps; ++n)
      ASSERT_EQ(foreshock_register_op(("test::" + std::to_string(n)).c_str(), FORESHOCK_FORWARD),
                static_cast<int32_t>(n));
    EXPECT_EQ(foreshock_register_op("test::one_too_many", FORESHOCK_FORWARD), -1);
    EXPECT_EQ(foreshock_attention_enter(-1, FORESHOCK_NEEDS_GRADIENT), 0);
    trainer.step(1, 1);
    trainer.forward_op = segment::kMaxOps - 1;
    trainer.step(2, 5);
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  ASSERT_EQ(reader->ops().size(), segment::kMaxOps);
  const segment::Totals totals = reader->totals();
  EXPECT_EQ(totals.calls[0], 1u);
  EXPECT_EQ(totals.calls[1], 6u);
  EXPECT_EQ(totals.calls[segment::kMaxOps - 1], 5u);
  EXPECT_EQ(totals.unsampled[0], 6u);
}

TEST_F(Monitor, NamesAloneMakeNoSegmentAndAreInTheOneThatComes) {
  in_child({}, [this] {
    Trainer trainer;
    const int weight = 0;
    const foreshock_parameter query = {sizeof query, 1, &weight, "blocks.7.query.weight", "007", 1};
    EXPECT_EQ(foreshock_name_parameters(&query, 1), 1);
    EXPECT_TRUE(fs::is_empty(base_ + "/r"));
    for (int64_t step = 1; step <= 2; ++step) {
      if (foreshock_attention_enter(trainer.forward_op, FORESHOCK_NEEDS_GRADIENT) != 0) {
        foreshock_attention_call call = trainer.call(trainer.forward_op, false);
        call.layer_identity = &weight;
        foreshock_attention_leave(&call);
      }
      trainer.end(step);
    }
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  SegmentReader::Ready ready;
  ASSERT_TRUE(reader->next_ready(&ready));
  EXPECT_EQ(ready.view.header.layer_source, static_cast<uint32_t>(segment::LayerSource::kParameter));
  const auto layers = reader->layers();
  ASSERT_EQ(layers.size(), 1u);
  EXPECT_STREQ(layers[0].label, "007");
}

TEST_F(Monitor, TheInventoryOfAttentionIsInTheSegmentThatComes) {
  in_child({}, [] {
    Trainer trainer;
    const int weight = 0;
    const foreshock_parameter query = {sizeof query, 1, &weight, "blocks.7.query.weight", "007", 1};
    foreshock_name_parameters(&query, 1);
    const auto mixer = [](const char* layer, const char* name, uint32_t kind, uint32_t is_trained) {
      return foreshock_mixer{sizeof(foreshock_mixer), 1, layer, name, kind, is_trained};
    };
    const foreshock_mixer mixers[] = {mixer("007", "Head", FORESHOCK_MIXER_ATTENTION, 1),
                                      mixer("007", "Head", FORESHOCK_MIXER_ATTENTION, 1),
                                      mixer("008", "Attention", FORESHOCK_MIXER_ATTENTION, 0),
                                      mixer(nullptr, "Attention", FORESHOCK_MIXER_ATTENTION, 1),
                                      mixer("009", "MambaMixer", FORESHOCK_MIXER_OTHER, 1),
                                      mixer("010", "Mamba", FORESHOCK_MIXER_OTHER, 1),
                                      mixer("011", "Mamba", FORESHOCK_MIXER_OTHER, 1)};
    EXPECT_EQ(foreshock_name_mixers(mixers, 7), 7);
    for (int64_t step = 1; step <= 2; ++step) {
      if (foreshock_attention_enter(trainer.forward_op, FORESHOCK_NEEDS_GRADIENT) != 0) {
        foreshock_attention_call call = trainer.call(trainer.forward_op, false);
        call.layer_identity = &weight;
        if (step == 2) call.causal = 99;
        foreshock_attention_leave(&call);
      }
      trainer.end(step);
    }
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  const segment::Coverage coverage = reader->coverage();
  EXPECT_EQ(coverage.inventory_is_known, 1u);
  EXPECT_EQ(coverage.attention_layers, 3u) << "two heads of one layer, another layer, one without a label";
  EXPECT_EQ(coverage.other_mixers, 3u);
  EXPECT_STREQ(coverage.mixer_names, "MambaMixer, Mamba");
  const auto layers = reader->layers();
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].attention, segment::kHasAttention | segment::kTrainsAttention | segment::kForwardSeen |
                                     segment::kForwardNeedsGradient);
  EXPECT_EQ(layers[0].skipped[0], 1u << FORESHOCK_SKIP_LAYOUT);
  EXPECT_STREQ(layers[1].label, "008");
  EXPECT_EQ(layers[1].attention, uint32_t{segment::kHasAttention});
}

// There are 512 layers at most. What is told again is counted again, and forgetting it, as where a model
// goes, is no news.
TEST_F(Monitor, NamesThatHaveNoRoomAreCounted) {
  in_child({}, [] {
    std::vector<char> weights(1200);
    std::vector<std::string> labels;
    for (size_t n = 0; n < 600; ++n) labels.push_back(std::to_string(n));
    std::vector<foreshock_parameter> rows;
    for (size_t n = 0; n < 600; ++n)
      rows.push_back({sizeof(foreshock_parameter), 1, &weights[n], "a", labels[n].c_str(), 1});
    foreshock_name_parameters(rows.data(), rows.size());  // before there is a segment
    Trainer trainer;
    for (int64_t step = 1; step <= 2; ++step) {
      trainer.attention(false, FORESHOCK_NEEDS_GRADIENT);
      trainer.end(step);
    }
    EXPECT_EQ(foreshock_name_parameters(rows.data(), rows.size()), 512);
    foreshock_name_parameters(nullptr, 0);
    foreshock_gradients_too_many();
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->coverage().parameters_unnamed, 88u);
  EXPECT_EQ(reader->coverage().norms_untold, 1u);
}

// The address of a weight may be another one's by now: who says so by naming none is believed.
TEST_F(Monitor, NamesOfOtherWeightsThanAreThereNowAreForgotten) {
  in_child({}, [] {
    Trainer trainer;
    const int weight = 0;
    const foreshock_parameter query = {sizeof query, 1, &weight, "blocks.7.query.weight", "007", 1};
    foreshock_name_parameters(&query, 1);
    for (int64_t step = 1; step <= 3; ++step) {
      if (foreshock_attention_enter(trainer.forward_op, FORESHOCK_NEEDS_GRADIENT) != 0) {
        foreshock_attention_call call = trainer.call(trainer.forward_op, false);
        call.layer_identity = &weight;
        foreshock_attention_leave(&call);
      }
      trainer.end(step);
      if (step == 2) {
        EXPECT_EQ(foreshock_name_parameters(nullptr, 0), 0);
      }
    }
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  std::vector<uint32_t> sources;
  SegmentReader::Ready ready;
  while (reader->next_ready(&ready)) {
    sources.push_back(ready.view.header.layer_source);
    reader->consume_judged(ready);
  }
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0], static_cast<uint32_t>(segment::LayerSource::kParameter));
  EXPECT_EQ(sources[1], static_cast<uint32_t>(segment::LayerSource::kUnknown));
}

// A C++ trainer shows which weight a query came from, but nobody may have said what that weight is called.
TEST_F(Monitor, WeightsWithoutAnyNameLeaveTheOrderOfCalls) {
  const auto train = [](bool named) {
    Trainer trainer;
    const int weights[2] = {};
    for (int64_t step = 1; step <= 4; ++step) {
      for (int layer = 0; layer < 2; ++layer) {
        if (foreshock_attention_enter(trainer.forward_op, FORESHOCK_NEEDS_GRADIENT) == 0) continue;
        foreshock_attention_call call = trainer.call(trainer.forward_op, false);
        call.layer_identity = &weights[layer];
        foreshock_attention_leave(&call);
      }
      for (int layer = 0; layer < 2; ++layer) trainer.attention(true, FORESHOCK_IN_BACKWARD);
      const foreshock_parameter other = {sizeof other, 1, &trainer, "embedding.weight", "embedding", 1};
      if (named) foreshock_name_parameters(&other, 1);
      trainer.end(step);
    }
  };
  for (const bool named : {false, true}) {
    TearDown();
    SetUp();
    in_child({}, [&] { train(named); });
    auto reader = open();
    SegmentReader::Ready ready;
    std::vector<uint32_t> sources;
    while (reader->next_ready(&ready)) {
      const segment::Slot& slot = ready.view.header;
      if (slot.step == 4 && slot.op == 0) sources.push_back(slot.layer_source);
      reader->consume_judged(ready);
    }
    const auto wanted = named ? segment::LayerSource::kUnnamedParameter : segment::LayerSource::kOrdinal;
    EXPECT_EQ(sources, std::vector<uint32_t>(2, static_cast<uint32_t>(wanted)));
  }
}

TEST_F(Monitor, ATickDuringBackwardTakesEffectAtTheNextForward) {
  in_child({}, [] {
    Trainer trainer;
    trainer.step(1, 2);
    for (int n = 2; n <= 4; ++n) {  // an optimizer inside the backward pass
      trainer.attention(false, FORESHOCK_NEEDS_GRADIENT);
      trainer.attention(true, FORESHOCK_IN_BACKWARD);
      trainer.end(n);
      trainer.attention(true, FORESHOCK_IN_BACKWARD);
    }
  });
  auto reader = open();
  SegmentReader::Ready ready;
  std::vector<int> per_step(8);
  while (reader->next_ready(&ready)) {
    ++per_step[ready.view.header.step];
    reader->consume_judged(ready);
  }
  EXPECT_EQ(per_step, std::vector<int>({0, 0, 3, 3, 3, 0, 0, 0}));
}

TEST_F(Monitor, ForwardCallsThatAreSeenInBackwardPassesOnlyAreSampled) {
  in_child({}, [] {
    Trainer trainer;
    for (int n = 1; n <= 4; ++n) {
      trainer.attention(false, FORESHOCK_NEEDS_GRADIENT | FORESHOCK_IN_BACKWARD);
      trainer.attention(true, FORESHOCK_IN_BACKWARD);
      trainer.end(n);
    }
  });
  auto reader = open();
  SegmentReader::Ready ready;
  std::vector<int> per_step(6);
  while (reader->next_ready(&ready)) {
    ++per_step[ready.view.header.step];
    reader->consume_judged(ready);
  }
  EXPECT_EQ(per_step, std::vector<int>({0, 0, 0, 2, 2, 0}));
}

TEST_F(Monitor, ThreadsCountExactly) {
  in_child({{"FORESHOCK_EVERY", "3"}}, [] {
    Trainer trainer;
    trainer.step(1, 1);
    for (int n = 2; n <= 30; ++n) {
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t)
        threads.emplace_back([&trainer, t] {
          for (int call = 0; call < 40; ++call) {
            const int32_t op = t == 2 ? trainer.backward_op : trainer.forward_op;
            if (foreshock_attention_enter(op, t == 2 ? FORESHOCK_IN_BACKWARD : FORESHOCK_NEEDS_GRADIENT) == 0)
              continue;
            const auto description = trainer.call(op, t == 2);
            foreshock_attention_leave(&description);
          }
        });
      for (std::thread& thread : threads) thread.join();
      trainer.end(n);
    }
  });
  const segment::Totals totals = open()->totals();
  EXPECT_EQ(totals.calls[0], 1u + 29 * 80);
  EXPECT_EQ(totals.calls[1], 1u + 29 * 40);
  for (uint32_t pass : {0u, 1u}) {
    const Sums sums = sums_of(totals, pass, pass);
    EXPECT_EQ(sums.calls, sums.unsampled + sums.sampled + sums.skipped);
  }
}

TEST_F(Monitor, CallOfAnotherReleaseIsCountedAndNotRead) {
  in_child({}, [] {
    Trainer trainer;
    trainer.step(1, 1);
    ASSERT_NE(foreshock_attention_enter(trainer.forward_op, FORESHOCK_NEEDS_GRADIENT), 0);
    foreshock_attention_call call = trainer.call(trainer.forward_op, false);
    call.size = offsetof(foreshock_attention_call, layer_identity);
    foreshock_attention_leave(&call);
  });
  auto reader = open();
  EXPECT_EQ(reader->totals().sampled[0], 0u);
  EXPECT_EQ(reader->totals().skipped[0][FORESHOCK_SKIP_UNKNOWN], 1u);
  SegmentReader::Ready ready;
  EXPECT_FALSE(reader->next_ready(&ready));
}

}  // namespace
}  // namespace foreshock
