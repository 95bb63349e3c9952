#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "agent/record_lines.h"
#include "cli/merge.h"
#include "kernels/histogram.h"
#include "shadow/histogram.h"

namespace foreshock::cli {
namespace {

constexpr int64_t kRows = 100, kColumns = 20;

std::vector<float> normal(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> law(0, 0.02f);
  std::vector<float> values(kRows * kColumns);
  for (float& value : values) value = law(random);
  return values;
}

// What a node that holds rows [first, first + rows) of `whole` says. Its agent knows the first snapshot,
// which says of none, unless it began in mid-run.
TensorMerger::NodeLine node(int64_t step, const std::vector<float>& whole, int64_t first, int64_t rows,
                            bool knows_initial = true) {
  TensorSnapshot snapshot;
  snapshot.key.name = std::string(1, 'w');
  snapshot.step = step;
  snapshot.interval = 1;
  if (knows_initial && step > 1) snapshot.initial_step = 1;
  snapshot.dtype = DType::kFp32;
  snapshot.ranks = 1;
  snapshot.elements = static_cast<uint64_t>(rows * kColumns);
  snapshot.whole_elements = whole.size();
  snapshot.parts = {{{first, 0, 0, 0}, {rows, kColumns, 1, 1}}};
  const float* values = whole.data() + first * kColumns;
  std::vector<uint64_t> words(kBinWords);
  count_bins(values, snapshot.elements, words.data());
  take_bins(words.data(), &snapshot.histogram);
  for (uint64_t n = 0; n < snapshot.elements; ++n)
    snapshot.sum_of_squares += double{values[n]} * double{values[n]};
  snapshot.update_sum_magnitude = 0.25 * static_cast<double>(snapshot.elements);
  snapshot.update_max_magnitude = static_cast<double>(first + 1);
  snapshot.update_elements = snapshot.elements;
  snapshot.stored = store(snapshot.histogram);
  return {tensor_line("r", snapshot, true), "node" + std::to_string(first)};
}

TEST(TensorMerger, ShardsOfNodesAreTheWholeBitForBit) {
  TensorMerger sharded, whole;
  for (int64_t step = 1; step <= 3; ++step) {
    const auto values = normal(static_cast<unsigned>(step));
    ASSERT_EQ(sharded.merge_lines(
                  {node(step, values, 70, 30), node(step, values, 0, 45), node(step, values, 45, 25)}),
              "");
    ASSERT_EQ(whole.merge_lines({node(step, values, 0, kRows)}), "");
    ASSERT_TRUE(sharded.tensor() && whole.tensor());
    EXPECT_EQ(sharded.tensor()->histogram_hash, whole.tensor()->histogram_hash);
    EXPECT_EQ(sharded.tensor()->scope, "job");
    EXPECT_EQ(sharded.tensor()->parts, 3u);
    EXPECT_EQ(sharded.tensor()->ranks, 3u);
    // Sums of three parts of 10^3 terms: 2^-53 each.
    EXPECT_NEAR(*sharded.tensor()->rms, *whole.tensor()->rms, 1e-12);
    EXPECT_NEAR(*sharded.tensor()->update_mean_abs, 0.25, 1e-12);
    EXPECT_EQ(sharded.tensor()->update_max_abs, 71);
    ASSERT_EQ(sharded.models().size(), whole.models().size());
    if (step == 1) continue;
    EXPECT_EQ(sharded.tensor()->previous_step, step - 1);
    EXPECT_EQ(sharded.tensor()->initial_step, 1);
    ASSERT_EQ(sharded.models().size(), 1u);
    EXPECT_EQ(sharded.models()[0].histogram_hash, whole.models()[0].histogram_hash);
    EXPECT_EQ(sharded.models()[0].wasserstein_previous, sharded.tensor()->wasserstein_previous);
  }
}

TEST(TensorMerger, WhatNoAgentKnowsTheBeginningOfHasNoneHere) {
  TensorMerger merger;
  for (int64_t step = 901; step <= 903; ++step) {
    const auto values = normal(static_cast<unsigned>(step));
    ASSERT_EQ(merger.merge_lines({node(step, values, 0, 50, false), node(step, values, 50, 50, false)}), "");
    ASSERT_TRUE(merger.tensor());
    EXPECT_FALSE(merger.tensor()->initial_step);
    EXPECT_FALSE(merger.tensor()->wasserstein_initial);
    EXPECT_EQ(merger.tensor()->previous_step.value_or(-1), step == 901 ? -1 : step - 1);
  }
}

TEST(TensorMerger, AMissingPartGivesNothing) {
  TensorMerger merger;
  EXPECT_EQ(merger.merge_lines({node(1, normal(1), 0, 45), node(1, normal(1), 70, 30)}), "");
  EXPECT_FALSE(merger.tensor());
  EXPECT_TRUE(merger.models().empty());
}

TEST(TensorMerger, TheWholeIsTakenWhereverItStandsAmongPartsWithoutHistograms) {
  const auto values = normal(1);
  TensorMerger::NodeLine part = node(1, values, 0, 45), whole = node(1, values, 0, kRows);
  part.line.histogram.clear();
  whole.line.histogram.clear();
  // The node holds the tensor in two pieces, which sorts its line behind the other node's.
  whole.line.part_offsets.insert(whole.line.part_offsets.end(), {45, 0, 0, 0});
  whole.line.part_shapes = {45, kColumns, 1, 1, 55, kColumns, 1, 1};
  TensorMerger merger;
  EXPECT_EQ(merger.merge_lines({part, whole}), "");
  ASSERT_TRUE(merger.tensor());
  EXPECT_EQ(merger.tensor()->elements, values.size());
}

TEST(TensorMerger, ReplicasCountOnceAndAreCompared) {
  TensorMerger merger;
  const auto values = normal(4);
  auto other = values;
  other[5] = 3;
  EXPECT_EQ(merger.merge_lines({node(1, values, 0, 50), node(1, values, 50, 50), node(1, values, 0, 50)}),
            "");
  EXPECT_TRUE(merger.tensor());
  EXPECT_FALSE(merger.event());
  EXPECT_EQ(merger.merge_lines({node(2, values, 0, 50), node(2, values, 50, 50), node(2, other, 0, 50)}), "");
  ASSERT_TRUE(merger.event());
  EXPECT_EQ(merger.event()->event, "weight_mismatch");
  EXPECT_EQ(merger.event()->step, 2);
}

TEST(TensorMerger, AHistogramThatIsNoneIsNamed) {
  TensorMerger merger;
  auto broken = node(1, normal(5), 50, 50);
  for (const char* text : {"AAAA", "not base64", "AQAAAAAAAA=="}) {
    broken.line.histogram = text;
    EXPECT_EQ(merger.merge_lines({node(1, normal(5), 0, 50), broken}),
              "node50: the histogram of w at step 1 cannot be read");
  }
}

}  // namespace
}  // namespace foreshock::cli
