#include "agent/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "agent/record_lines.h"

namespace foreshock {
namespace {

SliceDeviation sound_slice() {
  SliceDeviation slice;
  slice.rows_compared = 16;
  slice.relative_error_mean = slice.relative_error_max = 0.002;
  slice.fused_ratio = slice.deviation_ratio = 1;
  slice.bias = slice.floor_bias = slice.rounded_bias = {0, 1000};
  return slice;
}

// What the agent finds in these slices, and what is found in their lines.
struct Found {
  std::vector<Finding> of_agent, of_lines;
};

Found found_in(const std::function<void(int64_t step, SliceDeviation* slice)>& change) {
  RankStatistics rank;
  rank.run = "me";
  ReplayedRanks replayed;
  Watches watches;
  for (int64_t step = 1; step <= 64; ++step) {
    segment::Slot slot = {};
    slot.step = step;
    slot.dtype = static_cast<uint32_t>(DType::kBf16);
    slot.rows = 16;
    SliceDeviation slice = sound_slice();
    change(step, &slice);
    const LayerOfCall layer = {"003", "attention", "parameter"};
    SampleLine line = sample_line(rank, slot, layer, slice, 0);
    observe(line, &rank);
    // The record writes what is not finite as null, which is read as NaN.
    SampleLine::visit(line, [](const char*, auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, RecordNumber>)
        if (value && std::isinf(*value)) value = NAN;
    });
    replayed.take(line, watches.observe(line));
  }
  const Ranks ranks = {&rank};
  return {findings_of(ranks, nullptr, {totals_of(ranks, 0), totals_of(ranks, 1)}),
          replayed.findings(watches)};
}

void expect_same(const Found& found, size_t count) {
  ASSERT_EQ(found.of_agent.size(), count);
  ASSERT_EQ(found.of_lines.size(), count);
  for (size_t n = 0; n < count; ++n) {
    EXPECT_EQ(found.of_lines[n].text, found.of_agent[n].text);
    EXPECT_EQ(found.of_lines[n].kind, found.of_agent[n].kind);
    EXPECT_EQ(found.of_lines[n].since_step, found.of_agent[n].since_step);
    EXPECT_EQ(found.of_lines[n].last_step, found.of_agent[n].last_step);
  }
}

TEST(Replay, SoundSlicesGiveNoFinding) {
  expect_same(found_in([](int64_t, SliceDeviation*) {}), 0);
}

TEST(Replay, AnErrorIsFoundFromTheSameStepWithTheSameSize) {
  expect_same(found_in([](int64_t step, SliceDeviation* slice) {
                if (step >= 20) slice->fused_ratio = slice->relative_error_mean = static_cast<double>(step);
              }),
              1);
}

TEST(Replay, ABiasIsMeasuredAgainstTheSameControls) {
  const auto biased = [](double floor) {
    return [floor](int64_t step, SliceDeviation* slice) {
      slice->bias.numerator = 300 + static_cast<double>(step % 5);
      slice->floor_bias.numerator = floor + static_cast<double>(step % 7);
      slice->rounded_bias.numerator = static_cast<double>(step % 3);
    };
  };
  expect_same(found_in(biased(0)), 1);
  expect_same(found_in(biased(300)), 0);
}

TEST(Replay, NanIsFoundWhereTheReferenceHasNone) {
  expect_same(found_in([](int64_t step, SliceDeviation* slice) {
                if (step == 9) slice->relative_error_mean = slice->relative_error_max = INFINITY;
              }),
              1);
}

}  // namespace
}  // namespace foreshock
