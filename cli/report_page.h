// A story as one page that needs nothing from outside: to be attached to a post-mortem, read and printed.
#ifndef FORESHOCK_CLI_REPORT_PAGE_H_
#define FORESHOCK_CLI_REPORT_PAGE_H_

#include <string>
#include <string_view>

namespace foreshock::cli {

// The files of cli/report/, embedded at build time, and their SHA-256 in hexadecimal.
extern const std::string_view kReportHtml, kReportCss, kReportJs, kReportChart;
extern const std::string_view kReportCssHash, kReportJsHash, kReportChartHash;

// Stands in every page, near its beginning.
inline constexpr std::string_view kReportMark = "<meta name=\"generator\" content=\"foreshock report\">";

// `json`: of report_json(). Its text comes from a trainer: it is data in the page, and a policy in the page
// lets no script run but the page's own and nothing be loaded.
std::string report_page(const std::string& json);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_PAGE_H_
