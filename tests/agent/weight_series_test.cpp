#include "agent/weight_series.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/histogram.h"
#include "segment/layout.h"
#include "shadow/histogram.h"

namespace foreshock {
namespace {

constexpr uint64_t kPlenty = 1 << 30;

std::vector<float> normal(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> law(0, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = law(random);
  return values;
}

Histogram histogram_of(const std::vector<float>& values) {
  std::vector<uint64_t> words(kBinWords);
  count_bins(values.data(), values.size(), words.data());
  Histogram histogram;
  take_bins(words.data(), &histogram);
  return histogram;
}

TensorSnapshot snapshot(const char* name, const char* layer, int64_t step, uint64_t interval,
                        const std::vector<float>& values) {
  TensorSnapshot of;
  of.key.name = name;
  of.layer = layer;
  of.step = step;
  of.interval = interval;
  of.elements = of.whole_elements = values.size();
  of.histogram = histogram_of(values);
  of.update_sum_magnitude = 0.5 * static_cast<double>(values.size());
  of.update_max_magnitude = 1;
  of.update_elements = values.size();
  return of;
}

TensorSnapshot take(WeightSeries& series, TensorSnapshot of, bool is_first = true) {
  series.add(is_first, &of);
  series.expect_none_before(of.step);
  return of;
}

TEST(WeightSeries, TheMeanChangeIsOverTheValuesWhoseChangeIsKnown) {
  WeightSeries series(kPlenty);
  const auto a = normal(400, 1), b = normal(800, 2);
  for (int64_t begin = 0; begin < 24; begin += 8) {
    take(series, snapshot("a", "000", begin, 8, a));
    TensorSnapshot part = snapshot("b", "000", begin + 1, 8, b);
    part.update_elements = 200;
    part.update_sum_magnitude = 300;
    take(series, part);
    TensorSnapshot unknown = snapshot("c", "", begin + 2, 8, b);
    unknown.update_elements = 0;
    unknown.update_sum_magnitude = unknown.update_max_magnitude = std::nullopt;
    take(series, unknown);
  }
  const PoolSnapshot& model = series.model();
  ASSERT_TRUE(model.update_mean_abs && model.update_mean_abs_max);
  EXPECT_EQ(model.elements, 2000u);
  EXPECT_EQ(model.update_elements, 600u);
  EXPECT_DOUBLE_EQ(*model.update_mean_abs, (200 + 300) / 600.0);
  EXPECT_DOUBLE_EQ(*model.update_mean_abs_max, 1.5);
}

TEST(WeightSeries, LayersAndModelAreTheirTensorsPutTogether) {
  WeightSeries series(kPlenty);
  const auto a = normal(400, 1), b = normal(800, 2), c = normal(300, 3), d = normal(400, 4);
  const auto window = [&](int64_t begin, const std::vector<float>& first) {
    take(series, snapshot("a", "000", begin, 8, first));
    take(series, snapshot("c", "001", begin + 2, 8, c));
    take(series, snapshot("b", "000", begin + 4, 8, b));
    take(series, snapshot("e", "", begin + 6, 8, c));
  };
  window(8, a);
  EXPECT_TRUE(series.completed().empty()) << "in the first interval nobody knows how many tensors there are";
  window(16, d);
  const auto pools = series.completed();
  ASSERT_EQ(pools.size(), 3u);
  EXPECT_EQ(pools[0].layer, "001");
  const PoolSnapshot &layer = pools[1], &model = pools[2];
  EXPECT_EQ(layer.layer, "000");
  EXPECT_EQ(layer.elements, 1200u);
  EXPECT_EQ(layer.moved_most, "a");
  EXPECT_EQ(layer.step, 16);
  const auto together = [](std::initializer_list<std::vector<float>> parts) {
    std::vector<float> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return histogram_of(all);
  };
  EXPECT_EQ(layer.histogram_hash, fnv1a(store(together({d, b}))));
  EXPECT_EQ(model.layer, "");
  EXPECT_EQ(model.tensors, 4u);
  EXPECT_EQ(model.histogram_hash, fnv1a(store(together({d, b, c, c}))));
  ASSERT_TRUE(layer.previous && layer.initial && model.previous && model.initial);
  EXPECT_EQ(layer.previous->value, wasserstein(together({a, b}), together({d, b})).value);
  EXPECT_EQ(model.initial->value, wasserstein(together({a, b, c, c}), together({d, b, c, c})).value);
  EXPECT_EQ(pools[0].previous->value, 0);
}

TEST(WeightSeries, AnIntervalThatChangedBeginsANewSeries) {
  WeightSeries series(kPlenty);
  const auto a = normal(400, 5), b = normal(400, 6);
  for (int64_t step : {0, 4, 8, 12}) {
    take(series, snapshot("a", "000", step, 4, a));
    take(series, snapshot("b", "000", step + 1, 4, b));
  }
  EXPECT_TRUE(series.model().previous);
  series.completed();
  const auto changed = take(series, snapshot("a", "000", 16, 8, b));
  EXPECT_FALSE(changed.previous) << "eight steps are not four";
  EXPECT_EQ(changed.initial_step, 0) << "the distance from the start has one meaning";
  take(series, snapshot("b", "000", 17, 8, b));
  for (const PoolSnapshot& pool : series.completed()) {
    EXPECT_EQ(pool.interval, 8u);
    EXPECT_FALSE(pool.previous || pool.previous_max);
    EXPECT_TRUE(pool.initial);
  }
  EXPECT_TRUE(take(series, snapshot("a", "000", 24, 8, a)).previous);
  take(series, snapshot("b", "000", 25, 8, b));
  EXPECT_EQ(series.model().interval, 8u);
  EXPECT_TRUE(series.model().previous);
}

TEST(WeightSeries, AnIntervalThatLacksATensorIsNoModel) {
  WeightSeries series(kPlenty);
  const auto a = normal(400, 7);
  for (int64_t step : {4, 8}) {
    take(series, snapshot("a", "000", step, 4, a));
    take(series, snapshot("b", "001", step + 1, 4, a));
  }
  EXPECT_EQ(series.model().step, 8);
  take(series, snapshot("a", "000", 12, 4, a));  // of b there was no budget
  take(series, snapshot("a", "000", 16, 4, a));
  take(series, snapshot("b", "001", 17, 4, a));
  EXPECT_EQ(series.model().step, 16);
  EXPECT_FALSE(series.model().previous) << "the interval before was not whole";
  EXPECT_TRUE(series.model().initial);
}

TEST(WeightSeries, RanksThatAreReadOneAfterTheOtherMakeOneModel) {
  WeightSeries series(kPlenty);
  const auto a = normal(400, 8);
  for (const char* name : {"first", "last"}) take(series, snapshot(name, name, 4, 4, a));
  for (const char* name : {"first", "last"})
    for (int64_t step : {8, 12}) take(series, snapshot(name, name, step, 4, a));
  std::vector<int64_t> steps;
  for (const PoolSnapshot& pool : series.completed())
    if (pool.layer.empty() && pool.tensors == 2) steps.push_back(pool.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{8, 12}));
}

TEST(WeightSeries, WhatHasNoRoomIsCountedAndComparedWithNothing) {
  const auto a = normal(4000, 9), b = normal(4000, 10);
  const uint64_t size = store(histogram_of(a)).size();
  WeightSeries series(3 * size);  // a and b, and the first of a, but no layer's
  for (int64_t step : {1, 2, 3}) {
    take(series, snapshot("a", "000", step, 1, a));
    take(series, snapshot("b", "001", step, 1, b));
  }
  const uint64_t dropped = series.dropped();
  EXPECT_GT(dropped, 0u);
  WeightSeries none(size / 2);
  EXPECT_FALSE(take(none, snapshot("a", "000", 1, 1, a)).previous);
  EXPECT_FALSE(take(none, snapshot("a", "000", 2, 1, a)).previous);
  EXPECT_EQ(none.dropped(), 3u) << "as the first one, and each as the last one";
  EXPECT_EQ(none.model().step, -1);
}

TEST(WeightSeries, WhatIsGoneForThreeIntervalsIsForgotten) {
  WeightSeries series(kPlenty);
  const auto a = normal(400, 11);
  for (int64_t step = 0; step < 10; ++step) {
    take(series, snapshot("old", "000", step, 1, a));
    take(series, snapshot("other", "001", step, 1, a));
  }
  EXPECT_EQ(series.model().tensors, 2u);
  for (int64_t step = 10; step < 16; ++step) {
    take(series, snapshot("new", "000", step, 1, a));
    take(series, snapshot("other", "001", step, 1, a));
  }
  EXPECT_EQ(series.model().step, 15);
  EXPECT_EQ(series.model().tensors, 2u);
  EXPECT_EQ(series.held().elements, 800u);
}

}  // namespace
}  // namespace foreshock
