// The terminal's view of a comparison.
#ifndef FORESHOCK_LAB_COMPARISON_TABLE_H_
#define FORESHOCK_LAB_COMPARISON_TABLE_H_

#include <string>

#include "lab/comparison.h"

namespace foreshock::lab {

// The pairs side by side with their pooled figures; for each pair the `most` tensors that moved farthest
// (relative L2), 0: all; then what could not be compared, by name.
std::string table_of(const Comparison& comparison, size_t most);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_TABLE_H_
