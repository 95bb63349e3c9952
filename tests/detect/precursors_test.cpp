#include "detect/precursors.h"

#include <gtest/gtest.h>

#include "detect/state.h"

namespace foreshock {
namespace {

constexpr DetectorId kBias = DetectorId::kBias, kLogit = DetectorId::kMaxLogit;

TEST(Precursors, ThoseThatBeganBeforeAndLastedOrHaveJustEnded) {
  Precursors precursors;
  precursors.note(kLogit, "000", "000", Level::kWatch, 10);
  precursors.note(kLogit, "000", "000", Level::kQuiet, 20);  // long over at 1000
  precursors.note(kLogit, "001", "001", Level::kWatch, 800);
  precursors.note(kLogit, "001", "001", Level::kQuiet, 900);
  precursors.note(kBias, "002", "002", Level::kWatch, 950);
  precursors.note(kBias, "002", "002", Level::kWarn, 960);
  precursors.note(kBias, "003", "003", Level::kWarn, 1000);  // with the event, not before it
  const std::vector<Episode> before = precursors.before(1000);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before[0].place, "002");  // it warned
  EXPECT_EQ(before[0].since_step, 950);
  EXPECT_EQ(before[0].warn_step, 960);
  EXPECT_EQ(before[1].place, "001");
  EXPECT_EQ(before[1].warn_step, -1);
}

TEST(Precursors, TheirNumberIsBoundedAndWhatLastsIsKept) {
  Precursors precursors;
  precursors.note(kBias, "first", "", Level::kWarn, 0);
  for (int n = 1; n < 1000; ++n) {
    precursors.note(kLogit, std::to_string(n), "", Level::kWatch, n);
    precursors.note(kLogit, std::to_string(n), "", Level::kQuiet, n);
  }
  EXPECT_EQ(precursors.before(1000)[0].place, "first");
  EXPECT_EQ(precursors.before(1000).size(), Precursors::kMostNamed);
  StateWriter writer;
  precursors.fields(writer);
  EXPECT_LT(writer.bytes().size(), 128 * 100u);
}

}  // namespace
}  // namespace foreshock
