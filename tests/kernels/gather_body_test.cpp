// The gather of the device, emulated, beside the one of the host.
#include "kernels/gather_body.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/device_code.h"
#include "kernels/gather.h"
#include "tests/support/emulated_launches.h"

namespace foreshock {
namespace {

std::vector<char> noise(size_t bytes) {
  std::mt19937_64 random(bytes);
  std::vector<char> out(bytes);
  for (char& byte : out) byte = static_cast<char>(random());
  return out;
}

// A tensor somewhere in the middle of random bytes, and the rows of it that a job asks for.
struct Source {
  const char* name;
  DType type;
  int64_t stride[4];  // of batch, head, row, column
  uint32_t heads, rows, width;
  uint32_t misaligned = 0;  // bytes
};

void PrintTo(const Source& source, std::ostream* to) { *to << source.name; }

constexpr Source kSources[] = {
    {"bf16_rows", DType::kBf16, {1 << 16, 1 << 12, 64, 1}, 1, 60, 64},
    {"bf16_heads_inside", DType::kBf16, {1 << 16, 64, 256, 1}, 4, 16, 64},
    {"bf16_odd_width", DType::kBf16, {1 << 16, 64, 256, 1}, 3, 9, 37},
    {"bf16_padded", DType::kBf16, {1 << 16, 1000, 40, 1}, 2, 16, 32},
    {"bf16_strides_less_aligned", DType::kBf16, {1 << 16, 1008, 68, 1}, 2, 16, 64},
    {"bf16_broadcast", DType::kBf16, {0, 0, 0, 1}, 2, 16, 128},
    {"bf16_backwards", DType::kBf16, {1 << 16, 64, -128, 1}, 2, 16, 64},
    {"bf16_columns_apart", DType::kBf16, {1 << 16, 64, 1, 128}, 2, 16, 20},
    {"bf16_off_by_an_element", DType::kBf16, {1 << 16, 64, 256, 1}, 4, 16, 64, 2},
    {"fp32_lse", DType::kFp32, {512, 128, 1, 1}, 4, 16, 1},
    {"fp32_rows", DType::kFp32, {1 << 14, 1 << 10, 48, 1}, 2, 16, 48, 4},
    {"fp32_wrongly_aligned", DType::kFp32, {1 << 14, 1 << 10, 48, 3}, 2, 16, 11, 1},
    {"fp64_rows", DType::kFp64, {1 << 13, 1 << 9, 24, 1}, 2, 16, 24, 8},
    {"bool_mask", DType::kBool, {1 << 14, 0, 300, 1}, 2, 16, 299, 3},
    {"one_element", DType::kBf16, {0, 0, 0, 0}, 1, 1, 1, 6},
    {"nothing", DType::kBf16, {1 << 16, 64, 256, 1}, 4, 0, 64},
};

TensorView view_of(const Source& source, const std::vector<char>& storage) {
  TensorView view{.data = storage.data() + storage.size() / 2 + source.misaligned, .dtype = source.type};
  view.shape[3] = source.width;
  std::copy_n(source.stride, 4, view.stride);
  return view;
}

GatherPiece piece_of(const TensorView& view, const Source& source, int64_t batch, int64_t head) {
  return {.from = address(view.row(batch, head, 0)),
          .to = 0,
          .head_stride = view.stride[1],
          .row_stride = view.stride[2],
          .column_stride = view.stride[3],
          .heads = source.heads,
          .rows = source.rows,
          .width = source.width,
          .element = static_cast<uint32_t>(size_of(source.type)),
          .is_listed = 0,
          .first_row = 0};
}

// What the host copies, row by row.
std::vector<char> expected(const TensorView& view, const GatherPiece& piece, const uint32_t* position,
                           int64_t batch, int64_t head) {
  std::vector<char> out(size_t{piece.heads} * piece.rows * piece.width * piece.element);
  char* to = out.data();
  for (uint32_t h = 0; h < piece.heads; ++h)
    for (uint32_t n = 0; n < piece.rows; ++n)
      to += gather_rows(view, batch, head + h, piece.is_listed ? position[n] : piece.first_row + n, 1, to);
  return out;
}

std::atomic<uint64_t> ticks;
uint64_t tick() { return ++ticks; }

class GatherBody : public testing::TestWithParam<std::tuple<Source, EmulatedLaunch>> {};

// Several payloads in one job: contiguous rows and listed ones, each behind a gap that stays as it was.
TEST_P(GatherBody, CopiesTheSameBytesAsTheHost) {
  const auto& [source, launch] = GetParam();
  const std::vector<char> storage = noise(1 << 20);
  const TensorView view = view_of(source, storage);
  GatherClock clock = {};
  uint64_t times[2] = {};
  alignas(16) char ring[1 << 17];
  std::memset(ring, 0x5a, sizeof ring);
  GatherJob job = {};
  job.to = address(ring), job.times = address(times), job.clock = address(&clock);
  job.pieces = 2;
  for (uint32_t n = 0; n < kMostPositions; ++n) job.position[n] = (n * 11 + 5) % 17;
  std::vector<char> want(sizeof ring, 0x5a);
  uint64_t at = source.misaligned;  // of the destination as well
  for (uint32_t n = 0; n < 2; ++n) {
    GatherPiece& piece = job.piece[n] = piece_of(view, source, n, 1);
    piece.is_listed = n == 0 && piece.rows <= kMostPositions;
    piece.first_row = 3;
    piece.to = at;
    const std::vector<char> bytes = expected(view, piece, job.position, n, 1);
    std::copy(bytes.begin(), bytes.end(), want.begin() + static_cast<ptrdiff_t>(at));
    at += bytes.size() + 48;
  }
  Emulation how = launch.how;
  how.now = tick;
  const uint64_t before = tick();
  const LaunchShape shape{.blocks = launch.blocks, .threads = launch.threads, .shared_bytes = 0};
  for (int round = 0; round < 2; ++round) {  // the clock is left for the next launch
    times[0] = times[1] = 0;
    ASSERT_TRUE(run_emulated("foreshock_gather", shape, &job, how));
    EXPECT_TRUE(std::equal(want.begin(), want.end(), ring));
    EXPECT_EQ(times[1] - times[0] + 1, 2 * launch.blocks);  // the first and the last look at the clock
    EXPECT_EQ(times[0], before + 1 + static_cast<uint64_t>(round) * 2 * launch.blocks);
    EXPECT_EQ(clock.not_begin | clock.end | clock.arrived, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GatherBody,
                         testing::Combine(testing::ValuesIn(kSources), testing::ValuesIn(kEmulatedLaunches)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param).name;
                         });

// The lines of a mask for listed keys: the key takes the place of the head, and a line has its own place.
TEST(GatherBodyOfLines, CopiesAColumnForEachListedKey) {
  constexpr uint32_t kQueries = 30, kKeys = 50, kListed = 5, kLineBytes = 48 * sizeof(uint16_t);
  std::vector<uint16_t> mask(kQueries * kKeys), lines(kListed * 48, 0x5a5a);
  for (size_t n = 0; n < mask.size(); ++n) mask[n] = static_cast<uint16_t>(n);
  std::vector<uint16_t> want = lines;
  GatherClock clock = {};
  uint64_t times[2] = {};
  GatherJob job = {};
  job.to = address(lines.data()), job.times = address(times), job.clock = address(&clock);
  job.pieces = 1;
  for (uint32_t n = 0; n < kListed; ++n) job.position[n] = 7 * n + 3;
  for (const bool is_wide : {false, true}) {
    // The same numbers as rows of one number each, and as one row.
    job.piece[0] = {.from = address(mask.data()),
                    .to = 4,
                    .head_stride = 1,
                    .row_stride = is_wide ? 0 : kKeys,
                    .column_stride = is_wide ? kKeys : 1,
                    .heads = kListed,
                    .rows = is_wide ? 1 : kQueries,
                    .width = is_wide ? kQueries : 1,
                    .element = 2,
                    .is_listed = 2,
                    .first_row = 0,
                    .head_bytes = kLineBytes};
    for (uint32_t n = 0; n < kListed; ++n)
      for (uint32_t query = 0; query < kQueries; ++query)
        want[n * 48 + 2 + query] = mask[query * kKeys + 7 * n + 3];
    std::fill(lines.begin(), lines.end(), 0x5a5a);
    for (const EmulatedLaunch& launch : kEmulatedLaunches) {
      Emulation how = launch.how;
      how.now = tick;
      ASSERT_TRUE(run_emulated("foreshock_gather",
                               {.blocks = launch.blocks, .threads = launch.threads, .shared_bytes = 0}, &job,
                               how));
      EXPECT_EQ(lines, want);
    }
  }
}

TEST(GatherUnit, IsTheCommonAlignmentOfAPiece) {
  const GatherPiece piece{.from = 4096,
                          .to = 0,
                          .head_stride = 64,
                          .row_stride = 512,
                          .column_stride = 1,
                          .heads = 4,
                          .rows = 16,
                          .width = 64,
                          .element = 2,
                          .is_listed = 0,
                          .first_row = 0};
  EXPECT_EQ(gather_unit(piece, 8192), 16u);
  EXPECT_EQ(gather_unit(piece, 8192 + 8), 8u);
  GatherPiece other = piece;
  other.from += 2;
  EXPECT_EQ(gather_unit(other, 8192), 2u);
  other = piece;
  other.row_stride = -514;
  EXPECT_EQ(gather_unit(other, 8192), 4u);
  other = piece;
  other.head_stride = 65;
  EXPECT_EQ(gather_unit(other, 8192), 2u);
  other = piece;
  other.width = 36;
  EXPECT_EQ(gather_unit(other, 8192), 8u);
  other = piece;
  other.column_stride = 8;
  EXPECT_EQ(gather_unit(other, 8192), 2u);
  other.from += 1;
  EXPECT_EQ(gather_unit(other, 8192), 1u);
}

TEST(GatherLaunch, GrowsWithTheSliceUpToALimit) {
  GatherJob job = {};
  EXPECT_EQ(launch_of(job).blocks, 1u);
  job.pieces = 2;
  job.piece[0].heads = job.piece[1].heads = 1;
  job.piece[0].rows = job.piece[1].rows = 512;
  job.piece[0].width = job.piece[1].width = 128;
  EXPECT_EQ(launch_of(job).blocks, 32u);
  job.piece[0].rows = 1 << 20;
  EXPECT_EQ(launch_of(job).blocks, 128u);
  EXPECT_EQ(launch_of(job).threads, 256u);
}

TEST(EmulatedDevice, RefusesLaunchesThatADeviceRefuses) {
  const GatherJob job = {};
  EXPECT_FALSE(run_emulated("foreshock_unknown", {1, 32, 0}, &job));
  EXPECT_FALSE(run_emulated("foreshock_gather", {0, 32, 0}, &job));
  EXPECT_FALSE(run_emulated("foreshock_gather", {1, 1025, 0}, &job));
  EXPECT_FALSE(run_emulated("foreshock_gather", {1, 32, 1 << 20}, &job));
}

}  // namespace
}  // namespace foreshock
