// What tensors held before an optimizer step, so that it can be told what the step has changed: of one that
// is larger than its share of the room some pieces, spread evenly over it.
#ifndef FORESHOCK_LIBMONITOR_UPDATE_COPIES_H_
#define FORESHOCK_LIBMONITOR_UPDATE_COPIES_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/sums.h"
#include "libmonitor/private_memory.h"

namespace foreshock {

// One caller at a time.
class UpdateCopies {
 public:
  static constexpr uint64_t kPiece = uint64_t{16} << 10;  // bytes

  struct Copy {
    uint64_t at = 0, bytes = 0;  // bytes 0: there is none
    uint64_t of = 0;             // bytes of the whole
    DType type = DType::kNone;
    uint64_t round = 0;
  };

  // Set-up; copies are lost. Without memory there will be none.
  void reserve(uint64_t bytes) { memory_.reserve(bytes); }
  uint64_t room() const { return memory_.bytes(); }

  // Copies are not needed any more.
  void forget() {
    used_ = 0;
    ++round_;
  }
  bool holds(const Copy& copy) const { return copy.bytes > 0 && copy.round == round_; }

  // Of `bytes` dense ones at `values` at most `share`, if there is room.
  Copy keep(const void* values, uint64_t bytes, DType type, uint64_t share);
  // The same again in place of a copy that has not been forgotten.
  void renew(const Copy& copy, const void* values);

  // What has changed since, of a copy that is held; `values` have the same size and type. *elements: so many
  // of them were compared.
  Update update(const Copy& copy, const void* values, uint64_t* elements) const;

  // The most that each of some tensors may have, so that all of them fit: `bytes_of(n)`, n < count.
  template <class BytesOf>
  static uint64_t share(uint64_t room, uint64_t count, const BytesOf& bytes_of);

 private:
  static uint64_t piece_at(uint64_t n, uint64_t kept, uint64_t of);  // where its n-th piece lies in a tensor

  PrivateMemory memory_;
  uint64_t used_ = 0, round_ = 1;
};

// What small ones leave is the large ones'. Each round's share is kept and larger than the one before.
template <class BytesOf>
uint64_t UpdateCopies::share(uint64_t room, uint64_t count, const BytesOf& bytes_of) {
  constexpr int kRounds = 8;
  uint64_t share = count > 0 ? room / count : room;
  for (int round = 0; round < kRounds; ++round) {
    uint64_t small = 0, large = 0;
    for (uint64_t n = 0; n < count; ++n) {
      const uint64_t bytes = bytes_of(n);
      large += bytes > share;
      small += bytes > share ? 0 : bytes;
    }
    if (large == 0 || (room - small) / large == share) break;
    share = (room - small) / large;
  }
  return share;
}

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_UPDATE_COPIES_H_
