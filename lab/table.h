// The terminal's view of a sweep, and tables of text.
#ifndef FORESHOCK_LAB_TABLE_H_
#define FORESHOCK_LAB_TABLE_H_

#include <string>
#include <vector>

#include "lab/study.h"

namespace foreshock::lab {

// One line per measurement: the axes that vary, then the figures. What does not vary is said once above.
// Below: the claims. Only the sweep's own tensor is shown. `colour`: ANSI colours for the verdicts.
std::string table_of(const SweepResult& result, bool colour);

// Rows of one length as lines, every column as wide as need be; the first `left_columns` are aligned to the
// left.
std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left_columns);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_TABLE_H_
