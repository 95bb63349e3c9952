// Measures the CPU time per series that a scrape by Prometheus costs the agent. A scrape has three parts: to
// set the value, to take a snapshot of all series, and to write the text. The aim is 1 us per series in all.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "exporters/metrics.h"

namespace {

constexpr int kSeries = 4000;
constexpr int kRounds = 25;

// CPU time of this thread in microseconds. Unlike wall time, it hardly depends on other programs.
double cpu_us() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

template <class Work>
double median_us_per_series(Work work) {
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) {
    const double begin = cpu_us();
    work();
    rounds.push_back((cpu_us() - begin) / kSeries);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

}  // namespace

int main() {
  foreshock::Registry registry(2 * kSeries);  // at most that many series
  std::vector<std::string> layers;
  for (int i = 0; i < kSeries; ++i) layers.push_back(std::to_string(i));
  const auto set_all = [&] {
    for (int i = 0; i < kSeries; ++i)
      registry.set(foreshock::Metric::kLayerAttentionDeviationRatio, {"run-7", "0", layers[i], "forward"},
                   i * 0.37);  // different values, of up to six digits
  };
  set_all();                       // creates the series; the measurement only changes values
  size_t families = 0, bytes = 0;  // results are used, so that the compiler cannot omit the work
  const double set = median_us_per_series(set_all);
  const double copy = median_us_per_series([&] { families += registry.snapshot()->families.size(); });
  const auto snapshot = registry.snapshot();
  const double text = median_us_per_series([&] { bytes = foreshock::exposition(*snapshot).size(); });
  std::printf(
      "series %d, %.0f bytes each; CPU us per series (median of %d): set %.3f, snapshot %.3f, text %.3f\n",
      kSeries, static_cast<double>(bytes) / kSeries, kRounds, set, copy, text);
}
