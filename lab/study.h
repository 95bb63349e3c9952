// The named sweeps: which points, what to plot, and what the literature says about them.
#ifndef FORESHOCK_LAB_STUDY_H_
#define FORESHOCK_LAB_STUDY_H_

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/measure.h"

namespace foreshock::lab {

// One statement, and what the measurements say to it.
struct Claim {
  std::string source;  // where the statement comes from
  std::string statement;
  std::string measured;
  bool holds = false;
};

// x, y and series are names of axes and statistics as in the JSON (series: one or several, by comma);
// `tensor` is the one the table and the chart show (empty: all).
struct Sweep {
  std::string_view name;
  std::string_view question;
  std::string_view x, y, series;
  std::string_view tensor;
  bool log_x, log_y;
  std::vector<Point> (*points)();
  std::vector<Claim> (*claims)(std::span<const Measurement>);
};

std::span<const Sweep> sweeps();
const Sweep* find_sweep(std::string_view name);  // null: no such sweep

// What a sweep measures when nothing is asked for: fig3, fig4, fig5, fig6.
std::span<const std::string_view> default_sweeps();

// A study is what one call of `foreshock lab` measures: one or several sweeps, what was found, and on what.

struct SweepResult {
  std::string name;              // of the sweep, or "custom"
  const Sweep* sweep = nullptr;  // null: custom
  std::vector<Measurement> measurements;
  std::vector<Claim> claims;
};

struct Study {
  std::vector<SweepResult> sweeps;
  double seconds = 0;
};

// Name and value of every axis of a point, in the order of the table. The accumulator is spelled out.
using Axes = std::vector<std::pair<std::string, std::string>>;
Axes axes_of(const Point& point);

// The program, its compiler and the libraries of the page, as (name, version).
std::vector<std::pair<std::string, std::string>> versions();

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_STUDY_H_
