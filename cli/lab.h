// Parses the command line of `foreshock lab` and checks it before anything is measured.
#ifndef FORESHOCK_CLI_LAB_H_
#define FORESHOCK_CLI_LAB_H_

#include <string>
#include <vector>

#include "lab/study.h"

namespace foreshock::cli {

struct LabSweep {
  const lab::Sweep* sweep = nullptr;  // null: a custom sweep
  std::vector<lab::Point> points;
};

struct LabRequest {
  std::vector<LabSweep> sweeps;
  int threads = 1;
  std::string json_path, page_path;  // "": the output is not wanted
  bool help = false, list = false;
};

// Fills in `request`. Returns "" or one line that says what is wrong and what to do.
std::string parse_lab_request(const std::vector<std::string>& words, LabRequest* request);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_LAB_H_
