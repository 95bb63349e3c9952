#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/device_code.h"
#include "kernels/sums_body.h"
#include "tests/support/emulated_launches.h"

namespace foreshock {
namespace {

constexpr DType kFloating[] = {DType::kFp64, DType::kFp32, DType::kBf16, DType::kFp16};

class ScalarsBody : public testing::TestWithParam<EmulatedLaunch> {
 protected:
  std::vector<ScalarCell> cells_ = std::vector<ScalarCell>(kScalarCells);

  void run(ScalarsJob job) {
    job.cells = address(cells_.data());
    ASSERT_TRUE(run_emulated(name_of(DeviceKernel::kScalars),
                             {1, GetParam().blocks == 1 ? 1 : GetParam().threads, 0}, &job, GetParam().how));
  }
};

// Every bit pattern of a byte at the top of each format: normal, subnormal, infinite, NaN, of both signs.
TEST_P(ScalarsBody, AreWhatTheHostReads) {
  for (const DType type : kFloating) {
    const size_t size = size_of(type);
    std::vector<char> data(256 * size);
    ScalarsJob job = {};
    job.first = kScalarCells - 3;  // round the end of the cells
    job.count = 256;
    job.dtype = static_cast<uint32_t>(type);
    for (uint32_t n = 0; n < 256; ++n) {
      for (size_t byte = 0; byte + 1 < size; ++byte) data[n * size + byte] = static_cast<char>(7 * n + byte);
      data[n * size + size - 1] = static_cast<char>(n);
      job.from[n] = address(data.data() + n * size);
    }
    run(job);
    for (uint32_t n = 0; n < 256; ++n) {
      const ScalarCell& cell = cells_[cell_of(job.first + n)];
      const double wanted = load_as_double(data.data(), type, n);
      EXPECT_EQ(cell.number, job.first + n) << name_of(type);
      // Of a NaN it is told that it is one.
      if (std::isnan(wanted))
        EXPECT_TRUE(std::isnan(cell.value)) << name_of(type) << n;
      else
        EXPECT_EQ(std::memcmp(&cell.value, &wanted, sizeof wanted), 0) << name_of(type) << n;
    }
  }
}

TEST_P(ScalarsBody, TouchesNoOtherCell) {
  const float value = 0.5f;
  ScalarsJob job = {};
  job.first = 3 * kScalarCells + 10;
  job.count = 1;
  job.dtype = static_cast<uint32_t>(DType::kFp32);
  job.from[0] = address(&value);
  run(job);
  for (uint32_t n = 0; n < kScalarCells; ++n) {
    EXPECT_EQ(cells_[n].number, n == 10 ? job.first : 0u);
    EXPECT_EQ(cells_[n].value, n == 10 ? 0.5 : 0.0);
  }
}

TEST_P(ScalarsBody, SumOfSquaresIsNanIfAnElementIsNotFinite) {
  const GradientSums sums[] = {
      {0.1, 7, 0}, {0.1, 7, 1}, {0, 0, 0}, {INFINITY, 1, 0}, {0.3, 0, uint64_t{1} << 40}};
  ScalarsJob job = {};
  job.first = 5;
  job.count = 5;
  job.dtype = kSumOfSquares;
  for (uint32_t n = 0; n < 5; ++n) job.from[n] = address(sums + n);
  run(job);
  for (uint32_t n = 0; n < 5; ++n) {
    EXPECT_EQ(cells_[5 + n].number, 5 + n);
    if (sums[n].nonfinite == 0)
      EXPECT_EQ(cells_[5 + n].value, sums[n].squares) << n;
    else
      EXPECT_TRUE(std::isnan(cells_[5 + n].value)) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, ScalarsBody, testing::ValuesIn(kEmulatedLaunches),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshock
