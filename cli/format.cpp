#include "cli/format.h"

#include <algorithm>
#include <cstdio>

namespace foreshock::cli {

std::string formatted(const char* format, std::optional<double> value) {
  if (!value) return "unknown";
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, *value);
  return buffer;
}

std::string count(std::optional<double> value) {
  if (!value) return "unknown";
  std::string digits = formatted("%.0f", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, " ");
  return digits;
}

std::string reasons(const std::map<std::string, double>& counts) {
  std::string line;
  for (const auto& [reason, value] : counts) line += (line.empty() ? "" : ", ") + count(value) + " " + reason;
  return line.empty() ? "none" : line;
}

std::string in_brackets(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text.empty() ? "" : " (" + text + ")";
}

std::string row(const std::string& name, const std::string& forward, const std::string& backward,
                const std::string& remark) {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, "  %-20s%14s%14s", name.c_str(), forward.c_str(), backward.c_str());
  return buffer + (remark.empty() ? "" : "   " + remark) + "\n";
}

std::string fact(const std::string& name, const std::string& value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "  %-20s", name.c_str());
  return buffer + value + "\n";
}

}  // namespace foreshock::cli
