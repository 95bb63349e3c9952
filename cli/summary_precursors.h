// What the end-of-run summary says about the detectors: which warned, and what came before a loss event.
#ifndef FORESHOCK_CLI_SUMMARY_PRECURSORS_H_
#define FORESHOCK_CLI_SUMMARY_PRECURSORS_H_

#include <string>

#include "cli/pass_totals.h"

namespace foreshock::cli {

// Lines of the summary; "" where no detector warned and the loss was well.
std::string precursors_facts(const Json& ranks);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_PRECURSORS_H_
