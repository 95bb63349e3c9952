#include "libmonitor/device_gather.h"

#include <algorithm>

namespace foreshock {
namespace {

static_assert(kMostPositions == kRowsPerSample);

// Rows [first, first + count) of one head.
GatherPiece consecutive_rows(const TensorView& from, int64_t i, int64_t j, int64_t first, int64_t count,
                             int64_t width) {
  GatherPiece piece = {};
  piece.from = reinterpret_cast<uint64_t>(from.row(i, j, 0));
  piece.row_stride = from.stride[2];
  piece.column_stride = from.stride[3];
  piece.heads = 1;
  piece.rows = static_cast<uint32_t>(count);
  piece.width = static_cast<uint32_t>(width);
  piece.element = static_cast<uint32_t>(size_of(from.dtype));
  piece.first_row = static_cast<uint32_t>(first);
  return piece;
}

// One row of every chosen head and position, from column `first` on.
GatherPiece chosen_rows(const TensorView& from, const Slice& slice, int64_t first, int64_t width) {
  GatherPiece piece = consecutive_rows(from, slice.batch, slice.first_head, 0, slice.positions, width);
  piece.from += static_cast<uint64_t>(first * from.stride[3] * static_cast<int64_t>(size_of(from.dtype)));
  piece.head_stride = from.stride[1];
  piece.heads = static_cast<uint32_t>(slice.heads);
  piece.is_listed = 1;
  return piece;
}

}  // namespace

PayloadRange payloads_of(const segment::Slot& slot) {
  PayloadRange range = {~uint64_t{0}, 0};
  for (const segment::Payload& payload : slot.payload) {
    if (payload.offset == 0) continue;
    range.begin = std::min(range.begin, payload.offset);
    range.end = std::max(range.end, payload.offset + payload.bytes);
  }
  return range;
}

GatherJob gather_for_slot(const CheckedCall& call, const Slice& slice, const segment::Slot& slot,
                          uint64_t to) {
  GatherJob job = {};
  job.to = to;
  for (int n = 0; n < slice.positions; ++n) job.position[n] = static_cast<uint32_t>(slice.position[n]);
  const uint64_t begin = payloads_of(slot).begin;
  const auto put = [&](segment::PayloadId id, GatherPiece piece) {
    piece.to = slot.payload[id].offset - begin;
    job.piece[job.pieces++] = piece;
  };
  const int64_t first = slot.first_key, keys = slot.parts > 1 ? slot.part_keys : slot.keys;
  put(segment::kKey, consecutive_rows(call.key, slice.batch, slice.kv_head, first, keys, call.head_dim));
  put(segment::kValue, consecutive_rows(call.value, slice.batch, slice.kv_head, first, keys, call.value_dim));
  if (call.mask.data) put(segment::kMask, chosen_rows(call.mask, slice, first, keys));
  if (slot.part > 0) return job;
  put(segment::kQuery, chosen_rows(call.query, slice, 0, call.head_dim));
  if (call.out.data) put(segment::kOut, chosen_rows(call.out, slice, 0, call.value_dim));
  if (call.log_sum_exp.data) put(segment::kLogSumExp, chosen_rows(call.log_sum_exp, slice, 0, 1));
  if (call.pass == FORESHOCK_BACKWARD) {
    put(segment::kGradOut, chosen_rows(call.grad_out, slice, 0, call.value_dim));
    put(segment::kGradQuery, chosen_rows(call.grad_query, slice, 0, call.head_dim));
  }
  return job;
}

PackedGatherJob packed_gather_for_slot(const CheckedCall& call, const Slice& slice, const segment::Slot& slot,
                                       uint64_t to) {
  PackedGatherJob job = {};
  job.gather = gather_for_slot(call, slice, slot, to);
  std::copy_n(slice.fraction, kRowsPerSample, job.gather.position);
  job.sequences = call.packed;
  job.parts = static_cast<uint32_t>(slice.parts);
  job.positions = static_cast<uint32_t>(slice.positions);
  job.sum_piece = kMostPieces;
  if (!call.sums_by_sequence) return job;
  job.sum_stride = call.log_sum_exp.stride[0];
  const uint64_t sums = slot.payload[segment::kLogSumExp].offset;
  for (uint32_t n = 0; n < job.gather.pieces && sums != 0; ++n)
    if (job.gather.piece[n].to == sums - payloads_of(slot).begin) job.sum_piece = n;
  return job;
}

}  // namespace foreshock
