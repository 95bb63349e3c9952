// Writes a comparison of the weights of checkpoints as JSON, as a page of charts, and as tables.
#ifndef FORESHOCK_LAB_COMPARISON_REPORT_H_
#define FORESHOCK_LAB_COMPARISON_REPORT_H_

#include <string>

#include "lab/comparison.h"

namespace foreshock::lab {

// {"schema": 1, "versions", "checkpoints": [paths], "pairs": [...]}; docs/compare.md lists the fields.
// Numbers that are not finite are null.
std::string to_json(const Comparison& comparison);

// An HTML page in one file, without outside resources.
std::string to_page(const Comparison& comparison);

// Returns tables for the terminal. The first has one row per pair of checkpoints, for all tensors pooled.
// Each pair then has a table of the `most` tensors (0: all) with the largest relative L2 distance. Lists of
// tensors follow: those with non-finite values, in one checkpoint only, or of different shape or type.
std::string table_of(const Comparison& comparison, size_t most);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_REPORT_H_
