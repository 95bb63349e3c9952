#include "libmonitor/update_copies.h"

#include <algorithm>
#include <cstring>

namespace foreshock {
namespace {

constexpr uint64_t kAlign = 64;

}  // namespace

// The last piece of a tensor, which may be a shorter one, is only kept with all others.
uint64_t UpdateCopies::piece_at(uint64_t n, uint64_t kept, uint64_t of) {
  const uint64_t pieces = (of + kPiece - 1) / kPiece, here = (kept + kPiece - 1) / kPiece;
  return n * pieces / here * kPiece;
}

UpdateCopies::Copy UpdateCopies::keep(const void* values, uint64_t bytes, DType type, uint64_t share) {
  const uint64_t most = std::min(share, room() - used_);
  const Copy copy = {used_, bytes <= most ? bytes : most / kPiece * kPiece, bytes, type, round_};
  renew(copy, values);
  used_ = std::min((used_ + copy.bytes + kAlign - 1) / kAlign * kAlign, room());
  return copy;
}

void UpdateCopies::renew(const Copy& copy, const void* values) {
  const auto* from = static_cast<const char*>(values);
  char* to = memory_.data() + copy.at;
  if (copy.bytes == copy.of) {
    std::memcpy(to, from, copy.bytes);
    return;
  }
  for (uint64_t n = 0; n < copy.bytes / kPiece; ++n)
    std::memcpy(to + n * kPiece, from + piece_at(n, copy.bytes, copy.of), kPiece);
}

Update UpdateCopies::update(const Copy& copy, const void* values, uint64_t* elements) const {
  *elements = copy.bytes / size_of(copy.type);
  const auto* now = static_cast<const char*>(values);
  const char* before = memory_.data() + copy.at;
  if (copy.bytes == copy.of) return update_between(before, now, copy.type, *elements);
  Update sum;
  for (uint64_t n = 0; n < copy.bytes / kPiece; ++n) {
    const Update of = update_between(before + n * kPiece, now + piece_at(n, copy.bytes, copy.of), copy.type,
                                     kPiece / size_of(copy.type));
    sum.sum_magnitude += of.sum_magnitude;
    sum.sum_squares += of.sum_squares;
    sum.sum_squares_after += of.sum_squares_after;
    sum.max_magnitude = std::max(sum.max_magnitude, of.max_magnitude);
  }
  return sum;
}

}  // namespace foreshock
