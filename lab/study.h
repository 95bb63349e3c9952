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

// A study as JSON, as a page and as tables of text.

// {"schema": 1, "versions", "points": [...], "claims": [...]}; docs/lab.md lists the fields. A figure that is
// not a number (a non-finite result, a ratio to an error of zero) is null.
std::string to_json(const Study& study);

// The page of `--report`: one file that needs no other, with the study embedded.
std::string to_page(const Study& study);

// The terminal's view of a sweep, and tables of text.

// One line per measurement: the axes that vary, then the figures. What does not vary is said once above.
// Below: the claims. Only the sweep's own tensor is shown. `colour`: ANSI colours for the verdicts.
std::string table_of(const SweepResult& result, bool colour);

// Rows of one length as lines, every column as wide as need be; the first `left_columns` are aligned to the
// left.
std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left_columns);

// A report as one page that needs nothing from outside: its text, styles, scripts, charts and data in one
// file.

// Scripts of the kinds of report, from lab/page/.
extern const char* const kLabScript;
extern const char* const kCompareScript;

// `json` is one JSON value; the script finds it as the text of the element "study".
std::string report_page(const std::string& title, const char* script, const std::string& json);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_STUDY_H_
