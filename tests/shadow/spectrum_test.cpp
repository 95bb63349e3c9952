#include "shadow/spectrum.h"

#include <gtest/gtest.h>

#include <random>

namespace foreshock {
namespace {

constexpr uint32_t kHeadDim = 4, kWidth = 12;

// Rows of two heads, as a trainer shows them.
struct Shown {
  std::vector<float> queries, keys;

  explicit Shown(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* side : {&queries, &keys}) {
      side->resize(2 * kHeadDim * kWidth);
      for (float& x : *side) x = normal(random);
    }
  }
  ProjectionRows rows(int64_t step, bool with_queries = true, bool with_keys = true) const {
    ProjectionRows rows{.step = step,
                        .interval = 64,
                        .head_dim = kHeadDim,
                        .width = kWidth,
                        .kv_heads = {0, 3},
                        .dtype = DType::kFp32,
                        .queries = {},
                        .keys = {}};
    if (with_queries) rows.queries = std::as_bytes(std::span(queries));
    if (with_keys) rows.keys = std::as_bytes(std::span(keys));
    return rows;
  }
};

Spectrum of_head(const Shown& before, const Shown& after, size_t head) {
  const auto part = [head](const std::vector<float>& values) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(head * kHeadDim * kWidth);
    return std::vector<double>(begin, begin + kHeadDim * kWidth);
  };
  const auto q0 = part(before.queries), q1 = part(after.queries), k0 = part(before.keys),
             k1 = part(after.keys);
  return *update_spectrum({.query_before = q0,
                           .query_after = q1,
                           .key_before = k0,
                           .key_after = k1,
                           .head_dim = kHeadDim,
                           .width = kWidth});
}

void expect_increment(const std::optional<LayerSpectrum>& found, const Shown& before, const Shown& after) {
  ASSERT_TRUE(found);
  const Spectrum first = of_head(before, after, 0), second = of_head(before, after, 1);
  EXPECT_EQ(found->heads, 2u);
  EXPECT_DOUBLE_EQ(found->norm_max, std::max(first.frobenius, second.frobenius));
  EXPECT_DOUBLE_EQ(found->norm_mean, (first.frobenius + second.frobenius) / 2);
  EXPECT_DOUBLE_EQ(found->stable_rank_min, std::min(first.stable_rank, second.stable_rank));
  EXPECT_DOUBLE_EQ(found->stable_rank_mean, (first.stable_rank + second.stable_rank) / 2);
  EXPECT_DOUBLE_EQ(found->effective_rank_min, std::min(first.effective_rank, second.effective_rank));
  EXPECT_DOUBLE_EQ(found->effective_rank_mean, (first.effective_rank + second.effective_rank) / 2);
}

TEST(LayerSpectra, FindsAChangeAtTheSecondSnapshot) {
  LayerSpectra spectra;
  const Shown first(1), second(2), third(3);
  EXPECT_FALSE(spectra.take("000", first.rows(64)));
  const auto found = spectra.take("000", second.rows(128));
  expect_increment(found, first, second);
  EXPECT_EQ(found->step, 128);
  EXPECT_EQ(found->steps, 64);
  expect_increment(spectra.take("000", third.rows(192)), second, third);
  EXPECT_FALSE(spectra.take("000", third.rows(192)));  // the same look again is none
  EXPECT_FALSE(spectra.take("001", third.rows(192)));  // another layer
}

TEST(LayerSpectra, QueriesAndKeysOfTwoTensors) {
  LayerSpectra spectra;
  const Shown first(1), second(2);
  EXPECT_FALSE(spectra.take("000", first.rows(64, true, false)));
  EXPECT_FALSE(spectra.take("000", first.rows(70, false, true)));
  EXPECT_FALSE(spectra.take("000", second.rows(128, true, false)));
  const auto found = spectra.take("000", second.rows(134, false, true));
  expect_increment(found, first, second);
  EXPECT_EQ(found->step, 134);
  EXPECT_EQ(found->steps, 64);
}

TEST(LayerSpectra, IsAbsentOverUnequalIntervals) {
  LayerSpectra spectra;
  const Shown a(1), b(2), c(3), d(4);
  spectra.take("000", a.rows(64));
  EXPECT_FALSE(spectra.take("000", b.rows(128, true, false)));  // the keys' turn was left out
  EXPECT_FALSE(spectra.take("000", c.rows(192)));               // queries over 64 steps, keys over 128
  expect_increment(spectra.take("000", d.rows(256)), c, d);
}

TEST(LayerSpectra, RestartsAfterAnotherIntervalOrShape) {
  LayerSpectra spectra;
  const Shown first(1), second(2);
  spectra.take("000", first.rows(64));
  const uint64_t bytes = spectra.bytes();
  ProjectionRows rows = second.rows(128);
  rows.interval = 128;
  EXPECT_FALSE(spectra.take("000", rows));
  ProjectionRows heads = second.rows(192);
  heads.kv_heads = {1, 2};
  EXPECT_FALSE(spectra.take("000", heads));
  EXPECT_EQ(spectra.bytes(), bytes);
}

TEST(LayerSpectra, MemoryIsBounded) {
  const uint64_t one = 4 * 2 * kHeadDim * kWidth * sizeof(float);
  LayerSpectra spectra(2 * one + 1);
  const Shown first(1), second(2);
  for (const char* layer : {"000", "001", "002"}) spectra.take(layer, first.rows(64));
  EXPECT_EQ(spectra.bytes(), 2 * one);
  EXPECT_EQ(spectra.layers_refused(), 1u);
  EXPECT_TRUE(spectra.take("001", second.rows(128)));
  EXPECT_FALSE(spectra.take("002", second.rows(128)));
}

TEST(LayerSpectra, LeavesOutTensorsThatDoNotFit) {
  LayerSpectra spectra;
  const Shown first(1), second(2);
  ProjectionRows wrong = first.rows(64);
  wrong.queries = wrong.queries.subspan(4);
  EXPECT_FALSE(spectra.take("000", wrong));
  wrong = first.rows(64);
  wrong.dtype = DType::kBool;
  EXPECT_FALSE(spectra.take("000", wrong));
  wrong = first.rows(64);
  wrong.kv_heads.clear();
  wrong.queries = wrong.keys = {};
  EXPECT_FALSE(spectra.take("000", wrong));
  EXPECT_EQ(spectra.bytes(), 0u);
  // A head that holds NaN says nothing, the other one does.
  Shown broken = second;
  broken.queries[0] = NAN;
  spectra.take("000", first.rows(64));
  const auto found = spectra.take("000", broken.rows(128));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->heads, 1u);
  EXPECT_DOUBLE_EQ(found->norm_mean, of_head(first, second, 1).frobenius);
}

}  // namespace
}  // namespace foreshock
