// One function per command: agent() is in run.cpp, pause() and resume() in status.cpp, export_record() and
// detect() in records.cpp, each other one in the file of its name. They return the exit status of the
// process: 0 for success, 1 if something could not be written or is not as it should be, 2 for wrong use.
#ifndef FORESHOCK_CLI_COMMANDS_H_
#define FORESHOCK_CLI_COMMANDS_H_

#include <string>
#include <vector>

#include "cli/options.h"

namespace foreshock::cli {

int run(const Arguments& arguments);
int agent(const Arguments& arguments);
int status(const Arguments& arguments);
int pause(const Arguments& arguments);
int resume(const Arguments& arguments);
int doctor(const Arguments& arguments);
int export_record(const Arguments& arguments);
int detect(const Arguments& arguments);

// Both read one or more records of one run: report() writes one page, merge() one record.
int report(const std::vector<std::string>& words);
int merge(const std::vector<std::string>& words);

// Commands of the lab. judge() of a function returns 0 if its errors are within the limits, else 1; judge()
// of flagged slices returns 0 if the agent's results are reproduced bit for bit, else 1. compare() also
// returns 2 for checkpoints that cannot be read or have no tensor in common.
int lab(const std::vector<std::string>& words);
int judge(const std::vector<std::string>& words);
int compare(const std::vector<std::string>& words);

// foreshock docs detectors|metrics|options|record: prints a page of docs/ that is generated from a table.
int docs(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_COMMANDS_H_
