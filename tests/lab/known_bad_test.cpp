#include "cli/known_bad.h"

#include <gtest/gtest.h>

namespace foreshock::cli {
namespace {

bool is_listed(const Versions& versions, std::string_view issue) {
  for (const KnownBad* row : known_bad(versions))
    if (row->source.ends_with(issue)) return true;
  return false;
}

TEST(KnownBad, EveryRowSaysWhatAndWhere) {
  for (const KnownBad& row : known_bad_table()) {
    EXPECT_FALSE(row.versions.component.empty());
    EXPECT_FALSE(row.inputs.empty());
    EXPECT_FALSE(row.symptom.empty());
    EXPECT_FALSE(row.remedy.empty());
    EXPECT_TRUE(row.source.starts_with("https://github.com/") || row.source.starts_with("foreshock judge"));
  }
}

TEST(KnownBad, BothRangesMustHold) {
  EXPECT_TRUE(is_listed({{"torch", "2.13.0+cu130"}, {"cudnn", "9.20.0.48"}}, "196678"));
  EXPECT_FALSE(is_listed({{"torch", "2.13.0+cu130"}, {"cudnn", "9.26.0.51"}}, "196678"));
  EXPECT_FALSE(is_listed({{"torch", "2.10.0"}, {"cudnn", "9.20.0.48"}}, "196678"));
  EXPECT_FALSE(is_listed({{"torch", "2.13.0"}}, "196678"));  // no cuDNN, no cuDNN defect
}

TEST(KnownBad, VersionsCompareByNumberAndNotByText) {
  EXPECT_FALSE(is_listed({{"torch", "2.10"}}, "9768"));
  EXPECT_TRUE(is_listed({{"torch", "2.5"}}, "9768"));
  EXPECT_TRUE(is_listed({{"torch", "2.5.0a0+git"}}, "9768"));
  EXPECT_FALSE(is_listed({{"torch", "2.5.1"}}, "9768"));
  EXPECT_FALSE(is_listed({{"transformer-engine", "1.11"}}, "1101"));
}

TEST(KnownBad, NothingIsKnownOfTheUnknown) {
  EXPECT_TRUE(known_bad({}).empty());
  EXPECT_EQ(known_bad_text({}), "");
  EXPECT_TRUE(known_bad({{"torch", "main"}, {"numpy", "2.0"}}).empty());
  EXPECT_TRUE(installed_versions("/nonexistent/python").empty());
}

TEST(KnownBad, IsToldWithWhenRemedyAndSource) {
  const std::string text = known_bad_text(known_bad({{"torch", "2.9.0"}}));
  for (const char* part : {"torch: ", "when: ", "remedy: ", "source: https://"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
}

}  // namespace
}  // namespace foreshock::cli
