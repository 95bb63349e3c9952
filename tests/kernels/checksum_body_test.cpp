#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/device_code.h"
#include "kernels/sums_body.h"
#include "tests/support/emulated_launches.h"

namespace foreshock {
namespace {

class ChecksumBody : public testing::TestWithParam<EmulatedLaunch> {};

TEST_P(ChecksumBody, IsThatOfTheHost) {
  std::mt19937_64 random(1);
  for (const size_t bytes : {0, 1, 2, 3, 4, 5, 6, 7, 8, 4096, 100'001, 100'002}) {
    for (const size_t misaligned : {0, 1, 2, 3}) {
      // A block of its own, so that one byte too far is seen.
      std::vector<uint8_t> data(misaligned + bytes);
      for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
      uint64_t sum = 5;  // added to
      const ChecksumJob job{.from = address(data.data()) + misaligned, .bytes = bytes, .to = address(&sum)};
      ASSERT_TRUE(run_emulated(name_of(DeviceKernel::kChecksum),
                               {GetParam().blocks, GetParam().threads, sizeof(uint64_t)}, &job,
                               GetParam().how));
      EXPECT_EQ(sum, 5 + checksum(data.data() + misaligned, bytes)) << bytes << " from " << misaligned;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, ChecksumBody, testing::ValuesIn(kEmulatedLaunches),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshock
