// Converts lines of a record to JSON, the tables of their fields to Markdown, and bytes to base64 and back.
#include "exporters/record_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace foreshock {
namespace {

using Json = nlohmann::ordered_json;

// Each to_json() converts an unknown (empty) value to null.
Json to_json(const std::string& value) { return value.empty() ? Json() : Json(value); }
Json to_json(const std::vector<int64_t>& value) { return value.empty() ? Json() : Json(value); }
Json to_json(const std::map<std::string, double>& values) {
  Json object;  // stays null if there are no values
  for (const auto& [name, value] : values) object[name] = std::isfinite(value) ? Json(value) : Json();
  return object;
}
Json to_json(const std::map<std::string, int64_t>& values) { return values.empty() ? Json() : Json(values); }
template <class Value>
Json to_json(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

bool is_nonfinite(const std::optional<double>& value) { return value && !std::isfinite(*value); }
template <class Value>
bool is_nonfinite(const Value&) {
  return false;
}

}  // namespace

template <class Line>
std::string to_json_line(const Line& line) {
  Json object = {{"schema", kRecordSchema}, {"type", Line::kType}};
  Json nonfinite = Json::array();
  Line::visit(line, [&](const char* name, const auto& value) {
    object[name] = is_nonfinite(value) ? Json() : to_json(value);
    if (is_nonfinite(value)) nonfinite.push_back(name);
  });
  if (!nonfinite.empty()) object["nonfinite"] = nonfinite;
  // Text from a trainer may contain invalid UTF-8.
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template std::string to_json_line(const RunLine&);
template std::string to_json_line(const StepLine&);
template std::string to_json_line(const SampleLine&);
template std::string to_json_line(const TensorLine&);
template std::string to_json_line(const ModelLine&);
template std::string to_json_line(const OptimizerLine&);
template std::string to_json_line(const SpectrumLine&);
template std::string to_json_line(const EventLine&);

std::span<const RecordField> record_fields(std::string_view line_type) {
  std::span<const RecordField> fields;
  // Sets `fields` to those of the line struct whose type is `line_type`.
  const auto find_fields = [&]<class... Lines>(const Lines*...) {
    ((line_type == Lines::kType ? void(fields = Lines::kFields) : void()), ...);
  };
  find_fields(static_cast<const RunLine*>(nullptr), static_cast<const StepLine*>(nullptr),
              static_cast<const SampleLine*>(nullptr), static_cast<const TensorLine*>(nullptr),
              static_cast<const ModelLine*>(nullptr), static_cast<const OptimizerLine*>(nullptr),
              static_cast<const SpectrumLine*>(nullptr), static_cast<const EventLine*>(nullptr));
  return fields;
}

std::string record_markdown() {
  std::string text;
  for (const char* type : {"run", "step", "sample", "tensor", "model", "optimizer", "spectrum", "event"}) {
    text += std::string(text.empty() ? "" : "\n") + "### `\"type\": \"" + type + "\"`\n\n" +
            "| field | type | unit | meaning |\n| --- | --- | --- | --- |\n";
    for (const RecordField& field : record_fields(type)) {
      text += std::string("| `") + field.name + "` | " + field.type + " | " + field.unit + " | " +
              field.help + " |\n";
    }
  }
  return text;
}

namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNotADigit = 0xff;

// The value of each base64 digit, by its character.
constexpr std::array<uint8_t, 256> kValues = [] {
  std::array<uint8_t, 256> values{};
  values.fill(kNotADigit);
  for (uint8_t n = 0; n < 64; ++n) values[static_cast<uint8_t>(kDigits[n])] = n;
  return values;
}();

uint32_t byte_at(std::string_view bytes, size_t index) {
  return index < bytes.size() ? static_cast<uint8_t>(bytes[index]) : 0;
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
  size_t digits = text.size();  // without at most two '=' at the end
  while (digits > 0 && text.size() - digits < 2 && text[digits - 1] == '=') --digits;
  uint32_t word = 0;
  for (size_t at = 0; at < digits; ++at) {
    const uint8_t value = kValues[static_cast<uint8_t>(text[at])];
    if (value == kNotADigit) return std::nullopt;
    word = word << 6 | value;
    if (at % 4 != 0) bytes += static_cast<char>(word >> (6 - 2 * (at % 4)));
  }
  // The last digit has 4 unused bits after one byte, 2 after two bytes. to_base64() sets them to 0.
  const uint32_t unused_bits = digits % 4 == 2 ? word & 15 : digits % 4 == 3 ? word & 3 : 0;
  if (unused_bits != 0) return std::nullopt;
  return bytes;
}

}  // namespace foreshock
