// Setting a device up: when, in which order, in which context, and what becomes of the calls when it fails.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "libmonitor/device_sampler.h"
#include "libmonitor/device_scalars.h"
#include "libmonitor/weight_measure.h"
#include "tests/libmonitor/device_code_of_tests.h"
#include "tests/libmonitor/device_fixture.h"
#include "tests/libmonitor/device_gradients.h"
#include "tests/libmonitor/device_numbers.h"
#include "tests/libmonitor/device_weights.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;

// Three steps that are sampled, of two calls each. In the first of them a device is met and set up behind its
// end: its calls are left out as if the ring were full, those of the others tell what came of it.
constexpr int kSteps = 4;
constexpr uint64_t kMeeting = 2, kToSample = 4;

class DeviceSetUp : public DeviceTest {
 protected:
  void train_with(const fake_cuda::Faults& faults) {
    train([faults](DeviceTrainer& trainer) {
      fake_cuda::set_faults(faults);
      trainer.train(kSteps);
    });
  }
};

// A call only notes that it has met a device: what may wait for the device, the loader or a disk is done
// between two steps, all of it once.
TEST_F(DeviceSetUp, IsMadeAtTheEndOfTheStepThatMetTheDevice) {
  train([](DeviceTrainer& trainer) {
    trainer.train(1);
    ASSERT_TRUE(trainer.attention());
    ASSERT_TRUE(trainer.attention(1));
    EXPECT_EQ(names_of_calls(), Names());
    EXPECT_TRUE(fake_cuda::symbols_asked_for().empty());
    trainer.end_step();
    EXPECT_EQ(names_of_calls(), Names({"cuCtxGetCurrent",
                                       "cuCtxGetDevice",
                                       "cuCtxGetId",
                                       "cuThreadExchangeStreamCaptureMode",
                                       "cuCtxGetDevice",
                                       "cuDeviceGetAttribute",
                                       "cuModuleLoadData",
                                       "cuModuleGetFunction",
                                       "cuFuncLoad",
                                       "cuMemHostRegister",
                                       "cuMemHostGetDevicePointer",
                                       "cuMemGetInfo",
                                       "cuModuleGetFunction",
                                       "cuFuncLoad",
                                       "cuModuleGetFunction",
                                       "cuFuncLoad",
                                       "cuModuleGetFunction",
                                       "cuFuncLoad",
                                       "cuCtxGetStreamPriorityRange",
                                       "cuStreamCreateWithPriority",
                                       "cuEventCreate",
                                       "cuMemHostRegister",
                                       "cuMemHostGetDevicePointer",
                                       "cuMemHostRegister",
                                       "cuMemHostGetDevicePointer",
                                       "cuMemAlloc",
                                       "cuMemsetD8Async",
                                       "cuStreamWriteValue64",
                                       "cuThreadExchangeStreamCaptureMode"}));
    EXPECT_EQ(fake_cuda::images(), std::vector<std::string>({code_of_tests()})) << "these bytes, once";
    fake_cuda::run_all();
    fake_cuda::forget_calls();
    trainer.end_step();
    EXPECT_EQ(names_of_calls(), Names()) << "later steps have nothing to do with it";
    ASSERT_TRUE(trainer.attention());
    trainer.end_step();
    EXPECT_EQ(count_of("cuLaunchKernel"), 1);
    EXPECT_EQ(count_of("cuThreadExchangeStreamCaptureMode"), 0);
    fake_cuda::run_all();
  });
  expect_skipped(FORESHOCK_SKIP_SET_UP, kMeeting, 1);
}

// In another context than the thread's it is pushed and popped, nothing else.
TEST_F(DeviceSetUp, LeavesTheThreadItsContext) {
  train(
      [](DeviceTrainer& trainer) {
        trainer.device = 1;
        trainer.stream = fake_cuda::thread_stream();
        trainer.train(1);
        trainer.attention();
        trainer.end_step();
        const Names names = names_of_calls();
        EXPECT_EQ(Names(names.begin(), names.begin() + 7),
                  Names({"cuCtxGetCurrent", "cuCtxGetDevice", "cuDevicePrimaryCtxGetState",
                         "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuCtxGetId",
                         "cuCtxPushCurrent"}));
        EXPECT_EQ(names.back(), "cuCtxPopCurrent");
        EXPECT_EQ(fake_cuda::current_device(), 0);
        fake_cuda::run_all();
      },
      {}, fake_cuda::Run::kByHand, 2);
}

// Between the call and the end of its step the context may go; its handle is not touched then (a violation).
TEST_F(DeviceSetUp, AContextThatHasGoneMeanwhileIsNotSetUp) {
  train([](DeviceTrainer& trainer) {
    trainer.set_up();
    fake_cuda::reset_device(0);
    trainer.attention();
    EXPECT_EQ(count_of("cuMemAlloc"), 0) << "not in a call either when the driver is open";
    fake_cuda::reset_device(0);
    trainer.end_step();
    EXPECT_EQ(count_of("cuMemAlloc"), 0);
    trainer.train(2);
    EXPECT_EQ(count_of("cuMemAlloc"), 1);
  });
  expect_skipped(FORESHOCK_SKIP_SET_UP, kMeeting + 1 + 2, 2);
}

TEST_F(DeviceSetUp, WithoutTheFileOfItsKernelsOrWithAnotherOne) {
  const std::string good = code_of_tests();
  std::string flipped = good;
  flipped[500] = static_cast<char>(flipped[500] ^ 0x10);
  for (const std::string& other : {std::string("none"), good.substr(0, 100), flipped}) {
    train([&other](DeviceTrainer& trainer) {
      write_code(other);
      if (other == "none") fs::remove(path_of_code());
      trainer.train(kSteps);
      EXPECT_TRUE(fake_cuda::images().empty());
      EXPECT_EQ(count_of("cuMemAlloc"), 0);
    });
    write_code(good);
    expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
    clear();
  }
}

// Their kernels need a driver of 13.0 (device_code_of_tests.cpp).
TEST_F(DeviceSetUp, ADriverThatIsTooOldForTheKernels) {
  train([](DeviceTrainer& trainer) {
    fake_cuda::set_faults({.version = 12090});
    trainer.train(kSteps);
    EXPECT_TRUE(fake_cuda::symbols_asked_for().empty());
    EXPECT_EQ(names_of_calls(), Names());
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
}

// It takes as long as it takes: shown in the cost of the next step, but sampling is not held back for it. If
// it were, 64 steps' earnings would be owed from the end of that step on (budget.h).
TEST_F(DeviceSetUp, IsShownInTheCostAndNotHeldAgainstSampling) {
  train(
      [](DeviceTrainer& trainer) {
        using namespace std::chrono_literals;
        fake_cuda::set_faults({.load_delay_us = 200'000});
        trainer.on_device = false;
        for (int n = 0; n < 40; ++n) {
          trainer.on_device = n >= 6;  // behind the first steps, whose cost is held against nothing
          // Met in step 7, used in step 8, and the record of that one has the cost.
          trainer.train(1);
          std::this_thread::sleep_for(2ms);
        }
      },
      {{"FORESHOCK_MAX_SLOWDOWN", "50%"}});
  uint64_t dearest = 0;
  for (const segment::StepRecord& record : open()->new_steps()) dearest = std::max(dearest, record.cost_ns);
  EXPECT_GE(dearest, 200'000'000u);
  uint64_t on_device = 0;
  for (const auto& [key, sample] : samples()) on_device += key.first > 9 && sample.header.device_end_ns > 0;
  EXPECT_GT(on_device, 0u);
}

TEST_F(DeviceSetUp, ADriverThatIsTooOldOrLacksSomething) {
  train_with({.version = 11080});
  expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
}

TEST_F(DeviceSetUp, AnEntryPointIsMissing) {
  train_with({.missing = "cuCtxGetId"});
  expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
}

// Of 12.0 to 12.3, where kernels are loaded as soon as they are found.
TEST_F(DeviceSetUp, ADriverThatCannotBeToldToLoad) {
  train([](DeviceTrainer& trainer) {
    fake_cuda::set_faults({.missing = "cuFuncLoad"});
    trainer.train(kSteps);
    EXPECT_EQ(count_of("cuFuncLoad"), 0);
    EXPECT_EQ(count_of("cuLaunchKernel"), 4);
  });
  expect_skipped(FORESHOCK_SKIP_SET_UP, kMeeting, 4);
}

TEST_F(DeviceSetUp, NoStreamOperations) {
  train_with({.stream_operations = 0});
  expect_skipped(FORESHOCK_SKIP_DEVICE, kToSample, 0);
}

TEST_F(DeviceSetUp, MemoryIsShort) {
  train([](DeviceTrainer& trainer) {
    fake_cuda::set_faults({.free_bytes = 400 << 10});  // an eighth of it holds no ring
    trainer.train(kSteps);
    EXPECT_EQ(count_of("cuMemGetInfo"), 1) << "asked once";
    EXPECT_EQ(count_of("cuMemAlloc"), 0);
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE_MEMORY, kToSample, 0);
}

TEST_F(DeviceSetUp, TheRingIsAnEighthOfWhatIsFreeAtMost) {
  for (const size_t free : {size_t{1} << 20, size_t{8} << 30}) {
    train(
        [free](DeviceTrainer& trainer) {
          trainer.tensors[0].queries = trainer.tensors[0].keys = 40000;  // slots of 2 MB
          trainer.tensors[0].build(false);
          fake_cuda::set_faults({.free_bytes = free});
          trainer.train(1);
          trainer.attention();
          trainer.end_step();
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

TEST_F(DeviceSetUp, SetUpFailsAnywhere) {
  for (const char* name : {"cuThreadExchangeStreamCaptureMode", "cuCtxGetDevice", "cuDeviceGetAttribute",
                           "cuMemGetInfo", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad",
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

// Memory had while another thread captures would spoil its graph: the fake driver objects.
TEST_F(DeviceSetUp, SetUpWhileAnotherStreamIsCaptured) {
  train([](DeviceTrainer& trainer) {
    trainer.stream = fake_cuda::new_stream(0);
    void* other = fake_cuda::new_stream(0);
    fake_cuda::begin_capture(other);
    trainer.train(3);
    fake_cuda::end_capture(other);
    EXPECT_EQ(count_of("cuThreadExchangeStreamCaptureMode"), 2) << "there and back";
  });
  expect_skipped(FORESHOCK_SKIP_CAPTURE, 0, 2);
}

// A hook runs before the framework has switched to the device of the tensors.
TEST_F(DeviceSetUp, ADeviceThatIsNotTheCurrentOne) {
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
      expect_skipped(FORESHOCK_SKIP_SET_UP, kMeeting, 2);
      EXPECT_EQ(samples().size(), 2u);
      clear();
    }
}

// As after cudaDeviceReset: other handles, another ring. Those of before are not touched (a violation).
TEST_F(DeviceSetUp, AContextThatComesBackIsSetUpAnew) {
  train([](DeviceTrainer& trainer) {
    trainer.set_up();
    fake_cuda::set_faults({.is_lost = true});
    trainer.train(1);
    fake_cuda::reset_device(0);
    fake_cuda::forget_calls();
    trainer.train(3);
    EXPECT_EQ(count_of("cuMemAlloc"), 1);
  });
  expect_skipped(FORESHOCK_SKIP_SET_UP, 2 * kMeeting, 4);
  EXPECT_EQ(samples().size(), 4u);
}

// Each context has its own ring, which nobody gives back. In every turn it is met and then used.
TEST_F(DeviceSetUp, ADeviceThatChangesItsContextAgainAndAgainIsLeftAlone) {
  constexpr int kTurns = 3 * DeviceState::kMostSetUps;
  train([](DeviceTrainer& trainer) {
    trainer.train(1);  // nothing of the first step is sampled
    for (int n = 0; n < kTurns; ++n) {
      trainer.train(2);
      fake_cuda::reset_device(0);
    }
    EXPECT_EQ(count_of("cuMemAlloc"), DeviceState::kMostSetUps);
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, 2 * (kTurns - DeviceState::kMostSetUps),
                 2 * DeviceState::kMostSetUps);
}

// A part of the training in a green context, say: whose handle nobody knows at the end of a step.
TEST_F(DeviceSetUp, AnotherContextOfTheDeviceTakesNothingFromItsOwn) {
  constexpr int kTurns = 3 * DeviceState::kMostSetUps;
  train([](DeviceTrainer& trainer) {
    void* const streams[] = {fake_cuda::new_stream(0), fake_cuda::new_stream_apart(0)};
    trainer.stream = streams[0];
    trainer.set_up();
    Numbers numbers{trainer};
    for (int n = 0; n < kTurns; ++n) {
      for (void* stream : streams) {
        trainer.stream = stream;
        trainer.attention();
        const uint64_t number = numbers.fetch(numbers.tensor(1.f), FORESHOCK_FETCH_OTHER);
        EXPECT_EQ(number != 0, stream == streams[0]);
      }
      trainer.end_step();
      fake_cuda::run_all();
    }
    EXPECT_EQ(count_of("cuMemAlloc"), 0) << "what it has it keeps";
  });
  expect_skipped(FORESHOCK_SKIP_DEVICE, kTurns - 1, kTurns);
}

// What gradients and weights have on it is counted each for itself.
TEST_F(DeviceSetUp, SoAreGradientsAndWeightsOfSuchADevice) {
  constexpr int kTurns = 3 * GradientReadback::kMostSetUps;
  train([](DeviceTrainer& trainer) {
    GradientTrainer gradients(trainer);
    gradients.add(16, DType::kFp32, "000", some_gradient);
    trainer.end_step();
    for (int n = 0; n < kTurns; ++n) {
      gradients.tell();
      trainer.end_step();
      fake_cuda::reset_device(0);
    }
    EXPECT_EQ(count_of("cuMemAlloc"), GradientReadback::kMostSetUps + DeviceState::kMostSetUps)
        << "theirs, and what brings any number";
  });
  train(
      [](DeviceTrainer& trainer) {
        trainer.on_device = false;
        WeightTrainer weights(trainer);
        weights.add("some", 300, 211);
        trainer.end_step();
        weights.name();
        for (int n = 0; n < kTurns; ++n) {
          weights.step();
          fake_cuda::reset_device(0);
        }
        EXPECT_EQ(count_of("cuMemAlloc"), WeightStaging::kMostSetUps);
      },
      {{"FORESHOCK_WEIGHTS", "1"}});
}

}  // namespace
}  // namespace foreshock
