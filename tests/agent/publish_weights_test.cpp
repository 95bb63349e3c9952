#include <gtest/gtest.h>

#include <string>

#include "agent/publish.h"
#include "tests/agent/segment_of_a_trainer.h"

namespace foreshock {
namespace {

// A model of one tensor, of snapshots at steps 4 and 8.
void show(Weights& weights) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  for (int64_t step : {4, 8}) trainer.weights(step, 0, 1, 4);
  segment::SegmentReader::ReadyTensor ready;
  while (reader->next_tensor(&ready)) {
    ASSERT_EQ(ready.why, nullptr);
    const char* why = nullptr;
    weights.add(ready.view, segment::Identity{}, 1, &why);
    reader->consume_tensor();
  }
  ASSERT_EQ(weights.model().step, 8);
}

TEST(PublishWeights, WhatTheWeightsWereLongAgoIsNotShown) {
  Weights weights;
  show(weights);
  Registry registry;
  const auto text_at = [&](int64_t step, uint64_t interval) {
    publish_weights("run", weights, {step, interval}, &registry);
    return exposition(*registry.snapshot());
  };
  const std::string fresh = text_at(20, 4);
  for (const char* series :
       {"foreshock_weight_snapshot_step{run=\"run\"} 8", "foreshock_weight_wasserstein_distance{",
        "foreshock_layer_weight_wasserstein_distance{", "foreshock_weight_rms{"})
    EXPECT_NE(fresh.find(series), std::string::npos) << series << "\n" << fresh;
  const std::string stale = text_at(21, 4);
  for (const char* name : {"foreshock_weight_snapshot_step{", "foreshock_weight_wasserstein_distance{",
                           "foreshock_layer_weight_wasserstein_distance{", "foreshock_weight_rms{",
                           "foreshock_weight_update_mean_abs{"})
    EXPECT_EQ(stale.find(name), std::string::npos) << name;
  EXPECT_NE(text_at(32, 8).find("foreshock_weight_rms{"), std::string::npos)
      << "the interval has become longer: the next snapshots are not due yet";
}

TEST(PublishWeights, WhatARollbackHasUndoneIsNotShown) {
  Weights weights;
  show(weights);
  Registry registry;
  publish_weights("run", weights, {8, 4}, &registry);
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  trainer.weights(4, 0, 1, 4);
  segment::SegmentReader::ReadyTensor ready;
  ASSERT_TRUE(reader->next_tensor(&ready));
  const char* why = nullptr;
  weights.add(ready.view, segment::Identity{}, 1, &why);
  publish_weights("run", weights, {8, 4}, &registry);
  const std::string text = exposition(*registry.snapshot());
  EXPECT_EQ(text.find("foreshock_weight_wasserstein_distance{"), std::string::npos) << text;
}

}  // namespace
}  // namespace foreshock
