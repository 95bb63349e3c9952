#include "lab/comparison.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lab/comparison_report.h"
#include "lab/inputs.h"

namespace foreshock::lab {
namespace {

namespace fs = std::filesystem;

TEST(Checkpoint, OrdersNumbersInNamesByValue) {
  const std::vector<std::string> ordered{"",           "a",           "embed",       "layers.2.b",
                                         "layers.2.w", "layers.2.w2", "layers.02.x", "layers.10.w",
                                         "norm",       "z10"};
  for (size_t i = 0; i < ordered.size(); ++i)
    for (size_t j = 0; j < ordered.size(); ++j)
      EXPECT_EQ(natural_less(ordered[i], ordered[j]), i < j) << i << j;
  EXPECT_NE(natural_less("a1", "a01"), natural_less("a01", "a1"));  // equal numbers: still one order
}

// fp64 is counted in fp32; what that moves is known.
TEST(TensorCounter, RoundingOfFp64IsSummed) {
  const std::vector<double> values{1, 1 + 0x1p-30, -2 - 0x1p-29, NAN, INFINITY};
  TensorCounter counter;
  counter.count(reinterpret_cast<const char*>(values.data()), DType::kFp64, values.size());
  EXPECT_EQ(counter.take_rounding(), 0x1p-30 + 0x1p-29);
  EXPECT_EQ(counter.take_rounding(), 0);
  const Histogram histogram = counter.take(DType::kFp64);
  EXPECT_EQ(histogram.finite, 3u);
  EXPECT_EQ(histogram.non_finite(), 2u);
  EXPECT_EQ(counter.take(DType::kFp64), Histogram{});
  EXPECT_EQ(counter.take(DType::kBf16), Histogram{});
}

class Comparing : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / ("foreshock_comparison_" + std::to_string(getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  // Tensors of each type with arithmetic, and one without.
  static std::string file_of(uint64_t seed) {
    std::string header = "{", data;
    for (const auto& [type, size] : {std::pair{"F64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"I8", 1}}) {
      constexpr int kCount = 300;
      const size_t begin = data.size();
      for (int i = 0; i < kCount * size; ++i) data += static_cast<char>(random_bits(seed, data.size()));
      header += std::string(header.size() > 1 ? "," : "") + "\"w." + type + R"(":{"dtype":")" + type +
                R"(","shape":[3,100],"data_offsets":[)" + std::to_string(begin) + "," +
                std::to_string(data.size()) + "]}";
    }
    header += "}";
    const uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes + header + data;
  }

  std::string write(const std::string& name, const std::string& bytes) {
    const fs::path path = directory_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

  static std::string measure(const std::vector<std::string>& paths, int threads, Comparison* comparison) {
    std::vector<Checkpoint> checkpoints(paths.size());
    std::vector<PairOfCheckpoints> pairs;
    for (size_t i = 0; i < paths.size(); ++i) {
      if (const std::string problem = open_checkpoint(paths[i], &checkpoints[i]); !problem.empty())
        return problem;
      if (i > 0) pairs.push_back({std::to_string(i), 0, i});
    }
    return compare(checkpoints, pairs, threads, nullptr, comparison);
  }

  fs::path directory_;
};

TEST_F(Comparing, DoesNotDependOnThreads) {
  const std::vector<std::string> paths{write("a", file_of(1)), write("b", file_of(2)),
                                       write("c", file_of(3))};
  Comparison one, many;
  ASSERT_EQ(measure(paths, 1, &one), "");
  ASSERT_EQ(measure(paths, 5, &many), "");
  EXPECT_EQ(to_json(one), to_json(many));
  ASSERT_EQ(one.pairs.size(), 2u);
  EXPECT_EQ(one.pairs[0].tensors.size(), 4u);
  EXPECT_EQ(one.pairs[0].unsupported_types.size(), 1u);
  EXPECT_EQ(one.pairs[1].pooled.elements, 1200u);
}

TEST_F(Comparing, HasDistanceZeroFromItself) {
  const std::string path = write("a", file_of(1));
  Comparison comparison;
  ASSERT_EQ(measure({path, path}, 2, &comparison), "");
  for (const TensorDistance& tensor : comparison.pairs[0].tensors) {
    EXPECT_EQ(tensor.distance.wasserstein.low, 0);
    EXPECT_EQ(tensor.distance.difference.max_magnitude, 0);
    EXPECT_EQ(tensor.distance.non_finite_a, tensor.distance.non_finite_b);
  }
}

// Any byte of the header may be anything: opening, comparing and showing must survive it, in one line.
TEST_F(Comparing, SurvivesDamage) {
  const std::string good = write("good", file_of(1)), valid = file_of(2);
  constexpr size_t kHeader = 400;
  int compared = 0;
  for (uint64_t round = 0; round < 500; ++round) {
    std::string damaged = valid;
    for (int i = 0; i < 1 + static_cast<int>(round % 3); ++i)
      damaged[random_bits(round, 2 * i) % kHeader] = static_cast<char>(random_bits(round, 2 * i + 1));
    if (round % 5 == 0) damaged.resize(random_bits(round, 99) % damaged.size());
    Comparison comparison;
    const std::string problem = measure({good, write("damaged", damaged)}, 1, &comparison);
    EXPECT_EQ(problem.find('\n'), std::string::npos);
    if (!problem.empty()) continue;
    ++compared;
    EXPECT_FALSE(table_of(comparison, 3).empty());
    EXPECT_FALSE(to_json(comparison).empty());
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace foreshock::lab
