// A study as JSON: {"schema": 1, "versions", "points": [...], "claims": [...]}; docs/lab.md lists the fields.
#ifndef FORESHOCK_LAB_STUDY_JSON_H_
#define FORESHOCK_LAB_STUDY_JSON_H_

#include <string>

#include "lab/study.h"

namespace foreshock::lab {

// A figure that is not a number (a non-finite result, a ratio to an error of zero) is null.
std::string to_json(const Study& study);

// The page of `--report`: one file that needs no other, with the study embedded.
std::string to_page(const Study& study);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_STUDY_JSON_H_
