// The sums over gradients and optimizer state of the device, emulated: the bits of the order that
// kernels/sums_body.h states, and beside the host's, whose order is another.
#include "kernels/sums_body.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/device_code.h"
#include "tests/support/emulated_launches.h"

namespace foreshock {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Shape {
  DType type;
  size_t count;
  size_t misaligned = 0;  // elements
};

constexpr Shape kShapes[] = {
    {DType::kBf16, 0},       {DType::kFp32, 1},          {DType::kBf16, 7},
    {DType::kFp16, 8},       {DType::kBf16, kSumChunk},  {DType::kFp32, kSumChunk + 1},
    {DType::kFp64, 3000, 1}, {DType::kBf16, 200'003, 1}, {DType::kBf16, 0},
    {DType::kFp16, 70'000},  {DType::kFp32, 20'000, 3},  {DType::kFp64, 2 * kSumChunk}};

// Values of a format, packed, `misaligned` elements behind an address that is aligned to 16.
class Packed {
 public:
  Packed(const Shape& shape, uint64_t seed, bool is_moment) : shape_(shape), storage_(bytes() / 8 + 3) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> exponent(-6, 1);
    const double special[] = {std::nan(""), kInfinity, is_moment ? -1 : -kInfinity};
    for (size_t n = 0; n < shape.count; ++n) {
      const double x = normal(random) * std::pow(10, exponent(random));
      set(n, random() % 1000 == 0 ? special[random() % 3] : is_moment ? x * x : x);
    }
  }

  const void* data() const { return base() + shape_.misaligned * size_of(shape_.type); }
  double at(size_t n) const { return load_as_double(data(), shape_.type, n); }
  TensorView view() const {
    return {.data = data(),
            .dtype = shape_.type,
            .shape = {1, 1, 1, static_cast<int64_t>(shape_.count)},
            .stride = {0, 0, 0, 1}};
  }

 private:
  size_t bytes() const { return (shape_.count + shape_.misaligned) * size_of(shape_.type); }
  const char* base() const {
    const uint64_t at = address(storage_.data());
    return reinterpret_cast<const char*>(storage_.data()) + (16 - at % 16) % 16;
  }
  void set(size_t n, double x) {
    char* to = const_cast<char*>(static_cast<const char*>(data())) + n * size_of(shape_.type);
    const float narrow = static_cast<float>(x);
    const uint32_t bits = std::bit_cast<uint32_t>(narrow);
    // Any pattern will do for fp16: the sign and the exponent of bf16, whose bits lie elsewhere.
    const uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (shape_.type == DType::kFp64) std::memcpy(to, &x, sizeof x);
    if (shape_.type == DType::kFp32) std::memcpy(to, &narrow, sizeof narrow);
    if (size_of(shape_.type) == 2) std::memcpy(to, &half, sizeof half);
  }

  Shape shape_;
  std::vector<uint64_t> storage_;
};

// The order as it is stated, without a device: add(element, &sums).
template <class Sums>
Sums fold(std::vector<Sums> lane) {
  for (size_t half = kSumLanes / 2; half > 0; half /= 2)
    for (size_t l = 0; l < half; ++l) lane[l].add(lane[l + half]);
  return lane[0];
}

template <class Sums, class Add>
Sums in_stated_order(size_t count, const Add& add) {
  std::vector<Sums> of_lane(kSumLanes);
  size_t chunk = 0;
  for (size_t begin = 0; begin < count; begin += kSumChunk, ++chunk) {
    std::vector<Sums> lane(kSumLanes);
    for (size_t n = begin; n < std::min(count, begin + kSumChunk); ++n)
      add(n, &lane[(n - begin) / 8 % kSumLanes]);
    of_lane[chunk % kSumLanes].add(fold(lane));
  }
  return fold(of_lane);
}

template <class Job, class Tensor>
void number_chunks(Job* job) {
  job->chunks = 0;
  for (uint32_t n = 0; n < job->tensors; ++n) {
    job->tensor[n].first_chunk = job->chunks;
    job->chunks += sum_chunks(job->tensor[n].count);
  }
}

// A chain of positive terms, and at most this relative error: that of the host (32 terms in each of 8 chains
// of a block, then the blocks, of 256 terms) and that of the device (256 terms in a lane, 8 folds, the chunks
// of a lane, 8 folds).
double bound(size_t count) {
  const double host = 32 + 8 + static_cast<double>(count) / 256 + 1;
  const double host_gradient = 256 + static_cast<double>(count) / 256 + 1;
  const double device = 256 + 8 + static_cast<double>(sum_chunks(count)) / kSumLanes + 1 + 8;
  return (std::max(host, host_gradient) + device) * 0x1p-53;
}

class SumsBody : public testing::TestWithParam<EmulatedLaunch> {
 protected:
  template <class Sums, class Job>
  std::vector<Sums> run(DeviceKernel kernel, Job job) {
    std::vector<Sums> results(job.tensors), partials(job.chunks);
    std::memset(static_cast<void*>(results.data()), 0xa5, results.size() * sizeof(Sums));  // overwritten
    uint32_t arrived = 0;
    job.results = address(results.data()), job.partials = address(partials.data());
    job.arrived = address(&arrived);
    LaunchShape shape = launch_of(job, {.processors = 1, .shared_bytes = 0});
    shape.blocks = GetParam().blocks;
    EXPECT_TRUE(run_emulated(name_of(kernel), shape, &job, GetParam().how));
    EXPECT_EQ(arrived, 0u);
    return results;
  }
};

TEST_P(SumsBody, SumsGradients) {
  std::vector<Packed> gradients;
  GradientSumsJob job = {};
  for (const Shape& shape : kShapes) {
    gradients.emplace_back(shape, 3 + gradients.size(), false);
    GradientTensor& tensor = job.tensor[job.tensors++];
    tensor.data = address(gradients.back().data());
    tensor.count = shape.count;
    tensor.dtype = static_cast<uint32_t>(shape.type);
  }
  number_chunks<GradientSumsJob, GradientTensor>(&job);
  const auto results = run<GradientSums>(DeviceKernel::kGradientSums, job);
  for (size_t n = 0; n < results.size(); ++n) {
    const Packed& g = gradients[n];
    const size_t count = kShapes[n].count;
    const auto stated =
        in_stated_order<GradientSums>(count, [&](size_t i, GradientSums* sums) { sums->add(g.at(i)); });
    EXPECT_EQ(results[n].squares, stated.squares) << n;
    GradientSums host;
    add_gradient_sums(g.view(), &host);
    EXPECT_EQ(results[n].finite, host.finite) << n;
    EXPECT_EQ(results[n].nonfinite, host.nonfinite) << n;
    EXPECT_NEAR(results[n].squares, host.squares, bound(count) * host.squares) << n;
    if (count > 10'000) {
      EXPECT_GT(host.nonfinite, 0u) << n;
    }
  }
}

TEST_P(SumsBody, SumsOptimizerState) {
  std::vector<Packed> gradients, moments;
  AdamSumsJob job = {};
  constexpr DType kMomentTypes[] = {DType::kFp32, DType::kBf16, DType::kFp64, DType::kFp16};
  constexpr AdamStep kSteps[] = {{.999, 1e-8, 100}, {.95, 1e-3, 1}, {.99, 0, 7}};
  for (const Shape& shape : kShapes) {
    const uint32_t n = job.tensors++;
    const Shape of_moment{kMomentTypes[n % 4], shape.count, n % 3};
    gradients.emplace_back(shape, 3 + n, false);
    moments.emplace_back(of_moment, 300 + n, true);
    AdamTensor& tensor = job.tensor[n];
    tensor.gradient = address(gradients.back().data());
    tensor.moment = address(moments.back().data());
    tensor.count = shape.count;
    tensor.gradient_dtype = static_cast<uint32_t>(shape.type);
    tensor.moment_dtype = static_cast<uint32_t>(of_moment.type);
    tensor.constants = adam_constants(kSteps[n % 3]);
  }
  number_chunks<AdamSumsJob, AdamTensor>(&job);
  const auto results = run<AdamSums>(DeviceKernel::kAdamSums, job);
  for (size_t n = 0; n < results.size(); ++n) {
    const size_t count = kShapes[n].count;
    const AdamSums& got = results[n];
    const auto stated = in_stated_order<AdamSums>(count, [&](size_t i, AdamSums* sums) {
      add_element(gradients[n].at(i), moments[n].at(i), job.tensor[n].constants, sums);
    });
    EXPECT_EQ(got.staleness, stated.staleness) << n;
    EXPECT_EQ(got.gradient_squares, stated.gradient_squares) << n;
    AdamSums host;
    add_adam_sums(gradients[n].view(), moments[n].view(), kSteps[n % 3], &host);
    EXPECT_EQ(got.counted, host.counted) << n;
    EXPECT_EQ(got.nonfinite_gradient, host.nonfinite_gradient) << n;
    EXPECT_EQ(got.unusable_state, host.unusable_state) << n;
    EXPECT_EQ(got.epsilon_dominated, host.epsilon_dominated) << n;
    EXPECT_EQ(got.surprised, host.surprised) << n;
    EXPECT_EQ(got.surprise_counted, host.surprise_counted) << n;
    EXPECT_NEAR(got.staleness, host.staleness, bound(count) * host.staleness) << n;
    EXPECT_NEAR(got.gradient_squares, host.gradient_squares, bound(count) * host.gradient_squares) << n;
    if (count > 10'000) {
      EXPECT_GT(host.nonfinite_gradient * host.unusable_state, 0u) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, SumsBody, testing::ValuesIn(kEmulatedLaunches),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SumsLaunch, RequestsTheMemoryOfItsLanes) {
  GradientSumsJob job = {};
  job.chunks = 10;
  EXPECT_EQ(launch_of(job, {.processors = 132, .shared_bytes = 0}).blocks, 10u);
  job.chunks = 10'000;
  const LaunchShape shape = launch_of(job, {.processors = 132, .shared_bytes = 0});
  EXPECT_EQ(shape.blocks, 528u);
  EXPECT_EQ(shape.threads, kSumLanes);
  EXPECT_EQ(shape.shared_bytes, 16 + kSumLanes * sizeof(GradientSums));
}

class ChecksumBody : public testing::TestWithParam<EmulatedLaunch> {};

TEST_P(ChecksumBody, EqualsTheHostsChecksum) {
  std::mt19937_64 random(1);
  for (const size_t bytes : {0, 1, 2, 3, 4, 5, 6, 7, 8, 4096, 100'001, 100'002}) {
    for (const size_t misaligned : {0, 1, 2, 3}) {
      // A block of its own, so that one byte too far is seen.
      std::vector<uint8_t> data(misaligned + bytes);
      for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
      uint64_t sum = 5;  // added to
      const ChecksumJob job{.from = address(data.data()) + misaligned, .bytes = bytes, .to = address(&sum)};
      ASSERT_TRUE(run_emulated(name_of(DeviceKernel::kChecksum),
                               {GetParam().blocks, GetParam().threads, sizeof(uint64_t)}, &job,
                               GetParam().how));
      EXPECT_EQ(sum, 5 + checksum(data.data() + misaligned, bytes)) << bytes << " from " << misaligned;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, ChecksumBody, testing::ValuesIn(kEmulatedLaunches),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr DType kFloating[] = {DType::kFp64, DType::kFp32, DType::kBf16, DType::kFp16};

class ScalarsBody : public testing::TestWithParam<EmulatedLaunch> {
 protected:
  std::vector<ScalarCell> cells_ = std::vector<ScalarCell>(kScalarCells);

  void run(ScalarsJob job) {
    job.cells = address(cells_.data());
    ASSERT_TRUE(run_emulated(name_of(DeviceKernel::kScalars),
                             {1, GetParam().blocks == 1 ? 1 : GetParam().threads, 0}, &job, GetParam().how));
  }
};

// Every bit pattern of a byte at the top of each format: normal, subnormal, infinite, NaN, of both signs.
TEST_P(ScalarsBody, EqualTheHostsValues) {
  for (const DType type : kFloating) {
    const size_t size = size_of(type);
    std::vector<char> data(256 * size);
    ScalarsJob job = {};
    job.first = kScalarCells - 3;  // round the end of the cells
    job.count = 256;
    job.dtype = static_cast<uint32_t>(type);
    for (uint32_t n = 0; n < 256; ++n) {
      for (size_t byte = 0; byte + 1 < size; ++byte) data[n * size + byte] = static_cast<char>(7 * n + byte);
      data[n * size + size - 1] = static_cast<char>(n);
      job.from[n] = address(data.data() + n * size);
    }
    run(job);
    for (uint32_t n = 0; n < 256; ++n) {
      const ScalarCell& cell = cells_[cell_of(job.first + n)];
      const double wanted = load_as_double(data.data(), type, n);
      EXPECT_EQ(cell.number, job.first + n) << name_of(type);
      // Of a NaN it is told that it is one.
      if (std::isnan(wanted))
        EXPECT_TRUE(std::isnan(cell.value)) << name_of(type) << n;
      else
        EXPECT_EQ(std::memcmp(&cell.value, &wanted, sizeof wanted), 0) << name_of(type) << n;
    }
  }
}

TEST_P(ScalarsBody, WritesNoOtherCell) {
  const float value = 0.5f;
  ScalarsJob job = {};
  job.first = 3 * kScalarCells + 10;
  job.count = 1;
  job.dtype = static_cast<uint32_t>(DType::kFp32);
  job.from[0] = address(&value);
  run(job);
  for (uint32_t n = 0; n < kScalarCells; ++n) {
    EXPECT_EQ(cells_[n].number, n == 10 ? job.first : 0u);
    EXPECT_EQ(cells_[n].value, n == 10 ? 0.5 : 0.0);
  }
}

TEST_P(ScalarsBody, SumOfSquaresIsNanIfAnElementIsNotFinite) {
  const GradientSums sums[] = {
      {0.1, 7, 0}, {0.1, 7, 1}, {0, 0, 0}, {INFINITY, 1, 0}, {0.3, 0, uint64_t{1} << 40}};
  ScalarsJob job = {};
  job.first = 5;
  job.count = 5;
  job.dtype = kSumOfSquares;
  for (uint32_t n = 0; n < 5; ++n) job.from[n] = address(sums + n);
  run(job);
  for (uint32_t n = 0; n < 5; ++n) {
    EXPECT_EQ(cells_[5 + n].number, 5 + n);
    if (sums[n].nonfinite == 0)
      EXPECT_EQ(cells_[5 + n].value, sums[n].squares) << n;
    else
      EXPECT_TRUE(std::isnan(cells_[5 + n].value)) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, ScalarsBody, testing::ValuesIn(kEmulatedLaunches),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshock
