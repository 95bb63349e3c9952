// The library on a real device: what arrives in the segment, what waits, what a capture suffers. Label gpu;
// skipped, saying why, where there is no device. `live_device_rehearsal` runs the same on the fake driver, so
// that what is wrong with the test itself is found where no device is.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>
#include <tuple>

#include "segment/layout.h"
#include "tests/libmonitor/call_on_tensors.h"
#include "tests/libmonitor/live_device_fixture.h"
#include "tests/libmonitor/missed_numbers.h"
#include "tests/support/reported_step.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// What lies in a segment, by step, pass and payload.
using Payloads = std::map<std::tuple<int64_t, uint32_t, uint32_t>, std::vector<std::byte>>;

// A training of one call each way on tensors of the host, or of the device with the same bytes.
struct LiveTrainer {
  int32_t ops[2] = {foreshock_register_op("test::forward", FORESHOCK_FORWARD),
                    foreshock_register_op("test::backward", FORESHOCK_BACKWARD)};
  CallOnTensors tensors[2];
  const LiveDevice* device;
  void* stream = nullptr;
  int64_t step = 0;

  LiveTrainer(const LiveDevice* on, int64_t dim) : device(on) {
    for (const int pass : {0, 1}) {
      tensors[pass].dim = dim;
      tensors[pass].queries = tensors[pass].keys = 300;
      tensors[pass].build(pass == 1);
      if (device != nullptr) move(&tensors[pass].call);
    }
  }

  void move(foreshock_attention_call* call) const {
    for (foreshock_tensor* tensor : {&call->query, &call->key, &call->value, &call->out, &call->log_sum_exp,
                                     &call->grad_out, &call->grad_query}) {
      if (tensor->data == nullptr) continue;
      const int64_t count = tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
      tensor->data =
          reinterpret_cast<void*>(device->copy_of(tensor->data, static_cast<size_t>(count) * sizeof(float)));
      tensor->device_type = FORESHOCK_DEVICE_CUDA;
    }
  }

  void attention(int pass) {
    const uint32_t flags = pass == 0 ? FORESHOCK_NEEDS_GRADIENT : FORESHOCK_IN_BACKWARD;
    if (foreshock_attention_enter(ops[pass], flags) == 0) return;
    foreshock_attention_call call = tensors[pass].call;
    call.op = ops[pass];
    call.stream = stream;
    foreshock_attention_leave(&call);
  }

  // Returns how long its end took.
  Clock::duration train() {
    attention(0);
    attention(1);
    std::this_thread::sleep_for(5ms);  // so that what is sampled is little of it
    const Clock::time_point begin = Clock::now();
    end_reported_step(++step);
    return Clock::now() - begin;
  }

  // Nothing of the first step is sampled; the calls of the second one ask for the device.
  void set_up() {
    train();
    train();
    device->wait();
  }
};

class LiveDeviceTest : public LiveDeviceFixture {
 protected:
  void on_device(int64_t dim, const std::function<void(LiveDevice&, LiveTrainer&)>& body) {
    LiveDeviceFixture::on_device({}, [&](LiveDevice& device) {
      LiveTrainer trainer(&device, dim);
      body(device, trainer);
    });
  }

  Payloads payloads() {
    Payloads found;
    auto reader = open();
    SegmentReader::Ready ready;
    while (reader != nullptr && reader->next_ready(&ready)) {
      EXPECT_EQ(ready.why, nullptr) << ready.why;
      const segment::Slot& header = ready.view.header;
      for (uint32_t n = 0; n < segment::kPayloads; ++n)
        found[{header.step, header.pass, n}].assign(ready.view.payload[n].begin(),
                                                    ready.view.payload[n].end());
      reader->consume_judged(ready);
    }
    return found;
  }

  static uint64_t slices(const Payloads& found) { return found.size() / segment::kPayloads; }

  // Of both passes; false after ten seconds.
  bool arrives(uint64_t slices) {
    for (int n = 0; n < 1000; ++n) {
      Payloads found = payloads();
      arrived_.merge(found);
      if (LiveDeviceTest::slices(arrived_) >= slices) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }

  // Told so far, none of whose numbers is still to come.
  std::vector<segment::StepRecord> steps() {
    auto reader = open();
    if (reader == nullptr) return {};
    reader->wait_no_more();
    missed_ = missed_numbers(reader->coverage());
    return reader->new_steps();
  }

  Payloads arrived_;
  std::string missed_;
};

// From every kind of stream; rows of 24 bytes and of 256.
TEST_F(LiveDeviceTest, BringsTheBytesThatTheHostCopies) {
  constexpr int kSteps = 6;
  for (const int64_t dim : {6, 64}) {
    in_child({}, [dim] {
      LiveTrainer trainer(nullptr, dim);
      for (int n = 0; n < kSteps; ++n) trainer.train();
    });
    const Payloads expected = payloads();
    ASSERT_EQ(slices(expected), 2u * (kSteps - 1));
    clear();
    for (const auto& [kind, name] : kStreamKinds) {
      SCOPED_TRACE(name);
      on_device(dim, [kind = kind](LiveDevice& device, LiveTrainer& trainer) {
        trainer.stream = stream_of(device, kind);
        trainer.set_up();
        for (int n = 2; n < kSteps; ++n) {
          trainer.train();
          device.wait();
        }
      });
      const Payloads found = payloads();
      EXPECT_EQ(slices(found), 2u * (kSteps - 2)) << "all that come after the device was met";
      for (const auto& [key, bytes] : found)
        EXPECT_TRUE(expected.contains(key) && expected.at(key) == bytes)
            << "step " << std::get<0>(key) << ", pass " << std::get<1>(key) << ", payload "
            << std::get<2>(key);
      clear();
    }
  }
}

// With the trainer's stream standing still before them: a call that waited would never return.
TEST_F(LiveDeviceTest, NoCallAndNoStepWaitsForTheDevice) {
  on_device(64, [this](LiveDevice& device, LiveTrainer& trainer) {
    trainer.stream = device.new_stream(1);
    Gate gate(device);
    trainer.set_up();
    gate.shut(trainer.stream);
    for (int n = 0; n < 3; ++n) trainer.train();
    EXPECT_EQ(slices(payloads()), 0u) << "what is behind the gate";
    gate.open();
    EXPECT_TRUE(arrives(2 * 3));
  });
}

// What it does may wait for the device, and on a real one does: told here, since it is what a step with
// collectives under way has to bear once.
TEST_F(LiveDeviceTest, SetUpBehindABusyStream) {
  on_device(64, [this](LiveDevice& device, LiveTrainer& trainer) {
    trainer.stream = device.new_stream(1);
    Gate gate(device);
    trainer.train();
    device.wait();
    const size_t free = device.free_bytes();
    gate.shut(trainer.stream);
    std::thread other([&gate] {
      std::this_thread::sleep_for(500ms);
      gate.open();
    });
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(trainer.train());
    other.join();
    device.wait();
    std::printf(
        "set-up behind a stream that stood still for 500 ms: %lld ms; memory of the device: %lld KiB\n",
        static_cast<long long>(took.count()),
        static_cast<long long>(free - std::min(free, device.free_bytes())) / 1024);
    trainer.train();
    EXPECT_TRUE(arrives(2));
  });
}

// Losses behind a stream that stands still: the ends of steps do not wait for them, and each is in the record
// of its own step once it has come.
TEST_F(LiveDeviceTest, ALossIsInTheRecordOfItsStep) {
  on_device(64, [](LiveDevice& device, LiveTrainer& trainer) {
    trainer.stream = device.new_stream(1);
    Gate gate(device);
    trainer.set_up();
    std::vector<uint64_t> losses;  // here already: to make room on a device may wait for what runs there
    for (const float loss : {0.1f, 0.7f, 1e-40f}) losses.push_back(device.copy_of(&loss, sizeof loss));
    gate.shut(trainer.stream);
    for (const uint64_t loss : losses) {
      foreshock_tensor tensor = {};
      tensor.data = reinterpret_cast<void*>(loss);
      std::fill(tensor.shape, tensor.shape + FORESHOCK_TENSOR_DIMS, 1);
      tensor.dtype = FORESHOCK_FP32;
      tensor.device_type = FORESHOCK_DEVICE_CUDA;
      uint64_t number = 0;
      EXPECT_EQ(foreshock_fetch(&tensor, 1, trainer.stream, FORESHOCK_FETCH_LOSS, &number), 1);
      foreshock_observe_fetched_loss(number, 0, FORESHOCK_LOSS_BACKWARD_ROOT);
      trainer.train();
    }
    gate.open();
    device.wait();
    trainer.train();
  });
  const auto steps = this->steps();
  ASSERT_EQ(steps.size(), 6u);
  const double expected[] = {0.1f, 0.7f, 1e-40f};
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_FALSE(segment::is_pending(steps[2 + n]));
    EXPECT_TRUE(segment::given(steps[2 + n], segment::kGivenLoss)) << n;
    EXPECT_EQ(steps[2 + n].loss, expected[n]);
  }
  EXPECT_EQ(missed_, "");
}

// Gradients behind a stream that stands still: the same of their squares. Every sum of these is exact.
TEST_F(LiveDeviceTest, ANormOfGradientsIsInTheRecordOfItsStep) {
  on_device(64, [](LiveDevice& device, LiveTrainer& trainer) {
    trainer.stream = device.new_stream(1);
    Gate gate(device);
    trainer.set_up();
    const std::vector<float> halves(150'000, 0.5f);
    const std::vector<uint16_t> twos(100, 0x4000);  // of bf16
    std::vector<foreshock_gradient> gradients;
    const auto add = [&](const void* values, size_t count, uint32_t dtype, size_t bytes) {
      foreshock_gradient gradient = {};
      gradient.size = sizeof gradient;
      gradient.version = FORESHOCK_ABI_VERSION;
      gradient.values = {reinterpret_cast<void*>(device.copy_of(values, count * bytes)),
                         {static_cast<int64_t>(count), 1, 1, 1},
                         {1, 0, 0, 0},
                         dtype,
                         1,
                         FORESHOCK_DEVICE_CUDA,
                         0};
      gradient.stream = trainer.stream;
      gradients.push_back(gradient);
    };
    for (int n = 0; n < 60; ++n) {
      add(halves.data(), halves.size(), FORESHOCK_FP32, sizeof(float));
      add(twos.data(), twos.size(), FORESHOCK_BF16, sizeof(uint16_t));
    }
    for (const bool is_there : {false, true}) {
      if (is_there) gate.shut(trainer.stream);
      foreshock_observe_gradients(gradients.data(), gradients.size());
      trainer.train();
    }
    gate.open();
    device.wait();
    trainer.train();
  });
  const auto steps = this->steps();
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_FALSE(segment::given(steps[2], segment::kGivenGradientNorm)) << "the device was met";
  EXPECT_FALSE(segment::is_pending(steps[3]));
  EXPECT_TRUE(segment::given(steps[3], segment::kGivenGradientNorm));
  EXPECT_EQ(steps[3].gradient_norm, std::sqrt(60 * (150'000 * 0.25 + 100 * 4.0)));
}

// In the mode that forbids every thread what may disturb it, which is torch's.
TEST_F(LiveDeviceTest, ACaptureIsNotSpoiltByWhatRunsBesideIt) {
  constexpr int kGlobal = 0;
  on_device(64, [this](LiveDevice& device, LiveTrainer& trainer) {
    trainer.stream = device.new_stream(1);
    void* captured = device.new_stream(1);
    void* graph = nullptr;
    device.must("cuStreamBeginCapture_v2", captured, kGlobal);
    trainer.train();
    trainer.train();  // sets up
    // Nothing may be waited for meanwhile.
    for (int n = 0; n < 200 && slices(arrived_) == 0; ++n) {
      trainer.train();
      Payloads found = payloads();
      arrived_.merge(found);
    }
    EXPECT_GT(slices(arrived_), 0u);
    trainer.stream = captured;
    trainer.train();
    EXPECT_EQ(device.call("cuStreamEndCapture", captured, &graph), 0);
    EXPECT_NE(graph, nullptr);
    const segment::Totals totals = open()->totals();
    EXPECT_EQ(totals.skipped[0][FORESHOCK_SKIP_CAPTURE] + totals.skipped[1][FORESHOCK_SKIP_CAPTURE], 2u);
    EXPECT_EQ(totals.skipped[0][FORESHOCK_SKIP_DEVICE] + totals.skipped[1][FORESHOCK_SKIP_DEVICE], 0u);
  });
}

}  // namespace
}  // namespace foreshock
