// Serves /metrics of many simulated agents from one process, for bench/fleet.py: `fleet_agents COUNT LAYERS`.
// Each agent has a separate server with the series of all metrics of the catalog (all_metrics()) for 8 ranks.
// If LAYERS is "owner", one rank of each agent has series by layer. If it is "budget", all ranks have them,
// up to the number of series that the registry admits. Values change every 5 s. The program prints the port
// of each agent, then the number of series of the first agent, and runs until its standard input ends.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exporters/http_server.h"

namespace foreshock {
namespace {

constexpr int kRanks = 8, kLayers = 96;
constexpr size_t kMostLabels = 12;  // of a metric
constexpr int kChangePeriodMs = 5000;

// Changes a value by up to 0.5 %, so that all values differ, as in a training.
double with_jitter(double value) {
  return value * (1 + 0.01 * (static_cast<double>(std::rand()) / RAND_MAX - 0.5));
}

class FleetAgent {
 public:
  FleetAgent(int number, bool all_ranks_own_layers)
      : number_(number), all_ranks_own_layers_(all_ranks_own_layers) {}

  // Returns the port; -1 on failure.
  int start() {
    change_values();
    std::string error;
    return server_.start("127.0.0.1", 0, &error) ? server_.port() : -1;
  }
  void change_values() {
    ++round_;
    for (int rank = 0; rank < kRanks; ++rank)
      set_rank(std::to_string(number_ * kRanks + rank), rank == 0 || all_ranks_own_layers_);
    auto published = std::make_shared<Published>();
    published->metrics = registry_.snapshot();
    server_.publish(published);
  }
  size_t series_count() const { return registry_.series_count(); }

 private:
  void set_rank(const std::string& rank, bool owns_layers) {
    std::vector<std::string> values = {};
    for (const MetricInfo& info : all_metrics()) set_series(info, 0, rank, owns_layers, &values);
  }
  // Sets all series of a metric for a rank: every combination of the values of its closed labels (those with
  // a fixed set of values). An open label has one value, except the layer: it has all layers if owns_layers,
  // else the metric has no series. Recursive: `label` is the next label's index, `values` those before it.
  void set_series(const MetricInfo& info, size_t label, const std::string& rank, bool owns_layers,
                  std::vector<std::string>* values) {
    if (label == info.labels.size()) return set_value(info, *values);
    const LabelInfo& label_info = info.labels[label];
    std::vector<std::string> choices(label_info.values.begin(), label_info.values.end());
    if (choices.empty() && label_info.key == "layer")
      for (int n = 0; owns_layers && n < kLayers; ++n) choices.push_back(layer_label(n));
    else if (choices.empty())
      choices.push_back(label_info.key == "run"    ? "job"
                        : label_info.key == "rank" ? rank
                                                   : "node-" + std::to_string(number_));
    // Of these two, a real rank has one series (kSourceInfo) or one per detector, not all combinations.
    const bool has_one_combination =
        info.metric == Metric::kSourceInfo || info.metric == Metric::kPrecursorLayerInfo;
    if (has_one_combination && label_info.key != "detector" && choices.size() > 1) choices.resize(1);
    for (const std::string& choice : choices) {
      values->push_back(choice);
      set_series(info, label + 1, rank, owns_layers, values);
      values->pop_back();
    }
  }
  void set_value(const MetricInfo& info, const std::vector<std::string>& labels) {
    double value = info.type == MetricType::kCounter ? 100.0 * round_ : with_jitter(1);
    if (std::string_view(info.name).ends_with("_info")) value = 1;
    set_labels<kMostLabels>(info.metric, labels, value);
  }
  // Registry::set takes an initializer list, so each number of labels, from kCount down to 1, is a separate
  // call.
  template <size_t kCount>
  void set_labels(Metric metric, const std::vector<std::string>& labels, double value) {
    if (labels.size() > kCount) {
      std::fprintf(stderr, "fleet_agents: a metric has more labels than kMostLabels\n");
      std::exit(1);
    }
    if (labels.size() == kCount) {
      [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
        registry_.set(metric, {labels[kIndex]...}, value);
      }
      (std::make_index_sequence<kCount>());
    } else if constexpr (kCount > 1) {
      set_labels<kCount - 1>(metric, labels, value);
    }
  }
  static std::string layer_label(int n) {
    char label[8];
    std::snprintf(label, sizeof label, "%03d", n);
    return label;
  }

  const int number_;
  const bool all_ranks_own_layers_;
  int round_ = 0;  // number of changes of the values
  Registry registry_;
  HttpServer server_;
};

int run(int count, bool all_ranks_own_layers) {
  std::vector<std::unique_ptr<FleetAgent>> agents;
  for (int n = 0; n < count; ++n) {
    agents.push_back(std::make_unique<FleetAgent>(n, all_ranks_own_layers));
    const int port = agents.back()->start();
    if (port < 0) return 1;
    std::printf("%d\n", port);
  }
  std::printf("series %zu\n", agents[0]->series_count());
  std::fflush(stdout);
  // poll() returns 0 after kChangePeriodMs; something else when the input has ended.
  for (pollfd input = {STDIN_FILENO, POLLIN, 0}; poll(&input, 1, kChangePeriodMs) == 0;)
    for (auto& agent : agents) agent->change_values();
  return 0;
}

}  // namespace
}  // namespace foreshock

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return foreshock::run(std::atoi(argv[1]), std::strcmp(argv[2], "budget") == 0);
}
