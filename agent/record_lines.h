// Makes the lines of the record, a file of JSON lines about one run (docs/record.md): one function for each
// kind of line. `rank` gives the run, and the rank (the trainer process) that the line is about.
#ifndef FORESHOCK_AGENT_RECORD_LINES_H_
#define FORESHOCK_AGENT_RECORD_LINES_H_

#include <string>

#include "agent/findings.h"
#include "agent/rank_state.h"
#include "agent/tensor.h"
#include "exporters/record.h"
#include "shadow/judgement.h"

namespace foreshock {

double seconds_since_1970();  // the present time

// Returns the line of a checked tensor (out, dQ, dK, dV) of a slice, a copied part of one attention call with
// the header `slot`. `deviation` is the result of the check, `judge_seconds` its CPU time.
SampleLine sample_line(const RankStatistics& rank, const segment::Slot& slot, const LayerOfCall& layer,
                       const SliceDeviation& deviation, double judge_seconds);
StepLine step_line(const RankStatistics& rank, const segment::StepRecord& step);
RunLine run_line(const RankStatistics& rank, const char* state);  // `state`: "started" or "ended"
// `event`: its name in the record; `layer` "": the event belongs to no layer.
EventLine event_line(const RankStatistics& rank, const char* event, int64_t step, const std::string& layer,
                     std::optional<double> value);

// `state`: "began" or "final". `step`: the last step of any rank; -1: none has ended.
FindingLine finding_line(const std::string& run, const Finding& finding, const char* state, int64_t step);

// A snapshot is one measurement of a weight tensor. Lines of tensors and of the model have scope "node": they
// cover the parts on this node. Lines of optimizers have no scope.
TensorLine tensor_line(const std::string& run, const TensorSnapshot& snapshot, bool with_histogram);
// `snapshot.optimizer` must be present.
OptimizerLine optimizer_line(const std::string& run, const TensorSnapshot& snapshot);
// `tensor`: the record of a look at a gradient by `rank`.
GradientLine gradient_line(const RankStatistics& rank, const segment::TensorView& tensor);
// `pool`: the values of all tensors of a layer, or of the whole model, as one distribution.
ModelLine model_line(const std::string& run, const PoolSnapshot& pool);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RECORD_LINES_H_
