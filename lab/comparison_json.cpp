#include "lab/comparison_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/report_page.h"
#include "lab/study.h"

namespace foreshock::lab {
namespace {

using nlohmann::ordered_json;

ordered_json number(double x) { return std::isfinite(x) ? ordered_json(x) : ordered_json(nullptr); }

void add_figures(const Distance& d, ordered_json* to) {
  ordered_json& json = *to;
  const bool pairs = d.difference.pairs > 0;
  json["elements"] = d.elements;
  json["w1"] = number(d.wasserstein.value);
  json["w1_low"] = number(d.wasserstein.low);
  json["w1_high"] = number(d.wasserstein.high);
  json["w1_noise_floor"] = number(d.noise_floor);
  json["mean_abs"] = number(d.difference.mean_magnitude());
  json["max_abs"] = pairs ? number(d.difference.max_magnitude) : ordered_json(nullptr);
  json["w1_over_mean_abs"] = number(d.drift());
  json["relative_l2"] = number(d.difference.relative_l2());
  json["magnitude"] = number(d.magnitude);
  json["non_finite_a"] = d.non_finite_a;
  json["non_finite_b"] = d.non_finite_b;
}

ordered_json to_json(const TensorDistance& tensor) {
  ordered_json json{
      {"name", tensor.name}, {"type_a", tensor.type_a}, {"type_b", tensor.type_b}, {"shape", tensor.shape}};
  add_figures(tensor.distance, &json);
  return json;
}

ordered_json to_json(const std::vector<Unlike>& unlike) {
  ordered_json list = ordered_json::array();
  for (const Unlike& u : unlike) list.push_back({{"name", u.name}, {"a", u.a}, {"b", u.b}});
  return list;
}

ordered_json to_json(const PairResult& result) {
  ordered_json json{{"name", result.pair.name}, {"a", result.pair.a}, {"b", result.pair.b}};
  add_figures(result.pooled, &json["pooled"]);
  json["tensors"] = ordered_json::array();
  for (const TensorDistance& tensor : result.tensors) json["tensors"].push_back(to_json(tensor));
  json["only_in_a"] = result.only_in_a;
  json["only_in_b"] = result.only_in_b;
  json["shapes_differ"] = to_json(result.shapes);
  json["types_differ"] = to_json(result.types);
  json["not_compared"] = to_json(result.untouched);
  return json;
}

ordered_json whole(const Comparison& comparison) {
  ordered_json root{{"schema", 1},
                    {"versions", ordered_json::object()},
                    {"checkpoints", comparison.paths},
                    {"pairs", ordered_json::array()}};
  for (const auto& [name, version] : versions()) root["versions"][name] = version;
  for (const PairResult& result : comparison.pairs) root["pairs"].push_back(to_json(result));
  return root;
}

// A path may be any bytes; JSON may not.
std::string dumped(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string to_json(const Comparison& comparison) { return dumped(whole(comparison), 1) + "\n"; }

std::string to_page(const Comparison& comparison) {
  ordered_json data = whole(comparison);
  data["bytes"] = comparison.bytes;
  data["seconds"] = comparison.seconds;
  return report_page("foreshock compare", kCompareScript, dumped(data, -1));
}

}  // namespace foreshock::lab
