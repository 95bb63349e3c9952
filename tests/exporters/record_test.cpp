#include "exporters/record.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

namespace foreshock {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;

// A disk that hangs from hang() until go_on(), and fails with `error` meanwhile instead if there is one.
class Disk {
 public:
  static ssize_t write(int file, const void* bytes, size_t count) {
    std::unique_lock lock(mutex_);
    if (hangs_ && error_ != 0) {
      errno = error_;
      return -1;
    }
    changed_.wait(lock, [] { return !hangs_; });
    return ::write(file, bytes, count);
  }
  static void hang(int error = 0) {
    const std::unique_lock lock(mutex_);
    hangs_ = true;
    error_ = error;
  }
  static void go_on() {
    const std::unique_lock lock(mutex_);
    hangs_ = false;
    changed_.notify_all();
  }

 private:
  inline static std::mutex mutex_;
  inline static std::condition_variable changed_;
  inline static bool hangs_ = false;
  inline static int error_ = 0;
};

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
  // As an agent does it, on a disk that may hang.
  std::unique_ptr<RecordWriter> open_with_spool() {
    std::string error;
    const int spool = ::open(spool_path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    auto writer = RecordWriter::open(path_, &error, spool, Disk::write);
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

  void expect_steps(int64_t count) const {
    const std::vector<json> read = lines();
    ASSERT_EQ(read.size(), static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(read[static_cast<size_t>(i)]["step"], i);
  }

  const std::string path_, spool_path_ = path_ + ".spool";

 private:
  void remove_file() const {
    for (const std::string& path : {path_, spool_path_}) std::filesystem::remove(path);
  }
};

StepLine step_line(int64_t step) {
  StepLine line;
  line.run = std::string("r");
  line.rank = 0;
  line.step = step;
  line.loss = 1.0 / 3;
  return line;
}

TEST_F(Record, WritesEveryTypeReadably) {
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
    writer->write(GradientLine());
    writer->write(event);
    writer->write(FindingLine());
    writer->write(VerdictLine());
  }
  const std::vector<json> read = lines();
  ASSERT_EQ(read.size(), 10u);
  const char* types[] = {"run",       "step",     "sample", "tensor",  "model",
                         "optimizer", "gradient", "event",  "finding", "verdict"};
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

TEST_F(Record, WritesNonFiniteNumbersAsNullAndNamesThem) {
  StepLine line = step_line(1);
  line.loss = std::nan("");
  line.gradient_norm = std::numeric_limits<double>::infinity();
  const json read = json::parse(to_json_line(line));
  EXPECT_TRUE(read["loss"].is_null());
  EXPECT_TRUE(read["gradient_norm"].is_null());
  EXPECT_EQ(read["nonfinite"], json({"loss", "gradient_norm"}));
  EXPECT_FALSE(json::parse(to_json_line(step_line(1))).contains("nonfinite"));
}

TEST_F(Record, WritesAnyBytesAsOneLineOfJson) {
  EventLine line;
  line.detail = "a\nb\xff\"\\\xc3";
  const std::string text = to_json_line(line);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_THAT(json::parse(text)["detail"].get<std::string>(), StartsWith("a\nb"));
}

TEST_F(Record, AppendsAfterTheLastWholeLine) {
  { open()->write(step_line(1)); }
  put(R"({"schema":1,"type":"step","ru)");
  { open()->write(step_line(2)); }
  const std::vector<json> read = lines();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1]["step"], 2);
}

TEST_F(Record, LeavesAFileThatIsNoRecord) {
  put("print('my training script')\n");
  EXPECT_THAT(open_error(), HasSubstr("not a record"));
  EXPECT_EQ(bytes(), "print('my training script')\n");
}

TEST_F(Record, RefusesASecondWriter) {
  const auto first = open();
  EXPECT_THAT(open_error(), HasSubstr("another writer"));
}

TEST_F(Record, ReportsWhyAFileCannotBeOpened) {
  std::string error;
  EXPECT_EQ(RecordWriter::open("/nonexistent/record.jsonl", &error), nullptr);
  EXPECT_THAT(error, HasSubstr("/nonexistent/record.jsonl: No such file"));
}

TEST_F(Record, ReportsAFullDeviceOnce) {
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

TEST_F(Record, ContinuesAtItsPathAfterTheFileWasMoved) {
  const std::string other = path_ + ".other";
  const auto replace_by = [&](const std::string& content) {
    std::ofstream(other) << content;
    std::filesystem::rename(other, path_);
  };
  const auto writer = open();
  writer->write(step_line(0));
  EXPECT_TRUE(writer->flush());
  EXPECT_FALSE(writer->is_incomplete());
  // Reported without a line to write, and once.
  std::filesystem::remove(path_);
  EXPECT_TRUE(writer->flush());
  EXPECT_EQ(writer->take_error(), "record " + path_ +
                                      ": another program has moved or removed it; it goes on "
                                      "without the lines that are gone");
  EXPECT_TRUE(writer->is_incomplete());
  EXPECT_EQ(writer->errors(), 1u);
  writer->write(step_line(0));
  EXPECT_TRUE(writer->flush());
  expect_steps(1);
  EXPECT_EQ(writer->take_error(), "");

  replace_by("");
  writer->write(step_line(0));
  EXPECT_TRUE(writer->flush());
  EXPECT_THAT(writer->take_error(), HasSubstr("has replaced it; it goes on"));
  expect_steps(1);
  replace_by(to_json_line(step_line(0)) + "\n{\"torn");
  writer->write(step_line(1));
  EXPECT_TRUE(writer->flush());
  EXPECT_THAT(writer->take_error(), HasSubstr("has replaced it; it goes on"));
  expect_steps(2);
  std::filesystem::resize_file(path_, bytes().size() - 3);
  writer->write(step_line(1));
  EXPECT_TRUE(writer->flush());
  EXPECT_THAT(writer->take_error(), HasSubstr("has truncated it; it goes on"));
  expect_steps(2);
  EXPECT_TRUE(writer->is_incomplete());
}

TEST_F(Record, ContinuesAfterAForeignFileIsGone) {
  const std::string other = path_ + ".other";
  const auto writer = open();
  for (const bool is_link : {false, true}) {
    std::filesystem::remove(path_);
    std::ofstream(is_link ? other : path_) << (is_link ? "" : "another file");
    if (is_link) std::filesystem::create_symlink(other, path_);
    writer->write(step_line(0));
    EXPECT_FALSE(writer->flush());
    EXPECT_THAT(writer->take_error(), HasSubstr("has replaced it, and the record cannot go on at this path"));
    EXPECT_FALSE(writer->flush());
    EXPECT_EQ(writer->take_error(), "") << "reported once";
    EXPECT_EQ(bytes(), is_link ? "" : "another file");
    std::filesystem::remove(path_);
    EXPECT_TRUE(writer->flush());
    EXPECT_THAT(writer->take_error(), HasSubstr("it goes on"));
    expect_steps(1);
  }
  std::filesystem::remove(other);
}

TEST_F(Record, KeepsWholeLinesAtAFileSizeLimit) {
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

TEST_F(Record, ReportsThatADiskHasRoomAgain) {
  const auto writer = open_with_spool();
  EXPECT_TRUE(writer->flush());
  Disk::hang(ENOSPC);
  writer->write(step_line(0));
  EXPECT_FALSE(writer->flush());
  EXPECT_TRUE(writer->is_failing());
  EXPECT_EQ(writer->take_error(),
            "record " + path_ + ": No space left on device; the run goes on without it");
  Disk::go_on();
  EXPECT_TRUE(writer->flush());
  EXPECT_FALSE(writer->is_failing());
  EXPECT_EQ(writer->take_error(), "record " + path_ + ": can be written again; nothing is lost");
  EXPECT_FALSE(writer->is_incomplete());
  EXPECT_TRUE(writer->flush());
  EXPECT_EQ(writer->take_error(), "");
  expect_steps(1);
}

TEST_F(Record, DoesNotFollowALinkOfAnotherUser) {
  const std::string folder = path_ + ".folder";
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink("../victim.jsonl", folder + "/link");
  ASSERT_EQ(chmod(folder.c_str(), 01777), 0);
  std::string error;
  const bool is_given_away = lchown((folder + "/link").c_str(), 12345, 12345) == 0;
  const auto writer = RecordWriter::open(folder + "/link", &error);
  std::filesystem::remove_all(folder);
  if (!is_given_away) GTEST_SKIP() << "needs root";
  EXPECT_EQ(writer, nullptr);
  EXPECT_THAT(error, HasSubstr("link is a link of another user"));
  EXPECT_FALSE(std::filesystem::exists(testing::TempDir() + "victim.jsonl"));
}

// That anything at all happens while the disk hangs is the test: who waited for it would wait for ever.
TEST_F(Record, AHangingDiskDoesNotBlockTheCaller) {
  const auto writer = open_with_spool();
  Disk::hang();
  for (int i = 0; i < 100; ++i) {
    writer->write(step_line(i));
    writer->copy_to_spool();
  }
  while (writer->errors() == 0) writer->begin_flush();
  EXPECT_THAT(writer->take_error(), HasSubstr("its disk does not answer"));
  for (int i = 100; i < 200; ++i) writer->write(step_line(i));
  writer->begin_flush();
  EXPECT_EQ(writer->take_error(), "") << "said once";
  EXPECT_EQ(writer->errors(), 1u);
  EXPECT_FALSE(writer->is_incomplete()) << "the next agent would find them";
  EXPECT_EQ(bytes(), "");
  const uint64_t size = writer->size();
  Disk::go_on();
  EXPECT_TRUE(writer->flush());
  EXPECT_EQ(writer->size(), size) << "where they would be was known";
  EXPECT_EQ(bytes().size(), size);
  expect_steps(200);
  EXPECT_EQ(std::filesystem::file_size(spool_path_), 0u);
}

TEST_F(Record, WaitsForAHangingDiskOnceWithoutASpool) {
  std::string error;
  const auto writer = RecordWriter::open(path_, &error, -1, Disk::write);
  Disk::hang();
  for (int i = 0; i < 100; ++i) {
    writer->write(step_line(i));
    writer->copy_to_spool();
  }
  EXPECT_EQ(writer->errors(), 1u);
  EXPECT_TRUE(writer->is_incomplete()) << "as long as they are here alone";
  EXPECT_EQ(writer->size(), 0u);
  Disk::go_on();
  EXPECT_TRUE(writer->flush());
  EXPECT_FALSE(writer->is_incomplete());
  expect_steps(100);
}

TEST_F(Record, TheNextAgentFindsQueuedLines) {
  {
    const auto writer = open_with_spool();
    for (int i = 0; i < 5; ++i) writer->write(step_line(i));
    EXPECT_TRUE(writer->flush());
    Disk::hang(EIO);
    for (int i = 5; i < 10; ++i) writer->write(step_line(i));
    writer->copy_to_spool();
    EXPECT_FALSE(writer->flush());
    for (int i = 10; i < 15; ++i) writer->write(step_line(i));
    writer->copy_to_spool();
    expect_steps(5);
  }
  {
    const auto still_failing = open_with_spool();
    expect_steps(5);
    for (int i = 15; i < 20; ++i) still_failing->write(step_line(i));
    still_failing->copy_to_spool();
  }
  Disk::go_on();
  const auto writer = open_with_spool();
  expect_steps(20);
  EXPECT_EQ(writer->size(), bytes().size());
  EXPECT_EQ(std::filesystem::file_size(spool_path_), 0u);
}

TEST_F(Record, EndsThoughItsDiskHangs) {
  const auto begin = std::chrono::steady_clock::now();
  {
    const auto writer = open_with_spool();
    writer->write(step_line(0));
    Disk::hang();
    writer->begin_flush();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, RecordWriter::kPatience);
  Disk::go_on();
  std::string error;
  std::unique_ptr<RecordWriter> next;
  while (next == nullptr)
    next = RecordWriter::open(path_, &error);  // as soon as the thread left behind is done
  expect_steps(1);
}

TEST_F(Record, KeepsTheOrderOfQueuedLines) {
  const auto writer = open_with_spool();
  for (int i = 0; i < 5000; ++i) {
    writer->write(step_line(i));
    writer->copy_to_spool();
    if (i % 16 == 0) writer->begin_flush();
  }
  EXPECT_TRUE(writer->flush());
  expect_steps(5000);
}

TEST_F(Record, MarkdownNamesEveryField) {
  const std::string text = record_markdown();
  for (const char* type :
       {"run", "step", "sample", "tensor", "model", "optimizer", "gradient", "event", "finding", "verdict"}) {
    for (const RecordField& field : record_fields(type))
      EXPECT_THAT(text, HasSubstr(std::string("| `") + field.name + "` | "));
  }
}

TEST(Base64, MatchesTheStandard) {  // RFC 4648, section 10
  const char* cases[][2] = {{"", ""},
                            {"f", "Zg=="},
                            {"fo", "Zm8="},
                            {"foo", "Zm9v"},
                            {"foob", "Zm9vYg=="},
                            {"fooba", "Zm9vYmE="},
                            {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
}

TEST(Base64, RoundTripsAllBytes) {
  std::string bytes;
  for (int n = 0; n < 1000; ++n) {
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
    bytes += static_cast<char>(n * 37);
  }
}

TEST(Base64, RefusesInvalidText) {
  for (const char* text :
       {"Z", "Zg", "Zg=", "Zg===", "Zh==", "Zm9=", "Z===", "====", "Zm 9", "Zm9v\n", "Zg==Zg=="})
    EXPECT_EQ(from_base64(text), std::nullopt) << text;
}

}  // namespace
}  // namespace foreshock
