// Writes distances between the weights of checkpoints (comparison.h) as JSON, as a page of charts, as tables.
#ifndef FORESHOCK_LAB_COMPARISON_REPORT_H_
#define FORESHOCK_LAB_COMPARISON_REPORT_H_

#include <string>

#include "lab/comparison.h"

namespace foreshock::lab {

// {"schema": 1, "versions", "checkpoints": [paths], "pairs": [...]}; docs/research.md lists the fields.
// Numbers that are not finite are null.
std::string to_json(const Comparison& comparison);

std::string to_page(const Comparison& comparison);  // an HTML page in one file that loads nothing else

// Tables for the terminal: one row per pair of checkpoints, all tensors pooled. Then for each pair the `most`
// tensors (0: all) with the largest relative L2 distance. Also up to 20 of each of these: tensors with NaN or
// Inf, tensors whose shapes or types differ, tensors that only one checkpoint has.
std::string table_of(const Comparison& comparison, size_t most);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_REPORT_H_
