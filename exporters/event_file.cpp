#include "exporters/event_file.h"

#include <bit>
#include <boost/crc.hpp>
#include <cstring>

namespace foreshock {
namespace {

static_assert(std::endian::native == std::endian::little, "words are stored as they are");

template <class Word>
std::string bytes_of(Word word) {
  char bytes[sizeof word];
  std::memcpy(bytes, &word, sizeof word);
  return {bytes, sizeof bytes};
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// Wire types of a protocol buffer's fields.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string key(uint32_t field, WireType type) { return varint(field << 3 | type); }

std::string bytes_field(uint32_t field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

// Fields of tensorflow.Event, Summary and Summary.Value (tensorboard/compat/proto/event.proto,
// summary.proto).
std::string wall_time_field(double wall_time) { return key(1, kFixed64) + bytes_of(wall_time); }

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(crc.checksum(), 15) + 0xa282ead8u;
}

std::string framed_record(std::string_view payload) {
  const std::string length = bytes_of(static_cast<uint64_t>(payload.size()));
  return length + bytes_of(masked_crc32c(length)) + std::string(payload) + bytes_of(masked_crc32c(payload));
}

std::string version_event(double wall_time) {
  return wall_time_field(wall_time) + bytes_field(3, "brain.Event:2");
}

std::string scalar_event(double wall_time, int64_t step, std::string_view tag, float value) {
  const std::string number = key(2, kFixed32) + bytes_of(value);
  const std::string summary = bytes_field(1, bytes_field(1, tag) + number);
  return wall_time_field(wall_time) + key(2, kVarint) + varint(static_cast<uint64_t>(step)) +
         bytes_field(5, summary);
}

}  // namespace foreshock
