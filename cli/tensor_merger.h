// The snapshots of one tensor that the records of nodes have, as one of the job: shards put together, bit for
// bit what the whole would give; replicas compared.
#ifndef FORESHOCK_CLI_TENSOR_MERGER_H_
#define FORESHOCK_CLI_TENSOR_MERGER_H_

#include <optional>
#include <string>
#include <vector>

#include "agent/weight_series.h"
#include "exporters/record_line.h"

namespace foreshock::cli {

// Thread-compatible. Lines come generation by generation, step by step.
class TensorMerger {
 public:
  struct NodeLine {
    TensorLine line;
    std::string path;  // of its record
  };

  // Takes the lines of all nodes of one tensor and step. Returns "" or one line that says what cannot be
  // read. What there is to write stands in tensor(), models() and event() until the next call.
  std::string take(const std::vector<NodeLine>& nodes);

  const std::optional<TensorLine>& tensor() const { return tensor_; }  // none: parts are missing
  const std::vector<ModelLine>& models() const { return models_; }     // that are complete with it
  const std::optional<EventLine>& event() const { return event_; }     // replicas on two nodes differ

  // Steps begin again.
  void begin_anew() { is_anew_ = true; }

 private:
  // Of stored histograms; what does not fit is compared with nothing.
  static constexpr uint64_t kMostBytes = uint64_t{8} << 30;

  std::string put_together(const std::vector<const NodeLine*>& parts, TensorSnapshot* snapshot) const;
  std::vector<const NodeLine*> different(const std::vector<NodeLine>& nodes);
  void follow(std::optional<int64_t> initial_step, TensorSnapshot* snapshot);

  WeightSeries series_{kMostBytes};
  bool is_anew_ = false, goes_on_ = false;  // after a step back: not from the beginning of the run
  std::optional<TensorLine> tensor_;
  std::vector<ModelLine> models_;
  std::optional<EventLine> event_;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_TENSOR_MERGER_H_
