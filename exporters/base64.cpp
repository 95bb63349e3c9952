#include "exporters/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace foreshock {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNone = 0xff;

constexpr std::array<uint8_t, 256> kValues = [] {
  std::array<uint8_t, 256> values{};
  values.fill(kNone);
  for (uint8_t n = 0; n < 64; ++n) values[static_cast<uint8_t>(kDigits[n])] = n;
  return values;
}();

uint32_t byte_at(std::string_view bytes, size_t at) {
  return at < bytes.size() ? static_cast<uint8_t>(bytes[at]) : 0;
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const uint32_t word = byte_at(bytes, at) << 16 | byte_at(bytes, at + 1) << 8 | byte_at(bytes, at + 2);
    const size_t digits = std::min<size_t>(bytes.size() - at, 3) + 1;
    for (size_t n = 0; n < 4; ++n) text += n < digits ? kDigits[word >> (18 - 6 * n) & 63] : '=';
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  size_t digits = text.size();
  while (digits > 0 && text.size() - digits < 2 && text[digits - 1] == '=') --digits;
  uint32_t word = 0;
  for (size_t at = 0; at < digits; ++at) {
    const uint8_t value = kValues[static_cast<uint8_t>(text[at])];
    if (value == kNone) return std::nullopt;
    word = word << 6 | value;
    if (at % 4 != 0) bytes += static_cast<char>(word >> (6 - 2 * (at % 4)));
  }
  const uint32_t left_over = digits % 4 == 2 ? word & 15 : digits % 4 == 3 ? word & 3 : 0;
  if (left_over != 0) return std::nullopt;
  return bytes;
}

}  // namespace foreshock
