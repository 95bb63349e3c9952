#include "lab/study_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "lab/build_info.h"

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

namespace {

using Row = std::vector<std::string>;

// A multi-byte character counts as one.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string written(const char* format, double x) {
  if (!std::isfinite(x)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, x);
  return text;
}

// Half the width of the interval, relative to the mean, in per cent.
std::string spread(const Interval& interval) {
  const double half = (interval.high - interval.low) / 2;
  return interval.mean == 0 ? "" : written(" ±%.0f%%", 100 * half / std::fabs(interval.mean));
}

// A sweep says which tensor it is about. Elsewhere the log-sum-exp, which is not stored in the format, is
// left to the JSON.
bool is_shown(const SweepResult& result, const Measurement& m) {
  if (result.sweep && !result.sweep->tensor.empty()) return m.tensor == result.sweep->tensor;
  return m.tensor != "log_sum_exp";
}

std::vector<Measurement> shown(const SweepResult& result) {
  std::vector<Measurement> measurements;
  for (const Measurement& m : result.measurements)
    if (is_shown(result, m)) measurements.push_back(m);
  return measurements;
}

std::set<std::string> varying(const std::vector<Measurement>& measurements) {
  std::set<std::string> names;
  const Axes first = axes_of(measurements.front().point);
  for (const Measurement& m : measurements) {
    const Axes axes = axes_of(m.point);
    for (size_t i = 0; i < axes.size(); ++i)
      if (axes[i].second != first[i].second) names.insert(axes[i].first);
  }
  names.insert("algorithm");
  return names;
}

Row figures(const Measurement& m) {
  return {m.tensor,
          written("%.2e", m.max_abs.mean) + spread(m.max_abs),
          written("%.2e", m.mean_abs.mean),
          written("%.1e", m.std_abs.mean),
          written("%.2e", m.relative_l2.mean) + spread(m.relative_l2),
          written("%+.3f", m.bias_ulp.mean),
          written("%+.0f", m.bias_z),
          written("%.2f", m.ratio_to_plain.mean),
          written("%.2f", m.max_ratio_to_plain.mean)};
}

const Row kFigures = {"tensor",   "max", "mean",     "std",      "relative L2",
                      "bias ulp", "z",   "L2/plain", "max/plain"};

std::string heading(const SweepResult& result, const Measurement& first, const std::set<std::string>& names) {
  std::string text = result.name;
  if (result.sweep) text += ": " + std::string(result.sweep->question);
  text += "\n  ";
  for (const auto& [axis, value] : axes_of(first.point)) {
    const bool obvious = value == "rne" || value == "forward" || value == "out" || value == "stored" ||
                         axis == "first_seed" || axis == "splits" || (axis == "scale" && value == "1");
    if (!names.contains(axis) && !obvious) text += axis + " " + value + "  ";
  }
  return text + "\n\n";
}

std::string verdict(const Claim& claim, bool colour) {
  const char* start = !colour ? "" : claim.holds ? "\033[32m" : "\033[31m";
  return std::string("  ") + start + (claim.holds ? "holds" : "fails") + (colour ? "\033[0m" : "") + "  " +
         claim.source + ": " + claim.statement + "\n         " + claim.measured + "\n";
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left_columns) {
  std::vector<size_t> width(rows[0].size(), 0);
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], width_of(row[i]));
  std::string text;
  for (const Row& row : rows) {
    text += " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(width[i] - width_of(row[i]), ' ');
      text += " " + (i < left_columns ? row[i] + padding : padding + row[i]) + " ";
    }
    text += "\n";
  }
  return text;
}

std::string table_of(const SweepResult& result, bool colour) {
  const std::vector<Measurement> measurements = shown(result);
  if (measurements.empty()) return "";
  const std::set<std::string> names = varying(measurements);
  std::vector<Row> rows(1);
  for (const auto& [axis, value] : axes_of(measurements.front().point))
    if (names.contains(axis)) rows[0].push_back(axis);
  const size_t left_columns = rows[0].size() + 1;
  rows[0].insert(rows[0].end(), kFigures.begin(), kFigures.end());
  for (const Measurement& m : measurements) {
    Row row;
    for (const auto& [axis, value] : axes_of(m.point))
      if (names.contains(axis)) row.push_back(value);
    const Row own = figures(m);
    row.insert(row.end(), own.begin(), own.end());
    rows.push_back(row);
  }
  std::string text = heading(result, measurements.front(), names) + aligned(rows, left_columns) + "\n";
  for (const Claim& claim : result.claims) text += verdict(claim, colour);
  return text + "\n";
}

namespace {

void replace(std::string& page, const std::string& marker, const std::string& text) {
  for (size_t at = page.find(marker); at != std::string::npos; at = page.find(marker, at + text.size()))
    page.replace(at, marker.size(), text);
}

// JSON inside a script element: no character may close the element.
std::string inside_script(const std::string& json) {
  std::string text;
  for (char c : json) c == '<' ? text += "\\u003c" : text += c;
  return text;
}

}  // namespace

std::string report_page(const std::string& title, const char* script, const std::string& json) {
  std::string page = kPageHtml;
  // Data last: whatever it holds is not searched for markers again.
  replace(page, "/*TITLE*/", title);
  replace(page, "/*STYLE*/", kPageStyle);
  replace(page, "/*SCRIPT*/", std::string(kPageScript) + script);
  replace(page, "/*CHART*/", kChartLibrary);
  const std::string marker = "/*DATA*/";
  page.replace(page.find(marker), marker.size(), inside_script(json));
  return page;
}

}  // namespace foreshock::lab
