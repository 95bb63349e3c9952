// How many series a node has: 8 ranks that train 96 layers, within the budget whatever the parallelism.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/agent/simulated_node.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

constexpr int kRanks = 8, kLayers = 96;
// Deviation ratio and bias of either pass, largest logit, gradient norm.
constexpr size_t kSeriesPerLayer = 6;
// Of the node, however many ranks: Wasserstein distance to the last snapshot and to the first.
constexpr size_t kSharedPerLayer = 2;
constexpr size_t kBudget = Registry::kDefaultSeriesBudget;

struct Counts {
  size_t all = 0, of_layers = 0;
  std::map<std::string, size_t> of_rank;                // without those that name a layer
  std::map<std::string, std::set<std::string>> layers;  // by rank
};

Counts counts_of(const Registry& registry) {
  Counts counts;
  const auto snapshot = registry.snapshot();
  for (const prometheus::MetricFamily& family : snapshot->families)
    for (const prometheus::ClientMetric& metric : family.metric) {
      ++counts.all;
      std::string rank, layer;
      for (const auto& label : metric.label) {
        if (label.name == "rank") rank = label.value;
        if (label.name == "layer") layer = label.value;
      }
      const bool is_of_layer = family.name.starts_with("foreshock_layer_");
      counts.of_layers += is_of_layer;
      if (is_of_layer && !rank.empty()) counts.layers[rank].insert(layer);
      if (layer.empty() && !rank.empty()) ++counts.of_rank[rank];
    }
  return counts;
}

class SeriesBudget : public testing::Test {
 protected:
  Counts count(Parallelism parallelism) {
    registry_ = std::make_unique<Registry>();
    SimulatedNode(kRanks, kLayers, parallelism).train(registry_.get());
    return counts_of(*registry_);
  }
  std::unique_ptr<Registry> registry_;
};

TEST_F(SeriesBudget, ReplicasShowTheirLayersOnce) {
  const Counts counts = count(Parallelism::kData);
  EXPECT_EQ(counts.of_layers, kLayers * (kSeriesPerLayer + kSharedPerLayer));
  EXPECT_EQ(counts.layers.size(), 1u);
  EXPECT_EQ(counts.layers.at("0").size(), size_t{kLayers});
  EXPECT_EQ(counts.of_rank.size(), size_t{kRanks});
  EXPECT_LE(counts.of_rank.at("0"), 133u);  // those of its weights and of the detectors included
  EXPECT_LE(counts.all, kBudget / 2) << "a node of the usual kind is far from the budget";
  EXPECT_EQ(registry_->series_dropped(), 0u);
  RecordProperty("series", static_cast<int>(counts.all));
  RecordProperty("series_of_a_rank", static_cast<int>(counts.of_rank.at("0")));
}

TEST_F(SeriesBudget, UnknownCoordinatesCostNoMore) {
  FORESHOCK_SKIP_IF_SANITIZED();
  EXPECT_LE(count(Parallelism::kUnknown).all, count(Parallelism::kData).all);
  EXPECT_EQ(registry_->series_dropped(), 0u);
}

TEST_F(SeriesBudget, WhatIsTooMuchIsDroppedInOrderAndCounted) {
  const Counts shared = count(Parallelism::kData);
  const Counts counts = count(Parallelism::kTensor);  // every rank owns its heads of every layer
  // The divided weights of this node do not change between some looks, which is a condition of the run.
  constexpr size_t kConditionsOfParts = 1;
  const size_t wanted = shared.all + (kRanks - 1) * kLayers * kSeriesPerLayer + kConditionsOfParts;
  ASSERT_GT(wanted, kBudget);
  // foreshock_series_dropped_total itself is beside the budget.
  EXPECT_EQ(counts.all, kBudget + 1);
  EXPECT_EQ(registry_->series_dropped(), wanted - 1 - kBudget);
  for (const auto& [rank, series] : counts.of_rank)
    EXPECT_EQ(series, shared.of_rank.at(rank)) << "no series of rank " << rank << " gave way to a layer's";
  EXPECT_EQ(counts.of_rank.size(), size_t{kRanks});
}

// A node of 64 ranks wants more than the budget without any layer. An alert takes a rank without series for
// one that is dead.
TEST_F(SeriesBudget, OfMoreRanksThanFitEachIsSeenToLive) {
  constexpr int kMany = 64;
  registry_ = std::make_unique<Registry>();
  SimulatedNode(kMany, 1, Parallelism::kData).train(registry_.get());
  EXPECT_GT(registry_->series_dropped(), 0u);
  std::map<std::string, std::map<std::string, size_t>> series;  // by metric, then rank
  const auto snapshot = registry_->snapshot();
  for (const prometheus::MetricFamily& family : snapshot->families)
    for (const prometheus::ClientMetric& metric : family.metric)
      for (const auto& label : metric.label)
        if (label.name == "rank") ++series[family.name][label.value];
  for (const auto& [name, of_each] :
       std::map<std::string, size_t>{{"foreshock_rank_up", 1},
                                     {"foreshock_rank_info", 1},
                                     {"foreshock_world_size", 1},
                                     {"foreshock_step", 1},
                                     {"foreshock_last_step_timestamp_seconds", 1},
                                     {"foreshock_loss", 1},
                                     {"foreshock_loss_window", 3},
                                     {"foreshock_nonfinite_values_total", 4},
                                     {"foreshock_attention_alarm_layers", 6},
                                     {"foreshock_monitor_enabled", 2}}) {
    EXPECT_EQ(series[name].size(), size_t{kMany}) << name;
    for (const auto& [rank, count] : series[name]) EXPECT_EQ(count, of_each) << name << " of rank " << rank;
  }
}

}  // namespace
}  // namespace foreshock
