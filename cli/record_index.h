// Where the lines of several records of one run stand, in the order of steps. The records of nodes are as
// long as their runs: their lines stay in their files until they are written, and the index itself is sorted
// in pieces that lie in a temporary file (an external merge sort), so that memory does not grow with the
// records.
#ifndef FORESHOCK_CLI_RECORD_INDEX_H_
#define FORESHOCK_CLI_RECORD_INDEX_H_

#include <compare>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
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
  static constexpr size_t kMostInMemory = 1 << 18;  // lines: 12 MiB

  // The temporary file is made in $TMPDIR, else in /tmp, when there are more lines than `most_in_memory`.
  explicit RecordIndex(size_t most_in_memory = kMostInMemory) : most_(most_in_memory) {}

  // Called with every line, and where it will stand.
  using Visitor = std::function<void(const RecordLine&, const IndexedLine&)>;

  // Reads the whole record. Returns "" or one line that says what is wrong with it.
  std::string add(const std::string& path, const Visitor& visit);

  // After the last record; "" or one line that says what is wrong.
  std::string sort();
  // After sort(), one line after the other: those of started ranks first (of a rank that starts again where
  // it does), then generation by generation and step by step. False at the end, or when the temporary file
  // cannot be read.
  bool next(IndexedLine* line);
  uint64_t count() const { return count_; }
  size_t pieces() const { return pieces_.size(); }

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
  // A sorted part of the temporary file.
  struct Piece {
    uint64_t at = 0, end = 0;  // lines of the file
    std::vector<IndexedLine> read;
    size_t next = 0;  // of `read`
  };
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // For a heap whose first one has the least line.
  struct Later {
    const std::vector<Piece>* pieces;
    bool operator()(size_t a, size_t b) const {
      const Piece &one = (*pieces)[a], &other = (*pieces)[b];
      return one.read[one.next] > other.read[other.next];
    }
  };

  std::string place(const RecordLine& line, Position* position, IndexedLine* to);
  std::string write_piece();
  bool fill(Piece* piece);
  std::string take_rank(int64_t rank, uint32_t record);

  std::vector<std::string> paths_;
  // In a record that is kept in two parts, the offsets of the second part go on from the end of the first.
  struct Part {
    std::ifstream file;
    uint64_t begin = 0, position = 0;
  };
  std::vector<std::vector<Part>> parts_;  // by record
  const size_t most_;
  std::vector<IndexedLine> lines_;  // that are not in the temporary file
  size_t next_ = 0;                 // of lines_, when there is none
  uint64_t count_ = 0;
  std::unique_ptr<std::FILE, CloseFile> temporary_;
  std::vector<Piece> pieces_;
  std::vector<size_t> heap_;  // of pieces_, the one with the least line first
  std::map<int64_t, uint32_t> record_of_rank_;
  std::map<std::string, uint32_t> keys_;  // of tensors and models
  std::string run_, first_problem_, torn_;
  int64_t world_size_ = 0;
  uint64_t bad_lines_ = 0;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RECORD_INDEX_H_
