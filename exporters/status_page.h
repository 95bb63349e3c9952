// The files of exporters/status_page/, embedded at build time.
#ifndef FORESHOCK_EXPORTERS_STATUS_PAGE_H_
#define FORESHOCK_EXPORTERS_STATUS_PAGE_H_

#include <string_view>

namespace foreshock {

extern const std::string_view kPageHtml;
extern const std::string_view kPageJs;
extern const std::string_view kPageCss;
extern const std::string_view kPageIcon;   // SVG
extern const std::string_view kPageChart;  // the chart library; empty when built without

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_STATUS_PAGE_H_
