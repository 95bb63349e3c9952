// Sampling on a device that does not do what it should: every call is counted once, with the reason, and the
// trainer goes on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/libmonitor/device_code_of_tests.h"
#include "tests/libmonitor/device_fixture.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;

// Three steps that are sampled, of two calls each.
constexpr int kSteps = 4;
constexpr uint64_t kToSample = 6;

class DeviceFaults : public DeviceTest {};

// Before anything can have stored into the slots they are free again.
TEST_F(DeviceFaults, AGatherThatCannotBeGiven) {
  for (const char* name : {"cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent"}) {
    SCOPED_TRACE(name);
    train([name](DeviceTrainer& trainer) {
      trainer.set_up();
      fake_cuda::set_faults({.failing = name});
      trainer.train(2);
      EXPECT_EQ(count_of(name), 1) << "not tried again";
    });
    expect_skipped(FORESHOCK_SKIP_DEVICE, 4, 0);
    EXPECT_TRUE(open()->torn().empty());
    EXPECT_EQ(samples().size(), 0u);
    clear();
  }
}

// Afterwards they are the stream's, which never comes: half-written, as after a death.
TEST_F(DeviceFaults, ACopyThatCannotBeGiven) {
  for (const char* name : {"cuMemcpyDtoHAsync", "cuStreamWriteValue64"})
    for (const int after : {0, 1}) {
      SCOPED_TRACE(name);
      train([name, after](DeviceTrainer& trainer) {
        trainer.set_up();
        fake_cuda::set_faults({.failing = name, .failing_after = after});
        trainer.train(2);
        EXPECT_EQ(count_of(name), after + 1) << "not tried again";
      });
      expect_skipped(FORESHOCK_SKIP_DEVICE, 3, 1);
      // The last word only wakes the agent: without it the slice is there all the same.
      const bool is_whole = std::string(name) == "cuStreamWriteValue64" && after == 1;
      EXPECT_EQ(open()->torn().size(), is_whole ? 0u : 1u);
      EXPECT_EQ(samples().size(), is_whole ? 1u : 0u);
      clear();
    }
}

TEST_F(DeviceFaults, ALostContextSkipsEveryCall) {
  train([](DeviceTrainer& trainer) {
    trainer.set_up();
    ASSERT_TRUE(trainer.attention());
    fake_cuda::set_faults({.is_lost = true});
    trainer.train(2);
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, 4, 1);
  EXPECT_EQ(open()->torn().size(), 1u) << "what was on its way";
}

TEST_F(DeviceFaults, SlowCopiesFillTheRingAndNothingWaits) {
  train([](DeviceTrainer& trainer) {
    fake_cuda::set_faults({.free_bytes = (64 << 10) * 8 + (32 << 10)});
    trainer.tensors[0].queries = trainer.tensors[0].keys = 600;
    trainer.tensors[0].build(false);
    trainer.train(1);
    trainer.attention();
    trainer.end_step();  // sets up
    fake_cuda::run_all();
    int gathers = 0;
    for (int n = 0; n < 6; ++n) {
      trainer.attention();
      trainer.end_step();
    }
    gathers = count_of("cuEventRecord");
    EXPECT_GT(gathers, 0);
    EXPECT_LT(gathers, 6) << "the ring is not that large";
    fake_cuda::run_all();
    trainer.attention();
    EXPECT_EQ(count_of("cuEventRecord"), gathers + 1) << "what has left makes room";
    fake_cuda::run_all();
  });
  const segment::Totals totals = this->totals();
  EXPECT_GT(totals.skipped[0][FORESHOCK_SKIP_RING_FULL], 1u);
  EXPECT_EQ(samples().size(), totals.sampled[0]);
}

TEST_F(DeviceFaults, WhileItsStreamIsCapturedACallIsCountedOnly) {
  train([](DeviceTrainer& trainer) {
    trainer.stream = fake_cuda::new_stream(0);
    trainer.set_up();
    fake_cuda::begin_capture(trainer.stream);
    trainer.train(1, false);
    EXPECT_EQ(names_of_calls(trainer.stream),
              Names({"cuStreamGetCtx", "cuStreamIsCapturing", "cuStreamGetCtx", "cuStreamIsCapturing"}));
    fake_cuda::end_capture(trainer.stream);
    trainer.train(1);
  });
  expect_skipped(FORESHOCK_SKIP_CAPTURE, 2, 2);
}

// A stream that is being captured may be asked for its context from 12.5 on: NVIDIA's own cuda.core asks
// older drivers for the current one instead (_get_conditional_context in cuda/core/experimental/_graph.py).
class DeviceOfAnOldDriver : public DeviceFaults {
 protected:
  static void begin() {
    DeviceCodeSeal seal = device_code_seal();
    seal.oldest_driver = 12000;
    set_seal(seal);
    fake_cuda::set_faults({.version = 12040});
  }
};

TEST_F(DeviceOfAnOldDriver, IsNotAskedForTheContextOfACapture) {
  train([](DeviceTrainer& trainer) {
    begin();
    trainer.stream = fake_cuda::new_stream(0);
    trainer.set_up();
    fake_cuda::begin_capture(trainer.stream);
    trainer.train(1, false);
    EXPECT_EQ(names_of_calls(trainer.stream), Names({"cuStreamIsCapturing", "cuStreamIsCapturing"}));
    fake_cuda::end_capture(trainer.stream);
    trainer.train(1);
  });
  expect_skipped(FORESHOCK_SKIP_CAPTURE, 2, 2);
}

TEST_F(DeviceOfAnOldDriver, NeedNotBeTheCurrentOne) {
  for (const int current : {1, 0, -1}) {
    train(
        [current](DeviceTrainer& trainer) {
          begin();
          trainer.device = 1;
          trainer.stream = fake_cuda::new_stream(1);
          fake_cuda::set_device(current);
          trainer.train(3);
          EXPECT_EQ(fake_cuda::current_device(), current) << "as it was";
          EXPECT_EQ(fake_cuda::primary_users(1), 1) << "as it was";
        },
        {}, fake_cuda::Run::kByHand, 2);
    expect_skipped(FORESHOCK_SKIP_SET_UP, 2, 2);
    EXPECT_EQ(samples().size(), 2u);
    clear();
  }
}

TEST_F(DeviceOfAnOldDriver, AStreamOfAnotherContextIsLeftAlone) {
  train([](DeviceTrainer& trainer) {
    begin();
    trainer.set_up();
    trainer.stream = fake_cuda::new_stream_apart(0);
    trainer.train(1);
    EXPECT_EQ(names_of_calls(trainer.stream),
              Names({"cuStreamIsCapturing", "cuStreamGetCtx", "cuStreamIsCapturing", "cuStreamGetCtx"}));
    trainer.stream = fake_cuda::legacy_stream();
    trainer.train(1);
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, 2, 2);
}

TEST_F(DeviceFaults, TheLegacyStreamWhileAnotherIsCaptured) {
  train([](DeviceTrainer& trainer) {
    trainer.set_up();
    void* other = fake_cuda::new_stream(0);
    fake_cuda::begin_capture(other);
    trainer.train(1);
    fake_cuda::end_capture(other);
  });
  expect_skipped(FORESHOCK_SKIP_CAPTURE, 2, 0);
}

TEST_F(DeviceFaults, WithoutAStreamNothingIsOpened) {
  train([](DeviceTrainer& trainer) {
    trainer.stream = nullptr;
    trainer.train(kSteps);
    EXPECT_TRUE(fake_cuda::symbols_asked_for().empty());
    EXPECT_EQ(names_of_calls(), Names());
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
}

TEST_F(DeviceFaults, TensorsOfTheHostOpenNothing) {
  train([](DeviceTrainer& trainer) {
    trainer.on_device = false;
    trainer.train(kSteps);
    EXPECT_TRUE(fake_cuda::symbols_asked_for().empty());
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, 0, kToSample);
}

TEST_F(DeviceFaults, SeveralDevicesSideBySide) {
  train(
      [](DeviceTrainer& trainer) {
        for (int n = 0; n < 4; ++n) {
          for (int device : {0, 1}) {
            fake_cuda::set_device(device);
            trainer.device = device;
            trainer.attention(device);  // one pass each, so that they can be told apart
          }
          trainer.end_step();
          fake_cuda::run_all();
        }
        EXPECT_EQ(count_of("cuMemAlloc"), 2);
      },
      {}, fake_cuda::Run::kByHand, 2);
  expect_skipped(FORESHOCK_SKIP_SET_UP, 2, 4);
  EXPECT_EQ(samples().size(), 4u);
}

// As a rank of torchrun that sees all devices of its node and uses the last one.
TEST_F(DeviceFaults, TheLastDeviceOfANodeIsSampledAsAnyOther) {
  train(
      [](DeviceTrainer& trainer) {
        trainer.device = static_cast<int>(segment::kDeviceProgress);
        fake_cuda::set_device(trainer.device);
        trainer.train(kSteps);
      },
      {}, fake_cuda::Run::kByHand, segment::kDeviceProgress + 1);
  expect_skipped(FORESHOCK_SKIP_SET_UP, 2, kToSample - 2);
}

TEST_F(DeviceFaults, MoreDevicesThanTheSegmentHasWordsFor) {
  constexpr int kDevices = segment::kDeviceProgress + 1;
  train(
      [](DeviceTrainer& trainer) {
        for (int step = 0; step < 3; ++step) {
          for (int device = 0; device < kDevices; ++device) {
            trainer.device = device;
            fake_cuda::set_device(device);
            trainer.attention();
            fake_cuda::run_all();
          }
          trainer.end_step();
          fake_cuda::run_all();
        }
        EXPECT_EQ(count_of("cuMemAlloc"), static_cast<int>(segment::kDeviceProgress));
      },
      {}, fake_cuda::Run::kByHand, kDevices);
  expect_skipped(FORESHOCK_SKIP_DEVICE, 2, segment::kDeviceProgress);
}

// A child has the parent's driver, which must not be used there, even if it trains by itself.
TEST_F(DeviceFaults, AChildLeavesTheDriverAlone) {
  fs::create_directory(base_ + "/child");
  train([](DeviceTrainer& trainer) {
    trainer.set_up();
    const pid_t child = fork();
    if (child == 0) {
      setenv("FORESHOCK_RUN_ID", "child", 1);
      trainer.train(4);
      _exit(names_of_calls().empty() && foreshock_enabled() != 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    trainer.train(1);
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, 0, 2);
}

}  // namespace
}  // namespace foreshock
