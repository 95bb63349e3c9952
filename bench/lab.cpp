// Measures the lab's emulation of number formats and tensor cores in one thread: the time to round an
// element, for each format, and the time of one multiply-add, for each tensor core that the lab emulates. The
// fastest of 15 passes counts, since other work on the machine can only add time.
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "lab/accumulator.h"
#include "lab/inputs.h"
#include "lab/rounding.h"
#include "lab/tensor_core.h"

namespace foreshock::lab {
namespace {

// Printed beside the measured times; a longer time fails nothing.
constexpr double kRoundingBound = 1.2;    // ns per element
constexpr double kTensorCoreBound = 0.6;  // ns per multiply-add

double best_seconds(const std::function<void()>& pass) {
  double best = 1e9;
  for (int i = 0; i < 15; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pass();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void report(const char* what, const char* detail, double nanoseconds, double bound) {
  std::printf("  %-12s %-22s %6.3f ns  bound %.1f  %s\n", what, detail, nanoseconds, bound,
              nanoseconds <= bound ? "ok" : "BEYOND");
}

Tensor random_tensor(int rows, int cols, const NumberFormat& format, uint64_t seed) {
  Tensor x(rows, cols);
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] = normal(seed, i);
  round_to(format, Rounding::kNearestEven, x.data.data(), x.data.size());
  return x;
}

void bench_rounding() {
  std::vector<double> values(1 << 16), work;
  for (size_t i = 0; i < values.size(); ++i) values[i] = normal(1, i);
  for (const char* name : {"fp32", "tf32", "bf16", "fp16", "e4m3", "e5m2"})
    for (Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero}) {
      const NumberFormat format = *parse_format(name);
      work = values;  // later passes round rounded values; the time does not depend on the values
      const double seconds = best_seconds([&] { round_to(format, rounding, work.data(), work.size()); });
      const std::string detail = std::string(name) + " " + std::string(name_of(rounding));
      report("rounding", detail.c_str(), 1e9 * seconds / values.size(), kRoundingBound);
    }
}

void bench_tensor_cores() {
  for (const Accumulator& unit : accumulators()) {
    if (unit.kind != Accumulation::kTensorCore) continue;
    const NumberFormat format = *parse_format(unit.fp8_only ? "e4m3" : "bf16");
    const Tensor a = random_tensor(128, 128, format, 1), b = random_tensor(128, 256, format, 2);
    Tensor c(a.rows, b.cols);
    const double seconds = best_seconds([&] {
      c = Tensor(a.rows, b.cols);
      tensor_core_multiply_add(unit, format, a, b, c);
    });
    report("tensor core", unit.name.data(), 1e9 * seconds / (1.0 * a.rows * a.cols * b.cols),
           kTensorCoreBound);
  }
}

}  // namespace
}  // namespace foreshock::lab

int main() {
  foreshock::lab::bench_rounding();
  foreshock::lab::bench_tensor_cores();
}
