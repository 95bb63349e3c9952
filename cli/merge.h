// Merges the records of the nodes of a job.
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

// Merges the tensor lines of several nodes into lines of the job. Combines shards: the result equals that of
// the whole tensor bit for bit. Compares replicas. Lines must be passed in the order of generations
// (IndexedLine) and steps. Thread-compatible.
class TensorMerger {
 public:
  struct NodeLine {
    TensorLine line;
    std::string path;  // path of its record
  };

  // Takes the lines of all nodes for one tensor and step. Returns "" or one line that says what cannot be
  // read. Until the next call, the resulting lines are in tensor(), models() and event().
  std::string take(const std::vector<NodeLine>& nodes);

  const std::optional<TensorLine>& tensor() const { return tensor_; }  // nullopt: parts are missing
  const std::vector<ModelLine>& models() const {
    return models_;
  }  // one for each pool of tensors that this tensor has completed
  const std::optional<EventLine>& event() const { return event_; }  // set if replicas on two nodes differ

  // Must be called before the first line of each generation, because its steps repeat earlier ones.
  void begin_anew() { begins_again_ = true; }

 private:
  // Limit of stored histograms, in bytes. Tensors beyond it are merged but not compared with an earlier
  // state.
  static constexpr uint64_t kMostBytes = uint64_t{8} << 30;

  std::string put_together(const std::vector<const NodeLine*>& parts, TensorSnapshot* snapshot) const;
  std::vector<const NodeLine*> different(const std::vector<NodeLine>& nodes);
  void follow(std::optional<int64_t> initial_step, TensorSnapshot* snapshot);

  WeightSeries series_{kMostBytes};
  bool begins_again_ = false;   // the next line is the first of its generation
  bool continues_run_ = false;  // the generation does not start at the beginning of the run
  std::optional<TensorLine> tensor_;
  std::vector<ModelLine> models_;
  std::optional<EventLine> event_;
};

// Checks that the records of all nodes together contain each value of each tensor exactly once; replicas
// count once. Thread-compatible.
class TensorShares {
 public:
  // Adds a tensor line; `at` is its entry in the index.
  void add(const TensorLine& line, const IndexedLine& at);

  // Must be called once, after all lines. Returns "" if every tensor is complete in at least one generation,
  // else one line on the first incomplete tensor: a part is missing, parts overlap, or the histograms that
  // are needed to combine parts are missing.
  std::string check(const RecordIndex& index);

  // Whether the parts of the tensor are complete in this generation; check() must have been called.
  bool is_complete(uint32_t generation, uint32_t tensor) const;

  // Whether the line has the same parts as the last line of the tensor in its record and generation.
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
    std::map<uint32_t, Share> of_record;  // by record: the last share of the tensor in it
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
