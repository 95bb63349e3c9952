// One sequence of a packed batch: found by the host and by the device alike, and copied as the host copies
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/gather.h"
#include "kernels/gather_body.h"
#include "kernels/packed.h"
#include "tests/support/emulated_launches.h"

namespace foreshock {
namespace {

// Memory of exactly these bytes, for a sanitizer.
template <class T>
std::unique_ptr<T[]> exactly(const std::vector<T>& values) {
  auto copy = std::make_unique<T[]>(values.size());
  std::copy(values.begin(), values.end(), copy.get());
  return copy;
}

using Offsets = std::vector<int32_t>;

Offsets offsets_of(const std::vector<int32_t>& lengths, int32_t begin = 0) {
  Offsets offsets = {begin};
  for (const int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

PackedSequences packed(const int32_t* queries, const int32_t* keys, size_t count, uint32_t total_queries,
                       uint32_t total_keys) {
  return {.query_offsets = address(queries),
          .key_offsets = address(keys),
          .count = static_cast<uint32_t>(count),
          .queries = total_queries,
          .keys = total_keys,
          .longest_query = total_queries,
          .longest_key = total_keys,
          .place = 0};
}

// The least fraction of 2^32 that stands for position `n` of `total`.
uint32_t place_of(uint64_t n, uint64_t total) {
  return static_cast<uint32_t>(((n << 32) + total - 1) / total);
}

TEST(FindSequence, FindsTheSequenceOfEveryPosition) {
  const std::vector<int32_t> lengths[] = {
      {1}, {5, 7, 2}, {0, 3, 0, 0, 1, 0}, {1, 1, 1, 1, 1, 1, 1}, {64, 1, 33}};
  for (const std::vector<int32_t>& queries : lengths) {
    std::vector<int32_t> keys;  // others than the queries, none of them empty
    for (const int32_t length : queries) keys.push_back(3 * length + 1);
    for (const int32_t begin : {0, 4}) {  // the offsets need not begin at 0
      const Offsets of_queries = offsets_of(queries, begin), of_keys = offsets_of(keys);
      const auto q = exactly(of_queries), k = exactly(of_keys);
      PackedSequences all = packed(q.get(), k.get(), queries.size(), static_cast<uint32_t>(of_queries.back()),
                                   static_cast<uint32_t>(of_keys.back()));
      const auto total = static_cast<uint64_t>(of_queries.back() - begin);
      uint64_t position = 0;
      for (uint32_t number = 0; number < queries.size(); ++number)
        for (int32_t n = 0; n < queries[number]; ++n, ++position) {
          all.place = place_of(position, total);
          const SequencePlace one = find_sequence(all, HostMemory());
          EXPECT_EQ(one.number, number);
          EXPECT_EQ(one.query, static_cast<uint32_t>(of_queries[number]));
          EXPECT_EQ(one.queries, static_cast<uint32_t>(queries[number]));
          EXPECT_EQ(one.key, static_cast<uint32_t>(of_keys[number]));
          EXPECT_EQ(one.keys, static_cast<uint32_t>(keys[number]));
        }
      EXPECT_EQ(position, total);
      all.place = ~0u;
      EXPECT_GT(find_sequence(all, HostMemory()).queries, 0u);
    }
  }
}

TEST(FindSequence, RefusesInvalidOffsets) {
  struct Case {
    const char* name;
    Offsets queries, keys;
    uint32_t longest_query = 10, longest_key = 10;
  };
  const Case cases[] = {
      {"before the first position", {-1, 10}, {0, 10}},
      {"empty", {3, 3}, {0, 10}},
      {"all empty", {0, 0, 0, 0}, {0, 5, 10, 10}},
      {"falling", {5, 0}, {0, 10}},
      {"beyond the queries", {0, 11}, {0, 10}},
      {"longer than the longest", {0, 10}, {0, 10}, 9},
      {"no keys", {0, 10}, {4, 4}},
      {"falling keys", {0, 10}, {9, 0}},
      {"keys before the first one", {0, 10}, {-4, 6}},
      {"keys beyond the last one", {0, 10}, {0, 11}},
      {"more keys than the longest", {0, 10}, {0, 10}, 10, 9},
      {"far out", {0, 0x7fffffff}, {0, 10}},
      {"both ends of the numbers", {-0x7fffffff - 1, 0x7fffffff}, {0, 10}},
      {"a middle one out of all", {0, 0x7fffffff, 10}, {0, 5, 10}},
      {"a middle one before all", {0, -9, 10}, {0, 5, 10}},
  };
  for (const Case& one : cases) {
    const auto q = exactly(one.queries), k = exactly(one.keys);
    PackedSequences all = packed(q.get(), k.get(), one.queries.size() - 1, 10, 10);
    all.longest_query = one.longest_query;
    all.longest_key = one.longest_key;
    all.place = 0x80000000u;
    EXPECT_EQ(find_sequence(all, HostMemory()).queries, 0u) << one.name;
  }
}

TEST(FindSequence, StaysInsideForAnyOffsets) {
  std::mt19937_64 random(9);
  uint32_t found = 0;
  for (int round = 0; round < 20000; ++round) {
    const size_t count = 1 + random() % 9;
    Offsets queries(count + 1), keys(count + 1);
    for (Offsets* offsets : {&queries, &keys})
      for (int32_t& offset : *offsets) {
        const auto bits = static_cast<uint32_t>(random());
        // Often near what makes sense, so that some do.
        offset = round % 3 == 0 ? static_cast<int32_t>(bits) : static_cast<int32_t>(bits % 24) - 2;
      }
    if (round % 2 == 0) std::sort(queries.begin(), queries.end());
    const auto q = exactly(queries), k = exactly(keys);
    PackedSequences all = packed(q.get(), k.get(), count, 20, 20);
    all.longest_query = 15;
    all.place = static_cast<uint32_t>(random());
    const SequencePlace one = find_sequence(all, HostMemory());
    if (one.queries == 0) continue;
    ++found;
    ASSERT_LT(one.number, count);
    ASSERT_LE(one.query + one.queries, 20u);
    ASSERT_LE(one.queries, 15u);
    ASSERT_GT(one.keys, 0u);
    ASSERT_LE(one.key + one.keys, 20u);
  }
  EXPECT_GT(found, 500u);
}

TEST(PositionInPart, GrowsWithThePartAndTheLength) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    const auto parts = static_cast<uint32_t>(1 + random() % 16);
    const uint64_t longest = parts + random() % 300;
    uint32_t fraction[16];
    for (uint32_t& one : fraction) one = static_cast<uint32_t>(random());
    uint64_t of_longer[16];
    for (uint64_t length = longest; length > 0; --length) {
      const uint32_t have = static_cast<uint32_t>(std::min<uint64_t>(length, parts));
      for (uint32_t n = 0; n < have; ++n) {
        const uint64_t at = position_in_part(length, n, have, fraction[n]);
        ASSERT_LT(at, length);
        ASSERT_TRUE(n == 0 || at > position_in_part(length, n - 1, have, fraction[n - 1]));
        // What is planned for the longest holds for every other one.
        ASSERT_TRUE(length == longest || at <= of_longer[n]);
        of_longer[n] = at;
      }
    }
  }
}

// Queries (total, head, d) of bf16, keys (total, d) of fp32 and sums of either form, each in memory of its
// own.
struct Batch {
  static constexpr uint32_t kHeads = 3, kDim = 20, kPositions = 5, kRoom = 40;
  uint32_t total_queries, total_keys, sequences;
  bool lse_by_sequence;
  uint32_t longest = kRoom;
  std::vector<char> bytes[3];
  std::unique_ptr<char[]> query, key, sums;

  Batch(uint32_t total_queries, uint32_t total_keys, uint32_t sequences, bool lse_by_sequence)
      : total_queries(total_queries),
        total_keys(total_keys),
        sequences(sequences),
        lse_by_sequence(lse_by_sequence) {
    const size_t sizes[] = {size_t{2} * total_queries * kHeads * kDim, size_t{4} * total_keys * kDim,
                            size_t{4} * kHeads * (lse_by_sequence ? sequences * longest : total_queries)};
    std::mt19937_64 random(total_queries);
    for (int n = 0; n < 3; ++n) {
      bytes[n].resize(sizes[n]);
      for (char& byte : bytes[n]) byte = static_cast<char>(random());
    }
    query = exactly(bytes[0]), key = exactly(bytes[1]), sums = exactly(bytes[2]);
  }

  TensorView view(int which) const {
    TensorView view;
    view.data = which == 0 ? query.get() : which == 1 ? key.get() : sums.get();
    view.dtype = which == 0 ? DType::kBf16 : DType::kFp32;
    view.shape[3] = which == 2 ? 1 : kDim;
    const int64_t row = which == 0 ? kHeads * kDim : which == 1 ? kDim : 1;
    const int64_t head = which == 0 ? kDim : which == 1 ? 0 : lse_by_sequence ? longest : total_queries;
    const int64_t strides[4] = {which == 2 ? kHeads * head : 0, head, row, 1};
    std::copy_n(strides, 4, view.stride);
    return view;
  }

  GatherPiece piece(int which, uint64_t to) const {
    const TensorView of = view(which);
    return {.from = address(of.data),
            .to = to,
            .head_stride = of.stride[1],
            .row_stride = of.stride[2],
            .column_stride = 1,
            .heads = which == 1 ? 1 : kHeads,
            .rows = which == 1 ? kRoom : kPositions,
            .width = static_cast<uint32_t>(of.shape[3]),
            .element = static_cast<uint32_t>(size_of(of.dtype)),
            .is_listed = which != 1,
            .first_row = 0};
  }
};

constexpr uint64_t kTo[3] = {0, 1024, 8192};
constexpr size_t kRing = 8192 + 256;

class PackedGatherBody : public testing::TestWithParam<EmulatedLaunch> {
 protected:
  PackedGatherJob job_of(const Batch& batch, const int32_t* queries, const int32_t* keys, uint32_t place) {
    PackedGatherJob job = {};
    job.gather.to = address(ring_), job.gather.times = address(times_), job.gather.clock = address(&clock_);
    job.gather.pieces = 3;
    for (int n = 0; n < 3; ++n) job.gather.piece[n] = batch.piece(n, kTo[n]);
    for (uint32_t n = 0; n < kMostPositions; ++n) job.gather.position[n] = n * 0x9e3779b9u;
    job.sequences = packed(queries, keys, batch.sequences, batch.total_queries, batch.total_keys);
    job.sequences.longest_query = job.sequences.longest_key = batch.longest;
    job.sequences.place = place;
    job.gathered = address(&gathered_);
    job.lse_piece = batch.lse_by_sequence ? 2 : kMostPieces;
    job.lse_stride = batch.view(2).stride[0];
    job.parts = Batch::kPositions;
    job.positions = Batch::kPositions;
    return job;
  }

  void launch(const PackedGatherJob& job) {
    std::memset(ring_, 0x5a, sizeof ring_);
    std::memset(&gathered_, 0x5a, sizeof gathered_);
    times_[0] = times_[1] = 0;
    const LaunchShape shape{.blocks = GetParam().blocks, .threads = GetParam().threads, .shared_bytes = 0};
    ASSERT_TRUE(run_emulated("foreshock_packed_gather", shape, &job, GetParam().how));
    EXPECT_LE(times_[0], times_[1]);
    EXPECT_GT(times_[0], 0u);
    EXPECT_EQ(clock_.not_begin | clock_.end | clock_.arrived, 0u);
  }

  // What the host copies of this sequence, from key `first_key` on, `positions` rows of each head at most.
  void expect_sequence(const Batch& batch, const PackedGatherJob& job, const SequencePlace& one,
                       uint32_t first_key = 0) {
    std::vector<char> want(kRing, 0x5a);
    const uint32_t parts = std::min(one.queries, job.parts), positions = std::min(parts, job.positions);
    ASSERT_EQ(gathered_.positions, positions);
    EXPECT_EQ(gathered_.number, one.number);
    EXPECT_EQ(gathered_.queries, one.queries);
    EXPECT_EQ(gathered_.keys, one.keys);
    char *query = want.data() + kTo[0], *sums = want.data() + kTo[2];
    for (uint32_t head = 0; head < Batch::kHeads; ++head)
      for (uint32_t n = 0; n < positions; ++n) {
        const auto at = position_in_part(one.queries, n, parts, job.gather.position[n]);
        EXPECT_EQ(gathered_.position[n], at);
        query += gather_rows(batch.view(0), 0, head, static_cast<int64_t>(one.query + at), 1, query);
        const int64_t row = static_cast<int64_t>(batch.lse_by_sequence ? at : one.query + at);
        sums += gather_rows(batch.view(2), batch.lse_by_sequence ? one.number : 0, head, row, 1, sums);
      }
    const uint32_t keys = std::min(one.keys > first_key ? one.keys - first_key : 0, job.gather.piece[1].rows);
    gather_rows(batch.view(1), 0, 0, one.key + first_key, keys, want.data() + kTo[1]);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), ring_));
  }

  alignas(16) char ring_[kRing];
  GatheredSequence gathered_;
  uint64_t times_[2];
  GatherClock clock_ = {};
};

TEST_P(PackedGatherBody, CopiesTheSameSequenceAsTheHost) {
  std::mt19937_64 random(5);
  for (const bool by_sequence : {false, true}) {
    for (int round = 0; round < 12; ++round) {
      std::vector<int32_t> queries, keys;
      for (const int32_t length : {1, 4, int32_t{Batch::kPositions}, int32_t{Batch::kRoom}, 0, 17}) {
        queries.push_back(length);
        keys.push_back(static_cast<int32_t>(1 + random() % Batch::kRoom));
      }
      std::shuffle(queries.begin(), queries.end(), random);
      const Offsets of_queries = offsets_of(queries), of_keys = offsets_of(keys);
      const auto q = exactly(of_queries), k = exactly(of_keys);
      const Batch batch(static_cast<uint32_t>(of_queries.back()), static_cast<uint32_t>(of_keys.back()),
                        static_cast<uint32_t>(queries.size()), by_sequence);
      for (uint32_t number = 0; number < queries.size(); ++number) {
        if (queries[number] == 0) continue;
        const uint32_t place =
            place_of(static_cast<uint64_t>(of_queries[number]), static_cast<uint64_t>(of_queries.back()));
        const PackedGatherJob job = job_of(batch, q.get(), k.get(), place);
        launch(job);
        expect_sequence(
            batch, job,
            {number, static_cast<uint32_t>(of_queries[number]), static_cast<uint32_t>(queries[number]),
             static_cast<uint32_t>(of_keys[number]), static_cast<uint32_t>(keys[number])});
      }
    }
  }
}

// A range of the keys, as of a slice over several slots, and fewer positions than parts, as of one that was
// cut.
TEST_P(PackedGatherBody, CopiesAPartOfTheKeysAndTheFirstPositions) {
  const auto q = exactly(Offsets{0, 30}), k = exactly(Offsets{0, 12});
  const Batch batch(30, 12, 1, false);
  for (const uint32_t first : {0u, 5u, 11u, 12u, 30u}) {
    PackedGatherJob job = job_of(batch, q.get(), k.get(), 0);
    job.positions = 2;
    job.gather.piece[0].rows = job.gather.piece[2].rows = 2;
    job.gather.piece[1].first_row = first;
    job.gather.piece[1].rows = 4;
    launch(job);
    expect_sequence(batch, job, {0, 0, 30, 0, 12}, first);
  }
}

// Nothing outside of the tensors is read, which a sanitizer sees, and what is told could be.
TEST_P(PackedGatherBody, StaysInsideForAnyOffsets) {
  std::mt19937_64 random(6);
  const Batch plain(25, 30, 4, false), by_sequence(25, 30, 4, true);
  int none = 0;
  for (int round = 0; round < 200; ++round) {
    const Batch& batch = round % 2 == 0 ? plain : by_sequence;
    Offsets offsets[2] = {Offsets(5), Offsets(5)};
    for (Offsets& each : offsets)
      for (int32_t& offset : each)
        offset = round % 5 == 0 ? static_cast<int32_t>(random()) : static_cast<int32_t>(random() % 36) - 3;
    if (round % 3 == 0) std::sort(offsets[0].begin(), offsets[0].end());
    const auto q = exactly(offsets[0]), k = exactly(offsets[1]);
    const PackedGatherJob job = job_of(batch, q.get(), k.get(), static_cast<uint32_t>(random()));
    launch(job);
    const SequencePlace one = find_sequence(job.sequences, HostMemory());
    none += one.queries == 0;
    expect_sequence(batch, job, one);
  }
  EXPECT_GT(none, 20);
  EXPECT_LT(none, 200);
}

INSTANTIATE_TEST_SUITE_P(Launches, PackedGatherBody, testing::ValuesIn(kEmulatedLaunches),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshock
