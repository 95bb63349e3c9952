// A comparison as JSON, and as a page of charts around the same JSON.
#ifndef FORESHOCK_LAB_COMPARISON_REPORT_H_
#define FORESHOCK_LAB_COMPARISON_REPORT_H_

#include <string>

#include "lab/comparison.h"

namespace foreshock::lab {

// {"schema": 1, "versions", "checkpoints": [paths], "pairs": [...]}, see docs/compare.md. What is no finite
// number is null. The same bytes for the same checkpoints, whatever the number of threads.
std::string to_json(const Comparison& comparison);

// One file that needs nothing from outside.
std::string to_page(const Comparison& comparison);

// The terminal's view of a comparison.

// The pairs side by side with their pooled figures; for each pair the `most` tensors that moved farthest
// (relative L2), 0: all; then what could not be compared, by name.
std::string table_of(const Comparison& comparison, size_t most);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_REPORT_H_
