#include "exporters/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <ctime>
#include <limits>
#include <locale>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string text_of(const Registry& registry) { return exposition(*registry.snapshot()); }

TEST(LabelText, KeepsHarmlessText) { EXPECT_EQ(label_text("blocks.3/attn:q-k_v"), "blocks.3/attn:q-k_v"); }

TEST(LabelText, ReplacesEveryOtherByte) {
  EXPECT_EQ(label_text("a b\"\\\n{}\xc3\xa4"),
            "a_b____"
            "__"
            "_");
  EXPECT_EQ(label_text(std::string_view("\0x\x7f", 3)), "_x_");
}

TEST(LabelText, IsNeverEmptyNorLongerThan96Bytes) {
  EXPECT_EQ(label_text(""), "unknown");
  EXPECT_EQ(label_text(std::string(1000, 'y')), std::string(96, 'y'));
}

TEST(Registry, GoldenExposition) {
  Registry registry;
  registry.set(Metric::kLoss, {"r", "1"}, 2.5);
  registry.set(Metric::kLoss, {"r", "0"}, 0.1);
  registry.set(Metric::kStepsTotal, {"r", "0"}, 12345678);
  registry.set(Metric::kBuildInfo, {"0.1.0"}, 1);
  EXPECT_EQ(text_of(registry), R"(# HELP foreshock_steps_total Optimizer steps seen.
# TYPE foreshock_steps_total counter
foreshock_steps_total{run="r",rank="0"} 12345678
# HELP foreshock_loss Loss of the last step, mean over its micro-batches; in nats for a cross-entropy.
# TYPE foreshock_loss gauge
foreshock_loss{run="r",rank="0"} 0.1
foreshock_loss{run="r",rank="1"} 2.5
# HELP foreshock_series_dropped_total Series left out because of the limit of 4096.
# TYPE foreshock_series_dropped_total counter
foreshock_series_dropped_total 0
# HELP foreshock_build_info Always 1; the label is the version of foreshock.
# TYPE foreshock_build_info gauge
foreshock_build_info{version="0.1.0"} 1
)");
}

TEST(Registry, WritesNonFiniteGaugesAsTheFormatSays) {
  Registry registry;
  EXPECT_TRUE(registry.set(Metric::kLoss, {"Nan", "0"}, std::nan("")));
  EXPECT_TRUE(registry.set(Metric::kLoss, {"r", "1"}, kInfinity));
  EXPECT_TRUE(registry.set(Metric::kLoss, {"r", "2"}, -kInfinity));
  const std::string text = text_of(registry);
  EXPECT_THAT(text, HasSubstr("foreshock_loss{run=\"Nan\",rank=\"0\"} NaN\n"));
  EXPECT_THAT(text, HasSubstr("foreshock_loss{run=\"r\",rank=\"1\"} +Inf\n"));
  EXPECT_THAT(text, HasSubstr("foreshock_loss{run=\"r\",rank=\"2\"} -Inf\n"));
}

TEST(Registry, CountersNeverFall) {
  Registry registry;
  EXPECT_TRUE(registry.set(Metric::kStepsTotal, {"r", "0"}, 7));
  EXPECT_FALSE(registry.set(Metric::kStepsTotal, {"r", "0"}, 6));
  EXPECT_FALSE(registry.set(Metric::kStepsTotal, {"r", "0"}, std::nan("")));
  EXPECT_FALSE(registry.set(Metric::kStepsTotal, {"r", "0"}, kInfinity));
  EXPECT_FALSE(registry.set(Metric::kStepsTotal, {"r", "0"}, -1));
  EXPECT_TRUE(registry.set(Metric::kStepsTotal, {"r", "0"}, 9));
  EXPECT_THAT(text_of(registry), HasSubstr("foreshock_steps_total{run=\"r\",rank=\"0\"} 9\n"));
}

TEST(Registry, RefusesUnknownLabels) {
  Registry registry;
  EXPECT_FALSE(registry.set(Metric::kLoss, {"r"}, 1));
  EXPECT_FALSE(registry.set(Metric::kLoss, {"r", "0", "extra"}, 1));
  EXPECT_FALSE(registry.set(Metric::kLossWindow, {"r", "0", "median"}, 1));
  EXPECT_EQ(registry.series_count(), 0u);
}

TEST(Registry, ForgetsOneRankOnly) {
  Registry registry;
  for (std::string_view rank : {"1", "10"}) {
    registry.set(Metric::kStepsTotal, {"r", rank}, 5);
    registry.set(Metric::kLoss, {"r", rank}, 5);
  }
  registry.clear_rank("r", "1");
  const std::string text = text_of(registry);
  EXPECT_THAT(text, Not(HasSubstr("foreshock_loss{run=\"r\",rank=\"1\"}")));
  EXPECT_THAT(text, HasSubstr("foreshock_loss{run=\"r\",rank=\"10\"} 5\n"));
}

TEST(Registry, CountersOfARankGoOnInItsNextProcess) {
  Registry registry;
  registry.set(Metric::kStepsTotal, {"r", "1"}, 600);
  registry.set(Metric::kLossSpikesTotal, {"r", "1"}, 2);
  for (const int lives : {1, 2}) {
    registry.clear_rank("r", "1");
    EXPECT_THAT(text_of(registry), HasSubstr("foreshock_steps_total{run=\"r\",rank=\"1\"} " +
                                             std::to_string(600 * lives) + "\n"));
    EXPECT_TRUE(registry.set(Metric::kStepsTotal, {"r", "1"}, 1))
        << "a new process begins at a smaller total";
    EXPECT_TRUE(registry.set(Metric::kStepsTotal, {"r", "1"}, 600));
    registry.set(Metric::kLossSpikesTotal, {"r", "1"}, 3);
  }
  EXPECT_THAT(text_of(registry), HasSubstr("foreshock_steps_total{run=\"r\",rank=\"1\"} 1800\n"));
  EXPECT_THAT(text_of(registry), HasSubstr("foreshock_loss_spikes_total{run=\"r\",rank=\"1\"} 3\n"))
      << "detectors count over all processes of a rank";
  registry.clear_run("r");
  EXPECT_TRUE(registry.set(Metric::kStepsTotal, {"r", "1"}, 1));
  EXPECT_THAT(text_of(registry), HasSubstr("foreshock_steps_total{run=\"r\",rank=\"1\"} 1\n"));
}

TEST(Registry, ForgetsOneMetricOfARank) {
  Registry registry;
  registry.set(Metric::kSourceInfo, {"r", "0", "counted", "unknown", "unknown"}, 1);
  registry.set(Metric::kLoss, {"r", "0"}, 1);
  registry.clear_metric(Metric::kSourceInfo, "r", "0");
  EXPECT_THAT(text_of(registry), Not(HasSubstr("source_info")));
  EXPECT_EQ(registry.series_count(), 1u);
}

TEST(Registry, ForgetsTheLayersOfARank) {
  Registry registry;
  registry.set(Metric::kLayerGradientNorm, {"r", "0", "000"}, 1);
  registry.set(Metric::kPrecursorLayerInfo, {"r", "0", "max_logit", "000"}, 1);
  registry.set(Metric::kLayerGradientNorm, {"r", "1", "000"}, 1);
  registry.set(Metric::kSourceInfo, {"r", "0", "counted", "unknown", "unknown"}, 1);
  registry.clear_layers("r", "0");
  const std::string text = text_of(registry);
  EXPECT_THAT(text, Not(HasSubstr("rank=\"0\",layer")));
  EXPECT_THAT(text, Not(HasSubstr("detector")));
  EXPECT_THAT(text, HasSubstr("rank=\"1\",layer"));
  EXPECT_THAT(text, HasSubstr("foreshock_source_info{"));
}

// The drop order of metrics.h: layer series first, the youngest first; rank series next; node series never.
TEST(Registry, DropsSeriesInTheDocumentedOrder) {
  Registry registry(3);
  EXPECT_TRUE(registry.set(Metric::kLayerGradientNorm, {"r", "0", "000"}, 1));
  EXPECT_TRUE(registry.set(Metric::kLayerGradientNorm, {"r", "0", "001"}, 1));
  EXPECT_TRUE(registry.set(Metric::kLoss, {"r", "0"}, 1));

  EXPECT_FALSE(registry.set(Metric::kLayerGradientNorm, {"r", "0", "002"}, 1));
  EXPECT_FALSE(registry.set(Metric::kLayerGradientNorm, {"r", "0", "002"}, 1)) << "counted once all the same";
  EXPECT_EQ(registry.series_dropped(), 1u);

  EXPECT_TRUE(registry.set(Metric::kStep, {"r", "0"}, 1))
      << "a rank series pushes out the youngest layer series";
  EXPECT_THAT(text_of(registry), Not(HasSubstr("layer=\"001\"")));
  EXPECT_THAT(text_of(registry), HasSubstr("layer=\"000\""));
  EXPECT_EQ(registry.series_dropped(), 2u);

  EXPECT_TRUE(registry.set(Metric::kBuildInfo, {"0"}, 1));
  EXPECT_TRUE(registry.set(Metric::kMonitorErrorsTotal, {"r", "segment"}, 1))
      << "then the youngest rank series goes";
  EXPECT_THAT(text_of(registry), Not(HasSubstr("foreshock_step{")));
  EXPECT_THAT(text_of(registry), HasSubstr("foreshock_loss{"));
  EXPECT_FALSE(registry.set(Metric::kStep, {"r", "0"}, 1));
  EXPECT_THAT(text_of(registry), HasSubstr("foreshock_series_dropped_total 4\n"));
  EXPECT_EQ(registry.series_count(), 3u);
}

// A rank without them would pass for dead.
TEST(Registry, DropsARanksOtherSeriesBeforeRankUp) {
  Registry registry(3);
  EXPECT_TRUE(registry.set(Metric::kRankUp, {"r", "0"}, 1));
  EXPECT_TRUE(registry.set(Metric::kLoss, {"r", "0"}, 1));
  EXPECT_TRUE(registry.set(Metric::kSlowdownRatio, {"r", "0"}, 0.01));
  EXPECT_TRUE(registry.set(Metric::kRankUp, {"r", "1"}, 1));
  EXPECT_THAT(text_of(registry), Not(HasSubstr("foreshock_slowdown_ratio{")));
  EXPECT_FALSE(registry.set(Metric::kSlowdownRatio, {"r", "1"}, 0.01));
  EXPECT_FALSE(registry.set(Metric::kLoss, {"r", "1"}, 1)) << "those of the first ranks stay";
}

// It is forgotten and set anew at each publication, and would be the first of the layers to go.
TEST(Registry, DropsTheLayerOfAWarningLast) {
  Registry registry(3);
  EXPECT_TRUE(registry.set(Metric::kLoss, {"r", "0"}, 1));
  EXPECT_TRUE(registry.set(Metric::kLayerGradientNorm, {"r", "0", "000"}, 1));
  EXPECT_TRUE(registry.set(Metric::kLayerGradientNorm, {"r", "0", "001"}, 1));
  for (int publication = 0; publication < 3; ++publication) {
    registry.clear_metric(Metric::kPrecursorLayerInfo, "r", "0");
    EXPECT_TRUE(registry.set(Metric::kPrecursorLayerInfo, {"r", "0", "max_logit", "001"}, 1));
    registry.set(Metric::kLayerGradientNorm, {"r", "0", "001"}, 1);
  }
  EXPECT_THAT(text_of(registry), HasSubstr("foreshock_precursor_layer_info{"));
  EXPECT_THAT(text_of(registry), HasSubstr("foreshock_loss{"));
  EXPECT_EQ(registry.series_dropped(), 1u) << "the youngest layer, once";
}

TEST(Registry, EightRanksOf96LayersFitIntoTheDefaultBudget) {
  Registry registry;
  for (int rank = 0; rank < 8; ++rank) {
    for (int layer = 0; layer < 96; ++layer) {
      const std::string r = std::to_string(rank), l = std::to_string(layer);
      for (const char* pass : {"forward", "backward"}) {
        EXPECT_TRUE(registry.set(Metric::kLayerAttentionDeviationRatio, {"r", r, l, pass}, 1));
      }
      EXPECT_TRUE(registry.set(Metric::kLayerGradientNorm, {"r", r, l}, 1));
      EXPECT_TRUE(registry.set(Metric::kLayerAttentionLogitAbsMax, {"r", r, l}, 1));
    }
  }
  EXPECT_EQ(registry.series_dropped(), 0u);
}

TEST(Registry, SnapshotsDoNotChange) {
  Registry registry;
  registry.set(Metric::kLoss, {"r", "0"}, 1);
  const auto before = registry.snapshot();
  registry.set(Metric::kLoss, {"r", "0"}, 2);
  EXPECT_THAT(exposition(*before), HasSubstr("foreshock_loss{run=\"r\",rank=\"0\"} 1\n"));
}

// A locale that writes 0,5 and 1.000, as a host program may have set it.
struct GermanNumbers : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Registry, ExpositionIsIndependentOfTheLocale) {
  Registry registry;
  registry.set(Metric::kLoss, {"r", "0"}, 0.5);
  registry.set(Metric::kStepsTotal, {"r", "0"}, 1234567);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new GermanNumbers));
  std::setlocale(LC_ALL, "de_DE.UTF-8");  // where it is installed
  const std::string text = text_of(registry);
  std::locale::global(before);
  std::setlocale(LC_ALL, "C");
  EXPECT_THAT(text, HasSubstr("foreshock_loss{run=\"r\",rank=\"0\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("foreshock_steps_total{run=\"r\",rank=\"0\"} 1234567\n"));
}

double thread_cpu_us() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

// The target is 1 us per series on an idle core. The bound here leaves room for sanitizers and a slow
// machine, and still finds anything that grows faster than the number of series.
TEST(Registry, ScrapeCostIsLinearInTheSeries) {
  Registry registry(20000);
  for (int i = 0; i < 10000; ++i) {
    registry.set(Metric::kLayerAttentionDeviationRatio, {"r", "0", std::to_string(i), "forward"}, i * 0.1);
  }
  const auto snapshot = registry.snapshot();
  const double begin = thread_cpu_us();
  const size_t bytes = exposition(*snapshot).size();
  const double took = thread_cpu_us() - begin;
  EXPECT_GT(bytes, 10000u * 40);
  RecordProperty("us_per_series", std::to_string(took / 10000));
  EXPECT_LT(took / 10000, 50);
}

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

TEST(Catalog, OnlyCountersEndInTotal) {
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

TEST(Catalog, LabelNamesAreValidAndNotHead) {
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
