#include "exporters/history_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace foreshock {
namespace {

// nlohmann's numbers have up to nine digits and take three times as long, for hundreds of thousands of them.
void append_number(float value, std::string* text) {
  if (!std::isfinite(value)) {
    *text += "null";
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 5);
  text->append(buffer, end.ptr);
}

std::string quoted(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append_column(std::string_view name, const std::vector<float>& values, std::string* text) {
  ((*text += '"') += name) += "\":[";
  for (size_t n = 0; n < values.size(); ++n) {
    if (n > 0) *text += ',';
    append_number(values[n], text);
  }
  *text += ']';
}

void append_table(const HistoryTable& table, std::string* text) {
  *text += "{\"run\":" + quoted(table.run) + ",\"rank\":" + std::to_string(table.rank) +
           ",\"layer\":" + (table.layer.empty() ? "null" : quoted(table.layer)) +
           ",\"first_step\":" + std::to_string(table.first_step) +
           ",\"steps_per_point\":" + std::to_string(table.steps_per_point) + ",\"columns\":{";
  bool first = true;
  for (const auto& [name, values] : table.columns) {
    if (std::none_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
      continue;
    if (!first) *text += ',';
    first = false;
    append_column(name, values, text);
  }
  *text += "}}";
}

}  // namespace

std::string history_json(const std::vector<HistoryTable>& tables, std::string_view run) {
  std::string text = "{\"schema\":1,\"tables\":[";
  bool first = true;
  for (const HistoryTable& table : tables) {
    if (!run.empty() && table.run != run) continue;
    if (!first) text += ',';
    first = false;
    append_table(table, &text);
  }
  return text + "]}";
}

}  // namespace foreshock
