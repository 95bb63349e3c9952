// Weights on a real device: what is told of them, and that nothing waits. As live_device_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "segment/layout.h"
#include "tests/libmonitor/live_device_fixture.h"
#include "tests/libmonitor/stored_tensors.h"
#include "tests/support/reported_step.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;

// Tensors of the host, or of the device with the same bytes; told as values, fetched as values, and counted.
struct LiveWeights {
  std::vector<StoredTensor> tensors;
  std::vector<std::vector<const void*>> there;
  const LiveDevice* device;
  void* stream = nullptr;
  int64_t step = 0;

  explicit LiveWeights(const LiveDevice* on) : device(on) {
    tensors.emplace_back("few", 3, 5, FORESHOCK_FP32);
    tensors.emplace_back("some", 300, 211, FORESHOCK_FP32);
    tensors.emplace_back("many", 1031, 1031, FORESHOCK_FP32);
    tensors.emplace_back("some_bf16", 101, 103, FORESHOCK_BF16);
    tensors.emplace_back("many_bf16", 400, 331, FORESHOCK_BF16);
    for (const StoredTensor& each : tensors) {
      there.emplace_back();
      for (const auto* bytes : {&each.values, &each.gradient, &each.moment})
        there.back().push_back(
            device == nullptr ? bytes->data()
                              : reinterpret_cast<const void*>(device->copy_of(bytes->data(), bytes->size())));
    }
  }
  void name() {
    std::vector<foreshock_weight> rows;
    for (const StoredTensor& each : tensors)
      rows.push_back(named(each.name.c_str(), each.rows, each.columns));
    end_step();
    EXPECT_EQ(foreshock_name_weights(rows.data(), rows.size()), static_cast<int>(rows.size()));
  }
  void end_step() { end_reported_step(++step); }
  void train() {
    uint32_t due[8] = {};
    std::vector<foreshock_weight_state> states(foreshock_weights_due(due, 8));
    for (size_t n = 0; n < states.size(); ++n) {
      foreshock_weight_state& state = states[n] = tensors[due[n]].state(due[n], step + 1);
      state.stream = stream;
      foreshock_tensor* views[] = {&state.parameter, &state.gradient, &state.square_average};
      for (size_t k = 0; k < 3; ++k) {
        views[k]->data = there[due[n]][k];
        views[k]->device_type = device == nullptr ? FORESHOCK_DEVICE_CPU : FORESHOCK_DEVICE_CUDA;
      }
    }
    foreshock_observe_weights(states.data(), states.size(), FORESHOCK_AFTER_STEP);
    end_step();
  }
};

class LiveDeviceWeightsTest : public LiveDeviceFixture {
 protected:
  void on_device(const std::function<void(LiveDevice&, LiveWeights&)>& body) {
    LiveDeviceFixture::on_device({{"FORESHOCK_WEIGHTS", "1"}}, [&](LiveDevice& device) {
      LiveWeights weights(&device);
      body(device, weights);
    });
  }
};

TEST_F(LiveDeviceWeightsTest, AreToldAsTheHostTellsThem) {
  constexpr int kSteps = 5;
  in_child({{"FORESHOCK_WEIGHTS", "1"}}, [] {
    LiveWeights weights(nullptr);
    weights.name();
    for (int n = 0; n < kSteps; ++n) weights.train();
  });
  const StoredRecords expected = read_records(open().get());
  ASSERT_EQ(expected.size(), 5u * kSteps);
  clear();
  for (const auto& [kind, name] : kStreamKinds) {
    SCOPED_TRACE(name);
    on_device([kind = kind](LiveDevice& device, LiveWeights& weights) {
      weights.stream = stream_of(device, kind);
      weights.name();
      for (int n = 0; n < kSteps; ++n) {
        weights.train();
        device.wait();
      }
      weights.end_step();
    });
    const StoredRecords found = read_records(open().get());
    EXPECT_EQ(found.size(), 5u * (kSteps - 1)) << "all that come after the device was met";
    for (const auto& [key, ours] : found) {
      SCOPED_TRACE(key.first);
      const StoredRecord& theirs = expected.at(key);
      EXPECT_EQ(ours.record.form, theirs.record.form);
      EXPECT_EQ(ours.record.checksum, theirs.record.checksum);
      EXPECT_EQ(ours.payload[segment::kTensorHistogram], theirs.payload[segment::kTensorHistogram]);
      // Sums of n positive numbers in two orders: n * 2^-53 of each apart at most.
      const double apart = 2 * static_cast<double>(ours.record.elements) * 0x1p-53;
      for (const uint32_t n :
           {segment::kGradientSumOfSquares, segment::kMomentElements, segment::kStalenessSum}) {
        const double sum = theirs.number(segment::kTensorOptimizer, n);
        EXPECT_NEAR(ours.number(segment::kTensorOptimizer, n), sum, apart * sum) << n;
        EXPECT_GT(sum, 0) << n;
      }
    }
    clear();
  }
}

// With the trainer's stream standing still before them: a step that waited would never end.
TEST_F(LiveDeviceWeightsTest, NoStepWaitsForTheDevice) {
  on_device([this](LiveDevice& device, LiveWeights& weights) {
    weights.stream = device.new_stream(1);
    Gate gate(device);
    weights.name();
    weights.train();
    device.wait();
    gate.shut(weights.stream);
    weights.train();
    for (int n = 0; n < 3; ++n) weights.end_step();
    EXPECT_EQ(open()->tensor_ring().snapshots_taken, 0u) << "what is behind the gate";
    EXPECT_EQ(open()->tensor_ring().awaited, 5u);
    gate.open();
    device.wait();
    weights.end_step();
    EXPECT_EQ(open()->tensor_ring().snapshots_taken, 5u);
  });
}

TEST_F(LiveDeviceWeightsTest, ACaptureIsNotSpoilt) {
  constexpr int kGlobal = 0;
  on_device([this](LiveDevice& device, LiveWeights& weights) {
    weights.stream = device.new_stream(1);
    void* graph = nullptr;
    weights.name();
    weights.train();
    device.wait();
    device.must("cuStreamBeginCapture_v2", weights.stream, kGlobal);
    weights.train();
    EXPECT_EQ(device.call("cuStreamEndCapture", weights.stream, &graph), 0);
    EXPECT_NE(graph, nullptr);
    EXPECT_EQ(open()->tensor_ring().skipped[segment::kTensorCapture], 5u);
  });
}

}  // namespace
}  // namespace foreshock
