#include "agent/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace foreshock {

std::string formatted(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  std::string text = buffer;
  if (std::isfinite(value)) return text;
  const size_t word = text.find_first_of("in");  // of "inf" or "nan"; the sign of NaN has no meaning
  const bool is_nan = std::isnan(value);
  const size_t begin = is_nan && word > 0 && text[word - 1] != ' ' ? word - 1 : word;
  return text.replace(begin, word + 3 - begin, is_nan ? "NaN" : "Inf");
}

std::string formatted(const char* format, std::optional<double> value) {
  return value ? formatted(format, *value) : "unknown";
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e10) return "not known";  // 1e10 s: 317 years
  if (seconds < 120) return formatted("%.0f s", seconds);
  return seconds < 7200 ? formatted("%.0f min", seconds / 60) : formatted("%.1f h", seconds / 3600);
}

std::string grouped_digits(std::string digits) {
  const int first = digits.starts_with('-') ? 1 : 0;
  for (int index = static_cast<int>(digits.size()) - 3; index > first; index -= 3)
    digits.insert(static_cast<size_t>(index), 1, ' ');
  return digits;
}

std::string counted(uint64_t value, const char* singular, const char* plural) {
  return grouped(value) + " " + (value == 1 ? singular : plural);
}

std::string spaced(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string listed(const std::map<std::string, uint64_t>& counts) {
  std::string line;
  for (const auto& [name, value] : counts)
    if (value > 0) line += (line.empty() ? "" : ", ") + grouped(value) + " " + spaced(name);
  return line;
}

}  // namespace foreshock
