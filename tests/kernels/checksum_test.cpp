#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/sums.h"

namespace foreshock {
namespace {

// The definition, word by word.
uint64_t slow_checksum(const std::vector<unsigned char>& bytes) {
  uint64_t sum = 0;
  for (size_t n = 0; 4 * n < bytes.size(); ++n) {
    uint32_t word = 0;
    for (size_t b = 0; b < 4 && 4 * n + b < bytes.size(); ++b) word |= uint32_t{bytes[4 * n + b]} << 8 * b;
    sum += word * ((n * 0x9e3779b1u % (uint64_t{1} << 31)) * 2 + 1);
  }
  return sum;
}

std::vector<unsigned char> some_bytes(size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::vector<unsigned char> bytes(size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

TEST(Checksum, IsItsDefinition) {
  for (size_t size : {0, 1, 2, 3, 4, 7, 4095, 4096, 4097, 9998, 50001}) {
    const auto bytes = some_bytes(size);
    EXPECT_EQ(checksum(bytes.data(), size), slow_checksum(bytes)) << size;
  }
}

TEST(Checksum, AnyFlippedBitShows) {
  auto bytes = some_bytes(4099);
  const uint64_t before = checksum(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    ASSERT_NE(checksum(bytes.data(), bytes.size()), before) << bit;
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
  }
}

TEST(Checksum, TwoExchangedWordsShow) {
  auto bytes = some_bytes(8192);
  const uint64_t before = checksum(bytes.data(), bytes.size());
  for (size_t n = 4; n < bytes.size(); n += 4) {
    std::swap_ranges(bytes.begin(), bytes.begin() + 4, bytes.begin() + static_cast<std::ptrdiff_t>(n));
    ASSERT_NE(checksum(bytes.data(), bytes.size()), before) << n;
    std::swap_ranges(bytes.begin(), bytes.begin() + 4, bytes.begin() + static_cast<std::ptrdiff_t>(n));
  }
}

}  // namespace
}  // namespace foreshock
