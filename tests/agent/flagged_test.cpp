#include "agent/flagged.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "agent/pipeline.h"
#include "exporters/metrics.h"
#include "lab/checkpoint.h"
#include "tests/agent/segment_of_a_trainer.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

namespace fs = std::filesystem;

constexpr double kWrong = 1 + 0x1p-6;  // of fp64 slices: far beyond at once

class FlaggedTest : public ::testing::Test {
 protected:
  FlaggedTest() {
    std::strcpy(trainer_.layer(1)->label, "../\"x\"/\n");  // a trainer may name a layer anything
    trainer_.layer(1)->ready = 1;
    rank_.run = "a run/of mine";
    pipeline_.set_flagged(&flagged_);
  }

  void sample(int64_t step, double factor, int layer = 0, uint32_t pass = 0) {
    trainer_.sample(step, factor, layer, pass);
    pipeline_.poll(*reader_, &rank_);
  }
  // Names in order, of all files that are there once everything is written.
  std::vector<std::string> files() {
    EXPECT_TRUE(flagged_.writer().wait(std::chrono::seconds(60)));
    std::vector<std::string> names;
    if (!fs::exists(folder_)) return names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  size_t files_with(const std::string& part) {
    const std::vector<std::string> all = files();
    return static_cast<size_t>(std::count_if(
        all.begin(), all.end(), [&](const std::string& name) { return name.find(part) != name.npos; }));
  }
  std::string bytes_of(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryDirectory base_;
  const std::string folder_ = base_.path() + "/slices";
  SegmentOfATrainer trainer_;
  std::unique_ptr<segment::SegmentReader> reader_ = trainer_.open();
  FlaggedSlices flagged_{folder_, 1 << 20};
  Pipeline pipeline_{nullptr};
  RankStatistics rank_;
};

TEST_F(FlaggedTest, NothingIsWrittenWhereAllIsWell) {
  for (int n = 1; n <= 20; ++n) sample(n, 1.0);
  EXPECT_TRUE(files().empty());
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(FlaggedTest, OfMoreOfTheSameEverFewerAreKept) {
  for (int n = 1; n <= 100; ++n) sample(n, kWrong);
  EXPECT_EQ(files().size(), 8u);  // 1, 2, 3, 4, 8, 16, 32, 64
  const FlaggedCounts counts = flagged_.writer().counts();
  EXPECT_EQ(counts.saved[static_cast<size_t>(FlagReason::kDeviationRatio)], 8u);
  EXPECT_EQ(counts.dropped[static_cast<size_t>(FlaggedDrop::kAlike)], 92u);
  sample(101, kWrong, 1);  // another layer is another thing
  sample(102, NAN);        // and so is another reason
  EXPECT_EQ(files().size(), 10u);
}

TEST_F(FlaggedTest, OneOrdinarySliceOfAFlaggedLayerIsItsControl) {
  sample(1, 1.0);
  EXPECT_EQ(files().size(), 0u);
  sample(2, kWrong);
  sample(3, 1.0, 1);  // of another layer
  EXPECT_EQ(files_with(".control."), 0u);
  sample(4, 1.0);
  sample(5, 1.0);
  EXPECT_EQ(files_with(".step00000004.forward.003.control."), 1u);
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(FlaggedTest, NamesAreOfPlainCharactersAndTellWhatItIs) {
  sample(7, kWrong, 1);
  const std::vector<std::string> names = files();
  ASSERT_EQ(names.size(), 1u);
  EXPECT_EQ(names[0], "a_run_of_mine.rank0000.step00000007.forward._..__x___.deviation_ratio.00000010-1" +
                          std::string(kFlaggedSuffix));
  EXPECT_EQ(fs::path(fs::canonical(folder_ + "/" + names[0])).parent_path(), fs::canonical(folder_));
}

TEST_F(FlaggedTest, TheFileIsSafetensorsWithAllThatIsKnown) {
  sample(9, 1.0, 0, 1);  // backward, with gradients that belong to nothing: flagged by its dQ
  const std::vector<std::string> names = files();
  ASSERT_EQ(names.size(), 1u);
  lab::Safetensors file;
  ASSERT_EQ(file.open(folder_ + "/" + names[0]), "");
  std::set<std::string> arrays;
  uint64_t end = file.size();
  for (const auto& [name, tensor] : file.tensors()) {
    arrays.insert(name);
    end -= tensor.bytes;
    EXPECT_EQ(tensor.offset % (tensor.type == "F64" ? 8 : 4), 0u) << name;
  }
  EXPECT_EQ(arrays, (std::set<std::string>{"q", "k", "v", "out", "dout", "dq", "key_limit", "position",
                                           "head", "reference_out", "reference_lse", "reference_dq"}));
  uint64_t header = 0;
  std::memcpy(&header, bytes_of(names[0]).data(), sizeof header);
  EXPECT_EQ(end, header + sizeof header);  // no gaps
  const auto fact = [&](const char* name) {
    const auto found = file.metadata().find(name);
    return found != file.metadata().end() ? found->second : "missing";
  };
  EXPECT_EQ(fact("format"), "foreshock slice");
  EXPECT_EQ(fact("schema"), "1");
  EXPECT_EQ(fact("run"), "a run/of mine");
  EXPECT_EQ(fact("step"), "9");
  EXPECT_EQ(fact("pass"), "backward");
  EXPECT_EQ(fact("op"), "attention_backward");
  EXPECT_EQ(fact("layer"), "003");
  EXPECT_EQ(fact("layer_name"), "blocks.3.attention.qkv.weight");
  EXPECT_EQ(fact("reason"), "deviation_ratio");
  EXPECT_EQ(fact("scale"), "1");
  EXPECT_EQ(fact("causal"), "none");
  EXPECT_EQ(fact("dtype"), "fp64");
  EXPECT_EQ(fact("reference_version"), std::to_string(kReferenceVersion));
  EXPECT_EQ(fact("foreshock_version"), FORESHOCK_VERSION);
  for (const char* name :
       {"rank", "attempt", "host", "framework", "instruction_set", "time", "ticket", "call", "batch",
        "kv_head", "heads_in_slice", "query_length", "key_length", "layer_source", "layer.judged",
        "figure.deviation_ratio", "figure.plain_error_norm"})
    EXPECT_NE(fact(name), "missing") << name;
}

TEST_F(FlaggedTest, NanAtRowsThatWereNotSampledIsAnAlarmOfTheirLayer) {
  sample(1, 1.0);
  EXPECT_EQ(alarms_of(rank_.layers.at("003"), 0).size(), 0u);
  trainer_.sample(2, 1.0, 0, 0, 3);
  pipeline_.poll(*reader_, &rank_);
  const std::vector<LayerAlarm> alarms = alarms_of(rank_.layers.at("003"), 0);
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_EQ(alarms[0].kind, AlarmKind::kNonfinite);
}

TEST_F(FlaggedTest, KeyPositionsAreKeptWithBothGradientsAndAControl) {
  const auto sample_columns = [&](int64_t step, double key_factor, double value_factor) {
    trainer_.sample_columns(step, key_factor, value_factor);
    pipeline_.poll(*reader_, &rank_);
  };
  sample_columns(1, 1, 1);
  EXPECT_EQ(files().size(), 0u);
  sample_columns(2, 1.05, 1);
  sample_columns(3, 1, 1.05);
  sample_columns(4, 1, 1);
  EXPECT_EQ(files().size(), 3u);
  EXPECT_EQ(files_with(".step00000004.backward.003.control."), 1u);
  for (const char* tensor : {"grad_key", "grad_value"}) {
    const std::string name = files()[tensor == std::string("grad_key") ? 0 : 1];
    lab::Safetensors file;
    ASSERT_EQ(file.open(folder_ + "/" + name), "");
    const auto& facts = file.metadata();
    EXPECT_EQ(facts.at("schema"), "2");
    EXPECT_EQ(facts.at("tensor"), tensor);
    EXPECT_EQ(facts.at("reason"), "deviation_ratio");
    EXPECT_EQ(facts.at("causal"), "none");
    EXPECT_GT(std::stod(facts.at("figure." + std::string(tensor) + ".fused_ratio")), 24);
    EXPECT_NE(facts.at("figure.grad_key.conservation_ratio"), "");
    for (const char* array : {"q", "out", "dout", "lse", "k", "v", "dk", "dv", "first_query", "key_sums",
                              "position", "reference_dk", "reference_dv"})
      EXPECT_EQ(file.tensors().count(array), 1u) << array;
  }
}

TEST_F(FlaggedTest, TheChecksumSeesEveryByte) {
  sample(1, kWrong);
  const std::string file = bytes_of(files().at(0));
  const size_t place = checksum_offset(file, file.size());
  ASSERT_NE(place, file.npos);
  EXPECT_EQ(checksum_of(file, place), file.substr(place, kNoChecksum.size()));
  for (size_t at = 0; at < file.size(); ++at) {
    if (at >= place && at < place + kNoChecksum.size()) continue;
    std::string changed = file;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_NE(checksum_of(changed, place), file.substr(place, kNoChecksum.size())) << at;
  }
}

// The exporters know nothing of the agent.
TEST(Flagged, ReasonsAreThoseOfTheCatalog) {
  const auto values = [](Metric metric) { return metric_info(metric).labels.back().values; };
  EXPECT_TRUE(std::ranges::equal(values(Metric::kFlaggedSlicesTotal), kFlagReasonNames));
  EXPECT_TRUE(std::ranges::equal(values(Metric::kFlaggedSlicesDroppedTotal), kFlaggedDropNames));
}

}  // namespace
}  // namespace foreshock
