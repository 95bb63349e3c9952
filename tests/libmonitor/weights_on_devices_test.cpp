// Weights on a device: what is told of them is what the host would tell of the same values.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/device_code.h"
#include "kernels/sums.h"
#include "libmonitor/monitor.h"
#include "libmonitor/weight_measure.h"
#include "segment/layout.h"
#include "tests/libmonitor/device_weights.h"
#include "tests/support/emulated_device.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;

class WeightsOnDevices : public DeviceWeightsTest {};

// Told as values, fetched as values, and counted there: both formats.
void add_all(WeightTrainer* weights) {
  weights->add("few", 3, 5);
  weights->add("some", 300, 211);
  weights->add("many", 1031, 1031);
  weights->add("few_bf16", 7, 11, FORESHOCK_BF16);
  weights->add("some_bf16", 101, 103, FORESHOCK_BF16);
  weights->add("many_bf16", 400, 331, FORESHOCK_BF16);
}

StoredRecords only_of_step(const StoredRecords& all, int64_t step) {
  StoredRecords found;
  for (const auto& [key, record] : all)
    if (key.second == step) found[key] = record;
  return found;
}

TEST_F(WeightsOnDevices, TellWhatTheHostTellsOfTheSameValues) {
  StoredRecords of[2];
  for (const bool on_device : {false, true}) {
    follow([on_device](WeightTrainer& weights) {
      weights.on_device = on_device;
      add_all(&weights);
      weights.set_up();
      for (int n = 0; n < 3; ++n) weights.step();
      weights.trainer.end_step();
    });
    of[on_device] = records();
    clear();
  }
  const StoredRecords host = only_of_step(of[false], 4), device = only_of_step(of[true], 4);
  ASSERT_EQ(host.size(), 6u);
  ASSERT_EQ(device.size(), 6u);
  for (const auto& [key, theirs] : host) {
    SCOPED_TRACE(key.first);
    const StoredRecord& ours = device.at(key);
    EXPECT_EQ(ours.record.form, theirs.record.form);
    EXPECT_EQ(ours.record.checksum, theirs.record.checksum);
    EXPECT_EQ(ours.record.elements, theirs.record.elements);
    EXPECT_EQ(ours.record.dtype, theirs.record.dtype);
    EXPECT_EQ(ours.record.interval, theirs.record.interval);
    EXPECT_EQ(ours.payload[segment::kTensorHistogram], theirs.payload[segment::kTensorHistogram]);
    // Sums of n positive numbers in two orders: n * 2^-53 of each apart at most.
    const double apart = 2 * static_cast<double>(ours.record.elements) * 0x1p-53;
    const auto expect_near = [&, &theirs = theirs](segment::TensorPayloadId id, uint32_t n) {
      const double expected = theirs.number(id, n);
      EXPECT_NEAR(ours.number(id, n), expected, apart * std::fabs(expected)) << n;
      EXPECT_GT(expected, 0) << n;
    };
    expect_near(segment::kTensorReductions, segment::kSumOfSquares);
    for (const uint32_t n : {segment::kGradientSumOfSquares, segment::kStalenessSum})
      expect_near(segment::kTensorOptimizer, n);
    for (uint32_t n = 0; n < segment::kOptimizerNumbers; ++n) {
      if (n == segment::kGradientSumOfSquares || n == segment::kStalenessSum) continue;
      EXPECT_EQ(ours.number(segment::kTensorOptimizer, n), theirs.number(segment::kTensorOptimizer, n)) << n;
    }
    // What the step has changed is known of the host's alone: it is absent, not 0.
    EXPECT_FALSE(std::isnan(theirs.number(segment::kTensorReductions, segment::kUpdateSumMagnitude)));
    for (uint32_t n = 0; n < segment::kTensorReductionCount; ++n)
      EXPECT_EQ(std::isnan(ours.number(segment::kTensorReductions, n)), n != segment::kSumOfSquares) << n;
  }
}

TEST_F(WeightsOnDevices, OfTheLastStepAreWrittenAtTheEndOfTheProcess) {
  StoredRecords of[2];
  for (const bool at_end : {false, true}) {
    follow([at_end](WeightTrainer& weights) {
      add_all(&weights);
      weights.set_up();
      for (int n = 0; n < 2; ++n) weights.step();
      weights.step(false);
      fake_cuda::run_all();
      const size_t calls = fake_cuda::calls().size();
      if (at_end) g_monitor.finish_at_exit();
      EXPECT_EQ(fake_cuda::calls().size(), calls) << "no device is asked";
    });
    of[at_end] = records();
    clear();
  }
  EXPECT_EQ(only_of_step(of[0], 5).size(), 0u);
  EXPECT_EQ(only_of_step(of[1], 5).size(), 6u);
  EXPECT_EQ(of[1].size(), of[0].size() + 6);
}

// Bit for bit what the kernel gives, launched otherwise.
TEST_F(WeightsOnDevices, SumsOfTheOptimizerAreThoseOfTheKernel) {
  follow([](WeightTrainer& weights) {
    add_all(&weights);
    weights.set_up();
    for (int n = 0; n < 2; ++n) weights.step();
  });
  const auto device = records();
  DeviceTrainer unused;
  WeightTrainer same(unused);
  unused.step = 2;  // the record's step is 3, which is the optimizer's own count too
  add_all(&same);
  uint32_t compared = 0;
  for (uint32_t n = 0; n < same.tensors.size(); ++n) {
    const auto found = device.find({same.tensors[n].name, 3});
    if (found == device.end()) continue;
    ++compared;
    const foreshock_weight_state state = same.state(n);
    WeightWork work;
    ASSERT_TRUE(plan_weight(state.parameter, same.tensors[n].count(), optimizer_of(state), &work));
    ASSERT_TRUE(work.has_moment);
    std::vector<uint64_t> room(work.bytes / 8 + 64);
    const auto at = (reinterpret_cast<uint64_t>(room.data()) + 255) / 256 * 256;
    const AdamSumsJob job = sums_of_moment(work, at);
    ASSERT_TRUE(
        run_emulated(name_of(DeviceKernel::kAdamSums), launch_of(job, DeviceLimits{1, 64 << 10}), &job));
    const AdamSums& sums = reinterpret_cast<const WeightResults*>(at)->moment;
    const auto number = [&](uint32_t of) { return found->second.number(segment::kTensorOptimizer, of); };
    EXPECT_EQ(number(segment::kStalenessSum), sums.staleness);
    EXPECT_EQ(number(segment::kGradientSumOfSquares), sums.gradient_squares);
    EXPECT_EQ(number(segment::kMomentElements), static_cast<double>(sums.counted));
    EXPECT_EQ(number(segment::kSurpriseElements), static_cast<double>(sums.surprise_counted));
  }
  EXPECT_EQ(compared, same.tensors.size());
}

// Kernels and an event, nothing else, on the trainer's stream; the driver's entry points that wait are not
// among those that are looked up at all. What follows is on our own, which leaves the room as it was.
TEST_F(WeightsOnDevices, NothingButKernelsIsGivenToTheTrainersStream) {
  follow([](WeightTrainer& weights) {
    weights.stream = fake_cuda::new_stream(0);
    weights.add("many", 1031, 1031);
    weights.set_up(2);
    weights.step(false);
    EXPECT_EQ(
        names_of_calls(weights.stream),
        Names({"cuStreamGetCtx", "cuStreamIsCapturing", "cuLaunchKernel", "cuLaunchKernel", "cuLaunchKernel",
               "cuLaunchKernel", "cuLaunchKernel", "cuLaunchKernel", "cuEventRecord"}));
    EXPECT_EQ(names_of_calls(fake_cuda::own_stream(0)),
              Names({"cuStreamWaitEvent", "cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuStreamWriteValue64"}));
    const std::set<std::string> others = {"cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxGetId"};
    for (const std::string& name : names_of_calls())
      EXPECT_TRUE(others.contains(name) || count_of(name) <= 6) << name;
    EXPECT_EQ(count_of("cuMemAlloc"), 0);
    fake_cuda::run_all();
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorSetUp, 1, 2);
}

// The memory of a device is taken once, as much as is told, and of no device that has no weights.
TEST_F(WeightsOnDevices, TakeMemoryOnceAndOnlyWhereWeightsAre) {
  follow(
      [](WeightTrainer& weights) {
        weights.add("some", 300, 211);
        weights.trainer.on_device = true;
        weights.trainer.device = 1;
        fake_cuda::set_device(1);
        weights.trainer.train(3);
        const int before = count_of("cuMemAlloc");
        EXPECT_EQ(before, 1) << "of the slices alone";
        fake_cuda::forget_calls();
        EXPECT_EQ(weights.name(), 1);
        for (int n = 0; n < 5; ++n) weights.step();
        for (const fake_cuda::Call& call : fake_cuda::calls()) {
          if (call.name != "cuMemAlloc") continue;
          EXPECT_EQ(call.bytes, WeightStaging::kMostBytes);
        }
        EXPECT_EQ(count_of("cuMemAlloc"), 1);
      },
      "1", fake_cuda::Run::kByHand, 2);
  expect_skipped(segment::kTensorSetUp, 1, 4);
}

// Before the next ones are sent: a step may end before its own have come, as on a device it mostly does.
TEST_F(WeightsOnDevices, WhatHasComeMakesRoomForTheNext) {
  follow([](WeightTrainer& weights) {
    weights.add("many", 1031, 1031);
    weights.set_up();
    for (int n = 0; n < 3; ++n) {
      weights.step(false);
      fake_cuda::run_all();
    }
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorSetUp, 1, 3);
}

// Its allocator gives a tensor's memory to somebody else, or back, in the order of the stream.
TEST_F(WeightsOnDevices, MayBeFreedRightAfterwards) {
  follow([](WeightTrainer& weights) {
    weights.add("many_bf16", 400, 331, FORESHOCK_BF16);
    weights.add("some", 300, 211);
    weights.set_up();
    uint32_t due[4];
    ASSERT_EQ(foreshock_weights_due(due, 4), 2u);
    const foreshock_weight_state states[] = {weights.state(0), weights.state(1)};
    foreshock_observe_weights(states, 2, FORESHOCK_AFTER_STEP);
    fake_cuda::enqueue(weights.stream, [&weights] { weights.tensors.clear(); });
    fake_cuda::run_all();
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorSetUp, 2, 2);
  StoredTensor same("some", 300, 211, FORESHOCK_FP32);
  same.move(2);  // of the step that met the device
  EXPECT_EQ(records().at({"some", 3}).record.checksum, checksum(same.values.data(), same.values.size()));
}

// What tensors lie on belongs to their allocator: with gaps, of another format, or nowhere near their type's
// alignment they are left alone.
TEST_F(WeightsOnDevices, OfAnotherKindAreLeftOutWithTheReason) {
  follow([](WeightTrainer& weights) {
    weights.add("some", 300, 211);
    weights.set_up();
    foreshock_weight_state states[4];
    for (auto& state : states) state = weights.state(0);
    states[0].parameter.dtype = FORESHOCK_FP64;
    states[1].parameter.stride[0] = 300;
    states[2].parameter.data = static_cast<const char*>(states[2].parameter.data) + 1;
    states[3].stream = nullptr;
    for (const auto& state : states) foreshock_observe_weights(&state, 1, FORESHOCK_AFTER_STEP);
    EXPECT_EQ(count_of("cuLaunchKernel"), 0);
  });
  const segment::TensorRing ring = this->ring();
  EXPECT_EQ(ring.skipped[segment::kTensorFormat], 1u);
  EXPECT_EQ(ring.skipped[segment::kTensorLayout], 2u);
  EXPECT_EQ(ring.skipped[segment::kTensorDevice], 1u);
}

// Half of the optimizer on the host: the parameter is told, the moment is not known.
TEST_F(WeightsOnDevices, WhatIsNotThereIsAbsent) {
  follow([](WeightTrainer& weights) {
    weights.add("moment", 300, 211);
    weights.add("gradient", 300, 211);
    weights.add("step", 300, 211);
    weights.set_up();
    foreshock_weight_state states[] = {weights.state(0), weights.state(1), weights.state(2)};
    states[0].square_average.device_type = FORESHOCK_DEVICE_CPU;
    states[1].gradient.data = nullptr;
    states[2].optimizer_step = -1;
    foreshock_observe_weights(states, 3, FORESHOCK_AFTER_STEP);
    fake_cuda::run_all();
    weights.trainer.end_step();
  });
  const auto found = records();
  ASSERT_EQ(found.size(), 3u);
  for (const auto& [key, record] : found) {
    const auto number = [&record = record](uint32_t n) {
      return record.number(segment::kTensorOptimizer, n);
    };
    EXPECT_EQ(std::isnan(number(segment::kGradientSumOfSquares)), key.first == "gradient") << key.first;
    EXPECT_TRUE(std::isnan(number(segment::kStalenessSum))) << key.first;
    EXPECT_EQ(number(segment::kSeenBeta2), 0.95);
  }
}

}  // namespace
}  // namespace foreshock
