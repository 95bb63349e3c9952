// The histograms of the device, emulated, beside those of the host: the same counts.
#include "kernels/histogram_body.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>
#include <vector>

#include "kernels/device_code.h"
#include "tests/support/emulated_block.h"
#include "tests/support/emulated_launches.h"

namespace foreshock {
namespace {

constexpr size_t kLengths[] = {0, 1, 7, 8, 9, 100'003};

std::vector<float> weights(size_t count) {
  std::mt19937_64 random(count);
  std::normal_distribution<float> normal(0, .02f);
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {-0.f, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 1e-42f, 0.f};
  for (size_t n = 0; n < count / 100; ++n) out[random() % count] = special[n % std::size(special)];
  return out;
}

// As bf16, behind one element that is none of them.
std::vector<uint16_t> patterns_of(const std::vector<float>& values) {
  std::vector<uint16_t> out(1, 0xdead);
  for (const float x : values) out.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
  return out;
}

std::vector<uint32_t> host_patterns(const uint16_t* values, size_t count) {
  std::vector<uint32_t> sets(kPatternWords), words(kPatterns);
  count_patterns(values, count, sets.data());
  for (size_t n = 0; n < kPatternWords; ++n) words[n % kPatterns] += sets[n];
  return words;
}

class HistogramBody : public testing::TestWithParam<EmulatedLaunch> {
 protected:
  // Adds to the words.
  void run(DeviceKernel kernel, const void* from, size_t count, void* words, uint32_t shared_bytes) {
    const HistogramJob job{.from = address(from), .count = count, .words = address(words)};
    ASSERT_TRUE(run_emulated(name_of(kernel), {GetParam().blocks, GetParam().threads, shared_bytes}, &job,
                             GetParam().how));
  }

  void expect_patterns(const uint16_t* values, size_t count) {
    const std::vector<uint32_t> want = host_patterns(values, count);
    for (const uint32_t shared_bytes : {kPatternSharedBytes, 0u}) {
      std::vector<uint32_t> words(kPatterns);
      run(DeviceKernel::kCountPatterns, values, count, words.data(), shared_bytes);
      EXPECT_TRUE(words == want) << count << " values, " << shared_bytes << " bytes";
    }
  }

  void expect_bins(const float* values, size_t count) {
    std::vector<uint64_t> words(kBinWords), want(kBinWords);
    count_bins(values, count, want.data());
    run(DeviceKernel::kCountBins, values, count, words.data(), 0);
    EXPECT_TRUE(words == want) << count << " values";
  }
};

TEST_P(HistogramBody, CountsPatternsLikeTheHost) {
  for (const size_t count : kLengths) {
    const std::vector<uint16_t> values = patterns_of(weights(count));
    expect_patterns(values.data() + 1, count);
    if (count > 3) expect_patterns(values.data() + 3, count - 2);
  }
}

// More equal values than a counter of shared memory holds, in both halves of its word.
TEST_P(HistogramBody, SpillsFullCounters) {
  std::vector<uint16_t> values(200'000, 0x3f80);
  for (size_t n = 0; n < values.size(); n += 2) values[n] = 0x3f81;
  expect_patterns(values.data(), values.size());
}

TEST_P(HistogramBody, CountsBinsLikeTheHost) {
  for (const size_t count : kLengths) {
    const std::vector<float> values = weights(count + 3);
    expect_bins(values.data(), count);
    expect_bins(values.data() + 3, count);
  }
}

TEST_P(HistogramBody, AddsToEarlierCounts) {
  const std::vector<float> values = weights(1000);
  const std::vector<uint16_t> patterns = patterns_of(values);
  std::vector<uint64_t> bins(kBinWords), want_bins(kBinWords);
  std::vector<uint32_t> words(kPatterns);
  std::vector<uint32_t> want = host_patterns(patterns.data(), patterns.size());
  for (int n = 0; n < 2; ++n) {
    count_bins(values.data(), values.size(), want_bins.data());
    run(DeviceKernel::kCountBins, values.data(), values.size(), bins.data(), 0);
    run(DeviceKernel::kCountPatterns, patterns.data(), patterns.size(), words.data(), kPatternSharedBytes);
  }
  for (uint32_t& word : want) word *= 2;
  EXPECT_TRUE(bins == want_bins);
  EXPECT_TRUE(words == want);
}

// A block whose threads stop before they take a portion out of a counter, until all the others stand at the
// barrier: no device is worse.
class SlowestBlock : public EmulatedBlock {
 public:
  SlowestBlock() : EmulatedBlock(0, {1, kMostThreads, kPatternSharedBytes}, {}) {}

  template <class F>
  void each(const F& f) {
    EmulatedBlock::each(f);
    for (const auto& [to, value] : late_) EmulatedBlock::add(to, value);
    late_.clear();
  }

  uint64_t add(uint64_t* to, uint64_t value) { return EmulatedBlock::add(to, value); }
  uint32_t add(uint32_t* to, uint32_t value) {
    const bool is_taken_out = value > uint32_t{1} << 16;
    if (is_taken_out) {
      late_.emplace_back(to, value);
      return 0;
    }
    const uint32_t before = EmulatedBlock::add(to, value);
    if (value == 1 || value == uint32_t{1} << 16) {
      const uint32_t counter = value == 1 ? before & 0xffff : before >> 16;
      most_ = std::max(most_, counter + 1);
    }
    return before;
  }

  uint32_t most() const { return most_; }

 private:
  std::vector<std::pair<uint32_t*, uint32_t>> late_;
  uint32_t most_ = 0;  // that a counter has held
};

// A counter that is as full as a barrier leaves it meets rounds of nothing else, in either half of a word;
// with the last one come the ends that are not aligned, seven values each.
TEST(HistogramCounters, HoldARoundOfEqualValues) {
  constexpr size_t kRound = kMostThreadsOfABlock * kPatternUnitsOfARound * 8;
  for (const uint16_t pattern : {0x3f80, 0x3f81}) {
    constexpr size_t count = 7 + 3 * kRound + 7;
    std::vector<Bytes16> storage(count / 8 + 2);
    auto* values = reinterpret_cast<uint16_t*>(storage.data()) + 1;
    std::fill_n(values, count, pattern);
    for (size_t n = kPortion - 1; n < kRound; ++n) values[7 + n] = static_cast<uint16_t>(n % 1000);
    std::vector<uint32_t> words(kPatterns);
    SlowestBlock block;
    count_patterns_body({.from = address(values), .count = count, .words = address(words.data())}, block);
    EXPECT_TRUE(words == host_patterns(values, count));
    EXPECT_EQ(block.most(), kPortion - 1 + kMostPatternsOfARound);
    EXPECT_LT(block.most(), 0x10000u);
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, HistogramBody, testing::ValuesIn(kEmulatedLaunches),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(HistogramLaunch, UsesTheAvailableSharedMemory) {
  const HistogramJob job{.from = 0, .count = uint64_t{1} << 30, .words = 0};
  const LaunchShape large = launch_of_patterns(job, {.processors = 132, .shared_bytes = 227 << 10});
  EXPECT_EQ(large.blocks, 132u);
  EXPECT_EQ(large.shared_bytes, 128u << 10);
  const LaunchShape small = launch_of_patterns(job, {.processors = 84, .shared_bytes = 99 << 10});
  EXPECT_EQ(small.shared_bytes, 0u);
  EXPECT_EQ(launch_of_patterns({.from = 0, .count = 0, .words = 0}, {132, 0}).blocks, 1u);
  EXPECT_EQ(launch_of_bins(job, {.processors = 10, .shared_bytes = 0}).blocks, 40u);
}

}  // namespace
}  // namespace foreshock
