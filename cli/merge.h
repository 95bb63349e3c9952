// The classes of `foreshock merge` that combine weight tensors. The command merges the records of the nodes
// of a job; a record is the file of JSON lines that the agent of one node has written. A "tensor line" in it
// describes a weight tensor at one step, or only the parts of a sharded tensor that the node holds. With
// `foreshock run --record-histograms` it has the histogram of the values.
#ifndef FORESHOCK_CLI_MERGE_H_
#define FORESHOCK_CLI_MERGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/weight_series.h"
#include "cli/record_index.h"
#include "exporters/record.h"

namespace foreshock::cli {

// Merges the tensor lines of several nodes into lines of the job. Adds the histograms of the parts, so that
// the result equals the histogram of the whole tensor bit for bit. Compares replicas. Lines must be passed in
// the order of steps. If a run goes back to an earlier step, a new "generation" begins. Thread-compatible.
class TensorMerger {
 public:
  struct NodeLine {
    TensorLine line;
    std::string path;  // path of the record that has the line
  };

  // Merges the lines of all nodes for one tensor and step. Returns "" or one line that says what cannot be
  // merged. Until the next call, the resulting lines are in tensor(), models() and event().
  std::string merge_lines(const std::vector<NodeLine>& nodes);

  // The merged tensor line. nullopt: a part of the tensor or the histogram of a part is missing.
  const std::optional<TensorLine>& tensor() const { return tensor_; }
  // Lines for layers and for the whole model. A layer has a line here if this tensor was the last of the
  // layer's tensors that was missing in this interval of steps. The same holds for the model.
  const std::vector<ModelLine>& models() const { return models_; }
  const std::optional<EventLine>& event() const { return event_; }  // set if replicas on two nodes differ

  // Must be called before the first line of each generation after the first.
  void begin_generation() { generation_begins_ = true; }

 private:
  // Limit of stored histograms, in bytes. Tensors beyond it have no distances to their earlier values.
  static constexpr uint64_t kMostBytes = uint64_t{8} << 30;

  std::string combine(const std::vector<const NodeLine*>& parts, TensorSnapshot* snapshot) const;
  std::vector<const NodeLine*> distinct_parts(const std::vector<NodeLine>& nodes);
  void set_distances(std::optional<int64_t> initial_step, TensorSnapshot* snapshot);

  WeightSeries series_{kMostBytes};  // computes distances to the previous and to the first snapshot
  bool generation_begins_ = false;   // the next line is the first of its generation
  bool continues_run_ = false;       // the present generation does not start at the beginning of the run
  std::optional<TensorLine> tensor_;
  std::vector<ModelLine> models_;
  std::optional<EventLine> event_;
};

// Checks that the parts of each tensor in all records together contain each of its values exactly once. Equal
// parts are replicas and count once. Thread-compatible.
class TensorShares {
 public:
  // Adds a tensor line. `at`: the line's entry in the index of all records.
  void add(const TensorLine& line, const IndexedLine& at);

  // Must be called once, after all lines. Returns "" if every tensor is complete in at least one generation,
  // else one line on the first incomplete tensor: a part or its histogram is missing, or parts overlap.
  std::string check(const RecordIndex& index);

  // Whether the parts of the tensor are complete in this generation; check() must have been called.
  bool is_complete(uint32_t generation, uint32_t tensor) const;

  // Whether the line has the parts that check() has used: those of the last line of the same tensor, record
  // and generation. Lines with other parts are not merged.
  bool has_checked_parts(const TensorLine& line, const IndexedLine& at) const;

 private:
  struct Share {  // the parts of a tensor that one node holds. A part is a box of up to four dimensions.
    std::vector<int64_t> offsets, shapes;  // four numbers per part
    uint64_t elements = 0;                 // number of values in all these parts
    bool operator==(const Share&) const = default;
  };
  struct Tensor {  // a tensor in one generation
    std::string name;
    uint64_t whole_elements = 0;                // number of values of the whole tensor
    std::map<uint32_t, Share> share_by_record;  // by record number: the share in the record's last line
    bool is_complete = false;
    bool has_histograms = true;  // false: parts without the histograms by which they would be merged
  };
  using Key = std::pair<uint32_t, uint32_t>;  // number of the tensor (IndexedLine::subject), generation

  static Share share_of(const TensorLine& line);
  static bool overlap(const Share& a, const Share& b);
  static std::string check_tensor(const RecordIndex& index, Tensor* tensor);

  std::map<Key, Tensor> tensors_;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_MERGE_H_
