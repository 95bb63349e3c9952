// A study is what one call of `foreshock lab` measures: one or several sweeps, what was found, and on what.
#ifndef FORESHOCK_LAB_STUDY_H_
#define FORESHOCK_LAB_STUDY_H_

#include <string>
#include <utility>
#include <vector>

#include "lab/measure.h"
#include "lab/sweep.h"

namespace foreshock::lab {

struct SweepResult {
  std::string name;              // of the sweep, or "custom"
  const Sweep* sweep = nullptr;  // null: custom
  std::vector<Measurement> measurements;
  std::vector<Claim> claims;
};

struct Study {
  std::vector<SweepResult> sweeps;
  double seconds = 0;
};

// Name and value of every axis of a point, in the order of the table. The accumulator is spelled out.
using Axes = std::vector<std::pair<std::string, std::string>>;
Axes axes_of(const Point& point);

// The program, its compiler and the libraries of the page, as (name, version).
std::vector<std::pair<std::string, std::string>> versions();

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_STUDY_H_
