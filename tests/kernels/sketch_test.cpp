#include "kernels/sketch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace foreshock {
namespace {

struct Result {
  double products[kSketchProducts] = {};
  double norm = 0;
};

TensorView matrix(const float* data, int64_t rows, int64_t columns, int64_t row_stride, int64_t stride) {
  return {.data = data,
          .dtype = DType::kFp32,
          .shape = {1, 1, rows, columns},
          .stride = {0, 0, row_stride, stride}};
}

Result sketch(const TensorView& tensor, uint64_t seed = 1) {
  Result result;
  EXPECT_TRUE(add_sketch(tensor, seed, result.products, &result.norm));
  return result;
}

std::vector<float> normal(size_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> values;
  std::vector<float> v(count);
  for (float& each : v) each = values(engine);
  return v;
}

TEST(Sketch, IsLinearAndDoesNotDependOnStrides) {
  const std::vector<float> a = normal(60 * 300, 1), b = normal(60 * 300, 2);
  std::vector<float> sum(a.size()), transposed(a.size());
  for (size_t n = 0; n < a.size(); ++n) {
    sum[n] = a[n] + b[n];
    transposed[n % 300 * 60 + n / 300] = a[n];
  }
  const Result of_a = sketch(matrix(a.data(), 60, 300, 300, 1));
  const Result of_b = sketch(matrix(b.data(), 60, 300, 300, 1));
  const Result of_sum = sketch(matrix(sum.data(), 60, 300, 300, 1));
  const Result of_transposed = sketch(matrix(transposed.data(), 60, 300, 1, 60));
  for (int k = 0; k < kSketchProducts; ++k) {
    EXPECT_NEAR(of_sum.products[k], of_a.products[k] + of_b.products[k], 1e-4);
    EXPECT_NEAR(of_transposed.products[k], of_a.products[k], 1e-9);
  }
  EXPECT_NEAR(of_transposed.norm, of_a.norm, 1e-9);
}

TEST(Sketch, SketchesOfPartsAddUpToThatOfTheWhole) {
  for (const int64_t rows : {3, 401}) {  // all of it is read, or some blocks are
    constexpr int64_t kColumns = 333;
    const std::vector<float> a = normal(static_cast<size_t>(rows * kColumns), 4);
    const Result whole = sketch(matrix(a.data(), rows, kColumns, kColumns, 1));
    Result sum;
    double squares = 0;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, rows - 1}, {rows - 1, rows}}) {
      Result part;
      const float* data = a.data() + begin * kColumns;
      EXPECT_TRUE(add_sketch(matrix(data, end - begin, kColumns, kColumns, 1), 1, part.products, &part.norm,
                             begin * kColumns, rows * kColumns));
      for (int k = 0; k < kSketchProducts; ++k) sum.products[k] += part.products[k];
      squares += part.norm * part.norm;
    }
    for (int k = 0; k < kSketchProducts; ++k) EXPECT_NEAR(sum.products[k], whole.products[k], 1e-9);
    EXPECT_NEAR(std::sqrt(squares), whole.norm, 1e-9);
    EXPECT_FALSE(add_sketch(matrix(a.data(), 2, kColumns, kColumns, 1), 1, sum.products, &sum.norm,
                            (rows - 1) * kColumns, rows * kColumns));
  }
}

TEST(Sketch, ProductsOfRandomSignsHaveTheNormAsStandardDeviation) {
  const std::vector<float> a = normal(5000, 3);
  double squares = 0, norm = 0;
  constexpr int kSeeds = 200;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Result result = sketch(matrix(a.data(), 50, 100, 100, 1), static_cast<uint64_t>(seed));
    for (const double product : result.products) squares += product * product;
    norm = result.norm;
  }
  // The mean of 800 squares of normal numbers has the relative standard deviation sqrt(2 / 800).
  EXPECT_NEAR(squares / (kSeeds * kSketchProducts) / (norm * norm), 1, 4 * std::sqrt(2.0 / 800));
}

TEST(Sketch, ReadsALimitedPartOfALargeTensor) {
  constexpr int64_t kRows = 1000, kColumns = 333;
  const std::vector<float> ones(kRows * kColumns, 1);
  EXPECT_NEAR(sketch(matrix(ones.data(), kRows, kColumns, kColumns, 1)).norm, std::sqrt(kMostSketched), 1e-9);
  const std::vector<float> few(10, 2);
  EXPECT_NEAR(sketch(matrix(few.data(), 10, 1, 1, 1)).norm, std::sqrt(40.0), 1e-9);
}

TEST(Sketch, RefusesFormatsWithoutNumbersAndKeepsTheSums) {
  Result result;
  result.norm = 2;
  const TensorView tensor{.dtype = DType::kNone};
  EXPECT_FALSE(add_sketch(tensor, 1, result.products, &result.norm));
  EXPECT_EQ(result.norm, 2);
}

}  // namespace
}  // namespace foreshock
