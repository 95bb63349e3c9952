// Weights from the ABI to the segment.
#include "libmonitor/weights.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "kernels/sums.h"
#include "libmonitor/base.h"
#include "segment/reader.h"
#include "tests/libmonitor/described_weights.h"
#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {
namespace {

class WeightsTest : public MonitorTest {};

// Two matrices of fp32, one larger than what is told as values.
struct Model {
  Trainer trainer;
  std::vector<float> small = std::vector<float>(6, 1.5f), large = std::vector<float>(100 * 100);
  std::set<uint32_t> seen;

  Model() {
    for (size_t n = 0; n < large.size(); ++n) large[n] = 0.01f * static_cast<float>(n % 321) - 1;
  }
  int name() {
    const foreshock_weight weights[] = {named("small", 2, 3), named("large", 100, 100)};
    return foreshock_name_weights(weights, 2);
  }
  // One step in which every weight grows by `change`.
  size_t step(int64_t number, float change) {
    uint32_t due[8] = {};
    const size_t count = foreshock_weights_due(due, 8);
    std::vector<foreshock_weight_state> states;
    for (size_t n = 0; n < count; ++n)
      states.push_back(due[n] == 0 ? state_of(0, small.data(), 2, 3) : state_of(1, large.data(), 100, 100));
    foreshock_observe_weights(states.data(), count, FORESHOCK_BEFORE_STEP);
    for (float& weight : small) weight += change;
    for (float& weight : large) weight += change;
    foreshock_observe_weights(states.data(), count, FORESHOCK_AFTER_STEP);
    trainer.end(number);
    return count;
  }
};

TEST_F(WeightsTest, EachTensorIsWrittenOnceInEveryInterval) {
  in_child({{"FORESHOCK_WEIGHTS", "4"}}, [this] {
    Model model;
    model.trainer.step(1, 1);
    ASSERT_EQ(model.name(), 2);
    size_t written = 0;
    for (int64_t step = 2; step < 22; ++step) written += model.step(step, 0.25f);
    EXPECT_EQ(written, 2u * 20 / 4);
    auto reader = open();
    EXPECT_EQ(reader->tensor_ring().snapshots_taken, written);
    EXPECT_EQ(reader->tensor_ring().interval, 4u);
    EXPECT_EQ(reader->tensor_ring().elements, 10006u);
    std::map<std::string, int64_t> last;
    uint64_t small_checksum = 0;
    SegmentReader::ReadyTensor ready;
    while (reader->next_tensor(&ready)) {
      ASSERT_EQ(ready.why, nullptr) << ready.why;
      const segment::TensorRecord& record = ready.view.record;
      const std::string name = segment::text_of(record.name);
      if (last.contains(name)) {
        EXPECT_EQ(record.step, last[name] + 4) << name;
      }
      last[name] = record.step;
      EXPECT_EQ(record.step_source, uint32_t{FORESHOCK_STEP_REPORTED});
      double reductions[segment::kTensorReductionCount];
      ASSERT_EQ(ready.view.payload[segment::kTensorReductions].size(), sizeof reductions);
      std::memcpy(reductions, ready.view.payload[segment::kTensorReductions].data(), sizeof reductions);
      // Steps of 1/4 of such values are exact in fp32 but for the last bit.
      EXPECT_NEAR(reductions[segment::kUpdateSumMagnitude], 0.25 * static_cast<double>(record.elements),
                  1e-6 * static_cast<double>(record.elements));
      EXPECT_EQ(record.form,
                name == "small" ? segment::HistogramForm::kValues : segment::HistogramForm::kBins);
      if (name == "small" && record.step == 20) small_checksum = record.checksum;
      reader->consume_tensor();
    }
    EXPECT_EQ(last.size(), 2u);
    for (float& weight : model.small) weight -= 0.25f;  // as after step 20
    EXPECT_EQ(small_checksum, checksum(model.small.data(), 4 * model.small.size()));
  });
}

TEST_F(WeightsTest, WhatCannotBeReadIsCountedWithItsReason) {
  in_child({{"FORESHOCK_WEIGHTS", "1"}}, [this] {
    Model model;
    model.trainer.step(1, 1);
    ASSERT_EQ(model.name(), 2);
    foreshock_weight_state states[5] = {};
    for (auto& state : states) state = state_of(0, model.small.data(), 2, 3);
    states[0].parameter.device_type = FORESHOCK_DEVICE_CUDA;
    states[1].parameter.dtype = FORESHOCK_FP64;
    states[2].parameter.stride[0] = 7;  // a gap after each row
    states[3].parameter.shape[0] = 3;   // not what was named
    states[4].parameter.stride[0] = 1;  // transposed: dense all the same
    states[4].parameter.stride[1] = 2;
    foreshock_observe_weights(states, 5, FORESHOCK_AFTER_STEP);
    const segment::TensorRing ring = open()->tensor_ring();
    EXPECT_EQ(ring.skipped[segment::kTensorDevice], 1u);
    EXPECT_EQ(ring.skipped[segment::kTensorFormat], 1u);
    EXPECT_EQ(ring.skipped[segment::kTensorLayout], 2u);
    EXPECT_EQ(ring.snapshots_taken, 1u);
  });
}

TEST_F(WeightsTest, AnOptimizerAfterTheTickBelongsToTheStepThatHasEnded) {
  in_child({{"FORESHOCK_WEIGHTS", "1"}}, [this] {
    Model model;
    model.trainer.step(1, 1);
    ASSERT_EQ(model.name(), 2);
    model.trainer.step(7, 1);
    const foreshock_weight_state state = state_of(0, model.small.data(), 2, 3);
    foreshock_observe_weights(&state, 1, FORESHOCK_BEFORE_STEP | FORESHOCK_ENDED_STEP);
    for (float& weight : model.small) weight += 0.5f;
    foreshock_observe_weights(&state, 1, FORESHOCK_AFTER_STEP | FORESHOCK_ENDED_STEP);
    foreshock_observe_weights(&state, 1, FORESHOCK_AFTER_STEP);
    auto reader = open();
    segment::SegmentReader::ReadyTensor ready;
    ASSERT_TRUE(reader->next_tensor(&ready));
    EXPECT_EQ(ready.view.record.step, 7);
    const auto* reductions =
        reinterpret_cast<const double*>(ready.view.payload[segment::kTensorReductions].data());
    EXPECT_EQ(reductions[segment::kUpdateMaxMagnitude], 0.5);
    reader->consume_tensor();
    ASSERT_TRUE(reader->next_tensor(&ready));
    EXPECT_EQ(ready.view.record.step, 8);
  });
}

// Whatever becomes of a turn, it is counted once.
TEST_F(WeightsTest, ATurnThatNobodyShowsIsCountedAsUnknown) {
  in_child({{"FORESHOCK_WEIGHTS", "2"}}, [this] {
    Model model;
    model.trainer.step(1, 1);
    ASSERT_EQ(model.name(), 2);
    uint32_t due[8] = {};
    for (int64_t step = 2; step < 12; ++step) {
      if (step % 4 < 2) {
        model.step(step, 0.25f);
      } else {
        foreshock_weights_due(due, 8);
        model.trainer.end(step);
      }
    }
    foreshock_weights_due(due, 8);  // the last ones are told by then
    const segment::TensorRing ring = open()->tensor_ring();
    // Both have their turn at even steps, and were shown at 4 and 8.
    EXPECT_EQ(ring.snapshots_taken, 4u);
    EXPECT_EQ(ring.skipped[segment::kTensorUnknown], 6u);
    EXPECT_EQ(ring.due - ring.snapshots_taken - ring.skipped[segment::kTensorUnknown], 2u) << "step now";
  });
}

TEST_F(WeightsTest, ATensorHasOneTurnInAStep) {
  in_child({{"FORESHOCK_WEIGHTS", "1"}}, [] {
    Model model;
    model.trainer.step(1, 1);
    ASSERT_EQ(model.name(), 2);
    uint32_t due[8] = {};
    ASSERT_EQ(foreshock_weights_due(due, 8), 2u);
    ASSERT_EQ(foreshock_weights_due(due, 8), 2u) << "the step was left out and is tried again";
    const foreshock_weight_state state = state_of(1, model.large.data(), 100, 100);
    foreshock_observe_weights(&state, 1, FORESHOCK_AFTER_STEP);
    ASSERT_EQ(foreshock_weights_due(due, 8), 1u) << "the trainer steps again under the same number";
    EXPECT_EQ(due[0], 0u);
    model.trainer.end(2);
    EXPECT_EQ(foreshock_weights_due(due, 8), 2u);
  });
}

// A master copy in fp32 takes the place of a parameter in bf16 while the optimizer works.
TEST_F(WeightsTest, AnUpdateFromOneFormatToAnotherIsUnknown) {
  in_child({{"FORESHOCK_WEIGHTS", "1"}}, [this] {
    Trainer trainer;
    trainer.step(1, 1);
    const foreshock_weight weights[] = {named("w", 4, 4)};
    ASSERT_EQ(foreshock_name_weights(weights, 1), 1);
    const std::vector<uint16_t> before(16, 0x3f80);
    const std::vector<float> after(16, 1);
    const foreshock_weight_state from = state_of(0, before.data(), 4, 4, FORESHOCK_BF16);
    const foreshock_weight_state to = state_of(0, after.data(), 4, 4);
    foreshock_observe_weights(&from, 1, FORESHOCK_BEFORE_STEP);
    foreshock_observe_weights(&to, 1, FORESHOCK_AFTER_STEP);
    auto reader = open();
    segment::SegmentReader::ReadyTensor ready;
    ASSERT_TRUE(reader->next_tensor(&ready));
    double reductions[segment::kTensorReductionCount];
    std::memcpy(reductions, ready.view.payload[segment::kTensorReductions].data(), sizeof reductions);
    EXPECT_EQ(reductions[segment::kSumOfSquares], 16);
    EXPECT_TRUE(std::isnan(reductions[segment::kUpdateSumMagnitude]))
        << reductions[segment::kUpdateSumMagnitude];
    EXPECT_TRUE(std::isnan(reductions[segment::kUpdateMaxMagnitude]))
        << reductions[segment::kUpdateMaxMagnitude];
  });
}

// Each rank measures the length of its own steps, here far too short for such weights.
TEST_F(WeightsTest, AmongSeveralRanksTheIntervalStaysAndTurnsAreLeftOut) {
  for (const bool is_told_late : {false, true}) {
    in_child({{"FORESHOCK_MAX_SLOWDOWN", "1%"}, {"WORLD_SIZE", is_told_late ? "1" : "2"}, {"RANK", "0"}},
             [&] {
               Model model;
               model.trainer.step(1, 1);
               foreshock_identity identity = {};
               identity.size = sizeof identity;
               identity.version = FORESHOCK_ABI_VERSION;
               identity.world_size = 2;
               if (is_told_late) foreshock_describe(&identity);
               ASSERT_EQ(model.name(), 2);
               size_t shown = 0;
               for (int64_t step = 2; step < 2 + 64 * 8; ++step) shown += model.step(step, 1e-4f);
               const segment::TensorRing ring = open()->tensor_ring();
               EXPECT_EQ(ring.interval, 64u);
               EXPECT_EQ(ring.due, 2u * 8);
               EXPECT_LE(ring.snapshots_taken, shown) << "some are asked for their checksum alone";
               EXPECT_GT(ring.skipped[segment::kTensorBudget], 0u);
               EXPECT_EQ(ring.snapshots_taken + ring.skipped[segment::kTensorBudget], ring.due);
             });
    fs::remove_all(base_ + "/r");
    fs::create_directory(base_ + "/r");
  }
}

// What the helper takes at every step cannot be refused; what may be, waits. A share of each step's time, so
// that a machine which stands still for a while changes nothing.
TEST_F(WeightsTest, WaitWhileTheRestTakesMoreThanTheLimit) {
  in_child({{"FORESHOCK_MAX_SLOWDOWN", "50%"}, {"FORESHOCK_WEIGHTS", "4"}}, [this] {
    Model model;
    int64_t step = 1;
    model.trainer.step(step, 1);
    ASSERT_EQ(model.name(), 2);
    // Returns how many tensors are shown in one step of which `share` was ours.
    const auto train = [&](double share) {
      const uint64_t begin = monotonic_ns();
      usleep(1000);
      uint32_t due[2] = {};
      const size_t count = foreshock_weights_due(due, 2);
      foreshock_weight_state states[2] = {};
      for (size_t n = 0; n < count; ++n)
        states[n] =
            due[n] == 0 ? state_of(0, model.small.data(), 2, 3) : state_of(1, model.large.data(), 100, 100);
      foreshock_observe_weights(states, count, FORESHOCK_AFTER_STEP);
      foreshock_step record = reported_step(++step);
      record.prepare_ns = static_cast<uint64_t>(share * static_cast<double>(monotonic_ns() - begin));
      foreshock_step_end(&record);
      return count;
    };
    const auto quiet_steps = [&](double share) {
      int quiet = 0;
      for (int n = 0; n < 500 && quiet < 40; ++n) quiet = train(share) == 0 ? quiet + 1 : 0;
      return quiet;
    };
    // Where more is owed, perhaps for a first step, each pays 0.4 of its time: 640 steps pay for the most.
    const auto is_shown_again = [&] {
      for (int n = 0; n < 5000; ++n)
        if (train(0.1) > 0) return true;
      return false;
    };
    EXPECT_TRUE(is_shown_again());
    EXPECT_EQ(quiet_steps(0.9), 40);
    EXPECT_TRUE(is_shown_again());
    const segment::TensorRing ring = open()->tensor_ring();
    EXPECT_EQ(ring.due, ring.snapshots_taken + ring.skipped[segment::kTensorBudget] +
                            ring.skipped[segment::kTensorRingFull]);
    EXPECT_EQ(ring.skipped[segment::kTensorUnknown], 0u);
  });
}

// The agent's time on tensors is paid by the share of weights, so that it does not take that of attention.
TEST_F(WeightsTest, TheirSharePaysForTheAgent) {
  for (const bool is_costly : {false, true}) {
    in_child({{"FORESHOCK_MAX_SLOWDOWN", "50%"}}, [&] {
      Model model;
      model.trainer.step(1, 1);
      ASSERT_EQ(model.name(), 2);
      uint64_t spent_ns = 0;
      size_t count = 0;
      for (int64_t step = 2; step < 2 + 64 * 6; ++step) {
        usleep(1000);
        const size_t now = model.step(step, 1e-4f);
        count += now;
        if (!is_costly || now == 0) continue;
        spent_ns += 500'000'000;
        open()->set_agent_cost({0, 0, 0, spent_ns});
      }
      if (is_costly)
        EXPECT_LE(count, 4u);
      else
        EXPECT_GE(count, 10u);
    });
    fs::remove_all(base_ + "/r");
    fs::create_directory(base_ + "/r");
  }
}

TEST_F(WeightsTest, AFullRingIsCountedAndDoesNoHarm) {
  in_child({{"FORESHOCK_WEIGHTS", "1"}, {"FORESHOCK_MEMORY", "4MiB"}}, [this] {
    Model model;
    model.trainer.step(1, 1);
    ASSERT_EQ(model.name(), 2);
    const size_t steps = 2000;
    size_t due = 0;
    for (size_t step = 2; step < steps; ++step) due += model.step(static_cast<int64_t>(step), 1e-4f);
    const segment::TensorRing ring = open()->tensor_ring();
    EXPECT_GT(ring.skipped[segment::kTensorRingFull], 0u);
    EXPECT_EQ(ring.snapshots_taken + ring.skipped[segment::kTensorRingFull], due);
  });
}

TEST_F(WeightsTest, AmongSeveralRanksAFullRingStillHasRoomForChecksums) {
  in_child({{"FORESHOCK_WEIGHTS", "1"}, {"FORESHOCK_MEMORY", "4MiB"}, {"WORLD_SIZE", "2"}, {"RANK", "0"}},
           [this] {
             Model model;
             model.trainer.step(1, 1);
             ASSERT_EQ(model.name(), 2);
             auto reader = open();
             int64_t step = 2;
             while (reader->tensor_ring().skipped[segment::kTensorRingFull] == 0 && step < 2000)
               model.step(step++, 1e-4f);
             const uint64_t full_since = static_cast<uint64_t>(step - 1);
             model.step(step, 1e-4f);
             std::map<std::string, uint64_t> checksums;  // of the last step
             SegmentReader::ReadyTensor ready;
             while (reader->next_tensor(&ready)) {
               ASSERT_EQ(ready.why, nullptr) << ready.why;
               const segment::TensorRecord& record = ready.view.record;
               if (record.form == segment::HistogramForm::kNone) {
                 EXPECT_GE(static_cast<uint64_t>(record.step), full_since);
                 checksums[segment::text_of(record.name)] = record.checksum;
               }
               reader->consume_tensor();
             }
             EXPECT_EQ(checksums["large"], checksum(model.large.data(), 4 * model.large.size()));
             const segment::TensorRing ring = reader->tensor_ring();
             EXPECT_EQ(ring.snapshots_taken + ring.skipped[segment::kTensorRingFull], ring.due);
           });
}

TEST_F(WeightsTest, SwitchedOffNothingIsFollowed) {
  in_child({{"FORESHOCK_WEIGHTS", "off"}}, [test = this] {
    Model model;
    model.trainer.step(1, 1);
    EXPECT_EQ(model.name(), 0);
    EXPECT_EQ(model.step(2, 1), 0u);
    const segment::TensorRing ring = test->open()->tensor_ring();
    EXPECT_EQ(ring.unfollowed[segment::kUnfollowedOff], 2u);
    EXPECT_EQ(ring.tensors, 0u);
  });
}

}  // namespace
}  // namespace foreshock
