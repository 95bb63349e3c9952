#include "exporters/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>

namespace foreshock {
namespace {

using Values = std::map<std::string, double>;

Values values_of(const std::vector<Scalar>& scalars) {
  Values values;
  for (const Scalar& scalar : scalars) values[scalar.tag] = scalar.value;
  return values;
}

SampleLine sample(int64_t step, const std::string& layer, double ratio, double bias_error, double bias_ulp) {
  SampleLine line;
  line.run = std::string("r");
  line.rank = 2;
  line.step = step;
  line.time = 100.0 + static_cast<double>(step);
  line.pass = std::string("forward");
  line.layer = layer;
  line.fused_ratio = ratio;
  line.bias_error_sum = bias_error;
  line.bias_ulp_sum = bias_ulp;
  return line;
}

TEST(RecordScalars, AStepGivesItsKnownValues) {
  StepLine line;
  line.run = std::string("r");
  line.rank = 1;
  line.step = 7;
  line.loss = NAN;
  line.duration_seconds = 1.01;
  line.overhead_seconds = 0.01;
  line.logged = {{"a", 1.5}, {"b", 2}};
  line.logged_step = {{"b", 70}};
  RecordScalars scalars;
  const auto out = scalars.take(line);
  const Values values = values_of(out);
  EXPECT_EQ(values.size(), 5u);
  EXPECT_EQ(values.at("logged/a"), 1.5);
  for (const Scalar& scalar : out) EXPECT_EQ(scalar.step, scalar.tag == "logged/b" ? 70 : 7) << scalar.tag;
  EXPECT_TRUE(std::isnan(values.at("training/loss")));
  EXPECT_EQ(values.at("training/step_seconds"), 1.01);
  EXPECT_NEAR(values.at("monitor/slowdown_ratio"), 0.01, 1e-12);
  EXPECT_EQ(out[0].rank, 1);
}

TEST(RecordScalars, JoinsTheSamplesOfAStepAfterItsEnd) {
  RecordScalars scalars;
  EXPECT_TRUE(scalars.take(sample(8, "000", 0.5, 1, 10)).empty());
  EXPECT_TRUE(scalars.take(sample(8, "001", 0.9, 1, 30)).empty());
  const Values first = values_of(scalars.take(sample(16, "000", 0.6, 0, 1)));
  EXPECT_DOUBLE_EQ(first.at("attention_forward/fused_ratio"), 0.7);
  EXPECT_EQ(first.at("attention_forward/fused_ratio_max"), 0.9);
  EXPECT_DOUBLE_EQ(first.at("attention_forward/bias_ulp"), 2.0 / 40);  // of the sums, not of the quotients
  EXPECT_EQ(first.at("layer_fused_ratio_forward/000"), 0.5);
  EXPECT_FALSE(first.contains("layer_fused_ratio_forward/001"));  // no later sample of it yet
  const Values rest = values_of(scalars.finish());
  EXPECT_EQ(rest.at("layer_fused_ratio_forward/001"), 0.9);
  EXPECT_EQ(rest.at("layer_fused_ratio_forward/000"), 0.6);
  EXPECT_TRUE(scalars.finish().empty());
}

TEST(RecordScalars, SeparatesRanks) {
  RecordScalars scalars;
  SampleLine other = sample(8, "", 2.0, 0, 0);
  other.rank = 3;
  scalars.take(sample(8, "", 1.0, 0, 0));
  scalars.take(other);
  std::map<int64_t, double> ratios;
  for (const Scalar& scalar : scalars.finish())
    if (scalar.tag == "attention_forward/fused_ratio") ratios[scalar.rank] = scalar.value;
  EXPECT_EQ(ratios, (std::map<int64_t, double>{{2, 1.0}, {3, 2.0}}));
}

TEST(RecordScalars, AnEventGivesOnePoint) {
  EventLine line;
  line.rank = 0;
  line.step = 5;
  line.event = "nonfinite";
  line.layer = "003";
  RecordScalars scalars;
  EXPECT_EQ(values_of(scalars.take(line)), (Values{{"event/nonfinite_003", 1}}));
}

TEST(RecordScalars, IgnoresLinesWithoutRankOrStep) {
  RecordScalars scalars;
  StepLine step;
  step.loss = 1;
  EXPECT_TRUE(scalars.take(step).empty());
  EXPECT_TRUE(scalars.take(SampleLine()).empty());
  EXPECT_TRUE(scalars.take(EventLine()).empty());
  EXPECT_TRUE(scalars.take(RunLine()).empty());
  EXPECT_TRUE(scalars.finish().empty());
}

TEST(EventFile, ChecksumIsMaskedCrc32c) {
  // RFC 3720, B.4: 32 bytes of zeroes give 0x8a9136aa, 32 of 0xff give 0x62a8ab43; then the mask of TFRecord.
  const auto masked = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; };
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), masked(0x8a9136aau));
  EXPECT_EQ(masked_crc32c(std::string(32, '\xff')), masked(0x62a8ab43u));
}

TEST(EventFile, FramedRecordHasLengthAndTwoChecksums) {
  const std::string record = framed_record("abc");
  ASSERT_EQ(record.size(), 8u + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\3\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
}

TEST(EventFile, ScalarEventMatchesTensorflowsProtocolBuffer) {
  // wall_time 1.0, step 300, summary { value { tag: "a" simple_value: 2 } }
  EXPECT_EQ(scalar_event(1.0, 300, "a", 2.0f), std::string("\x09\0\0\0\0\0\0\xf0\x3f"
                                                           "\x10\xac\x02"
                                                           "\x2a\x0a\x0a\x08\x0a\x01"
                                                           "a\x15\0\0\0\x40",
                                                           24));
  // A negative step is ten bytes of varint.
  EXPECT_EQ(scalar_event(1.0, -1, "a", 2.0f).size(), 24u + 8);
}

}  // namespace
}  // namespace foreshock
