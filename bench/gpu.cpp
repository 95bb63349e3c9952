// The kernels on a device, each beside a copy of as many bytes within its memory. Best of several rounds.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "bench/gpu/cuda_device.h"

namespace foreshock {
namespace {

constexpr int kRounds = 5, kLaunches = 10;
constexpr size_t kBytes = size_t{1} << 30;
// A word of kCountBins holds kMostBinned values over all launches, so one tensor must not be counted often.
constexpr uint64_t kBinned = kMostBinned / (kRounds * (kLaunches + 1));

struct Bench {
  CudaDevice& device = CudaDevice::get();
  uint64_t from = device.allocate(kBytes), to = device.allocate(kBytes);

  // As weights are, in bf16: a million draws, over and over.
  void fill() {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0, .02f);
    std::vector<uint16_t> drawn(1 << 20);
    for (uint16_t& x : drawn) {
      const float value = normal(random);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      x = static_cast<uint16_t>(bits >> 16);
    }
    const size_t bytes = drawn.size() * sizeof(uint16_t);
    for (size_t at = 0; at < kBytes; at += bytes) device.write(from + at, drawn.data(), bytes);
  }

  uint64_t zeros(size_t bytes) {
    const std::vector<char> empty(bytes);
    const uint64_t address = device.allocate(bytes);
    device.write(address, empty.data(), bytes);
    return address;
  }

  template <class Time>
  double best(const Time& time) {
    double milliseconds = time();
    for (int n = 1; n < kRounds; ++n) milliseconds = std::min(milliseconds, time());
    return milliseconds;
  }

  template <class Job>
  void print(const char* what, DeviceKernel kernel, const LaunchShape& shape, const Job& job, size_t bytes,
             const char* bound = "") {
    const double kernel_ms = best([&] { return device.milliseconds(kernel, shape, &job, kLaunches); });
    const double copy_ms = best([&] { return device.milliseconds_of_copy(to, from, bytes, kLaunches); });
    std::printf("%-28s %8.4f ms, %7.3f ms per GB%s, %5.2f of a copy of as many bytes\n", what, kernel_ms,
                kernel_ms / (static_cast<double>(bytes) / 1e9), bound, kernel_ms / copy_ms);
  }
};

void bench_histograms(Bench& bench) {
  const HistogramJob patterns{.from = bench.from, .count = kBytes / 2, .words = bench.zeros(4 * kPatterns)};
  bench.print("histogram, bf16", DeviceKernel::kCountPatterns,
              launch_of_patterns(patterns, bench.device.limits()), patterns, kBytes, " (bound 0.6)");
  const HistogramJob bins{.from = bench.from, .count = kBinned, .words = bench.zeros(8 * kBinWords)};
  bench.print("histogram, fp32", DeviceKernel::kCountBins, launch_of_bins(bins, bench.device.limits()), bins,
              kBinned * 4);
}

void bench_sums(Bench& bench) {
  constexpr uint64_t kCount = kBytes / 2;
  GradientSumsJob gradients = {};
  gradients.results = bench.zeros(sizeof(GradientSums)), gradients.arrived = bench.zeros(4);
  gradients.chunks = sum_chunks(kCount);
  gradients.partials = bench.zeros(gradients.chunks * sizeof(GradientSums));
  gradients.tensors = 1;
  gradients.tensor[0] = {bench.from, kCount, 0, static_cast<uint32_t>(DType::kBf16), 0};
  bench.print("gradient sums, bf16", DeviceKernel::kGradientSums, launch_of(gradients, bench.device.limits()),
              gradients, kBytes);

  AdamSumsJob adam = {};
  adam.results = bench.zeros(sizeof(AdamSums)), adam.arrived = bench.zeros(4);
  adam.chunks = sum_chunks(kCount / 2);
  adam.partials = bench.zeros(adam.chunks * sizeof(AdamSums));
  adam.tensors = 1;
  const auto bf16 = static_cast<uint32_t>(DType::kBf16);
  adam.tensor[0] = {.gradient = bench.from,
                    .moment = bench.from + kBytes / 2,
                    .count = kCount / 2,
                    .first_chunk = 0,
                    .gradient_dtype = bf16,
                    .moment_dtype = bf16,
                    .constants = adam_constants({.beta2 = .999, .eps = 1e-8, .step = 100})};
  bench.print("Adam sums, bf16 and bf16", DeviceKernel::kAdamSums, launch_of(adam, bench.device.limits()),
              adam, kBytes);

  const ChecksumJob checksum{.from = bench.from, .bytes = kBytes, .to = bench.zeros(8)};
  bench.print("checksum", DeviceKernel::kChecksum, launch_of(checksum, bench.device.limits()), checksum,
              kBytes);
}

// A layer of attention: 32 heads, 8 kv-heads, 8192 tokens, 128 columns.
void bench_attention(Bench& bench) {
  constexpr int64_t kHeads = 32, kKvHeads = 8, kTokens = 8192, kDim = 128;
  GatherJob gather = {};
  gather.to = bench.to, gather.times = bench.zeros(16), gather.clock = bench.zeros(sizeof(GatherClock));
  gather.pieces = 2;
  for (uint32_t n = 0; n < gather.pieces; ++n) {
    gather.piece[n].from = bench.from + n * kTokens * kKvHeads * kDim * 2;
    gather.piece[n].to = n * kTokens * kDim * 2;
    gather.piece[n].row_stride = kKvHeads * kDim, gather.piece[n].column_stride = 1;
    gather.piece[n].heads = 1, gather.piece[n].rows = kTokens, gather.piece[n].width = kDim;
    gather.piece[n].element = 2;
  }
  bench.print("gather, K and V of a head", DeviceKernel::kGather, launch_of(gather), gather,
              2 * kTokens * kDim * 2);

  ConservationJob job = {};
  job.batches = 1, job.heads = kHeads, job.kv_heads = kKvHeads, job.queries = job.keys = kTokens;
  job.head_dim = job.value_dim = kDim, job.dtype = static_cast<uint32_t>(DType::kBf16);
  job.grad_out = {bench.from, {0, kDim, kHeads * kDim, 1}};
  job.grad_key = {bench.from + (256 << 20), {0, kDim, kKvHeads * kDim, 1}};
  job.grad_value = {bench.from + (512 << 20), {0, kDim, kKvHeads * kDim, 1}};
  job.results = bench.zeros(kKvHeads * sizeof(Conservation)), job.arrived = bench.zeros(kKvHeads * 4);
  job.partials = bench.zeros(shape_of(job).scratch_bytes);
  bench.print("conservation of a layer", DeviceKernel::kConservation, launch_of(job, bench.device.limits()),
              job, kTokens * kDim * 2 * (kHeads + 2 * kKvHeads));
}

int run() {
  if (const std::string& missing = CudaDevice::get().missing(); !missing.empty()) {
    std::printf("nothing was measured: no device: %s\n", missing.c_str());
    return 0;
  }
  Bench bench;
  std::printf("%s, %u processors\n", bench.device.name().c_str(), bench.device.limits().processors);
  bench.fill();
  bench_histograms(bench);
  bench_sums(bench);
  bench_attention(bench);
  return 0;
}

}  // namespace
}  // namespace foreshock

int main() { return foreshock::run(); }
