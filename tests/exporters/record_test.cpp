#include "exporters/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace foreshock {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class Record : public testing::Test {
 protected:
  Record() : path_(testing::TempDir() + "record_test_" + std::to_string(getpid()) + ".jsonl") {
    remove_file();
  }
  ~Record() override { remove_file(); }

  std::unique_ptr<RecordWriter> open() {
    std::string error;
    auto writer = RecordWriter::open(path_, &error);
    EXPECT_NE(writer, nullptr) << error;
    return writer;
  }
  std::string open_error() {
    std::string error;
    EXPECT_EQ(RecordWriter::open(path_, &error), nullptr);
    return error;
  }
  void put(const std::string& bytes) { std::ofstream(path_, std::ios::app) << bytes; }
  std::string bytes() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  std::vector<json> lines() const {
    std::vector<json> result;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) result.push_back(json::parse(line));
    return result;
  }

  const std::string path_;

 private:
  void remove_file() const { std::filesystem::remove(path_); }
};

StepLine step_line(int64_t step) {
  StepLine line;
  line.run = std::string("r");
  line.rank = 0;
  line.step = step;
  line.loss = 1.0 / 3;
  return line;
}

TEST_F(Record, EveryTypeComesBackAsItWasWritten) {
  SampleLine sample;
  sample.run = "r";
  sample.rank = 3;
  sample.ticket = std::numeric_limits<uint64_t>::max();
  sample.pass = "backward";
  sample.heads = {4, 5};
  sample.relative_error_mean = 0.1;
  RunLine run;
  run.run = "r";
  run.state = "started";
  EventLine event;
  event.event = "loss_spike";
  {
    auto writer = open();
    writer->write(run);
    writer->write(step_line(7));
    writer->write(sample);
    writer->write(TensorLine());
    writer->write(ModelLine());
    writer->write(OptimizerLine());
    writer->write(SpectrumLine());
    writer->write(event);
  }
  const std::vector<json> read = lines();
  ASSERT_EQ(read.size(), 8u);
  const char* types[] = {"run", "step", "sample", "tensor", "model", "optimizer", "spectrum", "event"};
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i]["schema"], 1);
    EXPECT_EQ(read[i]["type"], types[i]);
    EXPECT_EQ(read[i].size(), record_fields(types[i]).size() + 2) << "every field of the table, and no other";
    for (const RecordField& field : record_fields(types[i]))
      EXPECT_TRUE(read[i].contains(field.name)) << field.name;
  }
  EXPECT_EQ(read[1]["loss"].get<double>(), 1.0 / 3);
  EXPECT_EQ(read[2]["ticket"].get<uint64_t>(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(read[2]["heads"], json({4, 5}));
  EXPECT_TRUE(read[2]["layer"].is_null()) << "unknown is null";
}

TEST_F(Record, NonFiniteNumbersAreNullAndNamed) {
  StepLine line = step_line(1);
  line.loss = std::nan("");
  line.gradient_norm = std::numeric_limits<double>::infinity();
  const json read = json::parse(to_json_line(line));
  EXPECT_TRUE(read["loss"].is_null());
  EXPECT_TRUE(read["gradient_norm"].is_null());
  EXPECT_EQ(read["nonfinite"], json({"loss", "gradient_norm"}));
  EXPECT_FALSE(json::parse(to_json_line(step_line(1))).contains("nonfinite"));
}

TEST_F(Record, AnyBytesStayOneLineOfJson) {
  EventLine line;
  line.detail = "a\nb\xff\"\\\xc3";
  const std::string text = to_json_line(line);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_THAT(json::parse(text)["detail"].get<std::string>(), StartsWith("a\nb"));
}

TEST_F(Record, GoesOnBehindTheLastWholeLine) {
  { open()->write(step_line(1)); }
  put(R"({"schema":1,"type":"step","ru)");
  { open()->write(step_line(2)); }
  const std::vector<json> read = lines();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1]["step"], 2);
}

TEST_F(Record, LeavesAForeignFileAlone) {
  put("print('my training script')\n");
  EXPECT_THAT(open_error(), HasSubstr("not a record"));
  EXPECT_EQ(bytes(), "print('my training script')\n");
}

TEST_F(Record, RefusesASecondWriter) {
  const auto first = open();
  EXPECT_THAT(open_error(), HasSubstr("another writer"));
}

TEST_F(Record, SaysWhyAFileCannotBeOpened) {
  std::string error;
  EXPECT_EQ(RecordWriter::open("/nonexistent/record.jsonl", &error), nullptr);
  EXPECT_THAT(error, HasSubstr("/nonexistent/record.jsonl: No such file"));
}

TEST_F(Record, AFullDeviceIsOneErrorAndNoMore) {
  std::string error;
  const auto writer = RecordWriter::open("/dev/full", &error);
  ASSERT_NE(writer, nullptr) << error;
  for (int i = 0; i < 20000; ++i) writer->write(step_line(i));  // far more than the buffer holds
  EXPECT_FALSE(writer->flush());
  EXPECT_THAT(writer->take_error(), HasSubstr("No space left"));
  EXPECT_FALSE(writer->flush());
  EXPECT_EQ(writer->take_error(), "") << "said once";
  EXPECT_GE(writer->errors(), 2u);
  EXPECT_GT(writer->lines_lost(), 0u);
}

TEST_F(Record, AtASizeLimitTheFileKeepsWholeLinesAndGrowsOnAfterwards) {
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const auto writer = open();
  for (int i = 0; i < 100; ++i) writer->write(step_line(i));
  rlimit tight = before;
  tight.rlim_cur = 5000;  // in the middle of a line
  setrlimit(RLIMIT_FSIZE, &tight);
  EXPECT_FALSE(writer->flush());
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(writer->take_error(), HasSubstr("File too large"));
  const size_t kept = lines().size();
  EXPECT_GT(kept, 0u);
  EXPECT_LT(kept, 100u);
  EXPECT_EQ(bytes().back(), '\n');

  EXPECT_TRUE(writer->flush());
  const std::vector<json> read = lines();
  ASSERT_EQ(read.size(), 100u) << "what waited is not lost";
  for (int i = 0; i < 100; ++i) EXPECT_EQ(read[i]["step"], i);
}

TEST_F(Record, MarkdownNamesEveryField) {
  const std::string text = record_markdown();
  for (const char* type : {"run", "step", "sample", "tensor", "model", "optimizer", "spectrum", "event"}) {
    for (const RecordField& field : record_fields(type))
      EXPECT_THAT(text, HasSubstr("| `" + field.name + "` | "));
  }
}

}  // namespace
}  // namespace foreshock
