// One function per command, each in the file of its name. They return the exit status of the process.
#ifndef FORESHOCK_CLI_COMMANDS_H_
#define FORESHOCK_CLI_COMMANDS_H_

#include <string>
#include <vector>

#include "cli/arguments.h"

namespace foreshock::cli {

int run(const Arguments& arguments);
int agent(const Arguments& arguments);
int status(const Arguments& arguments);
int pause(const Arguments& arguments);
int resume(const Arguments& arguments);
int doctor(const Arguments& arguments);
int export_record(const Arguments& arguments);
int detect(const Arguments& arguments);

// foreshock docs detectors|metrics|options|record: the pages under docs/ that come from tables.
int docs(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_COMMANDS_H_
