// The hash FNV-1a of 64 bits, for names and for comparing large things by a small one, and how it is written.
#ifndef FORESHOCK_AGENT_FNV_H_
#define FORESHOCK_AGENT_FNV_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace foreshock {

// Of what comes in pieces: `hash` is that of the pieces before.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

// 16 digits.
inline std::string hexadecimal(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FNV_H_
