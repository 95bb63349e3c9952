#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "detect/condition_rules.h"
#include "detect/detector.h"
#include "exporters/metrics.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

TEST(Catalog, NamesAreUniqueAndPrefixed) {
  std::set<std::string_view> names;
  for (const MetricInfo& info : all_metrics()) {
    EXPECT_TRUE(is_name(info.name)) << info.name;
    EXPECT_TRUE(info.name.starts_with("foreshock_")) << info.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
  }
  EXPECT_EQ(names.size(), kMetricCount);
}

TEST(Catalog, TotalIffCounter) {
  for (const MetricInfo& info : all_metrics()) {
    EXPECT_EQ(info.name.ends_with("_total"), info.type == MetricType::kCounter) << info.name;
  }
}

TEST(Catalog, HelpNeedsNoEscaping) {
  for (const MetricInfo& info : all_metrics()) {
    EXPECT_FALSE(info.help.empty()) << info.name;
    EXPECT_EQ(info.help.find_first_of("\\\n\r|"), std::string_view::npos) << info.name;
    EXPECT_FALSE(info.unit.empty()) << info.name;
  }
}

TEST(Catalog, LabelsAreNamesAndNeverHead) {
  for (const MetricInfo& info : all_metrics()) {
    std::set<std::string_view> keys;
    for (const LabelInfo& label : info.labels) {
      EXPECT_TRUE(is_name(label.key)) << info.name;
      EXPECT_NE(label.key, "head") << info.name;
      EXPECT_TRUE(keys.insert(label.key).second) << info.name;
    }
    if (keys.contains("rank")) {
      EXPECT_EQ(info.labels[0].key, "run") << info.name;
      EXPECT_EQ(info.labels[1].key, "rank") << info.name;
    }
  }
}

// The exporters know nothing of the segment; its reasons are repeated in the catalog and must stay the same.
TEST(Catalog, ReasonsAreThoseOfTheSegment) {
  const auto reasons_of = [](Metric metric) { return metric_info(metric).labels.back().values; };
  EXPECT_TRUE(std::ranges::equal(reasons_of(Metric::kAttentionSkippedTotal), segment::kSkipReasonNames));
  EXPECT_TRUE(std::ranges::equal(reasons_of(Metric::kAttentionLostTotal), segment::kLostReasonNames));
}

TEST(Catalog, DetectorsAreThoseOfTheTable) {
  const auto named = metric_info(Metric::kPrecursorLevel).labels.back().values;
  EXPECT_TRUE(std::ranges::equal(named, kDetectorTable, {}, {}, &DetectorInfo::name));
}

TEST(Catalog, ConditionsAreThoseOfTheTable) {
  const auto labels = metric_info(Metric::kCondition).labels;
  EXPECT_TRUE(std::ranges::equal(labels[1].values, kConditionTable, {}, {}, &ConditionInfo::name));
}

TEST(Catalog, MarkdownHasARowPerMetric) {
  const std::string text = metrics_markdown();
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')), kMetricCount + 2);
  EXPECT_NE(
      text.find("| `foreshock_loss_window` | gauge | nats | `run`, `rank`, `stat` = min \\| mean \\| max |"),
      std::string::npos)
      << text;
}

}  // namespace
}  // namespace foreshock
