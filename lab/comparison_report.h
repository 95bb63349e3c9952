// Writes a comparison as JSON, as a page of charts, and as a table for the terminal.
#ifndef FORESHOCK_LAB_COMPARISON_REPORT_H_
#define FORESHOCK_LAB_COMPARISON_REPORT_H_

#include <string>

#include "lab/comparison.h"

namespace foreshock::lab {

// {"schema": 1, "versions", "checkpoints": [paths], "pairs": [...]}, see docs/compare.md. Numbers that are
// not finite are null. The bytes do not depend on the number of threads.
std::string to_json(const Comparison& comparison);

// An HTML page in one file, without outside resources.
std::string to_page(const Comparison& comparison);

// A table for the terminal: one row per pair with its pooled figures; for each pair the `most` tensors with
// the largest relative L2 distance (0: all); then the tensors that could not be compared.
std::string table_of(const Comparison& comparison, size_t most);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_REPORT_H_
