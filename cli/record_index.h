// Where the lines of several records of one run stand, in the order of steps: the records of nodes are as
// long as their runs, so their lines stay where they are until they are written.
#ifndef FORESHOCK_CLI_RECORD_INDEX_H_
#define FORESHOCK_CLI_RECORD_INDEX_H_

#include <compare>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "exporters/record_reader.h"

namespace foreshock::cli {

struct IndexedLine {
  // In this order among the lines of one step; `step` of an event is at least that of its rank when it was
  // told: a loss event names its onset, and is known later.
  enum class Kind : uint8_t { kStarted, kStep, kSample, kEvent, kOther, kTensor, kModel, kEnded };

  // How often the steps of its record have begun again before it: after a restart from a checkpoint.
  uint32_t generation = 0;
  int64_t step = -1;
  Kind kind = Kind::kOther;
  uint32_t of = 0;  // rank; tensors and models: number of the key
  uint32_t record = 0;
  uint64_t offset = 0, bytes = 0;
  auto operator<=>(const IndexedLine&) const = default;
};

// Thread-compatible.
class RecordIndex {
 public:
  // Called with every line, and where it will stand.
  using Visitor = std::function<void(const RecordLine&, const IndexedLine&)>;

  // Reads the whole record. Returns "" or one line that says what is wrong with it.
  std::string add(const std::string& path, const Visitor& visit);

  // All lines, after sort(): those of started ranks first (of a rank that starts again where it does), then
  // generation by generation and step by step.
  void sort();
  const std::vector<IndexedLine>& lines() const { return lines_; }

  // The text of a line, without its newline. "" when the file has changed since.
  std::string text(const IndexedLine& line);

  const std::string& run() const { return run_; }
  const std::string& path(uint32_t record) const { return paths_[record]; }
  size_t records() const { return paths_.size(); }
  size_t ranks() const { return record_of_rank_.size(); }
  int64_t world_size() const { return world_size_; }  // as told; 0: not told
  uint64_t bad_lines() const { return bad_lines_; }
  const std::string& first_problem() const { return first_problem_; }
  const std::string& torn() const { return torn_; }  // the records that end within a line, with commas

 private:
  struct Position {
    uint32_t generation = 0;
    std::map<int64_t, int64_t> last_step;  // by rank
    std::set<int64_t> started;
  };
  std::string place(const RecordLine& line, Position* position, IndexedLine* to);
  std::string take_rank(int64_t rank, uint32_t record);

  std::vector<std::string> paths_;
  std::vector<std::ifstream> files_;
  std::vector<IndexedLine> lines_;
  std::map<int64_t, uint32_t> record_of_rank_;
  std::map<std::string, uint32_t> keys_;  // of tensors and models
  std::string run_, first_problem_, torn_;
  int64_t world_size_ = 0;
  uint64_t bad_lines_ = 0;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RECORD_INDEX_H_
