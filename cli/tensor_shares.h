// How much of each tensor the records of nodes hold: whether together they are the whole, each value once.
#ifndef FORESHOCK_CLI_TENSOR_SHARES_H_
#define FORESHOCK_CLI_TENSOR_SHARES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/record_index.h"

namespace foreshock::cli {

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

#endif  // FORESHOCK_CLI_TENSOR_SHARES_H_
