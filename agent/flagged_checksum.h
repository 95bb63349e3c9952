// The checksum in a file of a flagged slice: whether it is still as it was written. It guards against damage
// and slips, not against somebody who means to deceive.
#ifndef FORESHOCK_AGENT_FLAGGED_CHECKSUM_H_
#define FORESHOCK_AGENT_FLAGGED_CHECKSUM_H_

#include <string>
#include <string_view>

#include "agent/fnv.h"

namespace foreshock {

inline constexpr std::string_view kChecksumKey = "\"checksum\":\"", kNoChecksum = "0000000000000000";

// Where its 16 digits stand in the first `header` bytes of a file; npos: nowhere.
inline size_t checksum_place(std::string_view file, size_t header) {
  const size_t key = file.substr(0, header).find(kChecksumKey);
  const size_t place = key == file.npos ? file.npos : key + kChecksumKey.size();
  return place == file.npos || place + kNoChecksum.size() > header ? file.npos : place;
}

// Over all bytes, zeros in the place of the digits.
inline std::string checksum_of(std::string_view file, size_t place) {
  const uint64_t before = fnv1a(kNoChecksum, fnv1a(file.substr(0, place)));
  return hexadecimal(fnv1a(file.substr(place + kNoChecksum.size()), before));
}

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FLAGGED_CHECKSUM_H_
