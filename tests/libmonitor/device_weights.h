// Weights that an optimizer steps on a device of the fake driver, and what is told of them.
#ifndef FORESHOCK_TESTS_LIBMONITOR_DEVICE_WEIGHTS_H_
#define FORESHOCK_TESTS_LIBMONITOR_DEVICE_WEIGHTS_H_

#include <string>
#include <utility>
#include <vector>

#include "tests/libmonitor/device_fixture.h"
#include "tests/libmonitor/stored_tensors.h"

namespace foreshock {

struct WeightTrainer {
  DeviceTrainer& trainer;
  std::vector<StoredTensor> tensors;
  bool on_device = true;
  void* stream = fake_cuda::legacy_stream();

  explicit WeightTrainer(DeviceTrainer& of) : trainer(of) {}

  void add(const char* name, int64_t rows, int64_t columns, uint32_t dtype = FORESHOCK_FP32) {
    tensors.emplace_back(name, rows, columns, dtype);
  }
  int name() {
    std::vector<foreshock_weight> named_ones;
    for (const StoredTensor& each : tensors)
      named_ones.push_back(named(each.name.c_str(), each.rows, each.columns));
    return foreshock_name_weights(named_ones.data(), named_ones.size());
  }
  foreshock_weight_state state(uint32_t number) {
    foreshock_weight_state state = tensors[number].state(number, trainer.step + 1);
    if (!on_device) return state;
    state.stream = stream;
    for (foreshock_tensor* tensor : {&state.parameter, &state.gradient, &state.square_average}) {
      tensor->device_type = FORESHOCK_DEVICE_CUDA;
      tensor->device_index = trainer.device;
    }
    return state;
  }
  // The optimizer's work is given to the stream, as ours is. Returns how many tensors had their turn.
  size_t step(bool run = true) {
    uint32_t due[32] = {};
    const size_t count = foreshock_weights_due(due, 32);
    std::vector<foreshock_weight_state> states;
    for (size_t n = 0; n < count; ++n) states.push_back(state(due[n]));
    foreshock_observe_weights(states.data(), count, FORESHOCK_BEFORE_STEP);
    const int64_t now = trainer.step + 1;
    const auto work = [this, now] {
      for (StoredTensor& each : tensors) each.move(now);
    };
    on_device ? fake_cuda::enqueue(stream, work) : work();
    foreshock_observe_weights(states.data(), count, FORESHOCK_AFTER_STEP);
    if (run) fake_cuda::run_all();
    trainer.end_step();
    if (run) fake_cuda::run_all();
    return count;
  }
  // Until a device is there to be used: it is met in the first step that has a turn.
  void set_up(int steps = 1) {
    trainer.end_step();
    EXPECT_EQ(name(), static_cast<int>(tensors.size()));
    for (int n = 0; n < steps; ++n) step();
    fake_cuda::forget_calls();
  }
};

class DeviceWeightsTest : public DeviceTest {
 protected:
  template <class Body>
  void follow(Body body, const char* interval = "1", fake_cuda::Run run = fake_cuda::Run::kByHand,
              int devices = 1) {
    train(
        [&body](DeviceTrainer& trainer) {
          trainer.on_device = false;
          WeightTrainer weights(trainer);
          body(weights);
        },
        {{"FORESHOCK_WEIGHTS", interval}}, run, devices);
  }

  segment::TensorRing ring() {
    auto reader = open();
    return reader == nullptr ? segment::TensorRing{} : reader->tensor_ring();
  }
  // Every turn became one thing.
  void expect_skipped(uint32_t reason, uint64_t count, uint64_t taken) {
    const segment::TensorRing ring = this->ring();
    uint64_t skipped = 0;
    for (uint32_t each = 0; each < segment::kTensorSkips; ++each) skipped += ring.skipped[each];
    EXPECT_EQ(ring.skipped[reason], count) << segment::kTensorSkipNames[reason];
    EXPECT_EQ(ring.snapshots_taken, taken);
    EXPECT_EQ(ring.due, ring.snapshots_taken + skipped + ring.awaited);
  }
  StoredRecords records() { return read_records(open().get()); }
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_DEVICE_WEIGHTS_H_
