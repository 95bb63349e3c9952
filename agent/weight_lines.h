// Lines of the record that tell of weights.
#ifndef FORESHOCK_AGENT_WEIGHT_LINES_H_
#define FORESHOCK_AGENT_WEIGHT_LINES_H_

#include <string>

#include "agent/tensor_snapshot.h"
#include "exporters/record_line.h"

namespace foreshock {

// Both of scope "node".
TensorLine tensor_line(const std::string& run, const TensorSnapshot& snapshot, bool with_histogram);
// Of one that has its optimizer.
OptimizerLine optimizer_line(const std::string& run, const TensorSnapshot& snapshot);
ModelLine model_line(const std::string& run, const PoolSnapshot& pool);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHT_LINES_H_
