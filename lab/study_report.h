// A study as JSON, as a page and as tables of text.
#ifndef FORESHOCK_LAB_STUDY_REPORT_H_
#define FORESHOCK_LAB_STUDY_REPORT_H_

#include <string>
#include <vector>

#include "lab/study.h"

namespace foreshock::lab {

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

#endif  // FORESHOCK_LAB_STUDY_REPORT_H_
