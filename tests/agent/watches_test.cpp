#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "agent/detection.h"
#include "exporters/record_reader.h"

namespace foreshock {
namespace {

SampleLine sample(int64_t step, const char* pass, double bias, double drift) {
  SampleLine line;
  line.run = "run";
  line.rank = 0;
  line.step = step;
  line.pass = pass;
  line.layer = "003";
  line.bias_ulp = bias;
  line.rounded_reference_bias_ulp = 0;
  line.fused_ratio = 0.7;
  line.logit_abs_max = 9;
  line.entropy_nats_mean = 2;
  if (std::string(pass) == "backward") line.grad_out_drift = drift;
  return line;
}

std::vector<WatchReading> readings_of(const SampleLine& line) {
  Watches watches;
  std::vector<WatchReading> readings;
  watches.collect(&readings);
  watches.observe(line);
  return readings;
}

TEST(Watches, ASampleGoesToTheDetectorsOfItsPass) {
  const auto names = [](const std::vector<WatchReading>& readings) {
    std::string text;
    for (const WatchReading& each : readings) text += std::string(info_of(each.detector).name) + " ";
    return text;
  };
  EXPECT_EQ(names(readings_of(sample(8, "forward", 0.1, 0))),
            "bias deviation_forward max_logit logit_growth entropy_drop ");
  EXPECT_EQ(names(readings_of(sample(8, "backward", 0.1, 0.2))), "deviation_backward output_error_drift ");
  SampleLine unknown = sample(8, "forward", 0.1, 0);
  unknown.step.reset();
  EXPECT_EQ(names(readings_of(unknown)), "");
}

// What is biased and harmless is told apart from what follows the gradient.
TEST(Watches, ADriftOfTheOutputErrorIsNamedWithItsLayer) {
  Watches watches;
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw;
  std::vector<EventLine> events;
  for (int64_t step = 1; step <= 300; ++step)
    for (const EventLine& event :
         watches.observe(sample(step, "backward", 0, 1e-9 * (draw(engine) + (step > 200 ? 2 : 0)))))
      events.push_back(event);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].event, "precursor");
  EXPECT_EQ(events[1].detector, "output_error_drift");
  EXPECT_EQ(events[1].level, "warn");
  EXPECT_EQ(events[1].layer, "003");
  EXPECT_GE(*events[1].score, 1);
  // 2 over a spread that the jump itself makes sqrt(1 + 7/64 * 4) = 1.2: 1.2 a value beyond the slack, 18
  // after 15.
  EXPECT_LT(*events[1].step, 200 + 2 * 15);
}

TEST(Watches, AWeightThatSuddenlyMovesFasterIsToldWithItsTensor) {
  Watches watches;
  TensorLine line;
  line.run = "run";
  line.tensor = "blocks.3.qkv.weight";
  line.layer = "003";
  line.interval_steps = 100;
  line.step = 1;
  line.wasserstein_previous = 1;
  EXPECT_TRUE(watches.observe(line).empty()) << "nobody to tell of";
  StepLine step;
  step.run = "run";
  step.rank = 4;
  step.step = 1;
  watches.observe(step);
  std::mt19937_64 engine(1);
  std::lognormal_distribution<double> draw(0, 0.1);
  std::vector<EventLine> events;
  for (int64_t n = 1; n <= 40; ++n) {
    line.step = 100 * n;
    line.wasserstein_previous = 1e-5 * draw(engine) * (n > 36 ? 5 : 1);
    for (const EventLine& event : watches.observe(line)) events.push_back(event);
  }
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().detector, "weight_shift");
  EXPECT_EQ(events.back().level, "warn");
  EXPECT_EQ(events.back().rank, 4);
  EXPECT_EQ(events.back().layer, "003");
  EXPECT_LE(*events.back().step, 3900);
}

// Lines that went through the file, not-a-numbers and infinities among them, give what they gave before.
TEST(Watches, ALineAndWhatIsReadBackAreTheSame) {
  Watches live, replayed;
  std::mt19937_64 engine(1);
  std::lognormal_distribution<double> draw(0, 0.3);
  std::string a, b;
  for (int64_t step = 1; step <= 600; ++step) {
    StepLine line;
    line.run = "run";
    line.rank = 7;
    line.step = step % 400;
    line.loss =
        step % 50 > 46 ? (step % 100 > 50 ? NAN : INFINITY) : draw(engine) * (step % 200 > 190 ? 50 : 1);
    line.gradient_norm = step % 61 == 0 ? -INFINITY : draw(engine) / 3;
    const auto add = [](const std::vector<EventLine>& events, std::string* to) {
      for (const EventLine& event : events) *to += to_json_line(event) + "\n";
    };
    add(live.observe(line), &a);
    std::string why;
    const auto read = parse_record_line(to_json_line(line), &why);
    ASSERT_TRUE(read) << why;
    add(replayed.observe(std::get<StepLine>(*read)), &b);
  }
  EXPECT_NE(a, "");
  EXPECT_EQ(a, b);
}

TEST(Watches, RanksAndRunsAreApartAndBounded) {
  Watches watches;
  StepLine line;
  line.step = 1;
  for (int64_t rank = 0; rank < 5000; ++rank) {
    line.rank = rank;
    watches.observe(line);
  }
  EXPECT_EQ(watches.all().size(), 4096u);
  EventLine anew;
  anew.event = kDetectorsBeginAnew;
  anew.run = "another";
  watches.observe(anew);
  EXPECT_EQ(watches.all().size(), 4096u);
  anew.run = "";
  watches.observe(anew);
  EXPECT_EQ(watches.all().size(), 0u);
}

// The layers come after the tensors of experts, on the lowest rank: a deviation ratio of 10 in five of them.
TEST(Watches, ARecordOfAHundredThousandTensorsWarnsInAllFiveLayers) {
  Watches watches;
  watches.observe(sample(1, "forward", 0, 0));  // the rank that the tensors' series belong to
  for (int n = 0; n < 100000; ++n) {
    TensorLine tensor;
    tensor.run = "run";
    tensor.step = 1;
    tensor.tensor = "experts." + std::to_string(n);
    tensor.interval_steps = 64;
    tensor.wasserstein_previous = 1e-3;
    watches.observe(tensor);
  }
  std::set<std::string> warned;
  for (int64_t step = 2; step <= 4; ++step)
    for (const char* layer : {"000", "001", "002", "003", "004"}) {
      SampleLine line = sample(step, "forward", 0, 0);
      line.layer = layer;
      line.fused_ratio = 10;
      for (const EventLine& event : watches.observe(line))
        if (event.detector == "deviation_forward" && event.level == "warn") warned.insert(event.layer);
    }
  EXPECT_EQ(warned, (std::set<std::string>{"000", "001", "002", "003", "004"}));
  const auto states = watches.watch_of("run", 0)->states();
  EXPECT_EQ(states[static_cast<size_t>(DetectorId::kWeightShift)].series_dropped,
            100000 - RankWatch::kMostTensors);
  EXPECT_EQ(left_out(watches),
            (std::vector<std::string>{"weight_shift has no room for 91808 of its series"}));
}

TEST(Watches, ARankThatThereIsNoRoomForIsToldOf) {
  Watches watches;
  SampleLine line = sample(1, "forward", 0, 0);
  for (line.rank = 0; *line.rank < 4096; ++*line.rank) watches.observe(line);
  EXPECT_EQ(left_out(watches), std::vector<std::string>());
  EXPECT_EQ(watches.watch_of("run", 4096), nullptr);
  watches.observe(line);
  watches.observe(line);
  EXPECT_EQ(left_out(watches),
            std::vector<std::string>{"the detectors watch 4096 ranks; 2 lines of other ranks were left out"});
}

}  // namespace
}  // namespace foreshock
