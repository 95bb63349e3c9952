// Segments of other releases: a trainer outlives an upgrade of the agent, and the other way round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "segment/reader.h"
#include "segment/writer.h"

namespace foreshock::segment {
namespace {

namespace fs = std::filesystem;

class Versions : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        fs::is_directory("/dev/shm") ? "/dev/shm/foreshock-test-XXXXXX" : "/tmp/foreshock-test-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string path(const char* suffix) const { return directory_ + "/3-0000000000000010." + suffix; }

  // version_N.txt: for each file its suffix and size, then lines of offset and bytes; what is not told is
  // zero.
  void unpack(const std::string& fixture) {
    std::ifstream text(fixture);
    ASSERT_TRUE(text.is_open()) << fixture;
    std::map<std::string, std::vector<char>> files;
    std::vector<char>* file = nullptr;
    for (std::string line; std::getline(text, line);) {
      std::istringstream words(line);
      std::string first, second;
      words >> first >> second;
      if (first == "seg" || first == "ctl") {
        file = &files[first];
        file->resize(std::stoul(second));
        continue;
      }
      ASSERT_NE(file, nullptr);
      for (size_t n = 0; 2 * n < second.size(); ++n)
        file->at(std::stoul(first) + n) = static_cast<char>(std::stoi(second.substr(2 * n, 2), nullptr, 16));
    }
    for (const auto& [suffix, bytes] : files)
      std::ofstream(path(suffix.c_str()), std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }

  void overwrite(const char* suffix, uint64_t offset, uint32_t value) {
    std::fstream file(path(suffix), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::unique_ptr<SegmentReader> open(std::string* why) {
    return SegmentReader::open(directory_, "3-0000000000000010", why);
  }
  std::string directory_;
};

TEST_F(Versions, ASegmentOfVersion1IsReadWhole) {
  unpack(FORESHOCK_SEGMENT_FIXTURES "/version_1.txt");
  std::string why;
  auto reader = open(&why);
  ASSERT_NE(reader, nullptr) << why;

  const Identity identity = reader->identity();
  EXPECT_EQ(identity.pid, 4242u);
  EXPECT_EQ(identity.rank, 3);
  EXPECT_EQ(text_of(identity.framework), "torch 2.13.0");
  EXPECT_EQ(identity.fixed_interval, 16u);
  ASSERT_EQ(reader->ops().size(), 2u);
  EXPECT_EQ(text_of(reader->ops()[1].name), "aten::backward");
  const Totals totals = reader->totals();
  EXPECT_EQ(totals.calls[0], 105u);
  EXPECT_EQ(totals.skipped[0][8], 1u);
  ASSERT_EQ(reader->layers().size(), 2u);
  EXPECT_EQ(text_of(reader->layer(1).name), "blocks.1");
  EXPECT_EQ(reader->layer(1).gradient_norm, 0.5);
  EXPECT_TRUE(reader->scalar_names().empty());

  const auto steps = reader->new_steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[2].step, 13);
  EXPECT_EQ(steps[2].loss, -0.5);
  EXPECT_EQ(steps[2].cost_ns, 5003u);
  EXPECT_EQ(steps[2].scalars_given, 0u);  // nothing of the record after it
  EXPECT_EQ(reader->last_step().step, 13);

  SegmentReader::Ready ready;
  ASSERT_TRUE(reader->next_ready(&ready));
  ASSERT_EQ(ready.why, nullptr) << ready.why;
  EXPECT_EQ(ready.view.header.parts, 0u);  // not the first bytes of its query
  EXPECT_EQ(ready.view.header.position[1], 1u);
  double query[2] = {};
  ASSERT_EQ(ready.view.payload[kQuery].size(), sizeof query);
  std::memcpy(query, ready.view.payload[kQuery].data(), sizeof query);
  EXPECT_EQ(query[1], 1.5);
  reader->consume_judged(ready);
  EXPECT_FALSE(reader->next_ready(&ready));
  const auto torn = reader->torn();
  ASSERT_EQ(torn.size(), 1u);
  reader->consume_lost(torn[0], Lost::kTorn);

  auto next = open(&why);
  ASSERT_NE(next, nullptr) << why;
  EXPECT_EQ(next->judged(0), 1u);
  EXPECT_EQ(next->lost(0, Lost::kTorn), 1u);
  EXPECT_TRUE(next->new_steps().empty());
}

TEST_F(Versions, ASegmentOfVersion2IsReadWhole) {
  unpack(FORESHOCK_SEGMENT_FIXTURES "/version_2.txt");
  std::string why;
  auto reader = open(&why);
  ASSERT_NE(reader, nullptr) << why;

  EXPECT_EQ(reader->identity().slots_given, 4u);
  ASSERT_EQ(reader->ops().size(), 32u);  // all that there was room for
  EXPECT_EQ(text_of(reader->ops()[31].name), "aten::attention_31");
  const Totals totals = reader->totals();
  EXPECT_EQ(totals.calls[0], 105u);
  EXPECT_EQ(totals.calls[31], 7u);
  EXPECT_EQ(totals.calls[32], 0u);
  EXPECT_EQ(totals.unsampled[0], 95u);
  EXPECT_EQ(totals.unsampled[1], 7u);
  EXPECT_EQ(totals.hook_ns, 1000u);
  EXPECT_EQ(totals.step_ns, 2000u);
  ASSERT_EQ(reader->layers().size(), 2u);
  EXPECT_EQ(reader->layer(1).gradient_norm, 0.5);
  EXPECT_EQ(reader->scalar_names(), std::vector<std::string>({"train/loss"}));
  ASSERT_EQ(reader->unseen_names().size(), 1u);
  EXPECT_EQ(text_of(reader->unseen_names()[0].name), "flex_attention");

  const auto steps = reader->new_steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[2].loss, -0.5);
  EXPECT_EQ(steps[2].scalars_given, 1u);
  EXPECT_EQ(steps[2].scalars[0], 4.5);
  EXPECT_EQ(steps[2].scalar_step[0], 12);

  SegmentReader::Ready ready;
  ASSERT_TRUE(reader->next_ready(&ready));  // a slice in two slots
  ASSERT_EQ(ready.why, nullptr) << ready.why;
  double keys[3] = {};
  ASSERT_EQ(ready.view.payload[kKey].size(), sizeof keys);
  std::memcpy(keys, ready.view.payload[kKey].data(), sizeof keys);
  EXPECT_THAT(keys, testing::ElementsAre(2, 2.5, 2.75));
  reader->consume_judged(ready);
  EXPECT_FALSE(reader->next_ready(&ready));
  ASSERT_EQ(reader->torn().size(), 1u);
  EXPECT_EQ(reader->torn()[0].ticket, 3u);
}

// Its operations are all there, and what it knew nothing of is nothing: no calls skipped for a device, no
// device that has made progress.
TEST_F(Versions, ASegmentOfVersion3IsReadWhole) {
  unpack(FORESHOCK_SEGMENT_FIXTURES "/version_3.txt");
  std::string why;
  auto reader = open(&why);
  ASSERT_NE(reader, nullptr) << why;

  EXPECT_EQ(reader->identity().pid, 4242u);
  ASSERT_EQ(reader->ops().size(), 40u);
  EXPECT_EQ(text_of(reader->ops()[39].name), "aten::attention_39");
  const Totals totals = reader->totals();
  EXPECT_EQ(totals.calls[0], 105u);
  EXPECT_EQ(totals.calls[39], 9u);
  EXPECT_EQ(totals.unsampled[0], 100u);
  EXPECT_EQ(totals.sampled[0], 4u);
  EXPECT_THAT(totals.skipped[0], testing::ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0));
  EXPECT_THAT(totals.skipped[1], testing::ElementsAre(3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(totals.hook_ns, 1000u);
  EXPECT_EQ(totals.step_ns, 2000u);
  const auto steps = reader->new_steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].step, 13);
  EXPECT_EQ(steps[1].cost_ns, 5003u);

  SegmentReader::Ready ready;
  ASSERT_TRUE(reader->next_ready(&ready));
  ASSERT_EQ(ready.why, nullptr) << ready.why;
  EXPECT_EQ(ready.view.header.step, 12);
  EXPECT_EQ(ready.view.header.device_end_ns, 0u);
  double query = 0;
  std::memcpy(&query, ready.view.payload[kQuery].data(), sizeof query);
  EXPECT_EQ(query, 1.5);
  reader->consume_judged(ready);
  EXPECT_FALSE(reader->next_ready(&ready));
}

// A slot was shorter: that none of its slices is of a packed batch follows from what is not there, and
// payloads begin where a header of today has not ended.
TEST_F(Versions, ASegmentOfVersion4IsReadWhole) {
  unpack(FORESHOCK_SEGMENT_FIXTURES "/version_4.txt");
  std::string why;
  auto reader = open(&why);
  ASSERT_NE(reader, nullptr) << why;

  EXPECT_EQ(reader->identity().pid, 4242u);
  ASSERT_EQ(reader->ops().size(), 3u);
  const Totals totals = reader->totals();
  EXPECT_EQ(totals.calls[0], 105u);
  EXPECT_EQ(totals.skipped[0][12], 6u);
  EXPECT_EQ(totals.skipped[1][11], 7u);
  ASSERT_EQ(reader->new_steps().size(), 2u);

  SegmentReader::Ready ready;
  for (const uint64_t ticket : {1u, 2u}) {  // one of the host, and one of a device in two slots
    ASSERT_TRUE(reader->next_ready(&ready));
    ASSERT_EQ(ready.why, nullptr) << ready.why;
    EXPECT_EQ(ready.ticket, ticket);
    const Slot& slot = ready.view.header;
    EXPECT_EQ(slot.packed, kNotPacked);
    EXPECT_EQ(slot.batch, 3);
    EXPECT_EQ(slot.query_length, 9u);
    EXPECT_EQ(slot.key_length, 11u);
    EXPECT_EQ(slot.rows, 1u);
    EXPECT_EQ(slot.keys, 2 * ticket);
    EXPECT_EQ(slot.position[0], 8u);
    EXPECT_EQ(slot.device_end_ns - slot.device_begin_ns, ticket == 1 ? 0u : 250u);
    std::vector<double> keys(slot.keys);
    ASSERT_EQ(ready.view.payload[kKey].size(), 8 * keys.size());
    std::memcpy(keys.data(), ready.view.payload[kKey].data(), 8 * keys.size());
    for (size_t n = 0; n < keys.size(); ++n)
      EXPECT_EQ(keys[n], static_cast<double>(10 * ticket + n)) << ticket;
    double sum = 0;
    ASSERT_EQ(ready.view.payload[kLogSumExp].size(), sizeof sum);
    std::memcpy(&sum, ready.view.payload[kLogSumExp].data(), sizeof sum);
    EXPECT_EQ(sum, 0.75);
    reader->consume_judged(ready);
  }
  EXPECT_FALSE(reader->next_ready(&ready));
}

TEST_F(Versions, AnUnknownVersionIsRefusedAndSaysWhichSideToUpgrade) {
  unpack(FORESHOCK_SEGMENT_FIXTURES "/version_1.txt");
  std::string why;
  overwrite("seg", offsetof(Header, layout_version), kLayoutVersion + 1);
  EXPECT_EQ(open(&why), nullptr);
  EXPECT_NE(why.find("upgrade foreshock where the agent runs"), std::string::npos) << why;
  overwrite("seg", offsetof(Header, layout_version), 0);
  EXPECT_EQ(open(&why), nullptr);
  EXPECT_NE(why.find("upgrade foreshock where the trainer runs"), std::string::npos) << why;
  overwrite("seg", offsetof(Header, layout_version), 1);
  EXPECT_NE(open(&why), nullptr) << why;
  overwrite("ctl", offsetof(Control, layout_version), 2);
  EXPECT_EQ(open(&why), nullptr);
  EXPECT_NE(why.find("control file"), std::string::npos) << why;
}

TEST_F(Versions, RecordsOfALaterReleaseMayBeLonger) {
  // What a release of the same layout version would write that appended a field to every step.
  SegmentWriter writer;
  ASSERT_EQ(writer.create({directory_.c_str(), 3, 0x10, 0, 0}), nullptr);
  StepRecord step = {};
  step.step = 7;
  writer.append_step(step);
  Region steps;
  std::fstream file(path("seg"), std::ios::in | std::ios::out | std::ios::binary);
  const std::streamoff at = offsetof(Header, regions) + kSteps * sizeof(Region);
  file.seekg(at);
  file.read(reinterpret_cast<char*>(&steps), sizeof steps);
  // Twice as long and half as many; record number 1 then lies where number 2 was.
  steps.record_size *= 2;
  steps.count /= 2;
  file.seekp(at);
  file.write(reinterpret_cast<const char*>(&steps), sizeof steps);
  step.sequence = 2;
  file.seekp(static_cast<std::streamoff>(steps.offset + steps.record_size));
  file.write(reinterpret_cast<const char*>(&step), sizeof step);
  file.close();
  std::string why;
  auto reader = open(&why);
  ASSERT_NE(reader, nullptr) << why;
  const auto records = reader->new_steps();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].step, 7);
}

}  // namespace
}  // namespace foreshock::segment
