// Measures the speed of the reference, which computes a slice of attention (some query rows with all their
// keys) in fp64. Compares it with the peak of the machine (fused multiply-adds in registers) and with a BLAS
// that does the same work. The best of several repetitions counts. The peak is measured immediately before
// and after the forward pass, since the clock frequency changes. The library Highway compiles the vector code
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
#if FORESHOCK_OPENBLAS
#include <cblas.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/reference.cpp"
#include "hwy/foreach_target.h"
// must come after foreach_target.h
#include "hwy/contrib/math/math-inl.h"
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

void widen_bf16(const uint16_t* from, size_t count, double* to) {
  for (size_t i = 0; i < count; ++i) to[i] = bf16_to_float(from[i]);
}

// Replaces each value by exp(value - max); returns their sum.
double exp_row(double* values, int count, double max) {
  const hn::ScalableTag<double> d;
  auto sum = hn::Zero(d);
  int i = 0;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (; i + lanes <= count; i += lanes) {
    const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, values + i), hn::Set(d, max)));
    hn::StoreU(e, d, values + i);
    sum = hn::Add(sum, e);
  }
  double total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) {  // the rest that does not fill a vector
    values[i] = std::exp(values[i] - max);
    total += values[i];
  }
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock {
namespace {

HWY_EXPORT(multiply_add_registers);
HWY_EXPORT(widen_bf16);
HWY_EXPORT(exp_row);

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

#if FORESHOCK_OPENBLAS
// The forward pass with dgemm and an online softmax: at each tile of keys, the sums so far are rescaled to
// the new maximum. Tiles have 512 keys, since a BLAS would be slow with the 48 keys of the reference's tiles.
void blas_attention(const AttentionSlice& slice, std::vector<double>* scratch) {
  constexpr int kTileKeys = 512;
  const int rows = slice.rows, dim = slice.head_dim;
  // Holds the six arrays below, in the order of their pointers.
  scratch->resize(rows * (2 * dim + kTileKeys + 2) + kTileKeys * dim);
  double *query = scratch->data(), *out = query + rows * dim, *scores = out + rows * dim;
  double *max = scores + rows * kTileKeys, *sum = max + rows, *tile = sum + rows;
  HWY_DYNAMIC_DISPATCH(widen_bf16)(static_cast<const uint16_t*>(slice.query), rows * dim, query);
  std::fill(max, max + rows, -1e300);  // less than any score
  std::fill(sum, sum + rows, 0.0);
  std::fill(out, out + rows * dim, 0.0);
  for (int first = 0; first < slice.keys; first += kTileKeys) {
    const int count = std::min(kTileKeys, slice.keys - first);
    HWY_DYNAMIC_DISPATCH(widen_bf16)
    (static_cast<const uint16_t*>(slice.key) + size_t(first) * dim, size_t(count) * dim, tile);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, count, dim, slice.scale, query, dim, tile, dim,
                0, scores, kTileKeys);
    for (int r = 0; r < rows; ++r) {
      const double new_max =
          std::max(max[r], *std::max_element(scores + r * kTileKeys, scores + r * kTileKeys + count));
      const double factor = std::exp(max[r] - new_max);
      max[r] = new_max;
      sum[r] = sum[r] * factor + HWY_DYNAMIC_DISPATCH(exp_row)(scores + r * kTileKeys, count, new_max);
      for (int c = 0; c < dim; ++c) out[r * dim + c] *= factor;
    }
    HWY_DYNAMIC_DISPATCH(widen_bf16)
    (static_cast<const uint16_t*>(slice.value) + size_t(first) * dim, size_t(count) * dim, tile);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, dim, count, 1, scores, kTileKeys, tile, dim,
                1, out, dim);
  }
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < dim; ++c) out[r * dim + c] /= sum[r];
}
#endif

void measure(int rows, int keys, int dim, [[maybe_unused]] bool with_blas) {
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
      "backward %7.3f ms %.2f  noise floors %7.3f ms",
      reference_target_name(), rows, keys, dim, forward * 1e3, operations / forward / 1e9, peak / 1e9,
      operations / forward / peak, backward * 1e3, 3 * operations / backward / peak, floors_time * 1e3);
#if FORESHOCK_OPENBLAS
  if (with_blas) {
    std::vector<double> scratch;
    const double blas = best_seconds(operations, [&] { blas_attention(slice.view, &scratch); });
    std::printf("  OpenBLAS %7.3f ms = %.2f times (bound 2)", blas * 1e3, blas / forward);
  }
#endif
  std::printf("\n");
}

// `with_blas`: also measures OpenBLAS, which uses the best instruction set of the machine. Must be true only
// if the reference uses the same one.
void measure_all(bool with_blas) {
  for (int dim : {64, 128}) {
    for (int keys : {1024, 4096, 16384}) measure(16, keys, dim, with_blas);
  }
  measure(8, 4096, 128, with_blas);
}

}  // namespace
}  // namespace foreshock

int main() {
#if FORESHOCK_OPENBLAS
  openblas_set_num_threads(1);
#endif
  bool is_best = true;  // the first target: in Highway a lower bit is a better instruction set
  for (int64_t targets = foreshock::reference_targets_here(); targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);  // the lowest bit alone: the best target left
    hwy::GetChosenTarget().Update(targets & -targets);
    if (std::string_view(foreshock::reference_target_name()) != "scalar") foreshock::measure_all(is_best);
    is_best = false;
  }
  return 0;
}
#endif  // HWY_ONCE
