// Numbers on their way from a device to the record of their step, without any wait.
#include "libmonitor/device_scalars.h"

#include <gtest/gtest.h>

#include "segment/layout.h"
#include "tests/libmonitor/device_numbers.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;
using DeviceScalarsTest = DeviceNumbersTest;

// The host is a step ahead of the device: a loss comes after the record of its step.
TEST_F(DeviceScalarsTest, ALossIsInTheRecordOfItsOwnStep) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    for (int n = 0; n < 6; ++n) {
      fake_cuda::forget_calls();
      numbers.loss(0.125f * static_cast<float>(n + 1));
      const Names all = names_of_calls();
      EXPECT_EQ(all, Names({"cuCtxGetCurrent", "cuCtxGetDevice", "cuStreamIsCapturing", "cuCtxGetDevice",
                            "cuCtxGetId", "cuLaunchKernel"}));
      trainer.end_step();
      EXPECT_EQ(names_of_calls(), all) << "the end of a step asks the device nothing";
      if (n > 0) fake_cuda::run(trainer.stream);
    }
    trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, .125, .25, .375, .5, .625, .75, -1}));
  EXPECT_FALSE(is_any_pending(steps));
  for (size_t n = 2; n < 8; ++n) EXPECT_EQ(steps[n].loss_source, kRoot);
}

TEST_F(DeviceScalarsTest, UntilItHasComeItsRecordIsPending) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    numbers.loss(1);
    trainer.end_step();
  });
  auto reader = open();
  EXPECT_EQ(reader->new_steps().size(), 2u);
  reader->wait_no_more();
  const auto rest = reader->new_steps();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_TRUE(segment::is_pending(rest[0]));
  EXPECT_FALSE(segment::given(rest[0], segment::kGivenLoss));
}

TEST_F(DeviceScalarsTest, EveryFormatExactly) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    for (const auto& tensor :
         {numbers.tensor(0.1, DType::kFp64), numbers.tensor(0.1f),
          numbers.tensor(uint16_t{0x3dcd}, DType::kBf16), numbers.tensor(uint16_t{0x2e66}, DType::kFp16)}) {
      foreshock_observe_fetched_loss(numbers.fetch(tensor), 0, kRoot);
      fake_cuda::run(trainer.stream);
      trainer.end_step();
    }
    EXPECT_EQ(numbers.fetch(numbers.tensor(uint8_t{1}, DType::kBool)), 0u);
    foreshock_tensor two = numbers.tensor(1.f);
    two.dims = 1, two.shape[0] = 2;
    EXPECT_EQ(numbers.fetch(two), 0u);
  });
  EXPECT_EQ(losses_of(steps()),
            std::vector<double>({-1, -1, 0.1, 0.1f, bf16_to_float(0x3dcd), fp16_to_float(0x2e66)}));
}

// Behind a device that stands still: four steps wait, and no more.
TEST_F(DeviceScalarsTest, WhatDoesNotComeIsGivenUp) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    for (int n = 1; n <= 8; ++n) {
      numbers.loss(static_cast<float>(n));
      trainer.end_step();
    }
    fake_cuda::run_all();
    trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, -1, -1, -1, -1, 5, 6, 7, 8, -1}));
  EXPECT_FALSE(is_any_pending(steps));
  EXPECT_EQ(missed_, "late 4");
}

TEST_F(DeviceScalarsTest, WhileTheStreamIsCapturedNothingIsLaunched) {
  train([](DeviceTrainer& trainer) {
    trainer.stream = fake_cuda::new_stream(0);
    Numbers numbers{trainer};
    trainer.set_up();
    fake_cuda::begin_capture(trainer.stream);
    const uint64_t number = numbers.loss(1);
    EXPECT_NE(number, 0u);
    EXPECT_EQ(numbers.fetch(numbers.tensor(1.f), FORESHOCK_FETCH_OTHER), 0u);
    EXPECT_EQ(count_of("cuLaunchKernel"), 0);
    fake_cuda::end_capture(trainer.stream);
    trainer.end_step();
    foreshock_fetched(number, 0.75);  // the training has waited for it
  });
  EXPECT_EQ(losses_of(steps()), std::vector<double>({-1, -1, 0.75}));
}

// Before the device is set up, which the first of them asks for: without one attention call that is sampled.
TEST_F(DeviceScalarsTest, TheFirstOneAsksForTheDevice) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.end_step();
    const uint64_t first = numbers.loss(1);
    EXPECT_TRUE(names_of_calls().empty());
    foreshock_fetched(first, 1);
    trainer.end_step();
    numbers.loss(2);
    fake_cuda::run_all();
    trainer.end_step();
    numbers.loss(3);
    trainer.end_step();  // has not come, nobody has waited
    trainer.end_step();
  });
  EXPECT_EQ(losses_of(steps()), std::vector<double>({-1, 1, 2, -1, -1}));
}

TEST_F(DeviceScalarsTest, WithoutRoomForSlicesAsWell) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    fake_cuda::set_faults({.free_bytes = 1 << 10});
    trainer.set_up();
    numbers.loss(2);
    fake_cuda::run_all();
    trainer.end_step();
  });
  EXPECT_EQ(losses_of(steps()), std::vector<double>({-1, -1, 2}));
  clear();
  train(
      [](DeviceTrainer& trainer) {
        Numbers numbers{trainer};
        trainer.end_step();
        numbers.loss(1);
        trainer.end_step();
        numbers.loss(2);
        fake_cuda::run_all();
        trainer.end_step();
      },
      {{"FORESHOCK_SLICES", "off"}});
  EXPECT_EQ(losses_of(steps()), std::vector<double>({-1, -1, 2}));
}

TEST_F(DeviceScalarsTest, ALaunchThatFailsIsNotTriedAgain) {
  for (const char* name : {"cuLaunchKernel", "cuStreamIsCapturing", "cuCtxGetCurrent"}) {
    SCOPED_TRACE(name);
    train([name](DeviceTrainer& trainer) {
      Numbers numbers{trainer};
      trainer.set_up();
      fake_cuda::set_faults({.failing = name});
      EXPECT_NE(numbers.loss(1), 0u);
      EXPECT_EQ(numbers.fetch(numbers.tensor(1.f), FORESHOCK_FETCH_OTHER), 0u);
      trainer.end_step();
      trainer.end_step();
      if (std::string(name) == "cuLaunchKernel") {
        EXPECT_EQ(count_of(name), 1);
      }
    });
    const auto steps = this->steps();
    EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, -1, -1}));
    EXPECT_FALSE(is_any_pending(steps));
    EXPECT_EQ(missed_, "device 1, late 1");
    clear();
  }
}

// The handles of the old context are not touched, what was on its way is given up, and it goes on.
TEST_F(DeviceScalarsTest, ADeviceThatWasReset) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    numbers.loss(1);
    trainer.end_step();
    fake_cuda::reset_device(0);
    numbers.loss(2);
    trainer.end_step();
    numbers.loss(3);
    fake_cuda::run_all();
    for (int n = 0; n < 4; ++n) trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, -1, -1, 3, -1, -1, -1}));
  EXPECT_FALSE(is_any_pending(steps));
}

// A cell is not given away while its kernel may still run, and a step has no more than its share.
TEST_F(DeviceScalarsTest, ADeviceThatStandsStillHasNoMoreThanItsCells) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    const std::vector<foreshock_tensor> many(2000, numbers.tensor(1.f));
    std::vector<uint64_t> found(many.size());
    const auto fetch = [&] {
      return foreshock_fetch(many.data(), many.size(), trainer.stream, FORESHOCK_FETCH_NORM, found.data());
    };
    int steps = 0;
    for (; steps < 20 && fetch() != 0; ++steps) {
      EXPECT_EQ(fetch(), 0) << "the share of a step";
      trainer.end_step();
    }
    EXPECT_EQ(steps, 8) << "of 16384 cells";
    fake_cuda::run_all();
    EXPECT_EQ(fetch(), 1);
    fake_cuda::run_all();
  });
}

TEST_F(DeviceScalarsTest, WhileStreamsRunBesideTheTraining) {
  train(
      [](DeviceTrainer& trainer) {
        Numbers numbers{trainer};
        trainer.train(1, false);
        for (int n = 0; n < 50; ++n) {
          numbers.loss(static_cast<float>(n));
          trainer.train(1, false);
        }
        fake_cuda::rest();
        trainer.end_step();
        fake_cuda::start(fake_cuda::Run::kByHand);
      },
      {}, fake_cuda::Run::kByThreads);
  const auto steps = this->steps();
  ASSERT_EQ(steps.size(), 52u);
  int known = 0;
  for (int64_t n = 1; n < 51; ++n) {
    const segment::StepRecord& step = steps[static_cast<size_t>(n)];
    if (!segment::given(step, segment::kGivenLoss)) continue;
    EXPECT_EQ(step.loss, static_cast<double>(n - 1));
    ++known;
  }
  EXPECT_GT(known, 3) << "those of the last steps at least";
}

}  // namespace
}  // namespace foreshock
