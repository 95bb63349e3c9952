// Sampling on a device that does not do what it should: every call is counted once, with the reason, and the
// trainer goes on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libmonitor/device_state.h"
#include "tests/libmonitor/device_fixture.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;

// Two steps that are sampled, of two calls each.
constexpr int kSteps = 3;
constexpr uint64_t kToSample = 4;

class DeviceFaults : public DeviceTest {
 protected:
  void train_with(const fake_cuda::Faults& faults) {
    train([faults](DeviceTrainer& trainer) {
      fake_cuda::set_faults(faults);
      trainer.train(kSteps);
    });
  }
};

TEST_F(DeviceFaults, ADriverThatIsTooOldOrLacksSomething) {
  train_with({.version = 11080});
  expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
}

TEST_F(DeviceFaults, AnEntryPointIsMissing) {
  train_with({.missing = "cuCtxGetId"});
  expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
}

TEST_F(DeviceFaults, NoStreamOperations) {
  train_with({.stream_operations = 0});
  expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
}

TEST_F(DeviceFaults, MemoryIsShort) {
  train([](DeviceTrainer& trainer) {
    fake_cuda::set_faults({.free_bytes = 400 << 10});  // an eighth of it holds no ring
    trainer.train(kSteps);
    EXPECT_EQ(count_of("cuMemGetInfo"), 1) << "asked once";
    EXPECT_EQ(count_of("cuMemAlloc"), 0);
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE_MEMORY, kToSample, 0);
}

TEST_F(DeviceFaults, TheRingIsAnEighthOfWhatIsFreeAtMost) {
  for (const size_t free : {size_t{1} << 20, size_t{8} << 30}) {
    train(
        [free](DeviceTrainer& trainer) {
          trainer.tensors[0].queries = trainer.tensors[0].keys = 40000;  // slots of 2 MB
          trainer.tensors[0].build(false);
          fake_cuda::set_faults({.free_bytes = free});
          trainer.train(1);
          trainer.attention();
          uint64_t bytes = 0;
          for (const fake_cuda::Call& call : fake_cuda::calls())
            if (call.name == "cuMemAlloc") bytes += call.bytes;
          EXPECT_GT(bytes, 0u);
          EXPECT_LE(bytes, free / 8);
          EXPECT_LE(bytes, size_t{64} << 20);
        },
        {{"FORESHOCK_MEMORY", "256MiB"}});
    clear();
  }
}

TEST_F(DeviceFaults, SetUpFailsAnywhere) {
  for (const char* name : {"cuThreadExchangeStreamCaptureMode", "cuCtxGetDevice", "cuDeviceGetAttribute",
                           "cuMemGetInfo", "cuModuleLoadData", "cuModuleGetFunction",
                           "cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority", "cuEventCreate",
                           "cuMemHostRegister", "cuMemHostGetDevicePointer", "cuMemAlloc", "cuMemsetD8Async",
                           "cuStreamWriteValue64", "cuCtxGetCurrent", "cuCtxGetId", "cuStreamIsCapturing"}) {
    SCOPED_TRACE(name);
    train_with({.failing = name});
    const std::string of = name;
    const bool is_memory =
        of == "cuMemHostRegister" || of == "cuMemHostGetDevicePointer" || of == "cuMemAlloc";
    expect_skipped(is_memory ? FORESHOCK_SKIP_DEVICE_MEMORY : FORESHOCK_SKIP_DEVICE, kToSample, 0);
    clear();
  }
}

// Before anything can have stored into the slots they are free again.
TEST_F(DeviceFaults, AGatherThatCannotBeGiven) {
  for (const char* name : {"cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent"}) {
    SCOPED_TRACE(name);
    train([name](DeviceTrainer& trainer) {
      trainer.set_up();  // one slice is sampled
      fake_cuda::set_faults({.failing = name});
      trainer.train(2);
      EXPECT_EQ(count_of(name), 1) << "not tried again";
    });
    expect_skipped(FORESHOCK_SKIP_DEVICE, 4, 1);
    EXPECT_TRUE(open()->torn().empty());
    EXPECT_EQ(samples().size(), 1u);
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
      expect_skipped(FORESHOCK_SKIP_DEVICE, 3, 2);
      // The last word only wakes the agent: without it the slice is there all the same.
      const bool is_whole = std::string(name) == "cuStreamWriteValue64" && after == 1;
      EXPECT_EQ(open()->torn().size(), is_whole ? 0u : 1u);
      EXPECT_EQ(samples().size(), is_whole ? 2u : 1u);
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
  expect_skipped(FORESHOCK_SKIP_DEVICE, 4, 2);
  EXPECT_EQ(open()->torn().size(), 1u) << "what was on its way";
}

// As after cudaDeviceReset: other handles, another ring. Those of before are not touched (a violation).
TEST_F(DeviceFaults, AContextThatComesBackIsSetUpAnew) {
  train([](DeviceTrainer& trainer) {
    trainer.set_up();
    fake_cuda::set_faults({.is_lost = true});
    trainer.train(1);
    fake_cuda::reset_device(0);
    fake_cuda::forget_calls();
    trainer.train(3);
    EXPECT_EQ(count_of("cuMemAlloc"), 1);
  });
  expect_skipped(FORESHOCK_SKIP_RING_FULL, 2, 1 + 5);
  EXPECT_EQ(samples().size(), 6u);
}

TEST_F(DeviceFaults, SlowCopiesFillTheRingAndNothingWaits) {
  train([](DeviceTrainer& trainer) {
    fake_cuda::set_faults({.free_bytes = (64 << 10) * 8 + (32 << 10)});
    trainer.tensors[0].queries = trainer.tensors[0].keys = 600;
    trainer.tensors[0].build(false);
    trainer.train(1);
    trainer.attention();  // sets up
    trainer.end_step();
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
  expect_skipped(FORESHOCK_SKIP_CAPTURE, 2, 3);
}

TEST_F(DeviceFaults, TheLegacyStreamWhileAnotherIsCaptured) {
  train([](DeviceTrainer& trainer) {
    trainer.set_up();
    void* other = fake_cuda::new_stream(0);
    fake_cuda::begin_capture(other);
    trainer.train(1);
    fake_cuda::end_capture(other);
  });
  expect_skipped(FORESHOCK_SKIP_CAPTURE, 2, 1);
}

// Memory had while another thread captures would spoil its graph: the fake driver objects.
TEST_F(DeviceFaults, SetUpWhileAnotherStreamIsCaptured) {
  train([](DeviceTrainer& trainer) {
    trainer.stream = fake_cuda::new_stream(0);
    void* other = fake_cuda::new_stream(0);
    fake_cuda::begin_capture(other);
    trainer.train(3);
    fake_cuda::end_capture(other);
    EXPECT_EQ(count_of("cuThreadExchangeStreamCaptureMode"), 2) << "there and back";
  });
  expect_skipped(FORESHOCK_SKIP_CAPTURE, 0, 3);
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

// A hook runs before the framework has switched to the device of the tensors.
TEST_F(DeviceFaults, ADeviceThatIsNotTheCurrentOne) {
  for (const bool has_own_stream : {true, false})
    for (const int current : {0, -1}) {
      train(
          [=](DeviceTrainer& trainer) {
            trainer.device = 1;
            if (has_own_stream) trainer.stream = fake_cuda::new_stream(1);
            if (!has_own_stream) trainer.stream = fake_cuda::thread_stream();
            fake_cuda::set_device(current);
            trainer.train(3);
            EXPECT_EQ(fake_cuda::current_device(), current) << "as it was";
            EXPECT_EQ(fake_cuda::primary_users(1), 1) << "as it was";
            EXPECT_EQ(fake_cuda::own_stream(0), nullptr);
            EXPECT_NE(fake_cuda::own_stream(1), nullptr);
          },
          {}, fake_cuda::Run::kByHand, 2);
      expect_skipped(FORESHOCK_SKIP_RING_FULL, 1, 3);
      EXPECT_EQ(samples().size(), 3u);
      clear();
    }
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
  expect_skipped(FORESHOCK_SKIP_RING_FULL, 2, 4);
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
  expect_skipped(FORESHOCK_SKIP_RING_FULL, 1, kToSample - 1);
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
          if (step < 2) trainer.end_step();
        }
        EXPECT_EQ(count_of("cuMemAlloc"), static_cast<int>(segment::kDeviceProgress));
      },
      {}, fake_cuda::Run::kByHand, kDevices);
  expect_skipped(FORESHOCK_SKIP_DEVICE, 2, segment::kDeviceProgress);
}

// Each context has its own ring, which nobody gives back. In every turn two calls are sampled; of the first
// of a context only the set-up is made.
TEST_F(DeviceFaults, ADeviceThatChangesItsContextAgainAndAgainIsLeftAlone) {
  constexpr int kTurns = 3 * DeviceState::kMostSetUps;
  train([](DeviceTrainer& trainer) {
    trainer.train(1);  // nothing of the first step is sampled
    for (int n = 0; n < kTurns; ++n) {
      trainer.train(1);
      fake_cuda::reset_device(0);
    }
    EXPECT_EQ(count_of("cuMemAlloc"), DeviceState::kMostSetUps);
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, 2 * (kTurns - DeviceState::kMostSetUps), DeviceState::kMostSetUps);
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
  expect_skipped(FORESHOCK_SKIP_DEVICE, 0, 3);
}

}  // namespace
}  // namespace foreshock
