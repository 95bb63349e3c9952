#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "exporters/record_reader.h"

namespace foreshock {
namespace {

size_t columns(const std::string& row) {
  return 1 + static_cast<size_t>(std::count(row.begin(), row.end(), ','));
}

TEST(Csv, TextIsQuotedWhereItMustBe) {
  EXPECT_EQ(csv_text("plain text"), "plain text");
  EXPECT_EQ(csv_text(""), "");
  EXPECT_EQ(csv_text("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_text("say \"no\"\n"), "\"say \"\"no\"\"\n\"");
}

TEST(Csv, NamesAreNeitherFormulasNorControlSequences) {
  for (const char* begin : {"=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)"})
    EXPECT_EQ(csv_text(begin), std::string("'") + begin);
  EXPECT_EQ(csv_text("\t=1"), "'?=1");
  EXPECT_EQ(csv_text("\r=1"), "'?=1");
  EXPECT_EQ(csv_text("a=b - c@d"), "a=b - c@d");
  EXPECT_EQ(csv_text("\x1b[2J\xc2\x9b\xe2\x80\xae"), "?[2J??");
  EventLine line;
  line.layer = "=1+1";
  line.value = -0.5;
  EXPECT_EQ(csv_row(line), ",,,,,'=1+1,,-0.5,,,\n") << "a number is left alone";
}

TEST(Csv, ValuesComeBackToTheLastBit) {
  EventLine line;
  line.run = "r,1";
  line.step = -3;
  line.event = "loss_spike";
  line.value = 0.1;
  line.score = NAN;
  EXPECT_EQ(csv_header(line), "run,rank,step,time,event,layer,detail,value,detector,level,score\n");
  EXPECT_EQ(csv_row(line), "\"r,1\",,-3,,loss_spike,,,0.1,,,nan\n");
  line.value = std::nextafter(0.1, 1);
  EXPECT_EQ(csv_row(line), "\"r,1\",,-3,,loss_spike,,,0.10000000000000002,,,nan\n");
}

TEST(Csv, ListsAndTruthValuesAreOneCell) {
  SampleLine sample;
  sample.heads = {3, -1};
  EXPECT_NE(csv_row(sample).find(",3 -1,"), std::string::npos);
  StepLine step;
  step.sampled = false;
  step.logged = {{"a", 1.5}, {"b,c", NAN}};
  EXPECT_NE(csv_row(step).find(",\"a=1.5 b,c=nan\","), std::string::npos) << csv_row(step);
  EXPECT_NE(csv_row(step).find(",false,"), std::string::npos);
}

TEST(Csv, EveryRowHasTheColumnsOfItsHeader) {
  for (const RecordLine& line :
       {RecordLine(RunLine()), RecordLine(StepLine()), RecordLine(SampleLine()), RecordLine(OptimizerLine()),
        RecordLine(GradientLine()), RecordLine(SpectrumLine()), RecordLine(EventLine()),
        RecordLine(FindingLine()), RecordLine(VerdictLine())}) {
    EXPECT_EQ(columns(csv_header(line)), columns(csv_row(line))) << type_of(line);
    EXPECT_EQ(columns(csv_header(line)), record_fields(type_of(line)).size()) << type_of(line);
  }
}

}  // namespace
}  // namespace foreshock
