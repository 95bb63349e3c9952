// Values of the JSON that the agent and `foreshock detect` write: what is not known is null, never 0.
#ifndef FORESHOCK_AGENT_JSON_VALUES_H_
#define FORESHOCK_AGENT_JSON_VALUES_H_

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace foreshock {

// JSON has no NaN and no infinity either.
inline nlohmann::json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

// A step or another count of which -1 is unknown.
inline nlohmann::json count_or_null(int64_t value) {
  return value >= 0 ? nlohmann::json(value) : nlohmann::json(nullptr);
}

inline nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_JSON_VALUES_H_
