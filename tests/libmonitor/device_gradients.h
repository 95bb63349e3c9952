// A training on the fake driver's device whose gradients nobody takes norms of, and the steps that tell them.
#ifndef FORESHOCK_TESTS_LIBMONITOR_DEVICE_GRADIENTS_H_
#define FORESHOCK_TESTS_LIBMONITOR_DEVICE_GRADIENTS_H_

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/dtype.h"
#include "segment/layout.h"
#include "tests/libmonitor/device_fixture.h"
#include "tests/libmonitor/missed_numbers.h"

namespace foreshock {

inline double some_gradient(size_t n) { return (static_cast<double>(n * 7919 % 1009) - 500) / 1024; }

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

class DeviceGradientsTest : public DeviceTest {
 protected:
  using Steps = std::vector<segment::StepRecord>;

  Steps steps() {
    auto reader = open();
    if (reader == nullptr) return {};
    reader->wait_no_more();
    fetched_ = reader->coverage().numbers_fetched;
    missed_ = missed_numbers(reader->coverage());
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
  uint64_t fetched_ = 0;
  std::string missed_;
  std::vector<segment::Layer> layers_;
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_DEVICE_GRADIENTS_H_
