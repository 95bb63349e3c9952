#include "lab/number_format.h"

#include <gtest/gtest.h>

namespace foreshock::lab {
namespace {

TEST(NumberFormat, KnowsTheLargestNumbers) {
  EXPECT_EQ(parse_format("fp32")->max_finite, 0x1.fffffep127);
  EXPECT_EQ(parse_format("bf16")->max_finite, 0x1.fep127);
  EXPECT_EQ(parse_format("fp16")->max_finite, 65504);
  EXPECT_EQ(parse_format("e4m3")->max_finite, 448);
  EXPECT_EQ(parse_format("e5m2")->max_finite, 57344);
}

TEST(NumberFormat, ParsesTheGeneralForm) {
  const auto half = parse_format("p11e-14:15");
  ASSERT_TRUE(half);
  EXPECT_EQ(half->precision, 11);
  EXPECT_EQ(half->min_exponent, -14);
  EXPECT_EQ(half->max_finite, 65504);
}

TEST(NumberFormat, RefusesInvalidFormats) {
  for (const char* text :
       {"", "fp17", "p11", "p1e-14:15", "p41e-14:15", "p11e-14:15x", "p11e1:15", "p11e-9999:15"})
    EXPECT_FALSE(parse_format(text)) << text;
}

TEST(NumberFormat, UlpIsTheSpacingAndStopsAtTheSubnormals) {
  const NumberFormat bf16 = *parse_format("bf16");
  EXPECT_EQ(bf16.ulp(1.0), 0x1p-7);
  EXPECT_EQ(bf16.ulp(-1.99), 0x1p-7);
  EXPECT_EQ(bf16.ulp(0), 0x1p-133);
  EXPECT_EQ(bf16.ulp(0x1p-140), 0x1p-133);
}

}  // namespace
}  // namespace foreshock::lab
