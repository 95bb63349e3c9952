// Gradients on a device that cannot be had, or not in time: what is counted, and what still comes.
#include <gtest/gtest.h>

#include <cstddef>

#include "kernels/device_jobs.h"
#include "tests/libmonitor/device_gradients.h"
#include "tests/libmonitor/device_numbers.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;

using DeviceGradientsFaults = DeviceGradientsTest;

// Each of these is counted, and gives the stream nothing.
TEST_F(DeviceGradientsFaults, WhatCannotBeHadIsLeftOut) {
  struct Case {
    const char* name;
    const char* missed;  // beside that which met the device
    void (*tell)(GradientTrainer&);
  };
  const Case cases[] = {
      {"no stream", "device 1",
       [](GradientTrainer& of) {
         of.tell();  // as far as it may go: this one is sent
         fake_cuda::run_all();
         fake_cuda::forget_calls();
         of.gradients[0].stream = nullptr;
         of.observe();
       }},
      {"captured", "capture 1",
       [](GradientTrainer& of) {
         of.trainer.stream = fake_cuda::new_stream(0);
         fake_cuda::begin_capture(of.trainer.stream);
         of.tell();
         fake_cuda::end_capture(of.trainer.stream);
       }},
      {"on the host as well", "layout 2",
       [](GradientTrainer& of) {
         of.add(1, DType::kFp32, "000", some_gradient);
         of.gradients[0].values.device_type = FORESHOCK_DEVICE_CUDA;
         of.gradients[0].stream = of.trainer.stream;
         of.observe();
       }},
      {"too large", "too_large 1",
       [](GradientTrainer& of) {
         of.gradients[0].values.shape[0] = (int64_t{1} << 31) + 1;
         of.tell();
       }},
      {"not in one block", "layout 1",
       [](GradientTrainer& of) {
         of.gradients[0].values.stride[0] = 2;
         of.tell();
       }},
      {"not aligned", "layout 1",
       [](GradientTrainer& of) {
         of.gradients[0].values.shape[0] = 1;
         of.gradients[0].values.data = of.memory[0].data() + 1;
         of.tell();
       }},
      {"more of them than a step has room for", "too_large 2730",
       [](GradientTrainer& of) {
         while (of.gradients.size() < 2730) of.add(1, DType::kFp32, "000", some_gradient);
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
    EXPECT_EQ(missed_, std::string(one.missed) + ", set_up 1");
    clear();
  }
}

TEST_F(DeviceGradientsFaults, WithoutMemoryForThemOtherNumbersStillCome) {
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
  EXPECT_EQ(missed_, "device_memory 1, set_up 1");
}

TEST_F(DeviceGradientsFaults, WhatTheDriverRefusesIsNotTriedAgain) {
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
    EXPECT_EQ(missed_, "device 2, set_up 1");
    clear();
  }
}

// Two streams would sum into the same memory.
TEST_F(DeviceGradientsFaults, OnAnotherStreamOnlyWhenThoseOfTheFirstHaveCome) {
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
  EXPECT_EQ(missed_, "ring_full 1, set_up 1");
}

// They came so long ago that other numbers lie where theirs did.
TEST_F(DeviceGradientsFaults, OnAnotherStreamLongAfterThoseOfTheFirst) {
  const Steps all = told_in_third_step([](GradientTrainer& of) {
    DeviceTrainer& trainer = of.trainer;
    trainer.stream = fake_cuda::new_stream(0);
    of.take_step();  // 3 and 4
    Numbers numbers{trainer};
    const std::vector<foreshock_tensor> others(kScalarCells / 8, numbers.tensor(1.f));
    std::vector<uint64_t> known(others.size());
    for (int n = 0; n < 8; ++n) {  // 5 to 12
      EXPECT_EQ(
          foreshock_fetch(others.data(), others.size(), trainer.stream, FORESHOCK_FETCH_OTHER, known.data()),
          1);
      trainer.end_step();
      fake_cuda::run_all();
    }
    trainer.stream = fake_cuda::new_stream(0);
    of.take_step();  // 13
  });
  EXPECT_EQ(norms_of(all).at(12), 4);
  EXPECT_EQ(missed_, "set_up 1") << "of the step that met the device";
}

TEST_F(DeviceGradientsFaults, ADeviceThatWasReset) {
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
TEST_F(DeviceGradientsFaults, OfAStepThatIsLeftOutNothingIsTold) {
  const Steps all = told_in_third_step([](GradientTrainer& of) {
    of.tell();
    foreshock_step_skipped();
  });
  EXPECT_EQ(norms_of(all), std::vector<double>({-1, -1, -1, -1, -1}));
}

}  // namespace
}  // namespace foreshock
