// Measures the speed of the reference, which computes a slice of attention (some query rows with all their
// keys) in fp64, and compares it with the peak of the machine (fused multiply-adds in registers). The best of
// several repetitions counts. The peak is measured immediately before and after the forward pass, since the
// clock frequency changes. The library Highway compiles the vector code
// once for each instruction set (target); main() measures those with fused multiply-adds.
#include "shadow/reference.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/reference.cpp"
#include "hwy/foreach_target.h"
// must come after foreach_target.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace foreshock {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Runs independent chains of multiply-adds, enough to hide their latency: 12 chains and 2 constants fit into
// the 16 registers of AVX2; AVX-512 has 32. Returns the number of floating-point operations. *sink depends on
// the result, so that the compiler cannot remove the work.
double multiply_add_registers(long rounds, double* sink) {
  const hn::CappedTag<double, 8> d;
  constexpr int kChains = HWY_TARGET == HWY_AVX2 ? 12 : 16;
  hn::Vec<hn::CappedTag<double, 8>> sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = hn::Set(d, 1e-3 * i);
  const auto factor = hn::Set(d, 0.999999), add = hn::Set(d, 1e-6);
  for (long k = 0; k < rounds; ++k) {
    HWY_UNROLL(16)
    for (int i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(sum[i], factor, add);
  }
  for (int i = 1; i < kChains; ++i) sum[0] = hn::Add(sum[0], sum[i]);
  *sink = hn::GetLane(sum[0]);
  return 2.0 * kChains * hn::MaxLanes(d) * rounds;
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock {
namespace {

HWY_EXPORT(multiply_add_registers);

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of five measurements, in floating-point operations per second.
double measured_peak() {
  double best = 0, sink;
  for (int i = 0; i < 5; ++i) {
    const double start = now();
    const double operations = HWY_DYNAMIC_DISPATCH(multiply_add_registers)(/*rounds=*/300000, &sink);
    best = std::max(best, operations / (now() - start));
    if (sink == 12345) std::puts("");  // reads sink, so that the compiler keeps the work; never true
  }
  return best;
}

// A slice of bf16 values in which every row sees all keys.
struct Slice {
  std::vector<uint16_t> query, key, value, out;
  std::vector<uint32_t> limit;  // number of keys that each row sees
  AttentionSlice view;

  Slice(int rows, int keys, int dim, bool backward)
      : query(rows * dim),
        key(size_t(keys) * dim),
        value(size_t(keys) * dim),
        out(rows * dim),
        limit(rows, keys) {
    std::mt19937_64 engine(7);
    std::normal_distribution<double> normal;
    for (auto* array : {&query, &key, &value, &out}) {
      for (uint16_t& x : *array) {
        const auto rounded = static_cast<float>(round_to(DType::kBf16, normal(engine)));
        x = static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) >> 16);  // bf16: the upper half of fp32
      }
    }
    view.dtype = DType::kBf16;
    view.rows = rows;
    view.keys = keys;
    view.head_dim = view.value_dim = dim;
    view.scale = 1 / std::sqrt(dim);
    view.key_limit = limit.data();
    view.query = query.data();
    view.key = key.data();
    view.value = value.data();
    view.out = out.data();
    if (backward) view.grad_out = view.grad_query = out.data();  // the values do not change the time
  }
};

// Returns the shortest time of a call of `work`, of at least 8 calls. `operations`: a rough count for one
// call; all calls together have about 5e9 operations or more.
template <class Work>
double best_seconds(double operations, Work work) {
  const int repetitions = std::max(8, static_cast<int>(5e9 / operations));
  double best = 1e9;
  for (int i = 0; i < repetitions; ++i) {
    const double start = now();
    work();
    best = std::min(best, now() - start);
  }
  return best;
}

void measure(int rows, int keys, int dim) {
  Slice slice(rows, keys, dim, false), backward_slice(rows, keys, dim, true);
  Reference result;
  NoiseFloors floors;
  // Of the forward pass; with the backward pass they are 3 times as many.
  const double operations = 4.0 * rows * keys * dim;
  double peak = measured_peak();
  const double forward = best_seconds(operations, [&] { reference(slice.view, &result); });
  peak = std::max(peak, measured_peak());
  // The factor 4 is rough; it only sets the number of calls.
  const double backward = best_seconds(4 * operations, [&] { reference(backward_slice.view, &result); });
  reference(slice.view, &result);  // replaces the backward result
  const double floors_time =
      best_seconds(operations, [&] { compute_noise_floors(slice.view, result, &floors); });
  std::printf(
      "%-10s rows %2d keys %5d dim %3d: %7.3f ms  %5.1f Gflop/s of %5.1f = %.2f (bound 0.45 at 16 rows)  "
      "backward %7.3f ms %.2f  noise floors %7.3f ms\n",
      reference_target_name(), rows, keys, dim, forward * 1e3, operations / forward / 1e9, peak / 1e9,
      operations / forward / peak, backward * 1e3, 3 * operations / backward / peak, floors_time * 1e3);
}

void measure_all() {
  for (int dim : {64, 128}) {
    for (int keys : {1024, 4096, 16384}) measure(16, keys, dim);
  }
  measure(8, 4096, 128);
}

}  // namespace
}  // namespace foreshock

int main() {
  for (int64_t targets = foreshock::reference_targets_here(); targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);  // the lowest bit alone: the best target left
    hwy::GetChosenTarget().Update(targets & -targets);
    if (std::string_view(foreshock::reference_target_name()) != "scalar") foreshock::measure_all();
  }
  return 0;
}
#endif  // HWY_ONCE
