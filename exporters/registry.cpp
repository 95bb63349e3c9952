// Keeps the values of all series, by metric and by label values, within a limit of their number.
#include "exporters/registry.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <map>
#include <sstream>
#include <unordered_set>

namespace foreshock {
namespace {

constexpr size_t kMaxLabelBytes = 96;  // enough for a user's name, a slash and a run id
constexpr size_t kMaxDroppedNames = 1 << 16;
// Ends each label value in a key. No value contains it, since label_text() replaces control characters.
constexpr char kSeparator = '\x1f';

// Groups of series. When the series budget is used up, a new series replaces one of a group that comes later.
enum Tier { kNode, kRankLiveness, kRank, kLayer, kTiers };

// A label is open if the catalog allows any value of it.
bool has_open_label(const MetricInfo& info, std::string_view key) {
  return std::any_of(info.labels.begin(), info.labels.end(),
                     [&](const LabelInfo& label) { return label.key == key && label.values.empty(); });
}

// Metrics that alerts expect for every rank. Without them an alert would report the rank as dead, or would
// miss a NaN loss. Each rank has about 30 series of them.
bool is_rank_liveness(Metric metric) {
  using enum Metric;
  return metric == kRankInfo || metric == kRankUp || metric == kWorldSize || metric == kStep ||
         metric == kStepsTotal || metric == kSkippedStepsTotal || metric == kLastStepTimestampSeconds ||
         metric == kAttentionAlarmLayers || metric == kNonfiniteValuesTotal || metric == kLoss ||
         metric == kLossWindow || metric == kWeightChecksum || metric == kWeightChecksumStep ||
         metric == kWeightChecksumMismatchTotal || metric == kMonitorEnabled;
}

// The closed `layer` label of foreshock_source_info is the source of layer names, so it does not count here.
// kPrecursorLayerInfo names the layer in which a detector warns, but counts as a rank series: the agent adds
// it again every second, so as a layer series it would always be the youngest and be dropped first.
Tier tier_of(const MetricInfo& info) {
  if (has_open_label(info, "layer") && info.metric != Metric::kPrecursorLayerInfo) return kLayer;
  if (is_rank_liveness(info.metric)) return kRankLiveness;
  return has_open_label(info, "rank") ? kRank : kNode;
}

bool is_label_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == ':' || c == '/' || c == '-';
}

bool is_allowed(const LabelInfo& label, std::string_view value) {
  return label.values.empty() ||
         std::find(label.values.begin(), label.values.end(), value) != label.values.end();
}

}  // namespace

std::string label_text(std::string_view text) {
  if (text.empty()) return "unknown";
  std::string result(text.substr(0, kMaxLabelBytes));
  for (char& c : result) {
    if (!is_label_character(c)) c = '_';
  }
  return result;
}

std::string exposition(const Snapshot& snapshot) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, snapshot.families);
  std::string text = std::move(out).str();
  // prometheus-cpp 1.0 writes "Nan", which Prometheus reads but the format does not define. No line of a help
  // text ends with " Nan", and labels do not end a line.
  for (size_t at = text.find(" Nan\n"); at != std::string::npos; at = text.find(" Nan\n", at))
    text[at + 3] = 'N';
  return text;
}

struct Registry::Store {
  struct Series {
    prometheus::ClientMetric client;                          // labels set once, value changed in place
    std::list<std::pair<Metric, std::string>>::iterator age;  // its entry in by_age
  };

  explicit Store(size_t budget) : series_budget(budget) {}

  size_t series_budget;
  size_t count = 0;
  uint64_t dropped = 0;
  // Per metric, the series by key: the label values, each followed by kSeparator. Ordered, so that the series
  // of every scrape are in the same order.
  std::array<std::map<std::string, Series, std::less<>>, kMetricCount> families;
  std::array<std::list<std::pair<Metric, std::string>>, kTiers> by_age;  // metric and key, oldest first
  std::unordered_set<std::string> dropped_names;  // series that were refused or dropped, each counted once
  std::string key;  // of the series in question; set by make_key(); a member, so that its memory is reused

  bool make_key(const MetricInfo& info, std::initializer_list<std::string_view> label_values);
  double* find_or_admit(const MetricInfo& info);
  bool drop_one_for(Tier tier);
  void note_dropped(Metric metric, const std::string& series_key);
  void erase(Metric metric, std::map<std::string, Series, std::less<>>::iterator series);
  void clear(Metric metric, const std::string& prefix);
};

// Sets `key`. Returns false if the label values do not fit the catalog.
bool Registry::Store::make_key(const MetricInfo& info, std::initializer_list<std::string_view> label_values) {
  if (label_values.size() != info.labels.size()) return false;
  key.clear();
  size_t i = 0;
  for (std::string_view value : label_values) {
    const LabelInfo& label = info.labels[i++];
    if (!is_allowed(label, value)) return false;
    key += label_text(value);
    key += kSeparator;
  }
  return true;
}

// Returns the address of the value of the series `key`, which is added if it is new; null if it is refused.
double* Registry::Store::find_or_admit(const MetricInfo& info) {
  auto& family = families[static_cast<size_t>(info.metric)];
  auto value_of = [&](Series& series) {
    return info.type == MetricType::kCounter ? &series.client.counter.value : &series.client.gauge.value;
  };
  if (auto found = family.find(key); found != family.end()) return value_of(found->second);

  const Tier tier = tier_of(info);
  if (count >= series_budget && !drop_one_for(tier)) {
    note_dropped(info.metric, key);
    return nullptr;
  }
  dropped_names.erase(std::string(info.name) + kSeparator + key);
  Series& series = family[key];
  size_t begin = 0;
  for (const LabelInfo& label : info.labels) {
    const size_t end = key.find(kSeparator, begin);
    series.client.label.push_back({std::string(label.key), key.substr(begin, end - begin)});
    begin = end + 1;
  }
  by_age[tier].emplace_back(info.metric, key);
  series.age = std::prev(by_age[tier].end());
  ++count;
  return value_of(series);
}

// Drops the youngest series of the highest group above `tier` that has any. Returns whether a series of
// `tier` may be added: one was dropped, or it is a node series, which may exceed the budget.
bool Registry::Store::drop_one_for(Tier tier) {
  for (int victim = kLayer; victim > tier; --victim) {
    if (by_age[victim].empty()) continue;
    const auto [metric, series_key] = by_age[victim].back();
    note_dropped(metric, series_key);
    auto& family = families[static_cast<size_t>(metric)];
    erase(metric, family.find(series_key));
    return true;
  }
  return tier == kNode;
}

void Registry::Store::note_dropped(Metric metric, const std::string& series_key) {
  // The set is limited, since a trainer that keeps using new names would fill the memory. After it is
  // cleared, a series may be counted twice.
  if (dropped_names.size() >= kMaxDroppedNames) dropped_names.clear();
  if (dropped_names.insert(std::string(metric_info(metric).name) + kSeparator + series_key).second) ++dropped;
}

void Registry::Store::erase(Metric metric, std::map<std::string, Series, std::less<>>::iterator series) {
  by_age[tier_of(metric_info(metric))].erase(series->second.age);
  families[static_cast<size_t>(metric)].erase(series);
  --count;
}

void Registry::Store::clear(Metric metric, const std::string& prefix) {
  auto& family = families[static_cast<size_t>(metric)];
  for (auto series = family.lower_bound(prefix);
       series != family.end() && series->first.starts_with(prefix);) {
    erase(metric, series++);
  }
}

Registry::Registry(size_t series_budget) : store_(std::make_unique<Store>(series_budget)) {}
Registry::~Registry() = default;

bool Registry::set(Metric metric, std::initializer_list<std::string_view> label_values, double value) {
  const MetricInfo& info = metric_info(metric);
  const bool counter = info.type == MetricType::kCounter;
  if (counter && !(std::isfinite(value) && value >= 0)) return false;
  if (!store_->make_key(info, label_values)) return false;
  double* stored = store_->find_or_admit(info);
  if (stored == nullptr || (counter && value < *stored)) return false;
  *stored = value;
  return true;
}

void Registry::unset(Metric metric, std::initializer_list<std::string_view> label_values) {
  if (!store_->make_key(metric_info(metric), label_values)) return;
  auto& family = store_->families[static_cast<size_t>(metric)];
  if (const auto found = family.find(store_->key); found != family.end()) store_->erase(metric, found);
}

void Registry::clear_rank(std::string_view run, std::string_view rank) {
  for (const MetricInfo& info : all_metrics()) clear_metric(info.metric, run, rank);
}

void Registry::clear_run(std::string_view run) {
  for (const MetricInfo& info : all_metrics())
    if (!info.labels.empty() && info.labels[0].key == "run")
      store_->clear(info.metric, label_text(run) + kSeparator);
}

void Registry::clear_layers(std::string_view run, std::string_view rank) {
  for (const MetricInfo& info : all_metrics())
    if (has_open_label(info, "layer")) clear_metric(info.metric, run, rank);
}

void Registry::clear_metric(Metric metric, std::string_view run, std::string_view rank) {
  const MetricInfo& info = metric_info(metric);
  if (!has_open_label(info, "rank")) return;
  store_->clear(metric, label_text(run) + kSeparator + label_text(rank) + kSeparator);
}

void Registry::clear_metric(Metric metric, std::string_view run) {
  if (has_open_label(metric_info(metric), "run")) store_->clear(metric, label_text(run) + kSeparator);
}

size_t Registry::series_count() const { return store_->count; }
uint64_t Registry::series_dropped() const { return store_->dropped; }

std::shared_ptr<const Snapshot> Registry::snapshot() const {
  auto result = std::make_shared<Snapshot>();
  for (const MetricInfo& info : all_metrics()) {
    prometheus::MetricFamily family;
    family.name = info.name;
    family.help = info.help;
    family.type =
        info.type == MetricType::kCounter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    if (info.metric == Metric::kSeriesDroppedTotal)
      family.metric.emplace_back().counter.value = static_cast<double>(store_->dropped);
    for (const auto& [key, series] : store_->families[static_cast<size_t>(info.metric)])
      family.metric.push_back(series.client);
    if (!family.metric.empty()) result->families.push_back(std::move(family));
  }
  return result;
}

}  // namespace foreshock
