// Gradients on a device, where nobody has taken their norms: in the record of their step, as the host sums
// them.
#include "tests/libmonitor/device_gradients.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "libmonitor/device_scalars.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;

// Of one chunk and of several, of more tensors than a launch takes.
constexpr size_t kTensors = 200;
constexpr size_t elements_of(size_t n) { return n % 50 == 49 ? 2 * kSumChunk + n : 1 + 37 * n % 1000; }
constexpr size_t all_elements() {
  size_t all = 0;
  for (size_t n = 0; n < kTensors; ++n) all += elements_of(n);
  return all;
}

// In all formats, at any alignment.
void add_all(GradientTrainer* of) {
  constexpr DType kTypes[] = {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64};
  for (size_t n = 0; n < kTensors; ++n)
    of->add(elements_of(n), kTypes[n % 4], n < 80 ? "000" : "001", some_gradient, n % 3);
}

TEST_F(DeviceGradientsTest, AreWhatTheHostSumsOfTheSameValues) {
  Steps of[2];
  std::vector<segment::Layer> layers[2];
  for (const bool on_device : {false, true}) {
    train([on_device](DeviceTrainer& trainer) {
      GradientTrainer gradients(trainer);
      gradients.on_device = on_device;
      add_all(&gradients);
      gradients.name();
      gradients.set_up();
      gradients.take_step();
    });
    of[on_device] = steps();
    layers[on_device] = layers_;
    clear();
  }
  const std::vector<double> host = norms_of(of[false]), device = norms_of(of[true]);
  ASSERT_EQ(host.size(), 4u);
  ASSERT_EQ(device.size(), 4u);
  EXPECT_EQ(device[1], -1) << "the device was not set up";
  // Two orders of n additions of positive numbers: (n - 1) * 2^-53 of the sum each, half of it of the root,
  // which is rounded once more.
  constexpr double kApart = static_cast<double>(all_elements()) * 0x1p-53;
  ASSERT_GT(host[2], 0);
  EXPECT_NEAR(device[2], host[2], kApart * host[2]);
  EXPECT_EQ(device[3], -1);
  ASSERT_EQ(layers[true].size(), 2u);
  for (size_t n = 0; n < 2; ++n) {
    EXPECT_GT(layers[false][n].gradient_norm, 0);
    EXPECT_NEAR(layers[true][n].gradient_norm, layers[false][n].gradient_norm, kApart * host[2]);
    EXPECT_EQ(layers[true][n].gradient_step, 3u);
    EXPECT_EQ(layers[true][n].nonfinite_steps, 0u);
  }
  // Roots are rounded by 2^-53, hypot() by twice that, and the sum of both layers by half of it in the root.
  EXPECT_NEAR(std::hypot(layers[true][0].gradient_norm, layers[true][1].gradient_norm), device[2],
              (1 + 2 + 1.5) * 0x1p-53 * device[2]);
  EXPECT_EQ(fetched_, 2 * kTensors);
  EXPECT_EQ(missed_, "set_up " + std::to_string(kTensors)) << "the device was not set up";
}

// Everything on the trainer's stream, in this order, and no word of it that waits.
TEST_F(DeviceGradientsTest, WhatTheStreamIsGiven) {
  train([](DeviceTrainer& trainer) {
    trainer.stream = fake_cuda::new_stream(0);
    GradientTrainer gradients(trainer);
    add_all(&gradients);
    gradients.set_up();
    gradients.tell();
    Names wanted = {"cuStreamIsCapturing", "cuMemsetD8Async"};
    // Two looks at the clock, 96 + 96 + 8 tensors, the times, 200 sums.
    for (int n = 0; n < 2 + 3 + 2; ++n) wanted.push_back("cuLaunchKernel");
    Names given = names_of_calls(trainer.stream);
    std::erase(given, "cuStreamGetCtx");
    EXPECT_EQ(given, wanted);
    const Names all = names_of_calls();
    trainer.end_step();
    EXPECT_EQ(names_of_calls(), all) << "the end of a step asks the device nothing";
    fake_cuda::run_all();
    trainer.end_step();
  });
  EXPECT_GT(norms_of(steps()).at(2), 0);
}

TEST_F(DeviceGradientsTest, WhatIsNotFiniteIsToldOfItsLayer) {
  for (const double value :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    train([value](DeviceTrainer& trainer) {
      GradientTrainer gradients(trainer);
      gradients.add(100, DType::kFp32, "000", some_gradient);
      gradients.add(100, DType::kBf16, "001", [value](size_t n) { return n == 70 ? value : 1.0; });
      gradients.name();
      gradients.set_up();
      gradients.take_step();
    });
    const Steps all = steps();
    ASSERT_EQ(all.size(), 4u);
    EXPECT_TRUE(segment::given(all[2], segment::kGivenGradientNorm));
    EXPECT_FALSE(std::isfinite(all[2].gradient_norm));
    ASSERT_EQ(layers_.size(), 2u);
    EXPECT_TRUE(std::isfinite(layers_[0].gradient_norm));
    EXPECT_EQ(layers_[0].nonfinite_steps, 0u);
    EXPECT_EQ(layers_[1].nonfinite_steps, 1u);
    EXPECT_EQ(layers_[1].last_nonfinite_step, 3u);
    clear();
  }
}

TEST_F(DeviceGradientsTest, UntilTheyHaveComeTheirStepIsPending) {
  train([](DeviceTrainer& trainer) {
    GradientTrainer of(trainer);
    of.add(16, DType::kFp32, "000", [](size_t) { return 1.0; });
    of.set_up();
    for (int n = 0; n < 2; ++n) {
      of.tell();
      trainer.end_step();
    }
  });
  auto reader = open();
  EXPECT_EQ(reader->new_steps().size(), 2u);
  reader->wait_no_more();
  const Steps rest = reader->new_steps();
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_TRUE(segment::is_pending(rest[0]) && segment::is_pending(rest[1]));
}

TEST_F(DeviceGradientsTest, AStepMayEndBeforeThemAndBeSampledForThem) {
  const Steps all = told_in_third_step([](GradientTrainer& of) { of.tell(); });
  EXPECT_EQ(norms_of(all), std::vector<double>({-1, -1, 4, -1, -1}));
  EXPECT_EQ(all[2].sampled, 1u);
  EXPECT_EQ(all[3].sampled, 0u);
}

TEST_F(DeviceGradientsTest, AsManyAsAStepHasRoomFor) {
  train([](DeviceTrainer& trainer) {
    GradientTrainer of(trainer);
    for (int n = 0; n < 2728; ++n) of.add(1, DType::kFp32, "000", [](size_t) { return 0.5; });
    of.set_up();
    of.tell();
    trainer.end_step();
    fake_cuda::run_all();
    trainer.end_step();
  });
  EXPECT_EQ(norms_of(steps()), std::vector<double>({-1, -1, std::sqrt(2728 * 0.25), -1}));
}

// Chunks beyond what there are places for are of another launch. Nothing of it is run here.
TEST_F(DeviceGradientsTest, AJobHasPlacesForItsChunks) {
  train([](DeviceTrainer& trainer) {
    GradientTrainer of(trainer);
    for (int n = 0; n < 3; ++n) of.add(1, DType::kBf16, "000", some_gradient);
    of.set_up();
    for (foreshock_gradient& gradient : of.gradients) gradient.values.shape[0] = int64_t{1} << 30;
    of.tell();
    EXPECT_EQ(count_of("cuLaunchKernel"), 2 + 2 + 2) << "two of three together";
  });
}

// What the device's clock tells is charged, and steps are left out for it: 1 ms of the trainer, and a look at
// the clock to the next one takes 2 ms more.
TEST_F(DeviceGradientsTest, WhatTheyTakeIsWithinTheBudget) {
  constexpr int kSteps = 200;
  constexpr uint64_t kLookNs = 2'000'000;
  double cost = 0, length = 0;
  const auto norms = [&](const char* limit) {
    TearDown();
    SetUp();
    train(
        [](DeviceTrainer& trainer) {
          fake_cuda::set_faults({.clock_step_ns = kLookNs});
          GradientTrainer of(trainer);
          of.add(1000, DType::kFp32, "000", some_gradient);
          for (int n = 0; n < kSteps; ++n) {
            usleep(1000);
            if (foreshock_step_is_sampled() != 0) of.tell();
            fake_cuda::run_all();
            trainer.end_step();
          }
        },
        {{"FORESHOCK_MAX_SLOWDOWN", limit}});
    cost = length = 0;
    int known = 0;
    for (const segment::StepRecord& step : steps()) {
      known += segment::given(step, segment::kGivenGradientNorm);
      EXPECT_EQ(segment::given(step, segment::kGivenGradientNorm), step.sampled != 0);
      cost += static_cast<double>(step.cost_ns);
      length += static_cast<double>(step.duration_ns);
    }
    return known;
  };
  const int all = norms("100%");
  EXPECT_GT(all, kSteps * 9 / 10);
  // From the first look to the last one there are three from one to the next.
  EXPECT_GE(cost, static_cast<double>(all) * 3 * kLookNs);
  // 6 ms are 1 % of 600 ms, and the whole training takes half of that or a few times as long on a busy
  // machine: those of the first two steps, which are not held against it, and seldom one more.
  EXPECT_LE(norms("1%"), 2 + 1 + static_cast<int>(length * 0.01 / (3 * kLookNs)));
  EXPECT_EQ(norms("0%"), 0);
}

TEST_F(DeviceGradientsTest, OnADeviceThatIsSlowerThanTheHost) {
  train(
      [](DeviceTrainer& trainer) {
        GradientTrainer of(trainer);
        add_all(&of);
        trainer.end_step();
        for (int n = 0; n < 30; ++n) {
          of.tell();
          trainer.end_step();
        }
        fake_cuda::rest();
        trainer.end_step();
        fake_cuda::start(fake_cuda::Run::kByHand);
      },
      {}, fake_cuda::Run::kByThreads);
  std::vector<double> known;
  for (const double norm : norms_of(steps()))
    if (norm != -1) known.push_back(norm);
  ASSERT_GT(known.size(), 3u) << "those of the last steps at least";
  for (const double norm : known) EXPECT_EQ(norm, known[0]) << "the same values, in a fixed order";
}

}  // namespace
}  // namespace foreshock
