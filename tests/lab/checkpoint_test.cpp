#include "lab/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "lab/inputs.h"
#include "lab/judgement.h"
#include "tests/support/variations.h"

namespace foreshock::lab {
namespace {

class SafetensorsFile : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string("foreshock_safetensors_") + std::to_string(getpid()) + "_" +
             testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_.string();
  }

  std::filesystem::path path_;
};

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + header + data;
}

// q, k, v and out of one row and one key in fp32: 1, 2, 3 and 3.
std::string valid_file() {
  std::string header = R"({"__metadata__":{"scale":"0.5","causal":"bottom-right"})", data;
  float value = 1;
  for (const char* name : {"q", "k", "v", "out"}) {
    header += std::string(",\"") + name + R"(":{"dtype":"F32","shape":[1,1,1,1],"data_offsets":[)" +
              std::to_string(data.size()) + "," + std::to_string(data.size() + 4) + "]}";
    data.append(reinterpret_cast<const char*>(&value), sizeof value);
    value = std::min(value + 1, 3.0f);
  }
  return file_of(header + "}", data);
}

TEST_F(SafetensorsFile, ReadsTensorsAndMetadata) {
  StoredCall call;
  ASSERT_EQ(read_call(write(valid_file()), &call), "");
  EXPECT_EQ(call.dtype, DType::kFp32);
  EXPECT_EQ(call.scale, 0.5);
  EXPECT_EQ(call.causal, Causal::kBottomRight);
  EXPECT_FALSE(call.backward);
  EXPECT_EQ(load_as_double(call.data.at("v").data(), DType::kFp32, 0), 3);
  for (const Verdict& verdict : judge(call, {}, {}, 1)) EXPECT_EQ(verdict.failure, "");
}

TEST_F(SafetensorsFile, NamesTheError) {
  for (const char* header :
       {"", "[]", "{", R"({"q":1})", R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
        R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}})",
        R"({"q":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
        R"({"q":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})",
        R"({"q":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})",
        R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
        R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})"}) {
    StoredCall call;
    const std::string problem = read_call(write(file_of(header, "1234")), &call);
    EXPECT_NE(problem, "") << header;
    EXPECT_EQ(problem.find('\n'), std::string::npos);
  }
}

// A quadratic reader takes seconds for 16,000 tensors and minutes for these.
TEST_F(SafetensorsFile, ReadsManyTensorsInLinearTime) {
  constexpr size_t kTensors = test::kIsSanitized ? 6400 : 64000;
  for (const bool overlap : {false, true}) {
    std::string header = "{";
    for (size_t n = 0; n < kTensors; ++n) {
      const size_t begin = overlap ? 0 : 4 * n;
      header += (n == 0 ? "\"t" : ",\"t") + std::to_string(n) +
                R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" + std::to_string(begin) + "," +
                std::to_string(begin + 4) + "]}";
    }
    Safetensors file;
    const std::string problem = file.open(write(file_of(header + "}", std::string(4 * kTensors, '\0'))));
    EXPECT_EQ(problem.empty(), !overlap) << problem;
    EXPECT_EQ(file.tensors().size(), kTensors);
  }
}

TEST_F(SafetensorsFile, AcceptsAnyCharacterInNamesAndRefusesDuplicates) {
  const std::string first = R"("a:{\"[")", entry = R"(:{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  const auto problem_with = [&](const std::string& second) {
    return Safetensors().open(write(file_of("{" + first + entry + "," + second + entry + "}", "")));
  };
  EXPECT_EQ(problem_with(R"("a:{\"")"), "");
  EXPECT_NE(problem_with(first).find("names a tensor twice"), std::string::npos);
}

// Any byte may be anything: the reader and the judge must survive it.
TEST_F(SafetensorsFile, SurvivesDamage) {
  const std::string valid = valid_file();
  for (uint64_t round = 0; round < 2000; ++round) {
    std::string damaged = valid;
    for (int i = 0; i < 1 + static_cast<int>(round % 3); ++i)
      damaged[random_bits(round, 2 * i) % damaged.size()] = static_cast<char>(random_bits(round, 2 * i + 1));
    if (round % 5 == 0) damaged.resize(random_bits(round, 99) % damaged.size());
    StoredCall call;
    if (read_call(write(damaged), &call).empty()) judge(call, {}, {}, 1);
  }
}

}  // namespace
}  // namespace foreshock::lab
