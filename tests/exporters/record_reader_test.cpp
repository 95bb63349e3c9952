#include "exporters/record_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "exporters/record.h"

namespace foreshock {
namespace {

class RecordReaderTest : public testing::Test {
 protected:
  ~RecordReaderTest() override { std::filesystem::remove(path_); }

  void put(const std::string& bytes) { std::ofstream(path_, std::ios::app | std::ios::binary) << bytes; }
  std::unique_ptr<RecordReader> open() {
    std::string error;
    auto reader = RecordReader::open(path_, &error);
    EXPECT_NE(reader, nullptr) << error;
    return reader;
  }
  std::string why(const std::string& text) {
    std::string problem;
    EXPECT_FALSE(parse_record_line(text, &problem)) << text;
    return problem;
  }

  const std::string path_ = testing::TempDir() + "reader_test_" + std::to_string(getpid()) + ".jsonl";
};

StepLine step_line(int64_t step) {
  StepLine line;
  line.run = "r";
  line.rank = 0;
  line.step = step;
  line.loss = 1.0 / 3;
  return line;
}

// Such files have no end, or no writer.
TEST_F(RecordReaderTest, RefusesDevicesAndNamedPipes) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/zero"), std::string("/dev/null"), path_}) {
    std::string error;
    EXPECT_EQ(RecordReader::open(path, &error), nullptr);
    EXPECT_EQ(error, "record " + path + ": not a regular file; make a file of it first");
  }
}

TEST_F(RecordReaderTest, ReadsAPipeOfAShell) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string line = to_json_line(step_line(7)) + "\n";
  ASSERT_EQ(write(ends[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  close(ends[1]);
  std::string error;
  const auto reader = RecordReader::open("/dev/fd/" + std::to_string(ends[0]), &error);
  ASSERT_NE(reader, nullptr) << error;
  EXPECT_TRUE(reader->next());
  EXPECT_FALSE(reader->next());
  close(ends[0]);
}

TEST_F(RecordReaderTest, StopsAtALineWithoutAnEnd) {
  put("x");
  std::filesystem::resize_file(path_, 100 << 20);  // zeros that take no space on the disk
  put("\n" + to_json_line(step_line(7)) + "\n");
  const auto reader = open();
  EXPECT_FALSE(reader->next());
  EXPECT_EQ(reader->bad_lines(), 1u);
  EXPECT_EQ(reader->lines(), 1u);
}

TEST_F(RecordReaderTest, ReadsEveryFieldOfEveryType) {
  SampleLine sample;
  sample.run = "r";
  sample.ticket = std::numeric_limits<uint64_t>::max();
  sample.heads = {-1, 5};
  sample.relative_error_mean = 0.1;
  RunLine run;
  run.state = "started";
  run.max_slowdown = 0.01;
  EventLine event;
  event.event = "loss_spike";
  event.step = std::numeric_limits<int64_t>::min();
  StepLine step = step_line(7);
  step.sampled = true;
  step.logged = {{"train/accuracy", 0.25}, {"n", 3}};
  step.logged_step = {{"n", 12}};
  OptimizerLine optimizer;
  optimizer.tensor = "blocks.0.qkv.weight";
  optimizer.rms_staleness = 1.0 / 3;
  const std::vector<RecordLine> lines = {run, step, sample, optimizer, event};
  for (const RecordLine& line : lines)
    std::visit([&](const auto& of) { put(to_json_line(of) + "\n"); }, line);

  const auto reader = open();
  for (const RecordLine& line : lines) {
    const std::optional<RecordLine> back = reader->next();
    ASSERT_TRUE(back);
    ASSERT_EQ(back->index(), line.index());
    const auto text = [](const RecordLine& l) {
      return std::visit([](const auto& of) { return to_json_line(of); }, l);
    };
    EXPECT_EQ(text(*back), text(line));
  }
  EXPECT_FALSE(reader->next());
  EXPECT_EQ(reader->lines(), lines.size());
  EXPECT_EQ(reader->bad_lines(), 0u);
}

TEST_F(RecordReaderTest, ReadsNonFiniteNumbersAsNaNAndKeepsUnknownOnes) {
  StepLine line = step_line(1);
  line.loss = -INFINITY;
  line.gradient_norm.reset();
  line.logged = {{"broken", INFINITY}};
  std::string problem;
  const auto back = std::get<StepLine>(*parse_record_line(to_json_line(line), &problem));
  EXPECT_TRUE(std::isnan(back.loss.value()));
  EXPECT_FALSE(back.gradient_norm);
  EXPECT_TRUE(std::isnan(back.logged.at("broken")));
}

TEST_F(RecordReaderTest, IgnoresFieldsOfANewerVersion) {
  std::string problem;
  const auto line = parse_record_line(
      R"({"schema":1,"type":"step","step":3,"new":{"a":[1]},"nonfinite":["new"]})", &problem);
  ASSERT_TRUE(line) << problem;
  EXPECT_EQ(std::get<StepLine>(*line).step, 3);
}

TEST_F(RecordReaderTest, IgnoresLinesOfATypeThatOnlyOlderVersionsWrote) {
  put(R"({"schema":1,"type":"spectrum","run":"r","rank":0,"step":8,"layer":"000","norm_mean":0.5})"
      "\n");
  put(to_json_line(step_line(9)) + "\n");
  const auto reader = open();
  EXPECT_EQ(std::get<StepLine>(*reader->next()).step, 9);
  EXPECT_FALSE(reader->next());
  EXPECT_EQ(reader->lines(), 2u);
  EXPECT_EQ(reader->bad_lines(), 0u);
}

TEST_F(RecordReaderTest, NamesTheError) {
  EXPECT_EQ(why(""), "not JSON");
  EXPECT_EQ(why("{\"schema\":1,\"type\":\"step\""), "not JSON");
  EXPECT_EQ(why("[1]"), "not a JSON object");
  EXPECT_EQ(why("{\"type\":\"step\"}"), "no schema or type: not a line of a record");
  EXPECT_EQ(why(R"({"schema":2,"type":"step"})"),
            "a schema that this foreshock does not know; use a newer one");
  EXPECT_EQ(why(R"({"schema":1,"type":"x"})"), "a type that this foreshock does not know; use a newer one");
  EXPECT_EQ(why(R"({"schema":1,"type":"step","step":"3"})"), "a value of the wrong kind in step");
  EXPECT_EQ(why(R"({"schema":1,"type":"step","step":18446744073709551615})"),
            "a value of the wrong kind in step");
  EXPECT_EQ(why(R"({"schema":1,"type":"step","attention_calls":-1})"),
            "a value of the wrong kind in attention_calls");
  EXPECT_EQ(why(R"({"schema":1,"type":"sample","heads":[1.5]})"), "a value of the wrong kind in heads");
  EXPECT_EQ(why(std::string(100000, '[')), "not JSON");
}

TEST_F(RecordReaderTest, SkipsAndCountsBadLines) {
  put("junk\n\n" + to_json_line(step_line(1)) + "\r\n" + std::string("\0\xff\n", 3));
  put(std::string(RecordReader::kLongestLine + 10, 'x') + "\n");
  put(to_json_line(step_line(2)) + "\n");
  const auto reader = open();
  EXPECT_EQ(std::get<StepLine>(reader->next().value()).step, 1);
  EXPECT_EQ(std::get<StepLine>(reader->next().value()).step, 2);
  EXPECT_FALSE(reader->next());
  EXPECT_EQ(reader->bad_lines(), 3u);
  EXPECT_EQ(reader->first_problem(), "line 1: not JSON");
  EXPECT_FALSE(reader->ends_torn());
}

TEST_F(RecordReaderTest, ReadsTheLongestAllowedLine) {
  std::string line = to_json_line(step_line(1));
  put(line + std::string(RecordReader::kLongestLine - line.size(), ' ') + "\n");
  const auto reader = open();
  EXPECT_TRUE(reader->next());
  EXPECT_EQ(reader->bad_lines(), 0u);
}

TEST_F(RecordReaderTest, ReportsATornLastLineWithoutCountingIt) {
  const std::string line = to_json_line(step_line(2));
  put(to_json_line(step_line(1)) + "\n" + line.substr(0, line.size() / 2));
  const auto reader = open();
  EXPECT_TRUE(reader->next());
  EXPECT_FALSE(reader->next());
  EXPECT_TRUE(reader->ends_torn());
  EXPECT_EQ(reader->bad_lines(), 0u);
}

TEST_F(RecordReaderTest, CountsAWholeLastLineWithoutNewline) {
  put(to_json_line(step_line(1)));
  const auto reader = open();
  EXPECT_TRUE(reader->next());
  EXPECT_FALSE(reader->next());
  EXPECT_FALSE(reader->ends_torn());
}

TEST_F(RecordReaderTest, ReadsAnEmptyFile) {
  put("");
  EXPECT_FALSE(open()->next());
}

TEST_F(RecordReaderTest, RefusesAFolderAndAMissingFile) {
  std::string error;
  EXPECT_EQ(RecordReader::open("/no/such", &error), nullptr);
  EXPECT_EQ(error, "record /no/such: No such file or directory");
  EXPECT_EQ(RecordReader::open("/tmp", &error), nullptr);
  EXPECT_EQ(error, "record /tmp: Is a directory");
}

// What --record-size has left: the older part first, whose lines a reader of the newer one alone lacks.
TEST_F(RecordReaderTest, ReadsTwoPartsAsOneRecord) {
  std::ofstream(older_part(path_)) << to_json_line(step_line(1)) + "\n" + to_json_line(step_line(2)) + "\n";
  put(to_json_line(step_line(3)) + "\n");
  std::vector<int64_t> steps;
  std::vector<uint64_t> offsets;
  const auto reader = open();
  while (const std::optional<RecordLine> line = reader->next()) {
    steps.push_back(*std::get<StepLine>(*line).step);
    offsets.push_back(reader->offset());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
  const uint64_t bytes = to_json_line(step_line(1)).size() + 1;
  EXPECT_EQ(offsets, (std::vector<uint64_t>{0, bytes, 2 * bytes}));
  std::string error;
  EXPECT_EQ(std::get<StepLine>(*RecordReader::open(path_, &error, false)->next()).step, 3);
  std::ofstream(older_part(path_)) << "not a record\n";
  EXPECT_EQ(std::get<StepLine>(*open()->next()).step, 3)
      << "of another program's file of that name nothing is read";
  std::filesystem::remove(older_part(path_));
}

size_t columns(const std::string& row) {
  return 1 + static_cast<size_t>(std::count(row.begin(), row.end(), ','));
}

TEST(Csv, QuotesTextWithSpecialCharacters) {
  EXPECT_EQ(csv_text("plain text"), "plain text");
  EXPECT_EQ(csv_text(""), "");
  EXPECT_EQ(csv_text("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_text("say \"no\"\n"), "\"say \"\"no\"\"\n\"");
}

TEST(Csv, DisarmsFormulasAndControlSequences) {
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

TEST(Csv, NumbersRoundTripExactly) {
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

TEST(Csv, ListsAndBoolsTakeOneCell) {
  SampleLine sample;
  sample.heads = {3, -1};
  EXPECT_NE(csv_row(sample).find(",3 -1,"), std::string::npos);
  StepLine step;
  step.sampled = false;
  step.logged = {{"a", 1.5}, {"b,c", NAN}};
  EXPECT_NE(csv_row(step).find(",\"a=1.5 b,c=nan\","), std::string::npos) << csv_row(step);
  EXPECT_NE(csv_row(step).find(",false,"), std::string::npos);
}

TEST(Csv, RowsHaveAsManyColumnsAsTheHeader) {
  for (const RecordLine& line :
       {RecordLine(RunLine()), RecordLine(StepLine()), RecordLine(SampleLine()), RecordLine(OptimizerLine()),
        RecordLine(GradientLine()), RecordLine(EventLine()), RecordLine(FindingLine()),
        RecordLine(VerdictLine())}) {
    EXPECT_EQ(columns(csv_header(line)), columns(csv_row(line))) << type_of(line);
    EXPECT_EQ(columns(csv_header(line)), record_fields(type_of(line)).size()) << type_of(line);
  }
}

}  // namespace
}  // namespace foreshock
