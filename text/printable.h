// Makes text from trainers and files safe to print: a terminal executes control sequences and obeys invisible
// characters that change the order of letters.
#ifndef FORESHOCK_TEXT_PRINTABLE_H_
#define FORESHOCK_TEXT_PRINTABLE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace foreshock {

// Decodes the character of UTF-8 at the beginning of `text`, which must not be empty. Returns its bytes, and
// sets *character. Returns 0 if it is invalid.
inline size_t decode_utf8(std::string_view text, uint32_t* character) {
  const auto byte = [&](size_t n) { return static_cast<unsigned char>(text[n]); };
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // by the number of bytes; else it is overlong
  const size_t bytes = byte(0) < 0x80 ? 1 : byte(0) < 0xc0 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (bytes == 0 || bytes > text.size() || byte(0) > 0xf7) return 0;
  uint32_t value = bytes == 1 ? byte(0) : byte(0) & (0x7fu >> bytes);
  for (size_t n = 1; n < bytes; ++n) {
    if ((byte(n) & 0xc0) != 0x80) return 0;
    value = value << 6 | (byte(n) & 0x3f);
  }
  *character = value;
  const bool is_surrogate = value >= 0xd800 && value <= 0xdfff;
  return value < kLeast[bytes] || value > 0x10ffff || is_surrogate ? 0 : bytes;
}

// Whether the character controls a terminal (C0, C1), or is invisible and hides or reorders its neighbours
// (Unicode's category Cf: marks of direction, zero width, tags; separators of lines and paragraphs).
inline bool is_control_character(uint32_t c) {
  constexpr struct {
    uint32_t first, last;
  } kRanges[] = {{0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},
                 {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f},
                 {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};
  for (const auto& range : kRanges)
    if (c >= range.first && c <= range.last) return true;
  return false;
}

// Calls keep(bytes of a character) for characters that may be printed, and replace(character) for the others:
// 0xfffd if the bytes are not UTF-8.
template <class Keep, class Replace>
void for_each_character(std::string_view text, const Keep& keep, const Replace& replace) {
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = decode_utf8(text, &character);
    if (bytes != 0 && !is_control_character(character))
      keep(text.substr(0, bytes));
    else
      replace(bytes != 0 ? character : 0xfffd);
    text.remove_prefix(bytes != 0 ? bytes : 1);
  }
}

// Replaces control characters and bytes that are not UTF-8 by '?', except newlines if `keeps_newlines`.
inline std::string printable(std::string_view text, bool keeps_newlines = false) {
  std::string result;
  result.reserve(text.size());
  for_each_character(
      text, [&](std::string_view bytes) { result += bytes; },
      [&](uint32_t character) { result += keeps_newlines && character == '\n' ? '\n' : '?'; });
  return result;
}

// Writes the control characters in a JSON text as \u escapes, so that the values stay the same. The text must
// be valid JSON without control characters (C0) outside of strings but newlines.
inline std::string printable_json(std::string_view json) {
  std::string result;
  result.reserve(json.size());
  for_each_character(
      json, [&](std::string_view bytes) { result += bytes; },
      [&](uint32_t character) {
        if (character == '\n') return void(result += '\n');
        char escape[16];
        const uint32_t above = character - 0x10000;  // is written as two halves if it is not negative
        if (character < 0x10000)
          std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(character));
        else
          std::snprintf(escape, sizeof escape, "\\u%04x\\u%04x",
                        static_cast<unsigned>(0xd800 + (above >> 10)),
                        static_cast<unsigned>(0xdc00 + (above & 0x3ff)));
        result += escape;
      });
  return result;
}

}  // namespace foreshock

#endif  // FORESHOCK_TEXT_PRINTABLE_H_
