// Weights on a device that does not do what it should: every turn is counted once, with the reason, and the
// trainer goes on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "kernels/sums.h"
#include "libmonitor/weight_measure.h"
#include "libmonitor/weights.h"
#include "tests/libmonitor/device_weights.h"

namespace foreshock {
namespace {

class DeviceWeightsFaults : public DeviceWeightsTest {};

constexpr int kSteps = 4;

// In the first step the device is met, which is set up behind its end; the others tell what came of it.
TEST_F(DeviceWeightsFaults, SettingUpThatFails) {
  const std::map<std::string, segment::TensorSkip> calls = {
      {"cuThreadExchangeStreamCaptureMode", segment::kTensorDevice},
      {"cuMemGetInfo", segment::kTensorDevice},
      {"cuModuleLoadData", segment::kTensorDevice},
      {"cuModuleGetFunction", segment::kTensorDevice},
      {"cuFuncLoad", segment::kTensorDevice},
      {"cuFuncSetAttribute", segment::kTensorDevice},
      {"cuCtxGetStreamPriorityRange", segment::kTensorDevice},
      {"cuStreamCreateWithPriority", segment::kTensorDevice},
      {"cuEventCreate", segment::kTensorDevice},
      {"cuMemHostRegister", segment::kTensorDeviceMemory},
      {"cuMemHostGetDevicePointer", segment::kTensorDeviceMemory},
      {"cuMemAlloc", segment::kTensorDeviceMemory},
      {"cuMemsetD8Async", segment::kTensorDevice},
      {"cuStreamWriteValue64", segment::kTensorDevice}};
  for (const auto& [name, reason] : calls) {
    SCOPED_TRACE(name);
    follow([&name = name](WeightTrainer& weights) {
      fake_cuda::set_faults({.failing = name});
      weights.add("some", 300, 211);
      weights.set_up();
      fake_cuda::set_faults({});
      for (int n = 0; n < kSteps; ++n) weights.step();
      EXPECT_EQ(count_of("cuLaunchKernel"), 0);
      EXPECT_EQ(count_of(name), 0) << "not tried again";
    });
    expect_skipped(reason, kSteps, 0);
    clear();
  }
}

TEST_F(DeviceWeightsFaults, ADeviceThatCannotOrHasNoRoom) {
  const std::pair<fake_cuda::Faults, segment::TensorSkip> devices[] = {
      {{.free_bytes = WeightStaging::kLeastBytes * WeightStaging::kShareOfFree - 4096},
       segment::kTensorDeviceMemory},
      {{.stream_operations = 0}, segment::kTensorDevice},
      {{.version = 11080}, segment::kTensorDevice},
      {{.missing = "cuFuncSetAttribute"}, segment::kTensorDevice}};
  for (const auto& [faults, reason] : devices) {
    follow([&faults = faults](WeightTrainer& weights) {
      fake_cuda::set_faults(faults);
      weights.add("some", 300, 211);
      weights.set_up();
      for (int n = 0; n < kSteps; ++n) weights.step();
    });
    expect_skipped(reason, kSteps, 0);
    clear();
  }
}

// Where a block has little shared memory the patterns are counted without it.
TEST_F(DeviceWeightsFaults, LittleSharedMemoryIsNoObstacle) {
  follow([](WeightTrainer& weights) {
    fake_cuda::set_faults({.shared_bytes = 99 << 10});
    weights.add("many_bf16", 400, 331, FORESHOCK_BF16);
    weights.set_up();
    weights.step();
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorSetUp, 1, 1);
}

// Each kernel of a tensor in turn, and what follows them. Those that were sent before are told all the same.
TEST_F(DeviceWeightsFaults, AKernelOrACopyThatCannotBeGiven) {
  std::vector<std::pair<std::string, int>> calls = {{"cuEventRecord", 0},
                                                    {"cuStreamWaitEvent", 0},
                                                    {"cuMemcpyDtoHAsync", 0},
                                                    {"cuMemsetD8Async", 0},
                                                    {"cuStreamWriteValue64", 0}};
  for (int kernel = 0; kernel < 6; ++kernel) calls.emplace_back("cuLaunchKernel", kernel);
  for (const auto& [name, after] : calls) {
    SCOPED_TRACE(name + " " + std::to_string(after));
    follow([&name = name, &after = after](WeightTrainer& weights) {
      weights.add("many_bf16", 400, 331, FORESHOCK_BF16);
      weights.set_up();
      weights.step(false);
      fake_cuda::set_faults({.failing = name, .failing_after = after});
      fake_cuda::forget_calls();
      for (int n = 0; n < kSteps; ++n) weights.step();
      EXPECT_EQ(count_of(name), after + 1) << "not tried again";
    });
    expect_skipped(segment::kTensorDevice, kSteps, 1);
    clear();
  }
}

TEST_F(DeviceWeightsFaults, WhileAStreamIsCapturedNothingIsGivenToIt) {
  follow([](WeightTrainer& weights) {
    weights.stream = fake_cuda::new_stream(0);
    weights.add("some", 300, 211);
    weights.set_up();
    uint32_t due[2];
    ASSERT_EQ(foreshock_weights_due(due, 2), 1u);
    const foreshock_weight_state state = weights.state(0);
    fake_cuda::begin_capture(weights.stream);
    foreshock_observe_weights(&state, 1, FORESHOCK_AFTER_STEP);
    EXPECT_EQ(names_of_calls(weights.stream),
              std::vector<std::string>({"cuStreamGetCtx", "cuStreamIsCapturing"}));
    fake_cuda::end_capture(weights.stream);
    weights.trainer.end_step();
    weights.step();
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorCapture, 1, 1);
}

// Also where the device is met for the first time in a capture of another thread's: set-up spoils none.
TEST_F(DeviceWeightsFaults, ACaptureElsewhereIsNotSpoilt) {
  follow([](WeightTrainer& weights) {
    void* other = fake_cuda::new_stream(0);
    weights.stream = fake_cuda::new_stream(0);
    fake_cuda::begin_capture(other);
    weights.add("some", 300, 211);
    weights.set_up();
    weights.step();
    fake_cuda::end_capture(other);
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorSetUp, 1, 1);
}

// Results that never come are awaited for a number of steps and no longer; their room is not given to others.
TEST_F(DeviceWeightsFaults, ALostContextIsNotAwaitedForEver) {
  follow([this](WeightTrainer& weights) {
    weights.add("many", 1031, 1031);
    weights.set_up();
    weights.step(false);
    EXPECT_EQ(ring().awaited, 1u);
    fake_cuda::set_faults({.is_lost = true});
    for (int n = 0; n < kSteps; ++n) weights.step();
    EXPECT_EQ(ring().awaited, 1u);
    for (int n = 0; n < 1100; ++n) weights.trainer.end_step();
    EXPECT_EQ(ring().awaited, 0u);
  });
  // What was on its way, those that found the context lost, and none that nobody has shown.
  EXPECT_EQ(ring().skipped[segment::kTensorDevice], 1u + kSteps);
  EXPECT_EQ(ring().snapshots_taken, 0u);
}

TEST_F(DeviceWeightsFaults, SlowResultsAreOfTheirOwnStep) {
  follow([this](WeightTrainer& weights) {
    weights.add("some", 300, 211);
    weights.set_up();
    for (int n = 0; n < 3; ++n) weights.step(false);
    EXPECT_EQ(ring().awaited, 3u);
    fake_cuda::run_all();
    weights.trainer.end_step();
    EXPECT_EQ(ring().awaited, 0u);
  });
  StoredTensor same("some", 300, 211, FORESHOCK_FP32);
  const StoredRecords found = records();
  ASSERT_EQ(found.size(), 3u);
  for (int64_t step = 2; step <= 5; ++step) {
    same.move(step);
    if (step == 2) continue;
    EXPECT_EQ(found.at({"some", step}).record.checksum, checksum(same.values.data(), same.values.size()));
  }
}

// Room for one histogram: what has not come yet keeps it, nothing waits, and over some intervals each of the
// tensors whose turns fall together has had one.
TEST_F(DeviceWeightsFaults, WithoutRoomTurnsAreLeftOutOneAfterTheOther) {
  follow([](WeightTrainer& weights) {
    for (const char* name : {"a", "b", "c"}) weights.add(name, 1031, 1031);
    weights.set_up();
    for (int n = 0; n < 6; ++n) weights.step();
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorDeviceFull, 6 * 2, 6);
  std::map<std::string, int> taken;
  for (const auto& [key, record] : records()) ++taken[key.first];
  EXPECT_EQ(taken, (std::map<std::string, int>{{"a", 2}, {"b", 2}, {"c", 2}}));
}

TEST_F(DeviceWeightsFaults, MoreTensorsThanAreAwaitedAtOnce) {
  follow([this](WeightTrainer& weights) {
    std::vector<std::string> names;
    for (int n = 0; n < 20; ++n) names.emplace_back(static_cast<size_t>(n) + 1, 't');
    for (const std::string& name : names) weights.add(name.c_str(), 3, 5);
    weights.set_up();
    for (int n = 0; n < 4; ++n) weights.step(false);
    EXPECT_EQ(ring().awaited, 60u);
    EXPECT_EQ(ring().skipped[segment::kTensorDeviceFull], 20u);
    fake_cuda::run_all();
    weights.trainer.end_step();
    weights.step();
  });
  expect_skipped(segment::kTensorDeviceFull, 20, 80);
}

// What was on its way in the old context never comes, and the new one is set up anew.
TEST_F(DeviceWeightsFaults, AResetDeviceIsSetUpAgain) {
  follow([](WeightTrainer& weights) {
    weights.add("some", 300, 211);
    weights.set_up();
    weights.step(false);
    fake_cuda::reset_device(0);
    for (int n = 0; n < 3; ++n) weights.step();
    EXPECT_EQ(count_of("cuMemAlloc"), 1);
    weights.trainer.end_step();
  });
  // One never came, one met the new context.
  EXPECT_EQ(ring().skipped[segment::kTensorDevice], 1u);
  EXPECT_EQ(ring().skipped[segment::kTensorSetUp], 2u);
  EXPECT_EQ(ring().snapshots_taken, 2u);
}

// A table that is named anew gives other tensors the numbers.
TEST_F(DeviceWeightsFaults, NamesThatChangeMeanwhile) {
  follow([](WeightTrainer& weights) {
    weights.add("before", 300, 211);
    weights.set_up();
    weights.step(false);
    weights.tensors[0].name = "after";
    EXPECT_EQ(weights.name(), 1);
    fake_cuda::run_all();
    weights.step();
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorUnknown, 1, 1);
  EXPECT_TRUE(records().contains({"after", 4}));
}

// A record of an earlier step behind one that the host has written: an agent would take it for a training
// that went back.
TEST_F(DeviceWeightsFaults, WhatComesBehindTheHostsOwnIsNotTold) {
  follow([](WeightTrainer& weights) {
    weights.add("device", 300, 211);
    weights.set_up();
    weights.step(false);
    weights.on_device = false;
    weights.step(false);
    fake_cuda::run_all();
    weights.on_device = true;
    weights.step();
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorDevice, 1, 2);
  const StoredRecords found = records();
  EXPECT_TRUE(found.contains({"device", 4}));
  EXPECT_TRUE(found.contains({"device", 5}));
}

// A child has the parent's driver, which must not be used there, nor the memory that it has pinned.
TEST_F(DeviceWeightsFaults, AChildThatTrainsHasNothingOfItsParents) {
  fs::create_directory(base_ + "/child");
  follow([](WeightTrainer& weights) {
    weights.add("some", 300, 211);
    weights.set_up();
    weights.step(false);
    const pid_t child = fork();
    if (child == 0) {
      setenv("FORESHOCK_RUN_ID", "child", 1);
      fake_cuda::forget_calls();
      weights.trainer.end_step();
      weights.name();
      for (int n = 0; n < 3; ++n) weights.step(false);
      _exit(names_of_calls().empty() && foreshock_enabled() != 0 ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    fake_cuda::run_all();
    weights.trainer.end_step();
  });
  expect_skipped(segment::kTensorSetUp, 1, 1);
}

// Streams that run by themselves, with slices of attention sampled by another thread on the same device.
TEST_F(DeviceWeightsFaults, BesideAttentionOnAnotherThread) {
  follow(
      [](WeightTrainer& weights) {
        fake_cuda::set_faults({.copy_delay_us = 200});
        weights.trainer.on_device = true;
        weights.add("some", 300, 211);
        weights.add("many_bf16", 400, 331, FORESHOCK_BF16);
        weights.trainer.end_step();
        ASSERT_EQ(weights.name(), 2);
        std::atomic<bool> stops{false};
        std::thread other([&] {
          fake_cuda::set_device(0);
          while (!stops) weights.trainer.attention();
        });
        for (int n = 0; n < 60; ++n) {
          weights.step(false);
          if (n % 8 == 0) fake_cuda::rest();
        }
        stops = true;
        other.join();
        fake_cuda::rest();
        weights.trainer.end_step();
      },
      "1", fake_cuda::Run::kByThreads);
  const segment::TensorRing ring = this->ring();
  EXPECT_GT(ring.snapshots_taken, 0u);
  EXPECT_EQ(ring.awaited, 0u);
  EXPECT_EQ(ring.due, ring.snapshots_taken + ring.skipped[segment::kTensorSetUp] +
                          ring.skipped[segment::kTensorDeviceFull] + ring.skipped[segment::kTensorRingFull]);
}

// The time on the trainer's stream is the weights' cost, as the host's is: a device that is slow at it makes
// the interval longer.
TEST_F(DeviceWeightsFaults, TimeOnTheTrainersStreamCounts) {
  uint64_t interval[2];
  for (const bool slow : {false, true}) {
    train(
        [slow](DeviceTrainer& trainer) {
          trainer.on_device = false;
          WeightTrainer weights(trainer);
          fake_cuda::set_faults({.clock_step_ns = slow ? uint64_t{40'000'000} : uint64_t{1}});
          weights.add("some", 300, 211);
          weights.trainer.end_step();
          weights.name();
          // A first look that costs more than was expected is not believed, and each is paid for before the
          // next.
          for (int n = 0; n < 1280; ++n) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            weights.step();
          }
        },
        {{"FORESHOCK_MAX_SLOWDOWN", "50%"}});
    interval[slow] = ring().interval;
    EXPECT_GT(ring().snapshots_taken, 0u);
    clear();
  }
  EXPECT_EQ(interval[false], Ledger::kFirstWeightsInterval);
  EXPECT_GT(interval[true], Ledger::kFirstWeightsInterval);
}

}  // namespace
}  // namespace foreshock
