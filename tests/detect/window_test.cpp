#include "detect/window.h"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

namespace foreshock {
namespace {

static_assert(std::is_trivially_copyable_v<Window<8>>);

TEST(Window, EmptyHasNoSummary) { EXPECT_FALSE(Window<4>().summary().has_value()); }

TEST(Window, OneValueHasNoSpread) {
  Window<4> w;
  w.add(-3);
  EXPECT_EQ(w.summary()->min, -3);
  EXPECT_EQ(w.summary()->max, -3);
  EXPECT_EQ(w.summary()->mean, -3);
  EXPECT_EQ(w.summary()->std, 0);
}

TEST(Window, KeepsTheLastOnly) {
  Window<3> w;
  for (const double x : {100.0, 1.0, 2.0, 6.0}) w.add(x);
  EXPECT_TRUE(w.full());
  EXPECT_EQ(w.summary()->max, 6);
  EXPECT_EQ(w.summary()->min, 1);
  EXPECT_EQ(w.summary()->mean, 3);
  EXPECT_DOUBLE_EQ(w.summary()->std, std::sqrt((4 + 1 + 9) / 2.0));
}

TEST(Window, NonFiniteIsCountedAndKeptOut) {
  Window<3> w;
  for (const double x : {1.0, std::nan(""), std::numeric_limits<double>::infinity(), 3.0}) w.add(x);
  EXPECT_EQ(w.nonfinite(), 2u);
  EXPECT_EQ(w.size(), 2u);
  EXPECT_EQ(w.summary()->mean, 2);
  w.clear();
  EXPECT_EQ(w.size(), 0u);
  EXPECT_EQ(w.nonfinite(), 2u);
}

TEST(Window, HugeValuesDoNotOverflow) {
  Window<4> w;
  for (const double x : {1e308, -1e308, 1e308, -1e308}) w.add(x);
  EXPECT_EQ(w.summary()->mean, 0);
  EXPECT_NEAR(w.summary()->std / 1e308, std::sqrt(4.0 / 3), 1e-12);
}

// A running sum would have lost the small values behind the large one.
TEST(Window, CarriesNoErrorFromValuesThatLeft) {
  Window<2> w;
  w.add(1e20);
  w.add(0.1);
  w.add(0.3);
  EXPECT_EQ(w.summary()->mean, (0.1 + 0.3) / 2);
}

}  // namespace
}  // namespace foreshock
