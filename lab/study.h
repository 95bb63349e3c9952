// The named sweeps of `foreshock lab`, and results as JSON, page and tables. A sweep has points and claims
// about the results. A point (measure.h) has one value on each axis: algorithm, format, input, n and so on.
#ifndef FORESHOCK_LAB_STUDY_H_
#define FORESHOCK_LAB_STUDY_H_

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/measure.h"

namespace foreshock::lab {

// A statement about a sweep, checked against its measurements.
struct Claim {
  std::string source;  // the paper or document that makes the statement
  std::string statement;
  std::string measured;  // the measured figures that decide whether it holds, as text
  bool holds = false;
};

struct Sweep {
  std::string_view name;
  std::string_view question;  // heading of its chart and table
  // What the chart draws, by names of fields in to_json(). x: the parameter drawn horizontally, an axis of
  // the points or the field `tensor` of the measurements; y: the error drawn vertically; series: one such
  // parameter or several ("a,b"), with a curve for each combination of their values.
  std::string_view x, y, series;
  std::string_view tensor;  // the output tensor that chart and table show; "": all but log_sum_exp
  bool log_x, log_y;        // whether the chart's scales are logarithmic
  std::vector<Point> (*points)();
  std::vector<Claim> (*claims)(std::span<const Measurement>);
};

std::span<const Sweep> sweeps();
const Sweep* find_sweep(std::string_view name);  // null: no such sweep

// The sweeps that are measured if the user names none: fig3, fig4, fig5, fig6 (figures of arXiv 2405.02803).
std::span<const std::string_view> default_sweeps();

struct SweepResult {
  std::string name;              // name of the sweep; "custom": the points were given by options
  const Sweep* sweep = nullptr;  // null for "custom"
  std::vector<Measurement> measurements;
  std::vector<Claim> claims;
};

// The results of one call of `foreshock lab`.
struct Study {
  std::vector<SweepResult> sweeps;
  double seconds = 0;  // duration of all measurements
};

// (name, version) of foreshock, its compiler, and chart.js, which draws the charts of the page.
std::vector<std::pair<std::string, std::string>> versions();

// {"schema": 1, "versions", "points": [...], "claims": [...]}; docs/lab.md lists the fields. "points" has one
// object per measurement. Errors that are not finite are written as null.
std::string to_json(const Study& study);

// The HTML page of `--report`: one file with the study embedded.
std::string to_page(const Study& study);

// A table for the terminal: a heading with the axes that do not vary, one line per measurement with the axes
// that vary and the errors, then the claims and whether they hold (in green or red if `colour`). Only
// measurements of the tensors that Sweep::tensor names are shown.
std::string table_of(const SweepResult& result, bool colour);

// Aligns rows of equal length as columns; the first `left_columns` to the left, the others to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left_columns);

// The scripts of the pages of `foreshock lab` and `foreshock compare`, from lab/page/.
extern const char* const kLabScript;
extern const char* const kCompareScript;

// An HTML page in one file that loads nothing else. `script` reads `json` from the element with id "study".
std::string report_page(const std::string& title, const char* script, const std::string& json);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_STUDY_H_
