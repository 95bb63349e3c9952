#include <gtest/gtest.h>

#include "agent/condition_list.h"
#include "agent/publish.h"

namespace foreshock {
namespace {

TEST(PublishConditions, ASeriesExistsFromTheBeginningOfItsConditionOn) {
  Registry registry;
  const auto published = [&](const std::vector<Condition>& conditions) {
    publish_conditions("run", conditions, &registry);
    return exposition(*registry.snapshot());
  };
  const std::string zero = "foreshock_condition{run=\"run\",condition=\"rate_zero\",kind=\"look\"} ";
  const std::string none = "foreshock_condition{run=\"run\",condition=\"no_step_taken\",kind=\"fault\"} ";
  Condition rate, skips;
  rate.id = ConditionId::kRateZero;
  skips.id = ConditionId::kNoStepTaken;
  skips.is_over = true;
  const std::string both = published({skips, rate});
  EXPECT_NE(both.find(zero + "1\n"), std::string::npos) << both;
  EXPECT_NE(both.find(none + "0\n"), std::string::npos) << both;
  EXPECT_EQ(published({}).find("foreshock_condition"), std::string::npos);
}

constexpr const char* kLevel =
    "foreshock_precursor_level{run=\"run\",rank=\"0\",detector=\"deviation_backward\"} ";
constexpr const char* kLayer =
    "foreshock_precursor_layer_info{run=\"run\",rank=\"0\",detector=\"deviation_backward\",layer=\"003\"} "
    "1\n";

class PublishPrecursors : public testing::Test {
 protected:
  PublishPrecursors() {
    rank_.run = "run";
    rank_.watch = &watch_;
  }
  // What /metrics says after `count` more slices of each of two layers, of which one errs so much.
  std::string after(int count, double ratio) {
    std::vector<WatchEvent> events;
    for (int n = 0; n < count; ++n) {
      ++step_;
      watch_.observe(DetectorId::kDeviationBackward, "002", "002", step_, 0.7, 0, &events);
      watch_.observe(DetectorId::kDeviationBackward, "003", "003", step_, ratio, 0, &events);
    }
    publish_precursors(rank_, &registry_);
    return exposition(*registry_.snapshot());
  }
  RankStatistics rank_;
  RankWatch watch_;
  Registry registry_;
  int64_t step_ = 0;
};

TEST_F(PublishPrecursors, StateHasTheValueNearestToAWarningAndItsLimit) {
  after(70, 1.5);
  const nlohmann::json detectors = precursors_json(watch_)["detectors"];
  ASSERT_EQ(detectors.size(), 1u);
  EXPECT_EQ(detectors[0]["value"], 1.5);
  EXPECT_EQ(detectors[0]["value_layer"], "003");
  EXPECT_EQ(detectors[0]["value_step"], 70);
  EXPECT_EQ(detectors[0]["score"], 1.5 / kDeviationRatioBackward);
  EXPECT_EQ(detectors[0]["look"], "limit");
  EXPECT_EQ(detectors[0]["warn"], kDeviationRatioBackward);
  EXPECT_EQ(detectors[0]["least"], 0);
  EXPECT_EQ(detectors[0]["learning"], 64);
}

TEST_F(PublishPrecursors, ValueOfADetectorThatHadNoFiniteOneIsUnknown) {
  std::vector<WatchEvent> events;
  watch_.observe(DetectorId::kMaxLogit, "002", "002", 1, NAN, 0, &events);
  const nlohmann::json detector = precursors_json(watch_)["detectors"][0];
  for (const char* key : {"value", "value_layer", "value_step", "score"})
    EXPECT_EQ(detector[key], nullptr) << key;
}

TEST_F(PublishPrecursors, TheLayerInWhichADetectorWarnsIsNamedForAsLongAsItDoes) {
  const std::string healthy = after(70, 0.7);
  EXPECT_NE(healthy.find(std::string(kLevel) + "0\n"), std::string::npos) << healthy;
  EXPECT_EQ(healthy.find("foreshock_precursor_layer_info{"), std::string::npos) << healthy;

  const std::string broken = after(8, 9);
  EXPECT_NE(broken.find(std::string(kLevel) + "2\n"), std::string::npos) << broken;
  EXPECT_NE(broken.find(kLayer), std::string::npos) << broken;
  EXPECT_EQ(broken.find("layer=\"002\""), std::string::npos) << broken;

  const std::string healed = after(100, 0.7);
  EXPECT_NE(healed.find(std::string(kLevel) + "0\n"), std::string::npos) << healed;
  EXPECT_EQ(healed.find("foreshock_precursor_layer_info{"), std::string::npos) << healed;
}

}  // namespace
}  // namespace foreshock
