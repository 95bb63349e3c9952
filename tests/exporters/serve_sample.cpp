// A server with a sample of everything, hostile text and non-finite values included, for the tests that need
// a real client. Prints "ADDRESS PORT" and serves until its standard input ends; its counters grow meanwhile.
#include <poll.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
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
      {run, rank, "node\n\"1\"\\", "0", "0", "-1", "-1", "-1", "-1", "", "a user", "torch \xff\xfe 2.13"}, 1);
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

std::shared_ptr<const foreshock::Published> sample(foreshock::Registry* registry, const std::string& state,
                                                   double tick) {
  registry->set(Metric::kBuildInfo, {"0.1.0"}, 1);
  for (std::string_view rank : {"0", "1"})
    fill_rank(registry, "hostile\x01run\n\xf0\x9f\x98\x80", rank, tick);
  auto published = std::make_shared<foreshock::Published>();
  published->metrics = registry->snapshot();
  published->state_json = state;
  published->health_text = "ok";
  return published;
}

}  // namespace

int main(int argc, char** argv) {
  std::ostringstream state;
  if (argc > 1) state << std::ifstream(argv[1]).rdbuf();
  foreshock::Registry registry;
  foreshock::HttpServer server;
  std::string error;
  if (!server.start("127.0.0.1", 0, &error)) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  server.publish(sample(&registry, state.str(), 1));
  std::printf("%s %d\n", server.address().c_str(), server.port());
  std::fflush(stdout);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  for (double tick = 2; poll(&input, 1, 200) == 0; ++tick)
    server.publish(sample(&registry, state.str(), tick));
}
