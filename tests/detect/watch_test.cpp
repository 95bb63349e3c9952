#include "detect/watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "detect/state.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

TEST(State, RoundTrips) {
  StateWriter writer;
  const double number = -0.1;
  const int64_t step = INT64_MIN;
  const uint64_t count = UINT64_MAX;
  writer(number), writer(step), writer(count), writer(-7), writer(true), writer(std::string("a\0b", 3));
  StateReader reader(writer.bytes());
  double read_number;
  int64_t read_step;
  uint64_t read_count;
  int small;
  bool flag;
  std::string text;
  reader(read_number), reader(read_step), reader(read_count), reader(small), reader(flag), reader(text);
  EXPECT_TRUE(reader.good() && reader.at_end());
  EXPECT_EQ(read_number, number);
  EXPECT_EQ(read_step, step);
  EXPECT_EQ(read_count, count);
  EXPECT_EQ(small, -7);
  EXPECT_TRUE(flag);
  EXPECT_EQ(text, std::string("a\0b", 3));
}

TEST(State, RefusesMissingAndWrongBytes) {
  uint64_t number = 5;
  StateReader empty("");
  empty(number);
  EXPECT_FALSE(empty.good());
  EXPECT_EQ(number, 0u);
  const std::string long_one = std::string(8, '\x7f') + "abc";
  StateReader long_text(long_one);
  std::string text = "x";
  long_text(text);
  EXPECT_FALSE(long_text.good());
  EXPECT_EQ(text, "");
  const std::string many_things = std::string(8, '\x7f') + std::string(64, ' ');
  StateReader many(many_things);
  EXPECT_EQ(many.count(UINT64_MAX), 0u);
  EXPECT_FALSE(many.good());
  const std::string two("\x02\0\0\0\0\0\0\0", 8);
  StateReader no_flag(two);
  bool flag = true;
  no_flag(flag);
  EXPECT_FALSE(no_flag.good());
}

constexpr DetectorId kBias = DetectorId::kBias, kLogit = DetectorId::kMaxLogit;

TEST(Precursors, AreEpisodesThatLastedUntilShortlyBefore) {
  Precursors precursors;
  precursors.note(kLogit, "000", "000", Level::kWatch, 10);
  precursors.note(kLogit, "000", "000", Level::kQuiet, 20);  // long over at 1000
  precursors.note(kLogit, "001", "001", Level::kWatch, 800);
  precursors.note(kLogit, "001", "001", Level::kQuiet, 900);
  precursors.note(kBias, "002", "002", Level::kWatch, 950);
  precursors.note(kBias, "002", "002", Level::kWarn, 960);
  precursors.note(kBias, "003", "003", Level::kWarn, 1000);  // with the event, not before it
  const std::vector<Episode> before = precursors.before(1000);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before[0].place, "002");  // it warned
  EXPECT_EQ(before[0].since_step, 950);
  EXPECT_EQ(before[0].warn_step, 960);
  EXPECT_EQ(before[1].place, "001");
  EXPECT_EQ(before[1].warn_step, -1);
}

TEST(Precursors, AreBoundedAndKeepLastingEpisodes) {
  Precursors precursors;
  precursors.note(kBias, "first", "", Level::kWarn, 0);
  for (int n = 1; n < 1000; ++n) {
    precursors.note(kLogit, std::to_string(n), "", Level::kWatch, n);
    precursors.note(kLogit, std::to_string(n), "", Level::kQuiet, n);
  }
  EXPECT_EQ(precursors.before(1000)[0].place, "first");
  EXPECT_EQ(precursors.before(1000).size(), Precursors::kMostNamed);
  StateWriter writer;
  precursors.fields(writer);
  EXPECT_LT(writer.bytes().size(), 128 * 100u);
}

// A training of one layer: losses, gradient norms and slices with a little noise, and what the test puts into
// them.
class Training {
 public:
  RankWatch watch;
  std::vector<WatchEvent> events;
  double loss_factor = 1, gradient = 1, bias = 0;
  std::map<std::string, double> other_losses;

  void run(int steps) {
    for (int n = 0; n < steps; ++n) one_step();
  }
  void one_step() {
    ++step;
    watch.observe_step(step, (2 + noise() / 10) * loss_factor, std::exp(noise() / 5) * gradient, &events, {},
                       {}, other_losses);
    if (step % 4 == 0) watch.observe(DetectorId::kBias, "003", "003", step, bias + noise() / 30, 0, &events);
    if (step % 4 == 0) watch.observe(DetectorId::kMaxLogit, "003", "003", step, 8 + noise(), 0, &events);
  }
  void restart_agent() {
    StateWriter writer;
    watch.fields(writer);
    StateReader reader(writer.bytes());
    watch = RankWatch();
    watch.fields(reader);
    ASSERT_TRUE(reader.good() && reader.at_end());
  }
  std::string told() const {
    std::string text;
    for (const WatchEvent& event : events) {
      text += std::string(name_of(event.kind));
      if (event.kind == WatchEventKind::kPrecursor)
        text += std::string(":") + info_of(event.detector).name + ":" + name_of(event.level);
      text += " ";
    }
    return text;
  }
  int64_t step = 0;

 private:
  double noise() { return draw_(engine_); }
  std::mt19937_64 engine_{1};
  std::normal_distribution<double> draw_;
};

TEST(Watch, AHealthyTrainingIsQuiet) {
  Training training;
  training.run(20000);
  EXPECT_EQ(training.told(), "");
}

TEST(Watch, ReportsABiasBeforeTheSpike) {
  Training training;
  training.run(1000);
  training.bias = 0.3;
  training.run(100);
  training.loss_factor = 5;
  training.run(10);
  ASSERT_EQ(training.watch.loss_events().size(), 1u);
  const LossEventSeen& seen = training.watch.loss_events()[0];
  EXPECT_EQ(seen.kind, WatchEventKind::kLossSpike);
  EXPECT_EQ(seen.onset_step, 1101);
  ASSERT_EQ(seen.preceded_by.size(), 1u);
  EXPECT_EQ(seen.preceded_by[0].detector, DetectorId::kBias);
  EXPECT_EQ(seen.preceded_by[0].layer, "003");
  EXPECT_LT(seen.preceded_by[0].warn_step, 1060);  // 15 slices
  const DetectorState state = training.watch.states()[static_cast<size_t>(DetectorId::kBias)];
  EXPECT_EQ(state.level, Level::kWarn);
  EXPECT_EQ(state.layer, "003");
  EXPECT_EQ(state.since_step, seen.preceded_by[0].since_step);
  EXPECT_EQ(training.watch.states()[static_cast<size_t>(DetectorId::kMaxLogit)].since_step, -1);
  EXPECT_EQ(state.warnings, 1u);
  EXPECT_EQ(state.last_warn_step, seen.preceded_by[0].warn_step);
}

TEST(Watch, ANaNLossIsADivergenceOnly) {
  Training training;
  training.run(500);
  training.loss_factor = NAN;
  training.run(100);
  EXPECT_EQ(training.told(), "divergence ");
  EXPECT_EQ(training.events[0].step, 501);
}

// The losses of a game rise, fall and jump while all is well.
TEST(Watch, LossesOfOptimizersThatTakeTurnsAreOnlyCheckedForNaN) {
  for (const bool takes_turns : {false, true}) {
    Training training;
    if (takes_turns) training.other_losses["loss of optimizer 2"] = 1;
    training.run(500);
    training.loss_factor = 5;
    training.run(10);
    training.loss_factor = 1;
    training.run(500);
    training.loss_factor = 1.5;
    training.run(500);
    EXPECT_EQ(training.told().empty(), takes_turns) << training.told();
    training.events.clear();
    training.restart_agent();
    EXPECT_EQ(training.watch.takes_turns(), takes_turns);
    training.loss_factor = NAN;
    training.run(5);
    EXPECT_EQ(training.told(), "divergence ");
  }
}

TEST(Watch, ANaNInOneOfTwoLossesIsADivergenceOfThatLoss) {
  Training training;
  for (int n = 0; n < 300; ++n) {  // the second optimizer steps less often
    training.other_losses.clear();
    if (n % 5 == 0) training.other_losses["loss of optimizer 2"] = n < 200 ? -n : NAN;
    training.run(1);
  }
  EXPECT_EQ(training.told(), "divergence ");
  const LossEventSeen& seen = training.watch.loss_events().back();
  EXPECT_EQ(seen.loss, "loss of optimizer 2");
  EXPECT_EQ(seen.onset_step, 201);
}

TEST(Watch, ReportsConsecutiveInfiniteGradientsOnce) {
  Training training;
  training.run(500);
  training.gradient = INFINITY;
  training.run(20);
  training.gradient = 1;
  training.run(20);
  training.gradient = NAN;
  training.run(1);
  EXPECT_EQ(training.told(), "nonfinite_gradient_norm nonfinite_gradient_norm ");
  EXPECT_EQ(training.events[0].step, 501);
}

// The loss is what it was long ago, and so is everything else: no spike, no precursor.
TEST(Watch, ALowerStepIsAResumeOnly) {
  Training training;
  training.loss_factor = 0.3;
  training.run(1000);
  training.step = 200;
  training.loss_factor = 1;
  training.gradient = 20;
  training.run(1000);
  EXPECT_EQ(training.told(), "resumed ");
  EXPECT_EQ(training.events[0].step, 201);
  EXPECT_EQ(training.events[0].value, 1000);
}

TEST(Watch, ARepeatedOrMissingStepIsNoResume) {
  Training training;
  training.run(500);
  --training.step;
  training.run(1);
  training.step += 1000;
  training.run(500);
  EXPECT_EQ(training.told(), "");
}

TEST(Watch, ARestoredWatchFindsTheSameEvents) {
  Training whole, parts;
  for (Training* each : {&whole, &parts}) {
    for (int part = 0; part < 40; ++part) {
      if (part == 20) each->bias = 0.3;
      if (part == 25) each->gradient = 30;
      if (part == 30) each->loss_factor = 4;
      each->run(50 + part);
      if (each == &parts) each->restart_agent();
    }
  }
  EXPECT_NE(whole.told(), "");
  EXPECT_EQ(parts.told(), whole.told());
  for (size_t n = 0; n < whole.events.size(); ++n) {
    EXPECT_EQ(parts.events[n].step, whole.events[n].step);
    EXPECT_EQ(parts.events[n].score, whole.events[n].score);
  }
}

// Truncated anywhere, or with any byte changed: refused, or a state that can be used; never worse.
TEST(Watch, AcceptsAStateOfAnyBytes) {
  Training training;
  training.run(600);
  training.loss_factor = 9;
  training.run(10);
  StateWriter writer;
  training.watch.fields(writer);
  const std::string good = writer.bytes();
  for (size_t cut = 0; cut < good.size(); cut += 7) {
    StateReader reader(std::string_view(good).substr(0, cut));
    RankWatch watch;
    watch.fields(reader);
    EXPECT_FALSE(reader.good());
  }
  std::mt19937_64 engine(1);
  for (int n = 0; n < 2000; ++n) {
    std::string bad = good;
    for (int k = 0; k < 3; ++k) bad[engine() % bad.size()] = static_cast<char>(engine());
    StateReader reader(bad);
    training.watch = RankWatch();
    training.watch.fields(reader);
    if (!reader.good()) training.watch = RankWatch();
    training.run(3);
    training.watch.states();
  }
}

// Feeds `count` values of one series, steps 1, 2, ...
void feed(RankWatch* watch, DetectorId detector, const std::string& place, int count, double value,
          std::vector<WatchEvent>* events, int64_t span = 0) {
  for (int step = 1; step <= count; ++step)
    watch->observe(detector, place, place, step, value, 0, events, span);
}

DetectorState state_of(const RankWatch& watch, DetectorId detector) {
  return watch.states()[static_cast<size_t>(detector)];
}

// Models with experts have 10^5 tensors, and their values come before those of the first layer.
TEST(Watch, ManyTensorsDoNotDisplaceLayers) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  const int tensors = 100000;
  for (int n = 0; n < tensors; ++n)
    watch.observe(DetectorId::kWeightShift, "experts." + std::to_string(n), "", 1, 1, 0, &events);
  for (const char* layer : {"000", "001", "002", "003", "004"}) {
    events.clear();
    feed(&watch, DetectorId::kDeviationForward, layer, 3, 10, &events);
    ASSERT_FALSE(events.empty()) << layer;
    EXPECT_EQ(events.back().level, Level::kWarn);
    EXPECT_EQ(events.back().layer, layer);
  }
  const DetectorState state = state_of(watch, DetectorId::kWeightShift);
  EXPECT_EQ(state.series, RankWatch::kMostTensors);
  EXPECT_EQ(state.series_dropped, tensors - RankWatch::kMostTensors);
  EXPECT_EQ(state_of(watch, DetectorId::kDeviationForward).series_dropped, 0u);
}

TEST(Watch, AThousandLayersWarnSeparately) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  for (int layer = 0; layer < 1000; ++layer)
    for (DetectorId detector :
         {DetectorId::kBias, DetectorId::kDeviationForward, DetectorId::kMaxLogit, DetectorId::kLogitGrowth,
          DetectorId::kEntropyDrop, DetectorId::kDeviationBackward, DetectorId::kOutputErrorDrift})
      watch.observe(detector, std::to_string(layer), std::to_string(layer), 1, 1, 0, &events);
  events.clear();
  for (int layer = 0; layer < 1000; ++layer)
    feed(&watch, DetectorId::kMaxLogit, std::to_string(layer), 2, 500, &events);
  EXPECT_EQ(state_of(watch, DetectorId::kMaxLogit).warnings, 1000u);
  EXPECT_EQ(state_of(watch, DetectorId::kMaxLogit).series_dropped, 0u);
}

// A trainer that makes up new names all the time: what is new is followed, what is old and quiet goes.
TEST(Watch, ReplacesTheLayerThatIsQuietLongest) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  feed(&watch, DetectorId::kMaxLogit, "warns", 2, 500, &events);
  for (size_t n = 0; n < 2 * RankWatch::kMostLayers; ++n)
    watch.observe(DetectorId::kMaxLogit, "new" + std::to_string(n), "", 1, 1, 0, &events);
  EXPECT_EQ(watch.level_of(DetectorId::kMaxLogit, "warns"), Level::kWarn);
  events.clear();
  feed(&watch, DetectorId::kMaxLogit, "last", 2, 500, &events);
  EXPECT_EQ(events.size(), 1u);
  const DetectorState state = state_of(watch, DetectorId::kMaxLogit);
  EXPECT_EQ(state.series, RankWatch::kMostLayers);
  EXPECT_EQ(state.series_dropped, RankWatch::kMostLayers + 2);
}

// Each value removes a series. To search for it among all of them is thousands of times the work.
TEST(Watch, LayersBeyondTheLimitCostNoMoreTime) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  constexpr size_t kLayers = 16000, kSteps = test::kIsSanitized ? 2 : 16;
  std::vector<std::string> names;
  for (size_t n = 0; n < kLayers; ++n) names.push_back(std::to_string(n));
  for (size_t step = 0; step < kSteps; ++step)
    for (const std::string& name : names)
      watch.observe(DetectorId::kMaxLogit, name, name, static_cast<int64_t>(step), 1, 0, &events);
  EXPECT_EQ(state_of(watch, DetectorId::kMaxLogit).series, RankWatch::kMostLayers);
  EXPECT_EQ(state_of(watch, DetectorId::kMaxLogit).series_dropped, kLayers * kSteps - RankWatch::kMostLayers);
}

// Where every series is above quiet, the one that goes ends its episode: nothing would ever end it later.
TEST(Watch, ARemovedSeriesIsQuiet) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  for (size_t n = 0; n < RankWatch::kMostLayers; ++n)
    feed(&watch, DetectorId::kMaxLogit, std::to_string(n), 2, 500, &events);
  events.clear();
  watch.observe(DetectorId::kMaxLogit, "new", "new", 9, 1, 0, &events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].place, "0");
  EXPECT_EQ(events[0].level, Level::kQuiet);
}

// Distances of weights over twice the steps are larger without anything being wrong.
TEST(Watch, LearnsAgainAfterTheIntervalChanges) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  int64_t step = 0;
  for (int64_t interval = 64; interval <= 65536; interval *= 2)
    for (int n = 0; n < 40; ++n)
      watch.observe(DetectorId::kWeightShift, "w", "", ++step, static_cast<double>(interval) * (1 + n % 2), 0,
                    &events, interval);
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(state_of(watch, DetectorId::kWeightShift).series, 1u);
  EXPECT_EQ(state_of(watch, DetectorId::kWeightShift).values, 440u);
}

TEST(Watch, LimitsSeriesAndLengthsOfNames) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  for (size_t n = 0; n < RankWatch::kMostLayers + 10; ++n)
    watch.observe(DetectorId::kMaxLogit, std::to_string(n) + std::string(5000, 'x'), "", 1, 1, 0, &events);
  EXPECT_EQ(state_of(watch, DetectorId::kMaxLogit).series_dropped, 10u);
  StateWriter writer;
  watch.fields(writer);
  StateReader reader(writer.bytes());
  RankWatch again;
  again.fields(reader);
  EXPECT_TRUE(reader.good());
  EXPECT_EQ(state_of(again, DetectorId::kMaxLogit).series, RankWatch::kMostLayers);
  EXPECT_EQ(state_of(again, DetectorId::kMaxLogit).series_dropped, 10u);
}

}  // namespace
}  // namespace foreshock
