// Formats numbers and names for texts that a person reads: the findings and the summary of a run.
#ifndef FORESHOCK_AGENT_TEXT_H_
#define FORESHOCK_AGENT_TEXT_H_

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "text/printable.h"  // for names from a trainer

namespace foreshock {

// `format`: a printf format for one double, of at most 63 characters when printed.
std::string formatted(const char* format, double value);
std::string formatted(const char* format, std::optional<double> value);  // "unknown" if absent
std::string duration_text(double seconds);                               // "90 s", "12 min", "3.1 h"
std::string grouped_digits(std::string digits);                          // "1234567" -> "1 234 567"
std::string grouped(std::integral auto value) { return grouped_digits(std::to_string(value)); }
std::string counted(uint64_t value, const char* singular, const char* plural);
std::string spaced(std::string text);  // replaces "_" by " "
// Formats counts as "3 budget, 1 mask"; "" if all are 0.
std::string listed(const std::map<std::string, uint64_t>& counts);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TEXT_H_
