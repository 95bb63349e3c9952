#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "agent/weights.h"
#include "segment/reader.h"

namespace foreshock {
namespace {

// A record of a tensor as a parser has found it, with what it borrows from.
struct Told {
  segment::TensorView view = {};
  std::vector<std::byte> heads;

  Told(const char* name, const char* layer, int64_t step) {
    std::strncpy(view.record.name, name, sizeof view.record.name - 1);
    std::strncpy(view.record.layer, layer, sizeof view.record.layer - 1);
    view.record.step = step;
    view.record.interval = 8;
    view.record.dims = 2;
    view.record.dtype = static_cast<uint32_t>(DType::kFp32);
  }
  // Two heads of 2 x 4, both sides, all values `value` but for a diagonal.
  Told& with_heads(float value) {
    const segment::TensorHeads head{
        .sides = 3, .head_dim = 2, .width = 4, .kv_heads = 2, .count = 2, .reserved = 0};
    const uint32_t which[2] = {0, 1};
    std::vector<float> values(2 * 2 * 2 * 4, value);
    for (size_t n = 0; n < values.size(); n += 5) values[n] = 1 + value * value;
    heads.resize(segment::values_offset(2) + values.size() * sizeof(float));
    std::memcpy(heads.data(), &head, sizeof head);
    std::memcpy(heads.data() + sizeof head, which, sizeof which);
    std::memcpy(heads.data() + segment::values_offset(2), values.data(), values.size() * sizeof(float));
    view.payload[segment::kTensorHeadRows] = heads;
    return *this;
  }
};

segment::Identity rank_of(int tensor_parallel, uint64_t start_time_ns = 1) {
  segment::Identity identity = {};
  identity.late_ready = 1;
  identity.data_parallel = 0;
  identity.tensor_parallel = tensor_parallel;
  identity.start_time_ns = start_time_ns;
  return identity;
}

std::optional<LayerSpectrum> take(HeadSpectra& spectra, Told told,
                                  const segment::Identity& rank = rank_of(0)) {
  const char* why = nullptr;
  told.view.payload[segment::kTensorHeadRows] = told.heads;
  told.view.record.time_ns = rank.start_time_ns + 5;
  const auto spectrum = spectra.add(told.view, rank, &why);
  EXPECT_EQ(why, nullptr) << why;
  return spectrum;
}

Told rows(const char* layer, int64_t step) {
  return Told("qkv", layer, step).with_heads(static_cast<float>(step) / 10);
}

TEST(HeadSpectra, OfALayerBetweenTwoLooks) {
  HeadSpectra spectra;
  EXPECT_FALSE(spectra.all_layers());
  EXPECT_FALSE(take(spectra, rows("000", 8)));
  EXPECT_FALSE(take(spectra, rows("001", 8)));
  ASSERT_TRUE(take(spectra, rows("000", 16)));
  const auto second = take(spectra, rows("001", 16));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->step, 16);
  EXPECT_EQ(second->steps, 8);
  EXPECT_EQ(second->heads, 2u);
  const auto all = spectra.all_layers();
  ASSERT_TRUE(all);
  EXPECT_EQ(all->heads, 4u);
  EXPECT_DOUBLE_EQ(all->effective_rank_mean, second->effective_rank_mean);
  const auto smallest = spectra.smallest_effective_ranks();
  EXPECT_EQ(smallest.size(), 2u);
  EXPECT_DOUBLE_EQ(smallest.at("001"), second->effective_rank_min);
}

TEST(HeadSpectra, ReplicasCountOnceHoweverLateTheyAreRead) {
  HeadSpectra spectra;
  for (int64_t step : {8, 16, 24}) take(spectra, rows("000", step));
  for (int64_t step : {8, 16, 24}) EXPECT_FALSE(take(spectra, rows("000", step))) << "told already";
  EXPECT_EQ(spectra.all_layers()->heads, 2u);
  EXPECT_TRUE(take(spectra, rows("000", 32))) << "and the next step is one after 24";
}

TEST(HeadSpectra, OtherCoordinatesHaveOtherHeads) {
  HeadSpectra spectra;
  for (int64_t step : {8, 16})
    for (int rank : {0, 1}) take(spectra, rows("000", step), rank_of(rank));
  EXPECT_EQ(spectra.all_layers()->heads, 4u);
  EXPECT_EQ(spectra.smallest_effective_ranks().size(), 1u);
}

TEST(HeadSpectra, AnotherAttemptBeginsAnew) {
  HeadSpectra spectra;
  for (int64_t step : {8, 16, 24}) take(spectra, rows("000", step));
  EXPECT_FALSE(take(spectra, rows("000", 16), rank_of(0, 100)));
  EXPECT_FALSE(spectra.all_layers());
  EXPECT_TRUE(take(spectra, rows("000", 24), rank_of(0, 100)));
}

TEST(HeadSpectra, WhatDoesNotFitIsRefused) {
  HeadSpectra spectra;
  const char* why = nullptr;
  Told told = rows("000", 8);
  told.view.payload[segment::kTensorHeadRows] = std::span(told.heads).first(told.heads.size() - 4);
  EXPECT_FALSE(spectra.add(told.view, rank_of(0), &why));
  EXPECT_STREQ(why, "heads of another size");
  EXPECT_FALSE(take(spectra, Told("a", "000", 8))) << "no rows are nothing";
  for (int64_t step : {8, 16}) EXPECT_FALSE(take(spectra, rows("", step))) << "of an unknown layer";
}

}  // namespace
}  // namespace foreshock
