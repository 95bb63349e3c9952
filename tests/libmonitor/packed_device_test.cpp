// Packed sequences on a device: nobody on the host reads their offsets, and what arrives is one of them.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "agent/pipeline.h"
#include "tests/libmonitor/call_on_tensors.h"
#include "tests/libmonitor/device_fixture.h"
#include "tests/libmonitor/packed_tensors.h"

namespace foreshock {
namespace {

constexpr int32_t kWindowed = 3;  // in place of a causal mask

// Trains on sequences like these, and may hide their offsets while the host is at work.
struct PackedTrainer {
  DeviceTrainer& trainer;
  const Samples* only = nullptr;  // describes of each call the sequence that it says, by itself
  PackedTensors tensors[2];
  int32_t* offsets = nullptr;  // two pages, that of the queries and that of the keys

  static int64_t page() { return sysconf(_SC_PAGESIZE); }

  PackedTrainer(DeviceTrainer& trainer, const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                int32_t causal, bool by_sequence = false)
      : trainer(trainer) {
    for (const int pass : {0, 1}) {
      tensors[pass].lse_by_sequence = by_sequence;
      tensors[pass].build(queries, keys, pass == 1);
      tensors[pass].call.causal = causal;
      if (causal == kWindowed) set_window(FORESHOCK_CAUSAL_BOTTOM_RIGHT, 4, 1, &tensors[pass].call);
    }
  }
  ~PackedTrainer() {
    if (offsets != nullptr) munmap(offsets, static_cast<size_t>(2 * page()));
  }

  void hide_offsets() {
    void* pages = mmap(nullptr, static_cast<size_t>(2 * page()), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(pages, MAP_FAILED);
    offsets = static_cast<int32_t*>(pages);
    int32_t* of_keys = offsets + page() / static_cast<int64_t>(sizeof(int32_t));
    std::copy(tensors[0].queries.begin(), tensors[0].queries.end(), offsets);
    std::copy(tensors[0].keys.begin(), tensors[0].keys.end(), of_keys);
    for (PackedTensors& each : tensors) {
      each.call.query_offsets = offsets;
      each.call.key_offsets = of_keys;
    }
  }
  void let_read(bool may) const {
    if (offsets != nullptr) mprotect(offsets, static_cast<size_t>(2 * page()), may ? PROT_READ : PROT_NONE);
  }

  foreshock_attention_call call(int pass) {
    foreshock_attention_call call = tensors[pass].call;
    if (only != nullptr) {
      const auto found = only->find({trainer.step + 1, static_cast<uint32_t>(pass)});
      call = tensors[pass].alone(found == only->end() ? 0 : static_cast<size_t>(found->second.header.batch));
    }
    call.op = trainer.ops[pass];
    if (!trainer.on_device) return call;
    call.stream = trainer.stream;
    for (foreshock_tensor* tensor : {&call.query, &call.key, &call.value, &call.out, &call.log_sum_exp,
                                     &call.grad_out, &call.grad_query})
      tensor->device_type = FORESHOCK_DEVICE_CUDA;
    return call;
  }

  void train(int steps) {
    for (int n = 0; n < steps; ++n) {
      for (const int pass : {0, 1}) {
        const uint32_t flags = pass == 0 ? FORESHOCK_NEEDS_GRADIENT : FORESHOCK_IN_BACKWARD;
        let_read(false);
        if (foreshock_attention_enter(trainer.ops[pass], flags) != 0) {
          const foreshock_attention_call description = call(pass);
          foreshock_attention_leave(&description);
        }
        let_read(true);
        fake_cuda::run_all();
      }
      let_read(false);
      trainer.end_step();
      let_read(true);
      fake_cuda::run_all();
    }
  }
};

using PackedDevice = DeviceTest;

const std::vector<int32_t> kQueries = {7, 1, 0, 30, 12}, kKeys = {9, 1, 4, 30, 30};

// What the host copies of the same sequences is what a call of each of them alone gives (packed_call_test):
// here every header and payload of the device is that of the host, though no byte of the offsets is read.
TEST_F(PackedDevice, BringsWhatTheHostCopiesWithoutALookAtTheOffsets) {
  for (const bool by_sequence : {false, true}) {
    for (const int32_t causal : {0, 1, 2, kWindowed}) {  // FORESHOCK_CAUSAL_..., or a window
      Samples on[2];
      for (const bool on_device : {false, true}) {
        train([&](DeviceTrainer& trainer) {
          trainer.on_device = on_device;
          PackedTrainer packed(trainer, kQueries, kKeys, causal, by_sequence);
          if (on_device) packed.hide_offsets();
          packed.train(24);
        });
        on[on_device] = samples(false);  // of packed sequences on a device no key columns are sampled
        clear();
      }
      EXPECT_EQ(on[0].size(), 46u);
      ASSERT_EQ(on[1].size(), 44u) << "in the first step the device was met";
      std::set<int64_t> sequences;
      for (const auto& [key, sample] : on[1]) {
        ASSERT_TRUE(on[0].contains(key));
        const Sample& host = on[0][key];
        for (uint32_t n = 0; n < segment::kPayloads; ++n) EXPECT_EQ(sample.payload[n], host.payload[n]) << n;
        segment::Slot header = sample.header;
        EXPECT_GT(header.device_end_ns, header.device_begin_ns);
        EXPECT_EQ(header.batch, host.header.batch);
        sequences.insert(header.batch);
        for (uint32_t row = 0; row < header.rows; ++row) {
          EXPECT_EQ(header.position[row], host.header.position[row]);
          EXPECT_EQ(header.seen_begin[row], host.header.seen_begin[row]);
          EXPECT_EQ(header.seen_end[row], host.header.seen_end[row]);
          EXPECT_EQ(header.head[row], host.header.head[row]);
        }
        EXPECT_EQ(header.rows, host.header.rows);
        EXPECT_EQ(header.keys, host.header.keys);
        EXPECT_EQ(header.query_length, host.header.query_length);
        EXPECT_EQ(header.key_length, host.header.key_length);
        EXPECT_EQ(header.kv_head, host.header.kv_head);
        EXPECT_EQ(header.scale, host.header.scale);
      }
      EXPECT_GT(sequences.size(), 2u);
      EXPECT_FALSE(sequences.contains(2)) << "it is empty";
    }
  }
}

std::vector<double> numbers_of(const Sample& sample) {
  const segment::SlotView view = view_of(sample);
  const AttentionSlice slice = slice_of(view);
  EXPECT_TRUE(is_valid(slice));
  DeviationWorkspace workspace;
  const SliceDeviation d = judge(slice, &workspace);
  EXPECT_GT(d.rows_compared, 0);
  std::vector<double> numbers = {d.kernel_error_norm, d.plain_error_norm, d.bias.numerator};
  for (const auto& value :
       {d.relative_error_mean, d.relative_error_max, d.deviation_ratio, d.lse_error_abs_max, d.logit_abs_max,
        d.entropy_min, d.entropy_mean, d.grad_out_drift})
    numbers.push_back(value.value_or(-1));
  return numbers;
}

// What the agent publishes of a sequence on a device is what it does of that sequence described alone on the
// host, to the last bit.
TEST_F(PackedDevice, IsJudgedAsTheSequenceAlone) {
  Samples on_device, alone;
  train([&](DeviceTrainer& trainer) {
    PackedTrainer packed(trainer, kQueries, kKeys, FORESHOCK_CAUSAL_BOTTOM_RIGHT);
    packed.train(8);
  });
  on_device = samples(false);
  clear();
  train([&](DeviceTrainer& trainer) {
    trainer.on_device = false;
    PackedTrainer packed(trainer, kQueries, kKeys, FORESHOCK_CAUSAL_BOTTOM_RIGHT);
    packed.only = &on_device;
    packed.train(8);
  });
  alone = samples(false);
  EXPECT_EQ(on_device.size(), 12u);
  for (const auto& [key, sample] : on_device) {
    ASSERT_TRUE(alone.contains(key));
    EXPECT_EQ(numbers_of(sample), numbers_of(alone[key]));
  }
}

TEST_F(PackedDevice, NothingMoreOnTheTrainersStream) {
  train([](DeviceTrainer& trainer) {
    trainer.stream = fake_cuda::new_stream(0);
    PackedTrainer packed(trainer, kQueries, kKeys, FORESHOCK_CAUSAL_NONE);
    packed.train(2);
    fake_cuda::forget_calls();
    packed.train(1);
    const std::vector<std::string> once = {"cuStreamGetCtx", "cuStreamIsCapturing", "cuLaunchKernel",
                                           "cuEventRecord"};
    std::vector<std::string> twice = once;
    twice.insert(twice.end(), once.begin(), once.end());
    EXPECT_EQ(names_of_calls(trainer.stream), twice);
    EXPECT_EQ(count_of("cuMemcpyDtoHAsync"), 6) << "rows, times, and which sequence it is";
  });
}

// A sequence of many keys goes into several slots and comes out as one slice, of the length that it has.
TEST_F(PackedDevice, OfALongSequenceOverSeveralSlots) {
  train([this](DeviceTrainer& trainer) {
    trainer.set_up();  // slots to the measure of calls of 12 keys
    PackedTrainer packed(trainer, {5, 330, 400}, {5, 330, 400}, FORESHOCK_CAUSAL_NONE);
    std::set<uint32_t> lengths;
    for (int n = 0; n < 12; ++n) {
      packed.train(1);
      for (const auto& [key, sample] : samples()) {
        const segment::Slot& slot = sample.header;
        const auto number = static_cast<size_t>(slot.batch);
        ASSERT_LT(number, 3u);
        const PackedTensors& tensors = packed.tensors[slot.pass];
        const int32_t first = tensors.keys[number], length = tensors.keys[number + 1] - first;
        ASSERT_EQ(slot.keys, static_cast<uint32_t>(length));
        ASSERT_EQ(slot.key_length, slot.keys);
        lengths.insert(slot.keys);
        std::vector<float> want;
        for (int64_t n = first; n < first + length; ++n)
          for (int64_t d = 0; d < 6; ++d)
            want.push_back(tensors.key[static_cast<size_t>((n * 2 + slot.kv_head) * 6 + d)]);
        ASSERT_EQ(sample.payload[segment::kKey].size(), want.size() * sizeof(float));
        EXPECT_EQ(std::memcmp(sample.payload[segment::kKey].data(), want.data(), want.size() * sizeof(float)),
                  0);
      }
    }
    EXPECT_TRUE(lengths.contains(330) && lengths.contains(400));
  });
}

// Offsets that make no sense, and sequences whose first queries see nothing, are lost, never judged.
TEST_F(PackedDevice, WhatCannotBeJudgedIsCountedAsLost) {
  // Of 40 queries and keys: one that ends behind them, and two of more queries than keys.
  const std::pair<std::vector<int32_t>, std::vector<int32_t>> batches[] = {{{0, 2, 41}, {0, 20, 40}},
                                                                           {{0, 20, 40}, {0, 9, 18}}};
  for (const auto& [queries, keys] : batches) {
    train([&, &queries = queries, &keys = keys](DeviceTrainer& trainer) {
      PackedTrainer packed(trainer, {20, 20}, {20, 20}, FORESHOCK_CAUSAL_BOTTOM_RIGHT);
      for (PackedTensors& tensors : packed.tensors) {
        tensors.call.query_offsets = queries.data();
        tensors.call.key_offsets = keys.data();
      }
      packed.train(6);
      auto reader = open();
      ASSERT_NE(reader, nullptr);
      Pipeline pipeline(nullptr);
      RankStatistics rank;
      pipeline.poll(*reader, &rank);
      for (const uint32_t pass : {0u, 1u}) {
        EXPECT_EQ(reader->totals().sampled[pass], 4u);
        EXPECT_EQ(reader->judged(pass), 0u);
        EXPECT_EQ(reader->lost(pass, segment::Lost::kUnsupported), 4u);
      }
      EXPECT_EQ(rank.refused_slots, 0u);
    });
    clear();
  }
}

}  // namespace
}  // namespace foreshock
