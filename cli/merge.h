// The parts of `foreshock merge` that combine weight tensors. The command merges the records of the nodes of
// a job; a record is the file of JSON lines that the agent of one node has written. Each record describes
// only the parts of a sharded tensor that its node holds.
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

// Merges the tensor lines of several nodes into lines of the job. Adds the histograms of the parts, so that
// the result equals that of the whole tensor bit for bit. Compares replicas. Lines must be passed in the
// order of steps. A run that goes back to an earlier step begins a "generation". Thread-compatible.
class TensorMerger {
 public:
  struct NodeLine {
    TensorLine line;
    std::string path;  // path of its record
  };

  // Takes the lines of all nodes for one tensor and step. Returns "" or one line that says what cannot be
  // merged. Until the next call, the resulting lines are in tensor(), models() and event().
  std::string take(const std::vector<NodeLine>& nodes);

  // nullopt: a part is missing, or the histogram of a part.
  const std::optional<TensorLine>& tensor() const { return tensor_; }
  // A line for each layer, and for the model, whose tensors of one interval are all known with this one.
  const std::vector<ModelLine>& models() const { return models_; }
  const std::optional<EventLine>& event() const { return event_; }  // set if replicas on two nodes differ

  // Must be called before the first line of each generation but the first.
  void begin_generation() { generation_begins_ = true; }

 private:
  // Limit of stored histograms, in bytes. Tensors beyond it have no distances to earlier snapshots.
  static constexpr uint64_t kMostBytes = uint64_t{8} << 30;

  std::string combine(const std::vector<const NodeLine*>& parts, TensorSnapshot* snapshot) const;
  std::vector<const NodeLine*> distinct_parts(const std::vector<NodeLine>& nodes);
  void follow(std::optional<int64_t> initial_step, TensorSnapshot* snapshot);

  WeightSeries series_{kMostBytes};  // computes distances to the previous and to the first snapshot
  bool generation_begins_ = false;   // the next line is the first of its generation
  bool continues_run_ = false;       // the generation does not start at the beginning of the run
  std::optional<TensorLine> tensor_;
  std::vector<ModelLine> models_;
  std::optional<EventLine> event_;
};

// Checks that the parts of each tensor in all records together contain each of its values exactly once. Equal
// parts are replicas and count once. Thread-compatible.
class TensorShares {
 public:
  // Adds a tensor line; `at` is its entry in the index.
  void add(const TensorLine& line, const IndexedLine& at);

  // Must be called once, after all lines. Returns "" if every tensor is complete in at least one generation,
  // else one line on the first other tensor: a part or its histogram is missing, or parts overlap.
  std::string check(const RecordIndex& index);

  // Whether the parts of the tensor are complete in this generation; check() must have been called.
  bool is_complete(uint32_t generation, uint32_t tensor) const;

  // Whether the line has the same parts as the last line of the tensor in its record and generation. Other
  // lines are not merged, since the parts that check() has accepted are those of the last line.
  bool has_checked_parts(const TensorLine& line, const IndexedLine& at) const;

 private:
  // The parts of a tensor that one node holds.
  struct Share {
    std::vector<int64_t> offsets, shapes;  // four numbers per part
    uint64_t elements = 0;
    bool operator==(const Share&) const = default;
  };
  // A tensor in one generation.
  struct Tensor {
    std::string name;
    uint64_t whole = 0;                   // its number of values
    std::map<uint32_t, Share> of_record;  // by record: its share in the last line
    bool is_complete = false;
    bool has_histograms = true;  // false: the first record has only a part, and no line a histogram
  };
  using Key = std::pair<uint32_t, uint32_t>;  // IndexedLine::subject of the tensor, generation

  static Share share_of(const TensorLine& line);
  static bool overlap(const Share& a, const Share& b);
  static std::string check_tensor(const RecordIndex& index, Tensor* tensor);

  std::map<Key, Tensor> tensors_;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_MERGE_H_
