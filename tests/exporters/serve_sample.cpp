// A server with a sample of everything, hostile text and non-finite values included, for the tests that need
// a real client: serve_sample [STATE.json [RANKS LAYERS [RUN]...]]. Prints "ADDRESS PORT" and serves until
// its standard input ends; its counters grow meanwhile. Every RUN has histories, the loss of each next one is
// 1 higher.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "exporters/http_server.h"

using foreshock::Metric;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void fill_rank(foreshock::Registry* registry, std::string_view run, std::string_view rank, double tick) {
  registry->set(
      Metric::kRankInfo,
      {run, rank, "node\n\"1\"\\", "0", "0", "-1", "-1", "-1", "-1", "a user", "torch \xff\xfe 2.13"}, 1);
  registry->set(Metric::kStep, {run, rank}, tick);
  registry->set(Metric::kStepsTotal, {run, rank}, tick);
  registry->set(Metric::kLoss, {run, rank}, std::nan(""));
  registry->set(Metric::kGradientNorm, {run, rank}, kInfinity);
  registry->set(Metric::kLossZscore, {run, rank}, -kInfinity);
  registry->set(Metric::kLearningRate, {run, rank}, std::numeric_limits<double>::denorm_min());
  registry->set(Metric::kAttentionDeviationRatio, {run, rank, "forward", "mean"}, 0.7);
  registry->set(Metric::kAttentionCallsTotal, {run, rank, "forward", "op{}=\",\n#\xc3"}, 12 * tick);
  registry->set(Metric::kLayerGradientNorm, {run, rank, std::string(200, 'x')}, 1);
}

using foreshock::HistoryTable;
using Tables = std::vector<HistoryTable>;

// 256 points of two steps each from step 1000 on; every eighth was sampled.
std::vector<float> curve(double height, double phase, int every) {
  std::vector<float> values;
  for (int n = 0; n < 256; ++n)
    values.push_back(n % every == 0 ? static_cast<float>(height * (1 + 0.2 * std::sin(0.1 * n + phase)))
                                    : NAN);
  return values;
}

HistoryTable layer_history(const std::string& run, int rank, int layer) {
  char label[16];
  std::snprintf(label, sizeof label, "%03d", layer);
  HistoryTable table = {run, rank, label, 1024, 8, {}};
  std::vector<float> ratio;
  for (int n = 0; n < 64; ++n)
    ratio.push_back(
        layer == 2 && rank == 1 && n > 40 ? 2.4f : static_cast<float>(0.5 + 0.3 * std::sin(0.2 * n + layer)));
  // A tensor of a layer is looked at every 64 steps.
  std::vector<float> distance;
  for (int n = 0; n < 64; ++n)
    distance.push_back(n % 8 == layer % 8 ? 1e-6f * std::exp(0.03f * static_cast<float>(layer + n)) : NAN);
  table.columns = {{"deviation_ratio_forward", ratio}, {"weight_wasserstein", distance}};
  return table;
}

void add_histories(const std::string& run, double loss, int ranks, int layers, Tables* tables) {
  for (int rank = 0; rank < ranks; ++rank) {
    tables->push_back({run, rank, "", 1000, 2, {}});
    tables->back().columns = {{"loss", curve(loss, rank, 1)},
                              {"gradient_norm", curve(1.3, 2 * rank, 1)},
                              {"deviation_ratio_forward", curve(0.72, rank, 4)},
                              {"deviation_ratio_backward", curve(0.8, 3 * rank, 4)},
                              {"bias_ulp", curve(0.003, rank, 4)},
                              {"weight_wasserstein", curve(3e-5, rank, 32)},
                              {"weight_update", curve(1e-6, rank, 32)},
                              {"elapsed_seconds", {}},
                              {"slowdown_ratio", curve(0.004, rank, 1)}};
    for (int n = 0; n < 256; ++n)  // a second a step
      tables->back().columns[7].second.push_back(static_cast<float>(2 * n + 2));
    for (int layer = 0; layer < layers; ++layer) tables->push_back(layer_history(run, rank, layer));
  }
}

std::shared_ptr<const Tables> histories(int ranks, int layers, const std::vector<std::string>& runs) {
  auto tables = std::make_shared<Tables>();
  for (size_t n = 0; n < runs.size(); ++n)
    add_histories(runs[n], 2.2 + static_cast<double>(n), ranks, layers, tables.get());
  return tables;
}

std::shared_ptr<const foreshock::Published> sample(foreshock::Registry* registry, const std::string& state,
                                                   const std::shared_ptr<const Tables>& history,
                                                   double tick) {
  registry->set(Metric::kBuildInfo, {"0.1.0"}, 1);
  for (std::string_view rank : {"0", "1"})
    fill_rank(registry, "hostile\x01run\n\xf0\x9f\x98\x80", rank, tick);
  auto published = std::make_shared<foreshock::Published>();
  published->metrics = registry->snapshot();
  published->state_json = state;
  published->history = history;
  published->health_text = "ok";
  return published;
}

}  // namespace

int main(int argc, char** argv) {
  std::ostringstream state;
  if (argc > 1) state << std::ifstream(argv[1]).rdbuf();
  const std::vector<std::string> runs(argv + std::min(argc, 4), argv + argc);
  const auto history = argc > 3 ? histories(std::atoi(argv[2]), std::atoi(argv[3]), runs) : nullptr;
  foreshock::Registry registry;
  foreshock::HttpServer server;
  std::string error;
  if (!server.start("127.0.0.1", 0, &error)) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  server.publish(sample(&registry, state.str(), history, 1));
  std::printf("%s %d\n", server.address().c_str(), server.port());
  std::fflush(stdout);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  for (double tick = 2; poll(&input, 1, 200) == 0; ++tick)
    server.publish(sample(&registry, state.str(), history, tick));
}
