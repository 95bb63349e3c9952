// Prints the summary that the agent wrote (agent/summary.h) and reads the few facts of it that decide what is
// said beside.
#ifndef FORESHOCK_CLI_SUMMARY_H_
#define FORESHOCK_CLI_SUMMARY_H_

#include <string>

namespace foreshock::cli {

struct Summary {
  bool is_valid = false;  // it is a JSON object
  std::string text;       // in lines; "" in the summary of an agent that wrote none
  std::string line;       // of a live run only
  bool has_ranks = false, has_other_ranks = false;
  bool has_refused = false;         // processes that the agent could not follow
  bool lacks_record_lines = false;  // lines of the record could not be written
};

// Reads the JSON of docs/summary.md. Control characters but newlines are replaced: names come from a trainer.
Summary read_summary(const std::string& json);

// `text` with its first line in bold and the verdict in it coloured.
std::string in_colour(const std::string& text);

// Whether `descriptor` is a terminal and NO_COLOR is not set.
bool wants_colour(int descriptor);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_H_
