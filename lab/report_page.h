// A report as one page that needs nothing from outside: its text, styles, scripts, charts and data in one
// file.
#ifndef FORESHOCK_LAB_REPORT_PAGE_H_
#define FORESHOCK_LAB_REPORT_PAGE_H_

#include <string>

namespace foreshock::lab {

// Scripts of the kinds of report, from lab/page/.
extern const char* const kLabScript;
extern const char* const kCompareScript;

// `json` is one JSON value; the script finds it as the text of the element "study".
std::string report_page(const std::string& title, const char* script, const std::string& json);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_REPORT_PAGE_H_
