// One function per command, each in the file of its name. They return the exit status of the process: 0, 1
// when something could not be written or is not as it should be, 2 for wrong use.
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

// `report` makes a page of the records of a run; `merge` makes one record of several.
int report(const std::vector<std::string>& words);
int merge(const std::vector<std::string>& words);

// Commands of the lab. `judge` returns 0 within the gates and 1 beyond them; for flagged slices, 0 if they
// are reproduced bit for bit and 1 if not. `compare`: 2 also for checkpoints that cannot be read or have
// nothing in common.
int lab(const std::vector<std::string>& words);
int judge(const std::vector<std::string>& words);
int compare(const std::vector<std::string>& words);

// foreshock docs detectors|metrics|options|record: the pages under docs/ that come from tables.
int docs(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_COMMANDS_H_
