// A story as JSON: what `foreshock report --json` prints and the page shows. docs/report.md has its keys.
#ifndef FORESHOCK_CLI_REPORT_JSON_H_
#define FORESHOCK_CLI_REPORT_JSON_H_

#include <string>

#include "cli/report_story.h"

namespace foreshock::cli {

// One line of valid UTF-8. Curves are thinned, keeping the least and the largest value of each stretch, so
// that a page of it stays below 2 MB; what is not known or not finite is null.
std::string report_json(const Story& story);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_JSON_H_
