// Declares one function per command of foreshock. agent() is in run.cpp, pause() and resume() in status.cpp,
// export_record() and detect() in records.cpp, all others in the file of their name. Unless noted, a command
// returns the exit status 0 for success, 1 for failure, 2 for wrong use. run() ends with the user command's
// status. status(), pause() and resume() return 1 without a live run, status() 3 if an agent does not answer.
#ifndef FORESHOCK_CLI_COMMANDS_H_
#define FORESHOCK_CLI_COMMANDS_H_

#include <string>
#include <vector>

#include "cli/options.h"
#include "lab/study.h"

namespace foreshock::cli {

int run(const Arguments& arguments);
int agent(const Arguments& arguments);
int status(const Arguments& arguments);
int pause(const Arguments& arguments);
int resume(const Arguments& arguments);
int doctor(const Arguments& arguments);
int export_record(const Arguments& arguments);
int detect(const Arguments& arguments);

// Both commands read one or more records of one run. report() writes a page, merge() one merged record.
int report(const std::vector<std::string>& words);
int merge(const std::vector<std::string>& words);

// Commands of the lab. judge() returns 0 if the errors of an attention call or function are within the
// limits, or if it reproduces the agent's results on a stored slice (a part of a call) bit for bit; else 1.
// Both judge() and compare() return 2 if they cannot read the input; compare() also if the checkpoints share
// no tensor.
int lab(const std::vector<std::string>& words);
int judge(const std::vector<std::string>& words);
int compare(const std::vector<std::string>& words);

struct LabSweep {  // a sweep (a series of measurements, lab/study.h) that `foreshock lab` makes
  const lab::Sweep* sweep = nullptr;  // null: a custom sweep
  std::vector<lab::Point> points;     // the combinations of values that are measured
};

struct LabRequest {  // the command line of `foreshock lab`
  std::vector<LabSweep> sweeps;
  int threads = 1;
  std::string json_path, page_path;  // "": no JSON, no page is written
  bool help = false, list = false;   // print the help, or the algorithms and accumulators; measure nothing
};

// Reads and checks the command line of `foreshock lab` before anything is measured. Fills in `request`.
// Returns "" or one line that says what is wrong and what to do.
std::string parse_lab_request(const std::vector<std::string>& words, LabRequest* request);

// foreshock docs detectors|metrics|...: prints the part of a page of docs/ that is generated from a table.
int docs(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_COMMANDS_H_
