// Indexes the lines of several records of one run, in the order of steps. Memory does not grow with the
// records: lines stay in their files until they are needed, and an external merge sort in a temporary file
// sorts the index.
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
  // Lines of one step are sorted in this order.
  enum class Kind : uint8_t { kStarted, kStep, kSample, kEvent, kOther, kTensor, kModel, kEnded };

  // Number of times that the steps of the record had started again before this line, e.g. from a checkpoint.
  uint32_t generation = 0;
  // For an event, at least the last step of its rank before the event was written. The event itself may have
  // an earlier step: a loss event has the step of its onset.
  int64_t step = -1;
  Kind kind = Kind::kOther;
  uint32_t of = 0;      // rank; for tensors and models a number that identifies them
  uint32_t record = 0;  // index in the order of add()
  uint64_t offset = 0, bytes = 0;
  auto operator<=>(const IndexedLine&) const = default;
};

// Thread-compatible.
class RecordIndex {
 public:
  static constexpr size_t kMostInMemory = 1 << 18;  // lines; about 12 MiB

  // If there are more than `most_in_memory` lines, a temporary file is created in $TMPDIR, else in /tmp.
  explicit RecordIndex(size_t most_in_memory = kMostInMemory) : most_(most_in_memory) {}

  // Called with every line and its entry in the index.
  using Visitor = std::function<void(const RecordLine&, const IndexedLine&)>;

  // Reads the whole record. Returns "" or one line that says what is wrong with it.
  std::string add(const std::string& path, const Visitor& visit);

  // Sorts the index. Must be called after the last record. Returns "" or one line that says what is wrong.
  std::string sort();
  // Gets the next line; sort() must have been called. The first "started" lines of all ranks come first. The
  // other lines follow in the order of generations and steps, including "started" lines of restarted ranks.
  // Returns false at the end, or if the temporary file cannot be read.
  bool next(IndexedLine* line);
  uint64_t count() const { return count_; }
  size_t pieces() const { return pieces_.size(); }

  // Returns the text of a line without its newline; "" if it can no longer be read.
  std::string text(const IndexedLine& line);

  const std::string& run() const { return run_; }
  const std::string& path(uint32_t record) const { return paths_[record]; }
  size_t records() const { return paths_.size(); }
  size_t ranks() const { return record_of_rank_.size(); }
  int64_t world_size() const { return world_size_; }  // the largest in any run line; 0: unknown
  uint64_t bad_lines() const { return bad_lines_; }
  const std::string& first_problem() const { return first_problem_; }
  // Paths of the records whose last line is incomplete, separated by commas.
  const std::string& torn() const { return torn_; }

 private:
  // State while one record is read.
  struct Position {
    uint32_t generation = 0;
    std::map<int64_t, int64_t> last_step;  // by rank
    std::set<int64_t> started;             // ranks with a "started" line
  };
  // A sorted part of the temporary file.
  struct Piece {
    uint64_t at = 0, end = 0;  // range of the lines in the file that were not read yet
    std::vector<IndexedLine> read;
    size_t next = 0;  // index in `read`
  };
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // Comparison for a heap with the piece whose next line is the smallest at the front.
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
  // One file of a record. If a record has two files, offsets in the second continue those of the first.
  struct Part {
    std::ifstream file;
    uint64_t begin = 0, position = 0;
  };
  std::vector<std::vector<Part>> parts_;  // by record
  const size_t most_;
  std::vector<IndexedLine> lines_;  // lines that are not in the temporary file
  size_t next_ = 0;                 // index in lines_; used if there is no temporary file
  uint64_t count_ = 0;
  std::unique_ptr<std::FILE, CloseFile> temporary_;
  std::vector<Piece> pieces_;
  std::vector<size_t> heap_;  // heap of indexes into pieces_, ordered by Later
  std::map<int64_t, uint32_t> record_of_rank_;
  std::map<std::string, uint32_t> keys_;  // numbers of the keys of tensors and models
  std::string run_, first_problem_, torn_;
  int64_t world_size_ = 0;
  uint64_t bad_lines_ = 0;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RECORD_INDEX_H_
