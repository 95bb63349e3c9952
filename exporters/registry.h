// The values behind /metrics: one writer sets them, anybody may read the snapshots it hands out.
#ifndef FORESHOCK_EXPORTERS_REGISTRY_H_
#define FORESHOCK_EXPORTERS_REGISTRY_H_

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exporters/catalog.h"

namespace foreshock {

// Immutable once handed out; families in the order of the catalog, series sorted by their labels.
struct Snapshot {
  std::vector<prometheus::MetricFamily> families;
};

// The snapshot in Prometheus' text format 0.0.4. Independent of the locale.
std::string exposition(const Snapshot& snapshot);

// Makes text that came from a trainer fit for a label: [A-Za-z0-9_.:/-], at most 96 bytes, every other byte
// becomes '_', nothing becomes "unknown".
std::string label_text(std::string_view text);

// Thread-compatible: one thread calls everything here; only the snapshots may be passed on.
//
// Series budget. Series are admitted until `series_budget` is reached. Then the drop order is: series with a
// `layer` label first (the youngest first), series with a `rank` label next (the youngest first; the layer
// that a detector warns of is one of these), then those by which alerts know that a rank lives and how it
// fares, all others never. A newcomer takes the place of a series that
// the order would drop before it; otherwise it is refused itself. Each series that had to go, or to stay out,
// is counted once in foreshock_series_dropped_total.
class Registry {
 public:
  static constexpr size_t kDefaultSeriesBudget = 4096;

  explicit Registry(size_t series_budget = kDefaultSeriesBudget);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Sets a gauge, or a counter to its total. Label values in the order of the catalog; open ones go through
  // label_text(). A gauge may be NaN or infinite. Returns false, and changes nothing, when the number of
  // labels is wrong, a value lies outside its closed set, a counter's total is negative, not finite or
  // smaller than before, or there is no room for a new series.
  bool set(Metric metric, std::initializer_list<std::string_view> label_values, double value);

  // Adds to a counter or gauge; a new series starts from 0. Same errors as set().
  bool add(Metric metric, std::initializer_list<std::string_view> label_values, double amount);

  // Forgets one series, if it is there: its value is no longer known.
  void unset(Metric metric, std::initializer_list<std::string_view> label_values);

  // Forgets every series of one rank. Its counters may start again from 0.
  void clear_rank(std::string_view run, std::string_view rank);

  // Forgets every series of a run.
  void clear_run(std::string_view run);

  // Forgets every series of one rank that is about a layer.
  void clear_layers(std::string_view run, std::string_view rank);

  // Forgets the series of one metric and rank, e.g. before rank_info or source_info change their labels.
  void clear_metric(Metric metric, std::string_view run, std::string_view rank);

  // Forgets the series of one metric of a run.
  void clear_metric(Metric metric, std::string_view run);

  size_t series_count() const;
  uint64_t series_dropped() const;

  // A copy of all values as of now, foreshock_series_dropped_total included.
  std::shared_ptr<const Snapshot> snapshot() const;

 private:
  struct Store;
  std::unique_ptr<Store> store_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_REGISTRY_H_
