#include "exporters/record_line.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "exporters/record_fields.h"

namespace foreshock {
namespace {

template <class Line>
std::vector<RecordField> describe() {
  std::vector<RecordField> result;
  for (const Field<Line>& field : fields_of(static_cast<const Line*>(nullptr))) {
    result.push_back({field.name, kMemberTypes[field.member.index()], field.unit, field.help});
  }
  return result;
}

// -- one line --

using Json = nlohmann::ordered_json;

Json to_json(const std::string& value) { return value.empty() ? Json() : Json(value); }
Json to_json(const std::vector<int64_t>& value) { return value.empty() ? Json() : Json(value); }
Json to_json(const std::map<std::string, double>& values) {
  Json object;  // null when there are none
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

template <class Line>
std::string write_fields(const Line& line) {
  Json object = {{"schema", kRecordSchema}, {"type", type_of(&line)}};
  Json nonfinite = Json::array();
  visit_fields(line, [&](const char* name, const auto& value) {
    object[name] = is_nonfinite(value) ? Json() : to_json(value);
    if (is_nonfinite(value)) nonfinite.push_back(name);
  });
  if (!nonfinite.empty()) object["nonfinite"] = nonfinite;
  // Text from a trainer may be any bytes.
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::vector<RecordField> record_fields(const std::string& line_type) {
  if (line_type == "run") return describe<RunLine>();
  if (line_type == "step") return describe<StepLine>();
  if (line_type == "sample") return describe<SampleLine>();
  if (line_type == "tensor") return describe<TensorLine>();
  if (line_type == "model") return describe<ModelLine>();
  if (line_type == "optimizer") return describe<OptimizerLine>();
  if (line_type == "spectrum") return describe<SpectrumLine>();
  if (line_type == "event") return describe<EventLine>();
  return {};
}

std::string record_markdown() {
  std::string text;
  for (const char* type : {"run", "step", "sample", "tensor", "model", "optimizer", "spectrum", "event"}) {
    text += std::string(text.empty() ? "" : "\n") + "### `\"type\": \"" + type + "\"`\n\n" +
            "| field | type | unit | meaning |\n| --- | --- | --- | --- |\n";
    for (const RecordField& field : record_fields(type)) {
      text += "| `" + field.name + "` | " + field.type + " | " + field.unit + " | " + field.help + " |\n";
    }
  }
  return text;
}

std::string to_json_line(const RunLine& line) { return write_fields(line); }
std::string to_json_line(const StepLine& line) { return write_fields(line); }
std::string to_json_line(const SampleLine& line) { return write_fields(line); }
std::string to_json_line(const TensorLine& line) { return write_fields(line); }
std::string to_json_line(const ModelLine& line) { return write_fields(line); }
std::string to_json_line(const OptimizerLine& line) { return write_fields(line); }
std::string to_json_line(const SpectrumLine& line) { return write_fields(line); }
std::string to_json_line(const EventLine& line) { return write_fields(line); }

}  // namespace foreshock
