// Sampling on a device that works: what is given to which stream, and what arrives.
#include "libmonitor/device_sampler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "agent/pipeline.h"
#include "shadow/judgement.h"
#include "tests/libmonitor/device_fixture.h"

namespace foreshock {
namespace {

using Names = std::vector<std::string>;

// What the calls above the driver ask that touches no stream.
const Names kAsked = {"cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxGetId", "cuStreamIsCapturing"};

TEST_F(DeviceTest, NothingButAGatherAndAnEventOnTheTrainersStream) {
  train([](DeviceTrainer& trainer) {
    trainer.stream = fake_cuda::new_stream(0);
    trainer.set_up();
    ASSERT_TRUE(trainer.attention());
    EXPECT_EQ(names_of_calls(trainer.stream),
              Names({"cuStreamGetCtx", "cuStreamIsCapturing", "cuLaunchKernel", "cuEventRecord"}));
    void* ours = fake_cuda::own_stream(0);
    ASSERT_NE(ours, nullptr);
    EXPECT_EQ(fake_cuda::priority_of(ours), 0) << "the lowest";
    EXPECT_EQ(names_of_calls(ours), Names({"cuStreamWaitEvent", "cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync",
                                           "cuStreamWriteValue64", "cuStreamWriteValue64"}));
    // Nothing else is asked for, and nothing is set up again.
    for (const std::string& name : names_of_calls())
      EXPECT_TRUE(name == "cuStreamGetCtx" || name == "cuLaunchKernel" || name == "cuEventRecord" ||
                  name == "cuStreamWaitEvent" || name == "cuMemcpyDtoHAsync" ||
                  name == "cuStreamWriteValue64" ||
                  std::find(kAsked.begin(), kAsked.end(), name) != kAsked.end())
          << name;
  });
}

TEST_F(DeviceTest, ASliceIsThereWhenItsStreamHasBroughtIt) {
  train([this](DeviceTrainer& trainer) {
    fake_cuda::set_faults({.clock_step_ns = 7});
    trainer.stream = fake_cuda::new_stream(0);
    trainer.set_up();
    ASSERT_TRUE(trainer.attention());
    EXPECT_TRUE(samples().empty()) << "nothing has run";
    fake_cuda::run(fake_cuda::own_stream(0));
    EXPECT_TRUE(samples().empty()) << "it waits for the trainer's stream";
    fake_cuda::run(trainer.stream);
    EXPECT_TRUE(samples().empty()) << "gathered, not copied";
    fake_cuda::run(fake_cuda::own_stream(0));
    const Samples found = samples();
    ASSERT_EQ(found.size(), 1u);
    // One block looks twice.
    EXPECT_EQ(found.begin()->second.header.device_begin_ns, 1000u + 7);
    EXPECT_EQ(found.begin()->second.header.device_end_ns, 1000u + 14);
  });
  expect_skipped(FORESHOCK_SKIP_SET_UP, 2, 1);
}

// The trainer goes on at once: what comes after the call in its stream finds the tensors free to use.
TEST_F(DeviceTest, TensorsMayBeReusedAndFreedBehindTheCall) {
  train([this](DeviceTrainer& trainer) {
    trainer.set_up();
    const float first = trainer.tensors[0].key[0], last = trainer.tensors[0].value.back();
    ASSERT_TRUE(trainer.attention());
    fake_cuda::enqueue(trainer.stream, [&trainer] {
      CallOnTensors& tensors = trainer.tensors[0];
      for (std::vector<float>* each :
           {&tensors.query, &tensors.key, &tensors.value, &tensors.out, &tensors.lse}) {
        std::fill(each->begin(), each->end(), -1.f);
        std::vector<float>().swap(*each);
      }
    });
    fake_cuda::run(trainer.stream);
    EXPECT_TRUE(trainer.tensors[0].key.empty());
    fake_cuda::run_all();
    const Samples found = samples();
    ASSERT_EQ(found.size(), 1u);
    const auto& key = found.begin()->second.payload[segment::kKey];
    float least = 0;
    std::memcpy(&least, key.data(), sizeof least);
    EXPECT_GE(least, first);
    EXPECT_LE(least, last);
  });
}

// Between the two looks of a gather's block at its clock lie 30 ms here, which nobody waits for: what is in
// the cost was read from the slots. Of the two calls of a step the second one has not run when the step ends.
TEST_F(DeviceTest, WhatAGatherTakesOnTheDeviceIsCharged) {
  constexpr uint64_t kEach = 30'000'000;
  train([](DeviceTrainer& trainer) {
    trainer.set_up();
    fake_cuda::set_faults({.clock_step_ns = kEach});
    trainer.attention(0);
    fake_cuda::run_all();
    trainer.attention(1);
    trainer.end_step();
    fake_cuda::run_all();
    trainer.end_step();
    trainer.end_step();
  });
  expect_skipped(FORESHOCK_SKIP_SET_UP, 2, 2);
  std::vector<uint64_t> costs;
  for (const segment::StepRecord& record : open()->new_steps()) costs.push_back(record.cost_ns / kEach);
  EXPECT_EQ(costs, std::vector<uint64_t>({0, 0, 1, 1, 0}));
  EXPECT_EQ(totals().hook_ns / kEach, 2u);
}

// A device that needs 3 ms for a slice may not be asked for one in every step of 2 ms when a tenth is
// allowed.
TEST_F(DeviceTest, TheBudgetIsHeldOnTheDeviceToo) {
  train(
      [](DeviceTrainer& trainer) {
        fake_cuda::set_faults({.clock_step_ns = 30'000'000});
        for (int n = 0; n < 60; ++n) {
          trainer.train(1);
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
      },
      {{"FORESHOCK_MAX_SLOWDOWN", "10%"}});
  const segment::Totals totals = this->totals();
  EXPECT_GT(totals.sampled[0] + totals.sampled[1], 0u);
  uint64_t earned = 0;
  for (const segment::StepRecord& record : open()->new_steps()) earned += record.duration_ns / 10;
  // What was spent on the device is what was earned, and what the two first steps and the saving allow for.
  EXPECT_LT((totals.sampled[0] + totals.sampled[1]) * 30'000'000, earned + 8 * 30'000'000);
  EXPECT_GT(totals.skipped[0][FORESHOCK_SKIP_BUDGET], 0u);
}

// Every bit of what is published of a slice.
std::string judged(const Sample& sample) {
  const segment::SlotView view = view_of(sample);
  DeviationWorkspace workspace;
  const AttentionSlice slice = slice_of(view);
  EXPECT_TRUE(is_valid(slice));
  const SliceDeviation d = judge(slice, &workspace);
  EXPECT_GT(d.rows_compared, 0);
  std::string bits;
  const auto put = [&bits](double value) {
    bits.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const auto& value :
       {d.relative_error_mean, d.relative_error_max, d.deviation_ratio, d.lse_error_abs_max, d.logit_abs_max,
        d.entropy_min, d.entropy_mean, d.grad_out_drift})
    put(value.value_or(-1));
  for (const double value : {d.kernel_error_norm, d.plain_error_norm, d.bias.numerator, d.bias.denominator,
                             d.rounded_bias.numerator, d.rounded_bias.denominator})
    put(value);
  return bits;
}

// End to end: the same training on the host and on the device, read by the agent's reader and judged by its
// judge. Small values, so that scores are of use.
void make_small(DeviceTrainer* trainer) {
  for (CallOnTensors& tensors : trainer->tensors) {
    int n = 0;
    for (std::vector<float>* each :
         {&tensors.query, &tensors.key, &tensors.value, &tensors.out, &tensors.lse, &tensors.grad_out,
          &tensors.grad_query, &tensors.grad_key, &tensors.grad_value})
      for (float& value : *each) value = 0.01f * static_cast<float>((++n * 7919) % 211 - 100);
  }
}

TEST_F(DeviceTest, TheJudgementIsThatOfTheHostBitForBit) {
  Samples on[2];
  for (const bool on_device : {false, true}) {
    train([on_device](DeviceTrainer& trainer) {
      make_small(&trainer);
      trainer.on_device = on_device;
      trainer.train(10);
    });
    on[on_device] = samples();
    clear();
  }
  EXPECT_EQ(on[0].size(), 18u);
  ASSERT_EQ(on[1].size(), 16u) << "in the first step the device was met";
  for (const auto& [key, sample] : on[1]) {
    ASSERT_TRUE(on[0].contains(key));
    const Sample& host = on[0][key];
    for (uint32_t n = 0; n < segment::kPayloads; ++n) EXPECT_EQ(sample.payload[n], host.payload[n]);
    segment::Slot header = sample.header;
    EXPECT_GT(header.device_end_ns, header.device_begin_ns);
    header.device_begin_ns = header.device_end_ns = 0;
    header.time_ns = host.header.time_ns;
    header.sequence = host.header.sequence;  // the tickets are two behind
    header.ticket = host.header.ticket;
    EXPECT_EQ(header.checksum, 0u) << "a device computes none";
    header.checksum = host.header.checksum;
    EXPECT_EQ(std::memcmp(&header, &host.header, sizeof header), 0);
    EXPECT_EQ(judged(sample), judged(host));
  }
}

// Sums of 12 values of fp32 are exact in fp64, whatever their order.
TEST_F(DeviceTest, ASliceOfKeyPositionsIsThatOfTheHost) {
  Samples on[2];
  for (const bool on_device : {false, true}) {
    train([on_device](DeviceTrainer& trainer) {
      trainer.tensors[1].build_with_key_gradients();
      make_small(&trainer);
      trainer.tensors[1].grad_key[7] = NAN;
      trainer.on_device = on_device;
      trainer.train(20);
    });
    on[on_device] = samples();
    clear();
  }
  int by_columns = 0;
  double nonfinite = 0;
  for (const auto& [key, sample] : on[1]) {
    ASSERT_TRUE(on[0].contains(key));
    const Sample& host = on[0][key];
    EXPECT_EQ(sample.header.columns, host.header.columns);
    for (uint32_t n = 0; n < segment::kPayloads; ++n) EXPECT_EQ(sample.payload[n], host.payload[n]) << n;
    if (sample.header.columns != 1) continue;
    ++by_columns;
    EXPECT_GT(sample.header.device_end_ns, sample.header.device_begin_ns);
    const segment::SlotView view = view_of(sample);
    const KeyColumns columns = columns_of(view);
    ASSERT_TRUE(is_valid(columns));
    ColumnReference workspace;
    const ColumnDeviation deviation = judge(columns, &workspace);
    EXPECT_TRUE(deviation.grad_value.conservation_ratio.has_value());
    nonfinite += static_cast<double>(deviation.grad_key.nonfinite_anywhere);
  }
  EXPECT_GT(by_columns, 4);
  EXPECT_GT(nonfinite, 0) << "of one head of one batch element";
  EXPECT_LT(nonfinite, by_columns);
}

TEST_F(DeviceTest, ASliceOverSeveralSlotsArrivesWhole) {
  train([this](DeviceTrainer& trainer) {
    trainer.set_up();  // slots to the measure of calls of 12 keys
    trainer.tensors[0].queries = trainer.tensors[0].keys = 400;
    trainer.tensors[0].build(false);
    trainer.tensors[0].call.causal = FORESHOCK_CAUSAL_NONE;
    ASSERT_TRUE(trainer.attention());
    EXPECT_GT(count_of("cuLaunchKernel"), 1);
    EXPECT_EQ(count_of("cuEventRecord"), 1);
    fake_cuda::run_all();
    const Samples found = samples();
    ASSERT_EQ(found.size(), 1u);
    const Sample& sample = found.begin()->second;
    ASSERT_EQ(sample.header.keys, 400u);
    const auto* key = reinterpret_cast<const float*>(sample.payload[segment::kKey].data());
    for (int64_t n = 0; n < 400; ++n)
      for (int64_t d = 0; d < 6; ++d)
        ASSERT_EQ(key[n * 6 + d], trainer.tensors[0].at(trainer.tensors[0].key, 2, 400, sample.header.batch,
                                                        sample.header.kv_head, n, d));
  });
}

// Threads of a trainer with a stream each, streams that run while the host goes on, and an agent that reads.
TEST_F(DeviceTest, ManyThreadsAndStreamsAtOnce) {
  train(
      [this](DeviceTrainer& trainer) {
        fake_cuda::set_faults({.copy_delay_us = 50});
        for (int n = 0; n < 2; ++n) trainer.train(1, false), fake_cuda::rest();
        uint64_t judged = samples().size();
        for (int step = 0; step < 20; ++step) {
          std::vector<std::thread> threads;
          for (int n = 0; n < 4; ++n)
            threads.emplace_back([&trainer, n] {
              fake_cuda::set_device(0);
              DeviceTrainer mine = trainer;
              mine.stream = n % 2 == 0 ? fake_cuda::new_stream(0) : trainer.stream;
              mine.attention(0);
              mine.attention(1);
              fake_cuda::rest();  // as a trainer would before its tensors go
            });
          for (std::thread& thread : threads) thread.join();
          trainer.end_step();
        }
        auto reader = open();
        SegmentReader::Ready ready;
        for (; reader->next_ready(&ready); ++judged) {
          EXPECT_EQ(ready.why, nullptr) << ready.why;
          const auto* key = reinterpret_cast<const float*>(ready.view.payload[segment::kKey].data());
          const segment::Slot& slot = ready.view.header;
          EXPECT_EQ(key[0],
                    trainer.tensors[0].at(trainer.tensors[0].key, 2, 12, slot.batch, slot.kv_head, 0, 0));
          reader->consume_judged(ready);
        }
        const segment::Totals totals = reader->totals();
        EXPECT_EQ(totals.sampled[0] + totals.sampled[1], reader->judged(0) + reader->judged(1));
        EXPECT_GT(judged, 4u);
        EXPECT_TRUE(reader->torn().empty());
      },
      {}, fake_cuda::Run::kByThreads);
  const segment::Totals totals = this->totals();
  for (uint32_t pass : {0u, 1u}) {
    uint64_t sum = totals.unsampled[pass] + totals.sampled[pass];
    for (uint64_t n : totals.skipped[pass]) sum += n;
    EXPECT_EQ(sum, totals.calls[pass]);
    EXPECT_EQ(totals.calls[pass], 82u);
  }
}

}  // namespace
}  // namespace foreshock
