// Gradients on a device, where nobody has taken their norms: in the record of their step, as the host sums
// them.
#include "libmonitor/device_gradients.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/dtype.h"
#include "segment/names.h"
#include "tests/libmonitor/device_fixture.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;
using Steps = std::vector<segment::StepRecord>;

// A training whose gradients are told as values.
struct GradientTrainer {
  DeviceTrainer& trainer;
  bool on_device = true;
  std::vector<std::vector<char>> memory = {};
  std::vector<foreshock_gradient> gradients = {};
  std::vector<foreshock_parameter> named = {};

  explicit GradientTrainer(DeviceTrainer& of) : trainer(of) {}

  // `value(n)` of element n. The first byte of the values is `off` elements from where memory begins.
  template <class Value>
  void add(size_t elements, DType type, const char* layer, const Value& value, size_t off = 0) {
    memory.emplace_back((elements + off) * size_of(type));
    for (size_t n = 0; n < elements; ++n) {
      const double exact = value(n);
      char* at = memory.back().data() + (n + off) * size_of(type);
      const auto single = static_cast<float>(exact);
      const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(single) >> 16);
      if (type == DType::kFp64) std::memcpy(at, &exact, 8);
      if (type == DType::kFp32) std::memcpy(at, &single, 4);
      if (type == DType::kBf16 || type == DType::kFp16) std::memcpy(at, &half, 2);  // any finite pattern
    }
    foreshock_gradient gradient = {};
    gradient.size = sizeof gradient;
    gradient.version = FORESHOCK_ABI_VERSION;
    gradient.values.data = memory.back().data() + off * size_of(type);
    gradient.values.dims = 1;
    gradient.values.dtype = static_cast<uint32_t>(type);
    std::fill(gradient.values.shape, gradient.values.shape + FORESHOCK_TENSOR_DIMS, 1);
    gradient.values.shape[0] = static_cast<int64_t>(elements);
    gradient.values.stride[0] = 1;
    static const char identities[8192] = {};
    gradient.identity = identities + 16 * (gradients.size() % 512);
    gradients.push_back(gradient);
    named.push_back(
        {sizeof(foreshock_parameter), FORESHOCK_ABI_VERSION, gradient.identity, "a", layer, elements});
  }
  void name() { foreshock_name_parameters(named.data(), named.size()); }
  void tell() {
    for (foreshock_gradient& gradient : gradients) {
      gradient.values.device_type = on_device ? FORESHOCK_DEVICE_CUDA : FORESHOCK_DEVICE_CPU;
      gradient.values.device_index = trainer.device;
      gradient.stream = on_device ? trainer.stream : nullptr;
    }
    observe();
  }
  void observe() { foreshock_observe_gradients(gradients.data(), gradients.size()); }
  // One step with them, and the next one, by whose end their sums have come.
  void take_step() {
    tell();
    trainer.end_step();
    fake_cuda::run_all();
    trainer.end_step();
  }
  // The device is met in a first step, and is there in the next one.
  void set_up() {
    trainer.end_step();
    tell();
    trainer.end_step();
    fake_cuda::run_all();
    fake_cuda::forget_calls();
  }
};

double some(size_t n) { return (static_cast<double>(n * 7919 % 1009) - 500) / 1024; }

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
    of->add(elements_of(n), kTypes[n % 4], n < 80 ? "000" : "001", some, n % 3);
}

class DeviceGradientsTest : public DeviceTest {
 protected:
  Steps steps() {
    auto reader = open();
    if (reader == nullptr) return {};
    reader->wait_no_more();
    fetched_ = reader->coverage().numbers_fetched;
    missed_ = reader->coverage().numbers_missed;
    layers_ = reader->layers();
    return reader->new_steps();
  }
  static std::vector<double> norms_of(const Steps& steps) {
    std::vector<double> norms;
    for (const segment::StepRecord& step : steps)
      norms.push_back(segment::given(step, segment::kGivenGradientNorm) ? step.gradient_norm : -1);
    return norms;
  }
  // One tensor of norm 4, told in a third step; what comes of it.
  template <class Body>
  Steps told_in_third_step(Body body, std::vector<std::pair<const char*, const char*>> variables = {}) {
    train(
        [&body](DeviceTrainer& trainer) {
          GradientTrainer of(trainer);
          of.add(16, DType::kFp32, "000", [](size_t) { return 1.0; });
          of.set_up();
          body(of);
          trainer.end_step();
          fake_cuda::run_all();
          for (int n = 0; n < 2; ++n) trainer.end_step();
        },
        std::move(variables));
    return steps();
  }
  uint64_t fetched_ = 0, missed_ = 0;
  std::vector<segment::Layer> layers_;
};

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
  EXPECT_EQ(missed_, kTensors);
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
      gradients.add(100, DType::kFp32, "000", some);
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

// Each of these is counted, and gives the stream nothing.
TEST_F(DeviceGradientsTest, WhatCannotBeHadIsLeftOut) {
  struct Case {
    const char* name;
    uint64_t missed;
    void (*tell)(GradientTrainer&);
  };
  const Case cases[] = {
      {"no stream", 1,
       [](GradientTrainer& of) {
         of.tell();  // as far as it may go: this one is sent
         fake_cuda::run_all();
         fake_cuda::forget_calls();
         of.gradients[0].stream = nullptr;
         of.observe();
       }},
      {"of before it was asked for", 1,
       [](GradientTrainer& of) {
         of.gradients[0].values.device_type = FORESHOCK_DEVICE_CUDA;
         of.gradients[0].stream = of.trainer.stream;
         of.gradients[0].size = offsetof(foreshock_gradient, stream);
         of.observe();
       }},
      {"captured", 1,
       [](GradientTrainer& of) {
         of.trainer.stream = fake_cuda::new_stream(0);
         fake_cuda::begin_capture(of.trainer.stream);
         of.tell();
         fake_cuda::end_capture(of.trainer.stream);
       }},
      {"on the host as well", 2,
       [](GradientTrainer& of) {
         of.add(1, DType::kFp32, "000", some);
         of.gradients[0].values.device_type = FORESHOCK_DEVICE_CUDA;
         of.gradients[0].stream = of.trainer.stream;
         of.observe();
       }},
      {"too large", 1,
       [](GradientTrainer& of) {
         of.gradients[0].values.shape[0] = (int64_t{1} << 31) + 1;
         of.tell();
       }},
      {"not in one block", 1,
       [](GradientTrainer& of) {
         of.gradients[0].values.stride[0] = 2;
         of.tell();
       }},
      {"not aligned", 1,
       [](GradientTrainer& of) {
         of.gradients[0].values.shape[0] = 1;
         of.gradients[0].values.data = of.memory[0].data() + 1;
         of.tell();
       }},
      {"more of them than a step has room for", 2730,
       [](GradientTrainer& of) {
         while (of.gradients.size() < 2730) of.add(1, DType::kFp32, "000", some);
         of.tell();
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const Steps all = told_in_third_step([&one](GradientTrainer& of) {
      one.tell(of);
      EXPECT_EQ(count_of("cuLaunchKernel"), 0);
      EXPECT_EQ(count_of("cuMemsetD8Async"), 0);
    });
    EXPECT_EQ(norms_of(all), std::vector<double>({-1, -1, -1, -1, -1}));
    EXPECT_EQ(missed_, 1 + one.missed) << "with that which met the device";
    clear();
  }
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
    for (int n = 0; n < 3; ++n) of.add(1, DType::kBf16, "000", some);
    of.set_up();
    for (foreshock_gradient& gradient : of.gradients) gradient.values.shape[0] = int64_t{1} << 30;
    of.tell();
    EXPECT_EQ(count_of("cuLaunchKernel"), 2 + 2 + 2) << "two of three together";
  });
}

TEST_F(DeviceGradientsTest, WithoutMemoryForThemOtherNumbersStillCome) {
  train([](DeviceTrainer& trainer) {
    fake_cuda::set_faults({.free_bytes = size_t{16} << 20});
    GradientTrainer of(trainer);
    of.add(16, DType::kFp32, "000", [](size_t) { return 1.0; });
    trainer.end_step();
    of.tell();
    trainer.end_step();
    EXPECT_EQ(count_of("cuMemAlloc"), 1) << "of slices alone";
    fake_cuda::run_all();
    fake_cuda::forget_calls();
    of.tell();
    EXPECT_EQ(count_of("cuLaunchKernel"), 0);
    float loss = 0.5f;
    foreshock_tensor number = of.gradients[0].values;
    number.data = &loss;
    number.shape[0] = 1;
    uint64_t known_as = 0;
    foreshock_fetch(&number, 1, trainer.stream, FORESHOCK_FETCH_LOSS, &known_as);
    foreshock_observe_fetched_loss(known_as, 0, FORESHOCK_LOSS_BACKWARD_ROOT);
    fake_cuda::run_all();
    trainer.end_step();
    trainer.end_step();
  });
  const Steps all = steps();
  EXPECT_EQ(norms_of(all), std::vector<double>({-1, -1, -1, -1}));
  EXPECT_EQ(all[2].loss, 0.5);
  EXPECT_EQ(missed_, 2u);
}

TEST_F(DeviceGradientsTest, WhatTheDriverRefusesIsNotTriedAgain) {
  const std::pair<const char*, int> refused[] = {{"cuMemsetD8Async", 0}, {"cuLaunchKernel", 0},
                                                 {"cuLaunchKernel", 1},  {"cuLaunchKernel", 2},
                                                 {"cuLaunchKernel", 3},  {"cuLaunchKernel", 4}};
  for (const auto& [name, after] : refused) {
    SCOPED_TRACE(std::string(name) + std::to_string(after));
    const Steps all = told_in_third_step([&, name = name, after = after](GradientTrainer& of) {
      fake_cuda::set_faults({.failing = name, .failing_after = after});
      of.tell();
      EXPECT_EQ(count_of(name), after + 1);
      fake_cuda::set_faults({});
      of.trainer.end_step();
      fake_cuda::run_all();
      of.tell();
      EXPECT_EQ(count_of(name), after + 1);
    });
    EXPECT_EQ(norms_of(all), std::vector<double>({-1, -1, -1, -1, -1, -1}));
    EXPECT_EQ(missed_, 3u);
    clear();
  }
}

// Two streams would sum into the same memory.
TEST_F(DeviceGradientsTest, OnAnotherStreamOnlyWhenThoseOfTheFirstHaveCome) {
  const Steps all = told_in_third_step([](GradientTrainer& of) {
    DeviceTrainer& trainer = of.trainer;
    void* const streams[] = {fake_cuda::new_stream(0), fake_cuda::new_stream(0)};
    trainer.stream = streams[0];
    for (int n = 0; n < 2; ++n) {  // steps 3 and 4: the second one behind the first
      of.tell();
      trainer.end_step();
    }
    trainer.stream = streams[1];
    of.tell();  // step 5
    EXPECT_EQ(names_of_calls(streams[1]), Names({"cuStreamGetCtx", "cuStreamIsCapturing"}));
    trainer.end_step();
    fake_cuda::run_all();
    of.tell();  // step 6
  });
  EXPECT_EQ(norms_of(all), std::vector<double>({-1, -1, 4, 4, -1, 4, -1, -1}));
  EXPECT_EQ(missed_, 2u);
}

TEST_F(DeviceGradientsTest, ADeviceThatWasReset) {
  const Steps all = told_in_third_step([](GradientTrainer& of) {
    of.tell();
    of.trainer.end_step();
    fake_cuda::reset_device(0);
    of.tell();  // is met
    of.trainer.end_step();
    of.tell();
  });
  EXPECT_EQ(norms_of(all), std::vector<double>({-1, -1, -1, -1, 4, -1, -1}));
}

// Of a step that a scaler leaves out they are those of no step.
TEST_F(DeviceGradientsTest, OfAStepThatIsLeftOutNothingIsTold) {
  const Steps all = told_in_third_step([](GradientTrainer& of) {
    of.tell();
    foreshock_step_skipped();
  });
  EXPECT_EQ(norms_of(all), std::vector<double>({-1, -1, -1, -1, -1}));
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
          of.add(1000, DType::kFp32, "000", some);
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
