// The end-of-run summary, printed from its JSON (docs/summary.md has the fields). Numbers that are not known
// are "unknown", never 0.
#ifndef FORESHOCK_CLI_SUMMARY_H_
#define FORESHOCK_CLI_SUMMARY_H_

#include <string>

namespace foreshock::cli {

// The text of the summary; ANSI colour if `colour`. "" when `json` is none.
std::string summary_text(const std::string& json, bool colour);

// One line: run, state, step, loss, deviation ratio forward/backward, verdict.
std::string brief_text(const std::string& json, bool colour);

// Writes it to a descriptor, in colour when that is a terminal and NO_COLOR is unset.
void print_summary(const std::string& json, int descriptor);

// Whether lines of the record could not be written.
bool lacks_record_lines(const std::string& json);

// Whether the summary speaks of any rank.
bool has_ranks(const std::string& json);

// Of processes that trained and that the agent could not follow: how many, and why the last of them. "" when
// there were none.
std::string refused_line(const std::string& json);

// Whether another launcher of the same run had some.
bool has_other_ranks(const std::string& json);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_H_
