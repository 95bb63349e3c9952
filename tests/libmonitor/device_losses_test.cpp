// What numbers on a device are taken for when they have come: losses, norms, answers of a scaler.
#include <gtest/gtest.h>

#include <cmath>

#include "segment/layout.h"
#include "tests/libmonitor/device_numbers.h"

namespace foreshock {
namespace {

using DeviceLosses = DeviceNumbersTest;

// As on the host: the mean over the passes of a step, and a cross-entropy that the root is a part of.
TEST_F(DeviceLosses, PassesOfAStepAreAveragedAsOnTheHost) {
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
TEST_F(DeviceLosses, SharesOfAStepAreAddedAsOnTheHost) {
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

TEST_F(DeviceLosses, OfSumsWithoutRootsTheMeanOverTheTargets) {
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
TEST_F(DeviceLosses, ASumThatDoesNotComeLeavesItsStepUnknown) {
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
  EXPECT_EQ(missed_, "late 4");
}

TEST_F(DeviceLosses, ThatOneOfThemNeverComesIsNotHidden) {
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
  EXPECT_EQ(missed_, "late 1");
}

TEST_F(DeviceLosses, ALossThatIsToldIsNotFetched) {
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
TEST_F(DeviceLosses, WhatTheTrainingLogsIsItsLossWhereNoneComes) {
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

TEST_F(DeviceLosses, OfSeveralRanksWhatIsFetchedMayBeTheirMean) {
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

TEST_F(DeviceLosses, NormsOfGradientsByLayer) {
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
TEST_F(DeviceLosses, StepsThatAScalerLeavesOut) {
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

TEST_F(DeviceLosses, AnAnswerThatDoesNotComeIsNotNo) {
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

TEST_F(DeviceLosses, OfAScaledLossTheScaleIsDividedOut) {
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

}  // namespace
}  // namespace foreshock
