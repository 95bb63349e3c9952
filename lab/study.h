// The named sweeps: their points, their charts and the claims of the literature about them. Also writes
// results as JSON, as a page and as tables.
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
  std::string measured;  // the figures that decide, as text
  bool holds = false;
};

// A named sweep. `x`, `y` and `series` describe its chart, by the names of axes and statistics in the JSON.
// `series` may list several axes, separated by commas. Table and chart show only `tensor`; "": all tensors.
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

// The sweeps that are measured if none is named: fig3, fig4, fig5, fig6.
std::span<const std::string_view> default_sweeps();

// The results of one sweep.

struct SweepResult {
  std::string name;              // name of the sweep, or "custom"
  const Sweep* sweep = nullptr;  // null: custom
  std::vector<Measurement> measurements;
  std::vector<Claim> claims;
};

// The results of one call of `foreshock lab`.
struct Study {
  std::vector<SweepResult> sweeps;
  double seconds = 0;
};

// The program, its compiler and the libraries of the page, as (name, version).
std::vector<std::pair<std::string, std::string>> versions();

// {"schema": 1, "versions", "points": [...], "claims": [...]}; docs/lab.md lists the fields. A figure that is
// not finite is null.
std::string to_json(const Study& study);

// The page of `--report`, one file with the study embedded.
std::string to_page(const Study& study);

// A table for the terminal: a heading with the axes that do not vary, one line per measurement with the axes
// that vary and the figures, then the claims. Only the sweep's tensor is listed. `colour`: ANSI colours for
// the verdicts.
std::string table_of(const SweepResult& result, bool colour);

// Formats rows of equal length as aligned columns; the first `left_columns` are aligned to the left, the
// others to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left_columns);

// The scripts of the two kinds of report, from lab/page/.
extern const char* const kLabScript;
extern const char* const kCompareScript;

// A report page in one file, without outside resources. The script reads `json`, one JSON value, from the
// element "study".
std::string report_page(const std::string& title, const char* script, const std::string& json);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_STUDY_H_
