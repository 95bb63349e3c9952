#include "lab/study_json.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lab/report_page.h"

namespace foreshock::lab {
namespace {

using nlohmann::ordered_json;

ordered_json number(double x) { return std::isfinite(x) ? ordered_json(x) : ordered_json(nullptr); }

ordered_json to_json(const Interval& interval) {
  return {{"mean", number(interval.mean)}, {"low", number(interval.low)}, {"high", number(interval.high)}};
}

bool is_number_axis(const std::string& name) {
  for (const char* axis : {"n", "d", "rows", "block_q", "block_k", "splits", "scale", "seeds", "first_seed"})
    if (name == axis) return true;
  return false;
}

ordered_json to_json(const Measurement& m) {
  ordered_json point{{"sweep", m.point.sweep}};
  for (const auto& [axis, value] : axes_of(m.point))
    point[axis] =
        is_number_axis(axis) ? ordered_json(std::strtod(value.c_str(), nullptr)) : ordered_json(value);
  point["tensor"] = m.tensor;
  point["max_abs"] = to_json(m.max_abs);
  point["mean_abs"] = to_json(m.mean_abs);
  point["std_abs"] = to_json(m.std_abs);
  point["relative_l2"] = to_json(m.relative_l2);
  point["bias_ulp"] = to_json(m.bias_ulp);
  // One figure for all seeds: z is the mean over its standard error between seeds.
  point["bias_z"] = {{"mean", number(m.bias_z)}, {"low", nullptr}, {"high", nullptr}};
  point["ratio_to_plain"] = to_json(m.ratio_to_plain);
  point["max_ratio_to_plain"] = to_json(m.max_ratio_to_plain);
  point["max_from_plain"] = to_json(m.max_from_plain);
  point["signed_sum"] = to_json(m.signed_sum);
  point["max_over_roundoff"] = to_json(m.over_roundoff);
  point["non_finite"] = m.non_finite;
  return point;
}

ordered_json whole(const Study& study) {
  ordered_json root{{"schema", 1},
                    {"versions", ordered_json::object()},
                    {"points", ordered_json::array()},
                    {"claims", ordered_json::array()}};
  for (const auto& [name, version] : versions()) root["versions"][name] = version;
  for (const SweepResult& sweep : study.sweeps) {
    for (const Measurement& m : sweep.measurements) root["points"].push_back(to_json(m));
    for (const Claim& c : sweep.claims)
      root["claims"].push_back({{"sweep", sweep.name},
                                {"source", c.source},
                                {"statement", c.statement},
                                {"measured", c.measured},
                                {"holds", c.holds}});
  }
  return root;
}

// What the page needs beyond the JSON: what to draw.
ordered_json drawings(const Study& study) {
  ordered_json list = ordered_json::array();
  for (const SweepResult& result : study.sweeps) {
    ordered_json drawing{{"name", result.name}};
    if (const Sweep* sweep = result.sweep) {
      drawing["question"] = sweep->question;
      drawing["x"] = sweep->x;
      drawing["y"] = sweep->y;
      drawing["series"] = sweep->series;
      drawing["tensor"] = sweep->tensor;
      drawing["log_x"] = sweep->log_x;
      drawing["log_y"] = sweep->log_y;
    }
    list.push_back(drawing);
  }
  return list;
}

}  // namespace

std::string to_json(const Study& study) { return whole(study).dump(1) + "\n"; }

std::string to_page(const Study& study) {
  ordered_json data = whole(study);
  data["drawings"] = drawings(study);
  data["seconds"] = study.seconds;
  return report_page("foreshock lab", kLabScript, data.dump());
}

}  // namespace foreshock::lab
