// A comparison as JSON, and as a page of charts around the same JSON.
#ifndef FORESHOCK_LAB_COMPARISON_JSON_H_
#define FORESHOCK_LAB_COMPARISON_JSON_H_

#include <string>

#include "lab/comparison.h"

namespace foreshock::lab {

// {"schema": 1, "versions", "checkpoints": [paths], "pairs": [...]}, see docs/compare.md. What is no finite
// number is null. The same bytes for the same checkpoints, whatever the number of threads.
std::string to_json(const Comparison& comparison);

// One file that needs nothing from outside.
std::string to_page(const Comparison& comparison);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_JSON_H_
