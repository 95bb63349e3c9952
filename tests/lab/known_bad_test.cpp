#include "cli/known_bad.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

namespace foreshock::cli {
namespace {

bool is_listed(const Versions& versions, std::string_view issue) {
  for (const KnownBad* row : known_bad(versions))
    if (row->source.ends_with(issue)) return true;
  return false;
}

// Whether the row applies when `component` has `version` and the other component fits.
bool applies(const KnownBad& row, const VersionRange& range, std::string_view version) {
  Versions versions;
  for (const VersionRange* one : {&row.versions, &row.together_with})
    if (!one->component.empty()) versions[std::string(one->component)] = one->from.empty() ? "0" : one->from;
  versions[std::string(range.component)] = version;
  const std::vector<const KnownBad*> rows = known_bad(versions);
  return std::find(rows.begin(), rows.end(), &row) != rows.end();
}

TEST(KnownBad, EveryRowSaysWhatAndWhere) {
  for (const KnownBad& row : known_bad_table()) {
    EXPECT_FALSE(row.versions.component.empty());
    EXPECT_FALSE(row.inputs.empty());
    EXPECT_FALSE(row.symptom.empty());
    EXPECT_FALSE(row.remedy.empty());
    const bool is_measured =
        std::filesystem::is_regular_file(std::filesystem::path(FORESHOCK_SOURCE) / row.source);
    EXPECT_TRUE(row.source.starts_with("https://github.com/") || row.source.starts_with("foreshock judge") ||
                (row.source.starts_with("tests/") && is_measured))
        << row.source;
    for (const std::string_view text : {row.inputs, row.symptom, row.remedy, row.source})
      EXPECT_EQ(text.find('\n'), std::string_view::npos) << "one line each";
    for (const VersionRange& range : {row.versions, row.together_with}) {
      EXPECT_TRUE(range.from.empty() || applies(row, range, range.from)) << row.source;
      EXPECT_FALSE(!range.before.empty() && applies(row, range, range.before)) << row.source;
    }
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

TEST(KnownBad, AnUnknownVersionMatchesNoRow) {
  EXPECT_TRUE(known_bad({}).empty());
  EXPECT_EQ(known_bad_text({}), "");
  EXPECT_TRUE(known_bad({{"torch", "main"}, {"numpy", "2.0"}}).empty());
  EXPECT_TRUE(installed_versions("/nonexistent/python").empty());
}

TEST(KnownBad, LongBackwardsOnTheCpuAreListed) {
  for (const char* torch : {"2.6.0+cpu", "2.13.0", "2.15.0+cu132"})
    EXPECT_TRUE(is_listed({{"torch", torch}}, "test_long_context.py")) << torch;
  EXPECT_FALSE(is_listed({{"torch", "2.5.1"}}, "test_long_context.py")) << "not measured";
}

TEST(KnownBad, WithoutADeviceItsKernelsDoNotCount) {
  const Versions versions = {{"torch", "2.13.0+cu130"}, {"cudnn", "9.20.0.48"}};
  const std::vector<const KnownBad*> rows = known_bad(versions, false);
  EXPECT_FALSE(rows.empty());
  for (const KnownBad* row : rows) EXPECT_TRUE(row->inputs.starts_with("CPU")) << row->inputs;
  EXPECT_GT(known_bad(versions).size(), rows.size());
}

TEST(KnownBad, ReportsDateRemedyAndSource) {
  const std::string text = known_bad_text(known_bad({{"torch", "2.9.0"}}), 1000);
  for (const char* part : {"torch: ", "when: ", "remedy: ", "source: https://"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
}

}  // namespace
}  // namespace foreshock::cli
