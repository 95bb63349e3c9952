#include "libmonitor/options.h"

#include <cstdlib>
#include <cstring>

namespace foreshock {
namespace {

constexpr bool rows_stand_at_their_id() {
  for (size_t row = 0; row < kOptionCount; ++row) {
    if (static_cast<size_t>(kOptions[row].id) != row) return false;
  }
  return true;
}
static_assert(rows_stand_at_their_id());

// Not strtoull, which accepts signs, spaces and the locale's digits.
const char* read_digits(const char* text, uint64_t* result) {
  const char* at = text;
  uint64_t value = 0;
  for (; *at >= '0' && *at <= '9'; ++at) {
    const uint64_t digit = static_cast<uint64_t>(*at - '0');
    if (value > (UINT64_MAX - digit) / 10) return nullptr;
    value = value * 10 + digit;
  }
  if (at == text) return nullptr;
  *result = value;
  return at;
}

// Not strtod, which follows the trainer's locale ("0,01").
const char* read_decimal(const char* text, double* result) {
  uint64_t whole = 0;
  const char* at = read_digits(text, &whole);
  if (at == nullptr) return nullptr;
  double value = static_cast<double>(whole);
  if (*at == '.') {
    double unit = 0.1;
    for (++at; *at >= '0' && *at <= '9'; ++at, unit /= 10) value += unit * (*at - '0');
  }
  *result = value;
  return at;
}

struct Unit {
  const char* name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},           {"B", 1},          {"KiB", 1ull << 10}, {"MiB", 1ull << 20},  {"GiB", 1ull << 30},
    {"kB", 1000},      {"KB", 1000},      {"MB", 1000'000},    {"GB", 1000'000'000}, {"K", 1ull << 10},
    {"M", 1ull << 20}, {"G", 1ull << 30},
};

bool is_one_of(const char* text, const char* const (&names)[4]) {
  for (const char* name : names) {
    if (std::strcmp(text, name) == 0) return true;
  }
  return false;
}

}  // namespace

const Option& option(OptionId id) { return kOptions[static_cast<size_t>(id)]; }

const char* option_value(OptionId id) {
  const Option& row = option(id);
  const char* given = row.variable != nullptr ? std::getenv(row.variable) : nullptr;
  return given != nullptr && *given != '\0' ? given : row.fallback;
}

bool parse_ratio(const char* text, double* result) {
  double value = 0;
  const char* rest = read_decimal(text, &value);
  if (rest == nullptr) return false;
  if (*rest == ' ') ++rest;
  if (*rest == '%') {
    value /= 100;
    ++rest;
  }
  if (*rest != '\0' || !(value <= 1)) return false;
  *result = value;
  return true;
}

bool parse_bytes(const char* text, uint64_t* result) {
  uint64_t value = 0;
  const char* rest = read_digits(text, &value);
  if (rest == nullptr) return false;
  if (*rest == ' ') ++rest;
  for (const Unit& unit : kUnits) {
    if (std::strcmp(rest, unit.name) != 0) continue;
    if (value > UINT64_MAX / unit.bytes) return false;
    *result = value * unit.bytes;
    return true;
  }
  return false;
}

bool parse_count(const char* text, uint64_t* result) {
  uint64_t value = 0;
  const char* rest = read_digits(text, &value);
  if (rest == nullptr || *rest != '\0') return false;
  *result = value;
  return true;
}

bool parse_number(OptionId id, const char* text, uint64_t* result) {
  const Option& row = option(id);
  const bool is_bytes = row.value != nullptr && std::strcmp(row.value, "BYTES") == 0;
  uint64_t value = 0;
  if (!(is_bytes ? parse_bytes(text, &value) : parse_count(text, &value))) return false;
  const bool is_default_zero = value == 0 && std::strcmp(row.fallback, "0") == 0;
  if (!is_default_zero && (value < row.least || value > row.most)) return false;
  *result = value;
  return true;
}

bool parse_switch(const char* text, bool* result) {
  static constexpr const char* kOn[4] = {"on", "1", "true", "yes"};
  static constexpr const char* kOff[4] = {"off", "0", "false", "no"};
  if (is_one_of(text, kOn)) {
    *result = true;
    return true;
  }
  if (!is_one_of(text, kOff)) return false;
  *result = false;
  return true;
}

}  // namespace foreshock
