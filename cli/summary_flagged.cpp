#include "cli/summary_flagged.h"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace foreshock::cli {
namespace {

using Json = nlohmann::json;

struct Sum {
  uint64_t count = 0;
  std::string text;  // "3 bias, 1 control"
};

Sum sum_of(const Json& flagged, const char* key) {
  Sum sum;
  if (!flagged.contains(key) || !flagged[key].is_object()) return sum;
  for (const auto& [name, count] : flagged[key].items()) {
    if (!count.is_number_unsigned()) continue;
    sum.count += count.get<uint64_t>();
    sum.text += (sum.text.empty() ? "" : ", ") + std::to_string(count.get<uint64_t>()) + " " + name;
  }
  return sum;
}

std::string text_in(const Json& flagged, const char* key) {
  return flagged.contains(key) && flagged[key].is_string() ? flagged[key].get<std::string>() : "";
}

}  // namespace

std::vector<std::string> flagged_lines(const std::string& json) {
  const Json summary = Json::parse(json, nullptr, false);
  if (!summary.is_object() || !summary.contains("flagged") || !summary["flagged"].is_object()) return {};
  const Json& flagged = summary["flagged"];
  const std::string folder = text_in(flagged, "directory"), problem = text_in(flagged, "problem");
  const Sum saved = sum_of(flagged, "saved"), dropped = sum_of(flagged, "dropped");
  std::vector<std::string> lines;
  if (saved.count > 0)
    lines.push_back(std::to_string(saved.count) + " flagged slices saved (" + saved.text +
                    "): foreshock judge " + folder + "/*.slice.safetensors");
  if (!problem.empty())
    lines.push_back("not every flagged slice could be saved (" + dropped.text + "): " + problem);
  return lines;
}

}  // namespace foreshock::cli
