#include <gtest/gtest.h>

#include "agent/alerts.h"

namespace foreshock {
namespace {

// Detectors as a rank's watch has them after an event.
class Detectors {
 public:
  explicit Detectors(Adviser* adviser, int64_t rank) : adviser_(adviser), rank_(rank) {}

  // A series of one detector changes; `level` and `layer` of the detector are then those of `now`.
  void change(DetectorId id, Level level, const std::string& layer, int64_t step, Level now,
              const std::string& layer_now) {
    DetectorState& state = states_[static_cast<size_t>(id)];
    state.level = now;
    state.layer = layer_now;
    EventLine event;
    event.step = step;
    event.event = "precursor";
    event.detector = info_of(id).name;
    event.layer = layer;
    event.level = name_of(level);
    event.score = 1.25;
    adviser_->note(rank_, event, states_);
  }
  void change(DetectorId id, Level level, const std::string& layer, int64_t step) {
    change(id, level, layer, step, level, level == Level::kQuiet ? "" : layer);
  }
  void resume(int64_t step) {
    states_ = {};
    EventLine event;
    event.step = step;
    event.event = "resumed";
    adviser_->note(rank_, event, states_);
  }

 private:
  Adviser* adviser_;
  int64_t rank_;
  std::array<DetectorState, kDetectors> states_;
};

TEST(Adviser, SaysNothingOfATrainingThatIsQuiet) {
  Adviser adviser;
  EXPECT_EQ(adviser.strongest({0, 1}), Signal{});
  Detectors rank(&adviser, 0);
  rank.change(DetectorId::kBias, Level::kWatch, "003", 10);
  rank.change(DetectorId::kBias, Level::kQuiet, "003", 20);
  EXPECT_EQ(adviser.strongest({0, 1}), Signal{});
}

TEST(Adviser, NamesTheLoudestThenTheEarliest) {
  Adviser adviser;
  Detectors first(&adviser, 0), second(&adviser, 1);
  first.change(DetectorId::kBias, Level::kWatch, "003", 10);
  second.change(DetectorId::kGradientGrowth, Level::kWatch, "", 12);
  const Signal earliest = {Level::kWatch, 0, 10, "bias", "003", 1.25};
  EXPECT_EQ(adviser.strongest({0, 1}), earliest);
  second.change(DetectorId::kGradientGrowth, Level::kWarn, "", 14);
  const Signal strongest = {Level::kWarn, 1, 14, "gradient_growth", "", 1.25};
  EXPECT_EQ(adviser.strongest({0, 1}), strongest);
  EXPECT_EQ(adviser.strongest({0}), earliest) << "the other one has left";
  second.change(DetectorId::kGradientGrowth, Level::kQuiet, "", 30);
  EXPECT_EQ(adviser.strongest({0, 1}), earliest);
}

TEST(Adviser, AWarningThatLastsKeepsItsBeginningInHoweverManyLayers) {
  Adviser adviser;
  Detectors rank(&adviser, 0);
  rank.change(DetectorId::kBias, Level::kWarn, "003", 10);
  rank.change(DetectorId::kBias, Level::kWarn, "005", 12, Level::kWarn, "003");
  EXPECT_EQ(adviser.strongest({0}).since_step, 10);
  EXPECT_EQ(adviser.strongest({0}).layer, "003");
  // The first is over, the second is not: still the same warning.
  rank.change(DetectorId::kBias, Level::kQuiet, "003", 30, Level::kWarn, "005");
  EXPECT_EQ(adviser.strongest({0}).since_step, 10);
  EXPECT_EQ(adviser.strongest({0}).layer, "005");
}

TEST(Adviser, ATrainingThatGoesBackIsQuietAgain) {
  Adviser adviser;
  Detectors rank(&adviser, 0);
  rank.change(DetectorId::kBias, Level::kWarn, "003", 10);
  rank.resume(4);
  EXPECT_EQ(adviser.strongest({0}), Signal{});
}

TEST(Adviser, ANewAgentKnowsWhatTheLastOneLeft) {
  Adviser adviser;
  std::array<DetectorState, kDetectors> states;
  DetectorState& state = states[static_cast<size_t>(DetectorId::kMaxLogit)];
  state.level = Level::kWarn;
  state.layer = "001";
  state.last_warn_step = 40;
  adviser.restore(2, states);
  const Signal left = {Level::kWarn, 2, 40, "max_logit", "001", 0};
  EXPECT_EQ(adviser.strongest({2}), left);
}

}  // namespace
}  // namespace foreshock
