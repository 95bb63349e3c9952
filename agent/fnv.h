// How a hash is written, beside the hash itself.
#ifndef FORESHOCK_AGENT_FNV_H_
#define FORESHOCK_AGENT_FNV_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "segment/layout.h"

namespace foreshock {

// 16 digits.
inline std::string hexadecimal(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FNV_H_
