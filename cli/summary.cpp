#include "cli/summary.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace foreshock::cli {
namespace {

using Json = nlohmann::json;

std::string text_in(const Json& json, const char* key) {
  std::string text = json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7f; }, '?');
  return text;
}

}  // namespace

Summary read_summary(const std::string& json) {
  const Json parsed = Json::parse(json, nullptr, false);
  Summary summary;
  summary.is_valid = parsed.is_object();
  if (!summary.is_valid) return summary;
  summary.text = text_in(parsed, "text");
  summary.line = text_in(parsed, "line");
  summary.has_ranks = parsed.contains("ranks") && parsed["ranks"].is_array() && !parsed["ranks"].empty();
  summary.has_other_ranks = parsed.contains("other_ranks") && parsed["other_ranks"].is_number_unsigned() &&
                            parsed["other_ranks"] > 0;
  summary.has_refused = parsed.contains("refused");
  summary.lacks_record_lines = parsed.contains("record_complete") && parsed["record_complete"] == false;
  return summary;
}

std::string in_colour(const std::string& text) {
  const size_t end = text.find('\n');
  const size_t verdict = end == text.npos ? text.npos : text.rfind("  ", end);
  if (verdict == text.npos || verdict + 2 >= end) return text;
  // Faults are written in capitals.
  const std::string words = text.substr(verdict + 2, end - verdict - 2);
  const bool is_fault = std::isupper(static_cast<unsigned char>(words[0])) != 0;
  const char* colour = is_fault ? "\033[1;31m" : words == "healthy" ? "\033[32m" : "\033[33m";
  return "\033[1m" + text.substr(0, verdict) + "\033[0m  " + colour + words + "\033[0m" + text.substr(end);
}

bool wants_colour(int descriptor) {
  const char* none = std::getenv("NO_COLOR");
  return isatty(descriptor) == 1 && (none == nullptr || *none == '\0');
}

}  // namespace foreshock::cli
