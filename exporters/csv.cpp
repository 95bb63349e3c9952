#include "exporters/csv.h"

#include <charconv>
#include <cmath>

#include "exporters/record_fields.h"

namespace foreshock {
namespace {

template <class Number>
std::string number_text(Number value) {
  char buffer[32];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end.ptr};
}

std::string cell(const std::string& value) { return csv_text(value); }
std::string cell(const std::optional<bool>& value) { return value ? (*value ? "true" : "false") : ""; }
std::string cell(const std::optional<double>& value) {
  if (!value) return "";
  return std::isfinite(*value) ? number_text(*value) : "nan";
}
template <class Integer>
std::string cell(const std::optional<Integer>& value) {
  return value ? number_text(*value) : "";
}
// "name=1.5 other=2"
template <class Value>
std::string cell(const std::map<std::string, Value>& values) {
  std::string text;
  for (const auto& [name, value] : values)
    text += (text.empty() ? "" : " ") + name + "=" + cell(std::optional<Value>(value));
  return csv_text(text);
}
std::string cell(const std::vector<int64_t>& value) {
  std::string text;
  for (int64_t number : value) (text += text.empty() ? "" : " ") += number_text(number);
  return text;
}

template <class Line, class Cell>
std::string row(const Line& line, const Cell& cell_of) {
  std::string text;
  visit_fields(line, [&](const char* name, const auto& value) {
    if (!text.empty() || name != fields_of(&line)[0].name) text += ',';
    text += cell_of(name, value);
  });
  return text + "\n";
}

}  // namespace

const char* type_of(const RecordLine& line) {
  return std::visit([](const auto& of) { return type_of(&of); }, line);
}

std::string csv_text(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string csv_header(const RecordLine& line) {
  return std::visit(
      [](const auto& of) { return row(of, [](const char* name, const auto&) { return std::string(name); }); },
      line);
}

std::string csv_row(const RecordLine& line) {
  return std::visit(
      [](const auto& of) { return row(of, [](const char*, const auto& value) { return cell(value); }); },
      line);
}

}  // namespace foreshock
