// Measures the CUDA kernels of foreshock (histograms and sums of tensors, gathers of the sampled parts of
// attention calls), each relative to a copy of as many bytes within device memory. The best of several rounds
// counts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "bench/gpu/cuda_device.h"

namespace foreshock {
namespace {

struct Size {                      // how much is measured
  int rounds = 5, launches = 10;   // rounds of each kernel, and launches whose mean time a round measures
  size_t bytes = size_t{1} << 30;  // of the tensors
  int64_t tokens = 8192;           // of the attention call
};

struct Bench {
  const Size size;
  CudaDevice& device = CudaDevice::get();
  // Addresses on the device: the input of all kernels, and the output of gathers and copies.
  uint64_t from = device.allocate(size.bytes), to = device.allocate(size.bytes);

  // Fills the memory with bf16 values distributed like weights: a million random values, repeated.
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
    for (size_t at = 0; at < size.bytes; at += bytes) device.write(from + at, drawn.data(), bytes);
  }

  uint64_t allocate_zeros(size_t bytes) {  // returns the address
    const std::vector<char> empty(bytes);
    const uint64_t address = device.allocate(bytes);
    device.write(address, empty.data(), bytes);
    return address;
  }

  template <class Measure>
  double best(const Measure& measure) {  // the shortest milliseconds of all rounds
    double milliseconds = measure();
    for (int n = 1; n < size.rounds; ++n) milliseconds = std::min(milliseconds, measure());
    return milliseconds;
  }

  // Measures a kernel that reads `bytes` bytes; `job`: its arguments. `bound`: the aim as text, in ms per GB.
  template <class Job>
  void time_kernel(const char* name, DeviceKernel kernel, const LaunchShape& shape, const Job& job,
                   size_t bytes, const char* bound = "") {
    const double kernel_ms = best([&] { return device.milliseconds(kernel, shape, &job, size.launches); });
    const double copy_ms = best([&] { return device.milliseconds_of_copy(to, from, bytes, size.launches); });
    std::printf("%-28s %8.4f ms, %7.3f ms per GB%s, %5.2f of a copy of as many bytes\n", name, kernel_ms,
                kernel_ms / (static_cast<double>(bytes) / 1e9), bound, kernel_ms / copy_ms);
  }
};

void bench_histograms(Bench& bench) {
  const uint64_t count = bench.size.bytes / 2;  // bf16 values
  const HistogramJob patterns{
      .from = bench.from, .count = count, .words = bench.allocate_zeros(kPatterns * sizeof(uint32_t))};
  bench.time_kernel("histogram, bf16", DeviceKernel::kCountPatterns,
                    launch_of_patterns(patterns, bench.device.limits()), patterns, bench.size.bytes,
                    " (bound 0.6)");
  // The tensor is as large as the kernel accepts, if `bytes` allows, since a small one would not occupy all
  // processors. The launches together overflow the counters, which does not affect the time.
  const uint64_t binned = std::min<uint64_t>(kMostBinned, bench.size.bytes / 4);
  const HistogramJob bins{
      .from = bench.from, .count = binned, .words = bench.allocate_zeros(kBinWords * sizeof(uint64_t))};
  bench.time_kernel("histogram, fp32", DeviceKernel::kCountBins, launch_of_bins(bins, bench.device.limits()),
                    bins, binned * 4);
}

// Measures sums over one tensor: of gradients, of gradients and Adam's second moments, and the checksum.
void bench_sums(Bench& bench) {
  const size_t bytes = bench.size.bytes;
  const uint64_t count = bytes / 2;  // bf16 values of the whole input
  GradientSumsJob gradients = {};
  gradients.results = bench.allocate_zeros(sizeof(GradientSums));
  // Counts the blocks of the kernel that have ended.
  gradients.arrived = bench.allocate_zeros(sizeof(uint32_t));
  gradients.chunks = sum_chunks(count);
  gradients.partials = bench.allocate_zeros(gradients.chunks * sizeof(GradientSums));
  gradients.tensors = 1;
  gradients.tensor[0] = {.data = bench.from,
                         .count = count,
                         .first_chunk = 0,
                         .dtype = static_cast<uint32_t>(DType::kBf16),
                         .reserved = 0};
  bench.time_kernel("gradient sums, bf16", DeviceKernel::kGradientSums,
                    launch_of(gradients, bench.device.limits()), gradients, bytes);

  // The first half of the input stands for the gradients, the second half for the second moments.
  AdamSumsJob adam = {};
  adam.results = bench.allocate_zeros(sizeof(AdamSums));
  adam.arrived = bench.allocate_zeros(sizeof(uint32_t));
  adam.chunks = sum_chunks(count / 2);
  adam.partials = bench.allocate_zeros(adam.chunks * sizeof(AdamSums));
  adam.tensors = 1;
  const auto bf16 = static_cast<uint32_t>(DType::kBf16);
  adam.tensor[0] = {.gradient = bench.from,
                    .moment = bench.from + bytes / 2,
                    .count = count / 2,
                    .first_chunk = 0,
                    .gradient_dtype = bf16,
                    .moment_dtype = bf16,
                    .constants = adam_constants({.beta2 = .999, .eps = 1e-8, .step = 100})};
  bench.time_kernel("Adam sums, bf16 and bf16", DeviceKernel::kAdamSums,
                    launch_of(adam, bench.device.limits()), adam, bytes);

  const ChecksumJob checksum{
      .from = bench.from, .bytes = bytes, .to = bench.allocate_zeros(sizeof(uint64_t))};
  bench.time_kernel("checksum", DeviceKernel::kChecksum, launch_of(checksum, bench.device.limits()), checksum,
                    bytes);
}

// Measures the gathers of a layer of attention: 32 heads, 8 key/value heads, head dimension 128, 2-byte bf16.
void bench_attention(Bench& bench) {
  constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128;
  const int64_t tokens = bench.size.tokens;
  GatherJob gather = {};
  gather.to = bench.to;
  gather.times = bench.allocate_zeros(2 * sizeof(uint64_t));
  gather.clock = bench.allocate_zeros(sizeof(GatherClock));
  gather.pieces = 2;
  for (uint32_t n = 0; n < gather.pieces; ++n) {
    gather.piece[n].from = bench.from + n * tokens * kKvHeads * kDim * 2;
    gather.piece[n].to = n * tokens * kDim * 2;  // offset in gather.to
    gather.piece[n].row_stride = kKvHeads * kDim, gather.piece[n].column_stride = 1;
    gather.piece[n].heads = 1, gather.piece[n].rows = tokens, gather.piece[n].width = kDim;
    gather.piece[n].element = 2;  // bytes
  }
  bench.time_kernel("gather, K and V of a head", DeviceKernel::kGather, launch_of(gather), gather,
                    gather.pieces * tokens * kDim * 2);

  // A slice of key positions: query, output and gradient of the output of the 4 query heads that share a
  // key/value head, and sums over all keys of the gradients of key and value. The kernel also reads the
  // gradient of the query, to count its NaN and Inf. All these tensors are arbitrary parts of the input.
  KeyGatherJob job = {};
  job.gather = gather;
  job.gather.pieces = 3;
  for (uint32_t n = 0; n < job.gather.pieces; ++n) {
    GatherPiece& piece = job.gather.piece[n];
    piece = gather.piece[0];
    piece.from = bench.from + n * bench.size.bytes / 4;
    piece.to = n * tokens * kDim * 2 * kHeads / kKvHeads;
    piece.head_stride = kDim, piece.row_stride = kHeads * kDim, piece.heads = kHeads / kKvHeads;
  }
  const auto view = [&](uint64_t from, int64_t heads, uint32_t summed_heads) {
    return DeviceView{.data = from,
                      .stride = {kDim, heads * kDim, 1},
                      .heads = summed_heads,
                      .rows = static_cast<uint32_t>(tokens),
                      .width = kDim,
                      .reserved = 0};
  };
  job.grad_query = view(bench.from + bench.size.bytes / 2, kHeads, kHeads / kKvHeads);
  job.grad_key = view(bench.from, kKvHeads, 1);
  job.grad_value = view(bench.from + bench.size.bytes / 4, kKvHeads, 1);
  job.dtype = static_cast<uint32_t>(DType::kBf16);
  job.sums = bench.allocate_zeros(key_sum_count(kDim, kDim) * sizeof(ColumnSum));
  // Reads 3 pieces and the gradient of the query, each with kHeads / kKvHeads heads, and the gradients of key
  // and value with one head each; a value has 2 bytes.
  bench.time_kernel("key positions and sums of a kv-head", DeviceKernel::kKeyGather, launch_of(job), job,
                    tokens * kDim * 2 * (4 * kHeads / kKvHeads + 2));
}

int run(const Size& size) {
  if (const std::string& missing = CudaDevice::get().missing(); !missing.empty()) {
    std::printf("nothing was measured: no device: %s\n", missing.c_str());
    return 0;
  }
  Bench bench{size};
  std::printf("%s, %u processors\n", bench.device.name().c_str(), bench.device.limits().processors);
  bench.fill();
  bench_histograms(bench);
  bench_sums(bench);
  bench_attention(bench);
  return 0;
}

}  // namespace
}  // namespace foreshock

// With a number N as argument: one round with N MiB (at least 32), only to test that the bench runs.
int main(int count, char** arguments) {
  foreshock::Size size;
  if (count > 1)
    size = {.rounds = 1,
            .launches = 2,
            .bytes = static_cast<size_t>(std::max(std::atoi(arguments[1]), 32)) << 20,
            .tokens = 256};
  return foreshock::run(size);
}
