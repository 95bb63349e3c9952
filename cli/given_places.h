// The files and addresses that options name, looked at before the command starts: what would fail only at
// the end of a long run, or in the agent, where nobody looks, is refused while somebody does.
#ifndef FORESHOCK_CLI_GIVEN_PLACES_H_
#define FORESHOCK_CLI_GIVEN_PLACES_H_

#include <string>

#include "cli/arguments.h"

namespace foreshock::cli {

// The absolute path; "" where there is none: the working directory is gone.
std::string absolute(const std::string& path);

// Each returns "" or one line that says what to do.

// What this run itself, or its agent, is to write: --summary, --record, --file-sd, --save-flagged (whose
// directory is made now, so that its quota is a disk's that takes files).
std::string written_files_problem(const Arguments& arguments);

// What an agent of this run's own needs to serve: --token-file, and a place to listen at (--bind).
std::string served_place_problem(const Arguments& arguments);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_GIVEN_PLACES_H_
