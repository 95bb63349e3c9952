// Numbers that lie on the fake driver's device, as a training makes and tells them, and the steps that they
// are of.
#ifndef FORESHOCK_TESTS_LIBMONITOR_DEVICE_NUMBERS_H_
#define FORESHOCK_TESTS_LIBMONITOR_DEVICE_NUMBERS_H_

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "tests/libmonitor/device_fixture.h"
#include "tests/libmonitor/missed_numbers.h"

namespace foreshock {

inline constexpr uint32_t kRoot = FORESHOCK_LOSS_BACKWARD_ROOT, kNll = FORESHOCK_LOSS_NLL;

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

class DeviceNumbersTest : public DeviceTest {
 protected:
  std::vector<segment::StepRecord> steps() {
    auto reader = open();
    if (reader == nullptr) return {};
    reader->wait_no_more();
    missed_ = missed_numbers(reader->coverage());
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
  std::string missed_;
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_DEVICE_NUMBERS_H_
