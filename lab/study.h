// The named sweeps of `foreshock lab`, and their results as JSON, page and tables. A sweep has points to
// measure (measure.h: an algorithm with its format, inputs and tiles) and claims about the results.
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
  std::string source;  // where the statement comes from
  std::string statement;
  std::string measured;  // the measured figures that decide whether it holds, as text
  bool holds = false;
};

struct Sweep {
  std::string_view name;
  std::string_view question;  // heading of its chart and table
  // The chart, by names of the JSON: the axis at x, the statistic at y, and the axes ("a,b") of the series.
  std::string_view x, y, series;
  std::string_view tensor;  // the output of the algorithms that chart and table show; "": all outputs
  bool log_x, log_y;
  std::vector<Point> (*points)();
  std::vector<Claim> (*claims)(std::span<const Measurement>);
};

std::span<const Sweep> sweeps();
const Sweep* find_sweep(std::string_view name);  // null: no such sweep

// The sweeps that are measured if none is named: fig3, fig4, fig5, fig6 (of arXiv 2405.02803).
std::span<const std::string_view> default_sweeps();

struct SweepResult {
  std::string name;              // name of the sweep; "custom": points that the user has chosen
  const Sweep* sweep = nullptr;  // null: custom
  std::vector<Measurement> measurements;
  std::vector<Claim> claims;
};

// The results of one call of `foreshock lab`.
struct Study {
  std::vector<SweepResult> sweeps;
  double seconds = 0;
};

// Name and version of the program, its compiler and the libraries of the page.
std::vector<std::pair<std::string, std::string>> versions();

// {"schema": 1, "versions", "points": [...], "claims": [...]}; docs/lab.md lists the fields. A figure that is
// not finite is null.
std::string to_json(const Study& study);

// The page of `--report`, one file with the study embedded.
std::string to_page(const Study& study);

// A table for the terminal: a heading with the axes that do not vary, one line per measurement with the axes
// that vary and the figures, then the claims and whether they hold (`colour`: green or red).
std::string table_of(const SweepResult& result, bool colour);

// Formats rows of equal length as aligned columns; the first `left_columns` are aligned to the left, the
// others to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left_columns);

// The scripts of the two kinds of report, from lab/page/.
extern const char* const kLabScript;
extern const char* const kCompareScript;

// A report page in one file, without outside resources. Its script reads `json` from the element "study".
std::string report_page(const std::string& title, const char* script, const std::string& json);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_STUDY_H_
