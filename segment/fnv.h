// The hash FNV-1a of 64 bits, for names and for comparing large things by a small one.
#ifndef FORESHOCK_SEGMENT_FNV_H_
#define FORESHOCK_SEGMENT_FNV_H_

#include <cstdint>
#include <string_view>

namespace foreshock {

// Of what comes in pieces: `hash` is that of the pieces before.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

}  // namespace foreshock

#endif  // FORESHOCK_SEGMENT_FNV_H_
