// A story as JSON (what `foreshock report --json` prints; docs/report.md has its keys), and as one page that
// needs nothing from outside: to be attached to a post-mortem, read and printed.
#ifndef FORESHOCK_CLI_REPORT_H_
#define FORESHOCK_CLI_REPORT_H_

#include <string>
#include <string_view>
#include <vector>

#include "cli/report_model.h"

namespace foreshock::cli {

// One line of valid UTF-8. Curves are thinned, keeping the least and the largest value of each stretch, so
// that a page of it stays below 2 MB; what is not known or not finite is null.
std::string report_json(const Story& story);

// The files of cli/report/, embedded at build time, and their SHA-256 in hexadecimal.
extern const std::string_view kReportHtml, kReportCss, kReportJs, kReportChart;
extern const std::string_view kReportCssHash, kReportJsHash, kReportChartHash;

// The story as Markdown of at most two screens: incidents, evidence, what was not judged, and commands that
// look further. Text from the record is made printable. `records`: as they were named on the command line.
std::string report_markdown(const Story& story, const std::vector<std::string>& records);

// Stands in every page, near its beginning.
inline constexpr std::string_view kReportMark = "<meta name=\"generator\" content=\"foreshock report\">";

// `json`: of report_json(). Its text comes from a trainer: it is data in the page, and a policy in the page
// lets no script run but the page's own and nothing be loaded.
std::string report_page(const std::string& json);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_H_
