#include "lab/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

namespace foreshock::lab {
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

}  // namespace foreshock::lab
