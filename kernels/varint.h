// Variable-length integers: seven bits a byte, lowest first. No heap, no statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_VARINT_H_
#define FORESHOCK_KERNELS_VARINT_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace foreshock {

inline constexpr size_t kLongestVarint = 10;  // bytes

// Writes at most kLongestVarint bytes; returns their end.
inline char* put_varint(uint64_t number, char* to) {
  for (; number >= 0x80; number >>= 7) *to++ = static_cast<char>(number | 0x80);
  *to++ = static_cast<char>(number);
  return to;
}

// Reads from the front of *bytes. One form per number, so that equal numbers are equal bytes: false for any
// other, and for what ends in the middle; *bytes is then somewhere within it.
inline bool get_varint(std::span<const std::byte>* bytes, uint64_t* number) {
  *number = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint64_t>(bytes->front());
    *bytes = bytes->subspan(1);
    if (shift == 63 && byte > 1) return false;
    *number |= (byte & 0x7f) << shift;
    if (byte < 0x80) return byte != 0 || shift == 0;
  }
  return false;
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_VARINT_H_
