// Losses, norms and a scaler's answers that lie on a device: in the record of their step, without any wait.
#include "libmonitor/device_scalars.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>

#include "kernels/dtype.h"
#include "segment/names.h"
#include "tests/libmonitor/device_fixture.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;
constexpr uint32_t kRoot = FORESHOCK_LOSS_BACKWARD_ROOT, kNll = FORESHOCK_LOSS_NLL;

// What lies on the device, with an address of its own for each.
struct Numbers {
  DeviceTrainer& trainer;
  std::deque<double> memory = {};

  template <class T>
  foreshock_tensor tensor(T value, DType type = DType::kFp32) {
    memory.push_back(0);
    std::memcpy(&memory.back(), &value, sizeof value);
    foreshock_tensor tensor = {};
    tensor.data = &memory.back();
    std::fill(tensor.shape, tensor.shape + FORESHOCK_TENSOR_DIMS, 1);
    tensor.dtype = static_cast<uint32_t>(type);
    tensor.device_type = FORESHOCK_DEVICE_CUDA;
    tensor.device_index = trainer.device;
    return tensor;
  }
  uint64_t fetch(foreshock_tensor tensor, uint32_t what = FORESHOCK_FETCH_LOSS) {
    uint64_t number = 0;
    return foreshock_fetch(&tensor, 1, trainer.stream, what, &number) != 0 ? number : 0;
  }
  uint64_t loss(float value, uint32_t source = kRoot) {
    const uint64_t number = fetch(tensor(value));
    foreshock_observe_fetched_loss(number, 0, source);
    return number;
  }
  uint64_t loss_sum(float sum, float weight) {
    const foreshock_tensor both[] = {tensor(sum), tensor(weight)};
    uint64_t numbers[2] = {};
    if (foreshock_fetch(both, 2, trainer.stream, FORESHOCK_FETCH_LOSS, numbers) == 0) return 0;
    foreshock_observe_fetched_loss_sum(numbers[0], numbers[1]);
    return numbers[0];
  }
};

class DeviceScalarsTest : public DeviceTest {
 protected:
  std::vector<segment::StepRecord> steps() {
    auto reader = open();
    if (reader == nullptr) return {};
    reader->wait_no_more();
    missed_ = reader->coverage().numbers_missed;
    return reader->new_steps();
  }
  static std::vector<double> losses_of(const std::vector<segment::StepRecord>& steps) {
    std::vector<double> losses;
    for (const segment::StepRecord& step : steps)
      losses.push_back(segment::given(step, segment::kGivenLoss) ? step.loss : -1);
    return losses;
  }
  static bool is_any_pending(const std::vector<segment::StepRecord>& steps) {
    return std::any_of(steps.begin(), steps.end(), segment::is_pending);
  }
  uint64_t missed_ = 0;
};

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

// As on the host: the mean over the passes of a step, and a cross-entropy that the root is a part of.
TEST_F(DeviceScalarsTest, PassesOfAStepAreAveragedAsOnTheHost) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    for (const float nll : {3.f, 5.f, 7.f}) {
      for (const float part : {nll, nll + 1}) {
        numbers.loss(part, kNll);
        numbers.loss(part / 2);
      }
      trainer.end_step();
    }
    fake_cuda::run_all();
    trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, 3.5, 5.5, 7.5, -1}));
  EXPECT_EQ(steps[2].loss_source, kNll);
}

// And sums tell that the roots are shares.
TEST_F(DeviceScalarsTest, SharesOfAStepAreAddedAsOnTheHost) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    for (const float mean : {3.f, 5.f}) {
      fake_cuda::forget_calls();
      numbers.loss_sum(mean * 10, 10);
      EXPECT_EQ(count_of("cuLaunchKernel"), 1) << "both at once";
      numbers.loss(mean * 10 / 40);
      foreshock_observe_loss_sum((mean + 1) * 30, 30);  // one that lies on the host keeps its place
      numbers.loss((mean + 1) * 30 / 40);
      trainer.end_step();
    }
    fake_cuda::run_all();
    trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, 3.75, 5.75, -1}));
  EXPECT_EQ(steps[2].loss_source, kRoot);
}

TEST_F(DeviceScalarsTest, OfSumsWithoutRootsTheMeanOverTheTargets) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    numbers.loss_sum(30, 10);
    numbers.loss_sum(120, 30);
    trainer.end_step();
    fake_cuda::run_all();
    trainer.end_step();
    foreshock_observe_loss_sum(14, 2);
    trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, 3.75, -1, 7}));
  for (const size_t n : {2u, 4u}) EXPECT_EQ(steps[n].loss_source, kNll);
}

// That the roots alone are known, which the training has waited for, tells no loss.
TEST_F(DeviceScalarsTest, ASumThatDoesNotComeLeavesItsStepUnknown) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.end_step();
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_NE(numbers.loss_sum(30, 10), 0u) << "the device is not set up yet";
      foreshock_fetched(numbers.loss(1.5), 1.5);
    }
    trainer.end_step();
    for (int pass = 0; pass < 2; ++pass) {
      numbers.loss_sum(40, 10);
      numbers.loss(2);
    }
    fake_cuda::run_all();
    trainer.end_step();
  });
  EXPECT_EQ(losses_of(steps()), std::vector<double>({-1, -1, 4}));
  EXPECT_EQ(missed_, 4u);
}

TEST_F(DeviceScalarsTest, ThatOneOfThemNeverComesIsNotHidden) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    numbers.loss(1);
    fake_cuda::run_all();
    fake_cuda::begin_capture(trainer.stream = fake_cuda::new_stream(0));
    numbers.loss(2);
    fake_cuda::end_capture(trainer.stream);
    for (int n = 0; n < 3; ++n) trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, -1, -1, -1})) << "not the mean of the others";
  EXPECT_FALSE(is_any_pending(steps));
  EXPECT_EQ(missed_, 1u);
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
  EXPECT_EQ(missed_, 4u);
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
    EXPECT_EQ(missed_, 2u);
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

TEST_F(DeviceScalarsTest, ALossThatIsToldIsNotFetched) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    foreshock_observe_loss(4, FORESHOCK_LOSS_REPORTED);
    trainer.end_step();
    EXPECT_EQ(numbers.fetch(numbers.tensor(1.f)), 0u);
    EXPECT_EQ(count_of("cuLaunchKernel"), 0);
  });
  EXPECT_EQ(losses_of(steps()), std::vector<double>({-1, -1, 4}));
}

// What is told while a loss is on its way keeps its place.
TEST_F(DeviceScalarsTest, WhatTheTrainingLogsIsItsLossWhereNoneComes) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    fake_cuda::set_faults({.failing = "cuLaunchKernel"});
    for (const double logged : {5., 6.}) {
      numbers.loss(1);
      const foreshock_scalar scalar = {sizeof scalar, FORESHOCK_ABI_VERSION, "loss", logged, -1};
      foreshock_observe_scalars(&scalar, 1);
      trainer.end_step();
    }
    trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, 5, 6, -1}));
  EXPECT_EQ(steps[2].loss_source, uint32_t{FORESHOCK_LOSS_LOGGED});
}

TEST_F(DeviceScalarsTest, OfSeveralRanksWhatIsFetchedMayBeTheirMean) {
  train(
      [](DeviceTrainer& trainer) {
        Numbers numbers{trainer};
        trainer.end_step();
        foreshock_fetched(numbers.loss(1), 0.5);
        trainer.end_step();
        trainer.end_step();
      },
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(losses_of(steps()), std::vector<double>({-1, -1, -1}));
}

TEST_F(DeviceScalarsTest, NormsOfGradientsByLayer) {
  train([](DeviceTrainer& trainer) {
    static const int parameters[600] = {};
    std::vector<foreshock_parameter> named;
    for (const int& parameter : parameters)
      named.push_back({sizeof(foreshock_parameter), FORESHOCK_ABI_VERSION, &parameter, "a",
                       &parameter < parameters + 300 ? "000" : "001", 1});
    Numbers numbers{trainer};
    trainer.set_up();
    foreshock_name_parameters(named.data(), named.size());
    std::vector<foreshock_tensor> norms;
    for (int n = 0; n < 600; ++n) norms.push_back(numbers.tensor(n < 300 ? 0.5f : 2.f));
    std::vector<uint64_t> fetched(norms.size());
    ASSERT_EQ(
        foreshock_fetch(norms.data(), norms.size(), trainer.stream, FORESHOCK_FETCH_NORM, fetched.data()), 1);
    EXPECT_EQ(count_of("cuLaunchKernel"), 3) << "of 256 each";
    std::vector<foreshock_gradient> gradients;
    for (int n = 0; n < 600; ++n) {
      foreshock_gradient gradient = {};
      gradient.size = sizeof gradient;
      gradient.version = FORESHOCK_ABI_VERSION;
      gradient.identity = parameters + n;
      gradient.norm_fetched = fetched[static_cast<size_t>(n)];
      gradients.push_back(gradient);
    }
    foreshock_observe_gradients(gradients.data(), gradients.size());
    trainer.end_step();
    fake_cuda::run_all();
    trainer.end_step();
  });
  const auto steps = this->steps();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_TRUE(segment::given(steps[2], segment::kGivenGradientNorm));
  EXPECT_EQ(steps[2].gradient_norm, std::sqrt(300 * .25 + 300 * 4.));
  EXPECT_FALSE(segment::given(steps[3], segment::kGivenGradientNorm));
  const auto layers = open()->layers();
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].gradient_norm, std::sqrt(300 * .25));
  EXPECT_EQ(layers[1].gradient_norm, std::sqrt(300 * 4.));
  EXPECT_EQ(layers[0].gradient_step, 3u);
}

// A step that a scaler leaves out has a loss, but there is no record that it would be of.
TEST_F(DeviceScalarsTest, StepsThatAScalerLeavesOut) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    for (const bool is_skipped : {false, true, false}) {
      numbers.loss(is_skipped ? INFINITY : 1.f);
      if (!is_skipped) trainer.end_step();
      foreshock_step_skipped_if(numbers.fetch(numbers.tensor(is_skipped ? 1.f : 0.f), FORESHOCK_FETCH_OTHER));
    }
    trainer.end_step();
    fake_cuda::run_all();
    trainer.end_step();
  });
  const auto steps = this->steps();
  EXPECT_EQ(losses_of(steps), std::vector<double>({-1, -1, 1, 1, -1, -1}));
  std::vector<uint64_t> skipped;
  for (const segment::StepRecord& step : steps) {
    EXPECT_TRUE(segment::knows_skips(step));
    skipped.push_back(step.skipped_steps);
  }
  EXPECT_EQ(skipped, std::vector<uint64_t>({0, 0, 0, 1, 1, 1}));
}

TEST_F(DeviceScalarsTest, AnAnswerThatDoesNotComeIsNotNo) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    foreshock_step_skipped_if(numbers.fetch(numbers.tensor(1.f), FORESHOCK_FETCH_OTHER));
    for (int n = 0; n < 6; ++n) trainer.end_step();
  });
  const auto steps = this->steps();
  ASSERT_EQ(steps.size(), 8u);
  EXPECT_TRUE(segment::knows_skips(steps[1]));
  for (size_t n = 2; n < 8; ++n) EXPECT_FALSE(segment::knows_skips(steps[n])) << n;
}

TEST_F(DeviceScalarsTest, OfAScaledLossTheScaleIsDividedOut) {
  train([](DeviceTrainer& trainer) {
    Numbers numbers{trainer};
    trainer.set_up();
    for (const float scale : {1.f / 1024, 1.f}) {
      const uint64_t root = numbers.fetch(numbers.tensor(1024 * 0.3f));
      foreshock_observe_fetched_loss(root, numbers.fetch(numbers.tensor(scale), FORESHOCK_FETCH_OTHER),
                                     kRoot);
      fake_cuda::run_all();
      trainer.end_step();
    }
    trainer.end_step();
  });
  EXPECT_EQ(losses_of(steps()), std::vector<double>({-1, -1, 0.3f, -1, -1}));
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
