#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "libmonitor/coverage.h"

namespace foreshock {
namespace {

using segment::KernelCountState;

TEST(KernelNames, OneKernelOfEachCall) {
  for (const char* forward :
       {"_ZN5flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128E",
        "_ZN13pytorch_flash24flash_fwd_splitkv_kernelI",
        "_ZN7cutlass13device_kernelIN5flash14FlashAttnFwdSm90I", "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "kernel_cutlass_kernel_flash_attncuteflash_fwdFlashAttentionForwardSm100_object_at"})
    EXPECT_EQ(attention_pass_of_kernel(forward), 0) << forward;
  for (const char* backward :
       {"_ZN5flash44flash_bwd_dq_dk_dv_loop_seqk_parallel_kernelI",
        "fmha_cutlassB_f16_aligned_64x64_k64_sm80", "_ZN7cutlass13device_kernelIN5flash14FlashAttnBwdSm90I",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26"})
    EXPECT_EQ(attention_pass_of_kernel(backward), 1) << backward;
  for (const char* other :
       {"_ZN5flash30flash_bwd_dot_do_o_kernelI", "_ZN5flash27flash_bwd_convert_dq_kernelI",
        "_ZN5flash32flash_fwd_splitkv_combine_kernelI", "_ZN5flash18FlashAttnFwdCombineI",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_dot_do_o", "ampere_bf16_s16816gemm", ""})
    EXPECT_EQ(attention_pass_of_kernel(other), -1) << other;
  EXPECT_EQ(attention_pass_of_kernel(nullptr), -1);
}

// The process's CUPTI, played.
struct Played {
  std::atomic<cupti::Callback> callback{nullptr};
  bool is_there = true, profiler = false;
  cupti::Result answer = cupti::kSuccess;
  uint32_t fails_to_enable = 0;
  int enabled = 0, ends = 0;
} g_played;

cupti::Result subscribe(cupti::Subscriber* subscriber, cupti::Callback callback, void*) {
  if (g_played.answer == cupti::kSuccess) g_played.callback = callback;
  *subscriber = &g_played;
  return g_played.answer;
}
cupti::Result unsubscribe(cupti::Subscriber) {
  g_played.callback = nullptr;
  ++g_played.ends;
  return cupti::kSuccess;
}
cupti::Result enable_callback(uint32_t enable, cupti::Subscriber, int, uint32_t function) {
  if (enable != 0 && function == g_played.fails_to_enable) return 1;
  g_played.enabled += enable != 0 ? 1 : -1;
  return cupti::kSuccess;
}
bool profiler_runs() { return g_played.profiler; }

bool find(cupti::Library* found) {
  *found = {subscribe, nullptr, unsubscribe, enable_callback, profiler_runs};
  return g_played.is_there;
}

void launch(const char* symbol, int site = 0, int domain = cupti::kDriverApi) {
  const cupti::CallbackData data = {site, "cuLaunchKernel", nullptr, nullptr, symbol};
  if (const cupti::Callback callback = g_played.callback) callback(nullptr, domain, 307, &data);
}

class KernelCountTest : public testing::Test {
 protected:
  void SetUp() override { new (&g_played) Played; }

  // Until the first step that is counted begins.
  void warm_up(uint64_t steps) {
    count_.start(steps, find);
    for (uint64_t n = 0; n <= KernelCounter::kWarmUpSteps; ++n) {
      EXPECT_EQ(g_played.callback, nullptr);
      end_step();
    }
  }
  void end_step() { count_.end_step(calls_, 0, &coverage_); }
  KernelCountState state() const { return static_cast<KernelCountState>(coverage_.kernel_count_state); }

  KernelCounter count_;
  PassCalls calls_;
  segment::Coverage coverage_ = {};
};

TEST_F(KernelCountTest, NobodyAsked) {
  count_.start(0, find);
  for (int n = 0; n < 30; ++n) end_step();
  EXPECT_EQ(state(), KernelCountState::kNotAsked);
  EXPECT_EQ(g_played.callback, nullptr);
}

TEST_F(KernelCountTest, CountsWhatIsLaunchedInItsSteps) {
  calls_ = {{7, 7}};
  warm_up(2);
  EXPECT_EQ(state(), KernelCountState::kCounting);
  for (int step = 0; step < 2; ++step) {
    launch("flash_fwd_kernel");
    launch("flash_fwd_kernel", 1);     // its return
    launch("flash_fwd_kernel", 0, 2);  // of another domain
    launch("gemm");
    launch("flash_bwd_dq_dk_dv_loop");
    calls_.of[0] += 1;
    end_step();
  }
  EXPECT_EQ(state(), KernelCountState::kDone);
  EXPECT_EQ(coverage_.kernels[0], 2);
  EXPECT_EQ(coverage_.kernels[1], 2);
  EXPECT_EQ(coverage_.kernel_count_calls[0], 2);
  EXPECT_EQ(coverage_.kernel_count_calls[1], 0);
  EXPECT_EQ(coverage_.kernel_count_steps, 2);
  EXPECT_EQ(g_played.enabled, 0);
  EXPECT_EQ(g_played.ends, 1);
  end_step();  // and never again
  EXPECT_EQ(g_played.callback, nullptr);
}

TEST_F(KernelCountTest, WithoutALibrary) {
  g_played.is_there = false;
  warm_up(2);
  EXPECT_EQ(state(), KernelCountState::kNoLibrary);
  count_.start(2, nullptr);
  for (int n = 0; n < 30; ++n) end_step();
  EXPECT_EQ(state(), KernelCountState::kNoLibrary);
}

TEST_F(KernelCountTest, GivesWay) {
  g_played.answer = cupti::kSubscribedByAnother;
  warm_up(2);
  EXPECT_EQ(state(), KernelCountState::kTaken);
  EXPECT_EQ(g_played.ends, 0);  // what is another's is not ended
}

TEST_F(KernelCountTest, AnyOtherAnswerIsARefusal) {
  g_played.answer = 15;
  warm_up(2);
  EXPECT_EQ(state(), KernelCountState::kRefused);
  EXPECT_EQ(g_played.ends, 0);
}

TEST_F(KernelCountTest, WhatCannotBeEnabledIsGivenBack) {
  g_played.fails_to_enable = 652;
  warm_up(2);
  EXPECT_EQ(state(), KernelCountState::kRefused);
  EXPECT_EQ(g_played.ends, 1);
}

TEST_F(KernelCountTest, WaitsForTheProfilerAndEndsWhenItBegins) {
  g_played.profiler = true;
  warm_up(9);
  EXPECT_EQ(state(), KernelCountState::kProfiler);
  EXPECT_EQ(g_played.callback, nullptr);
  g_played.profiler = false;
  end_step();
  EXPECT_EQ(state(), KernelCountState::kCounting);
  g_played.profiler = true;
  end_step();
  EXPECT_EQ(state(), KernelCountState::kDone);
  EXPECT_EQ(coverage_.kernel_count_steps, 1);
  EXPECT_EQ(g_played.ends, 1);
}

TEST_F(KernelCountTest, NeverForLong) {
  warm_up(1'000'000);
  for (uint64_t n = 0; n < KernelCounter::kMostSteps; ++n) end_step();
  EXPECT_EQ(state(), KernelCountState::kDone);
}

TEST_F(KernelCountTest, ThreadsMayLaunchWhileItEnds) {
  warm_up(2);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  std::atomic<int> launched{0};
  for (int n = 0; n < 3; ++n)
    threads.emplace_back([&] {
      do {
        launch("flash_fwd_kernel");
        ++launched;
      } while (!stop);
    });
  while (launched < 1000) std::this_thread::yield();
  end_step();
  end_step();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(state(), KernelCountState::kDone);
  EXPECT_GE(coverage_.kernels[0], 1000);  // a launch is told of once it was counted
  EXPECT_LE(coverage_.kernels[0], static_cast<uint64_t>(launched));
}

}  // namespace
}  // namespace foreshock
