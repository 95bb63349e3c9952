// Puts the records of several nodes together as one of the job.
#ifndef FORESHOCK_CLI_MERGE_H_
#define FORESHOCK_CLI_MERGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/weight_series.h"
#include "cli/record_index.h"
#include "exporters/record_line.h"

namespace foreshock::cli {

// The snapshots of one tensor that the records of nodes have, as one of the job: shards put together, bit for
// bit what the whole would give; replicas compared. Thread-compatible. Lines come generation by generation,
// step by step.
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
  // Most bytes of stored histograms. Tensors beyond it are merged, but not compared with an earlier state.
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

// How much of each tensor the records of nodes hold: whether together they are the whole, each value once.
// Thread-compatible.
class TensorShares {
 public:
  // A tensor line of a record, as the index places it.
  void add(const TensorLine& line, const IndexedLine& at);

  // "" when every tensor is complete in some generation, else one line on the first that is not: a part that
  // is missing, parts that overlap, or no histograms to put the parts together by. Call once, after all
  // lines.
  std::string check(const RecordIndex& index);

  // Whether the parts of this tensor make a whole.
  bool is_complete(uint32_t generation, uint32_t tensor) const;

  // Whether the line tells of the same part that its record holds at the end of the generation.
  bool is_usual(const TensorLine& line, const IndexedLine& at) const;

 private:
  struct Share {
    std::vector<int64_t> offsets, shapes;
    uint64_t elements = 0;
    bool operator==(const Share&) const = default;
  };
  struct Tensor {
    std::string name;
    uint64_t whole = 0;
    std::map<uint32_t, Share> of_record;
    bool is_complete = false, has_histograms = true;
  };
  using Key = std::pair<uint32_t, uint32_t>;  // tensor, generation

  static Share share_of(const TensorLine& line);
  static bool overlap(const Share& a, const Share& b);
  static std::string check(const RecordIndex& index, Tensor* tensor);

  std::map<Key, Tensor> tensors_;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_MERGE_H_
