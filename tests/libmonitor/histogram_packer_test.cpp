#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "libmonitor/weight_measure.h"

namespace foreshock {
namespace {

using segment::HistogramForm;

TEST(HistogramPacker, FewValuesAreToldThemselves) {
  HistogramPacker packer;
  ASSERT_TRUE(packer.reserve());
  const std::vector<float> values = {1, -2, 3};
  char to[64];
  HistogramForm form = HistogramForm::kNone;
  ASSERT_EQ(packer.pack(values.data(), DType::kFp32, 3, to, sizeof to, &form), 12u);
  EXPECT_EQ(form, HistogramForm::kValues);
  EXPECT_EQ(std::memcmp(to, values.data(), 12), 0);
  EXPECT_EQ(packer.pack(values.data(), DType::kFp32, 3, to, 11, &form), kPackFailed);
}

TEST(HistogramPacker, ManyAreCountedAndAFailureLeavesNothingBehind) {
  HistogramPacker packer;
  ASSERT_TRUE(packer.reserve());
  std::vector<uint16_t> values(20000);
  for (size_t n = 0; n < values.size(); ++n) values[n] = static_cast<uint16_t>(n % 3000);
  std::vector<char> first(1 << 16), second(1 << 16);
  HistogramForm form = HistogramForm::kNone;
  const size_t size =
      packer.pack(values.data(), DType::kBf16, values.size(), first.data(), first.size(), &form);
  ASSERT_NE(size, kPackFailed);
  EXPECT_EQ(form, HistogramForm::kPatterns);
  EXPECT_EQ(packer.pack(values.data(), DType::kBf16, values.size(), second.data(), size - 1, &form),
            kPackFailed);
  ASSERT_EQ(packer.pack(values.data(), DType::kBf16, values.size(), second.data(), second.size(), &form),
            size);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), size), 0);
}

}  // namespace
}  // namespace foreshock
