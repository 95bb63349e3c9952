// Sorts the lines of several records of one run by step, for `foreshock merge`. A record has the JSON lines
// that the agent of one node has written, in one file or (with --record-size) in two. Only an index of the
// lines is sorted; the lines stay in their files until they are needed. If the index is large, parts of it
// ("pieces") are sorted in memory, written to a temporary file, and merged when they are read.
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

// The position of a line in the merged order and in its record. Lines are sorted by generation, then by step,
// and so on: by the members in the order of their declaration.
struct IndexedLine {
  // Lines of one step are sorted in this order. Only the first "started" line of a rank has kStarted. Those
  // of its restarts have kEnded, since they follow the end of the rank's previous process.
  enum class Kind : uint8_t { kStarted, kStep, kSample, kEvent, kOther, kTensor, kModel, kEnded };

  // How often the training had gone back to an earlier step before this line, e.g. to a checkpoint.
  uint32_t generation = 0;
  // The step of the line; -1: none. For an event, the later one of two steps: the step in the event's line
  // (for a loss event, its onset), and the last step that the rank had ended before the event was written.
  int64_t step = -1;
  Kind kind = Kind::kOther;
  // The rank. For lines of the types tensor and model: a number for the tensor, the layer or the whole model.
  uint32_t subject = 0;
  uint32_t record = 0;             // index of the record, in the order of add()
  uint64_t offset = 0, bytes = 0;  // position and length of the line in its record, without the newline
  auto operator<=>(const IndexedLine&) const = default;
};

// The index of the lines of all records. The functions must be called in this order: add() for every record,
// sort(), then next() and text(). Thread-compatible.
class RecordIndex {
 public:
  static constexpr size_t kMostInMemory = 1 << 18;  // lines; about 12 MiB

  // If there are more than `most_in_memory` lines, a temporary file is created in $TMPDIR, else in /tmp.
  explicit RecordIndex(size_t most_in_memory = kMostInMemory) : most_in_memory_(most_in_memory) {}

  // Receives a line and its entry in the index.
  using Visitor = std::function<void(const RecordLine&, const IndexedLine&)>;

  // Reads the whole record and calls `visit` for every line. Returns "" or one line that says what is wrong.
  std::string add(const std::string& path, const Visitor& visit);

  // Sorts the index. Returns "" or one line that says what is wrong.
  std::string sort();
  // Gets the next line. First come the first "started" lines of all ranks; then all other lines in the order
  // of generations and steps, including later "started" lines of restarted ranks. Returns false at the end,
  // or if the temporary file cannot be read: then there were fewer than count() lines.
  bool next(IndexedLine* line);
  uint64_t count() const { return count_; }         // lines of all records
  size_t pieces() const { return pieces_.size(); }  // sorted parts of the temporary file; 0: there is no file

  // Returns the text of a line without its newline; "" if it can no longer be read.
  std::string text(const IndexedLine& line);

  const std::string& run() const { return run_; }
  const std::string& path(uint32_t record) const { return paths_[record]; }
  size_t records() const { return paths_.size(); }
  size_t ranks() const { return record_of_rank_.size(); }
  int64_t world_size() const { return world_size_; }  // largest in "started" and "ended" lines; 0: unknown
  uint64_t bad_lines() const { return bad_lines_; }   // lines that could not be parsed, and were skipped
  const std::string& first_problem() const { return first_problem_; }  // in the first bad line; "": none
  // Paths of the records whose last line is incomplete, separated by commas; "" if there are none.
  const std::string& torn() const { return torn_; }

 private:
  // State while one record is read.
  struct ReadingState {
    uint32_t generation = 0;
    std::map<int64_t, int64_t> last_step;  // by rank, in this generation
    std::set<int64_t> started;             // ranks with a "started" line
  };
  // A sorted part of the temporary file, which is read in blocks.
  struct Piece {
    uint64_t unread = 0, end = 0;    // the piece's entries unread to end - 1 have not been read from the file
    std::vector<IndexedLine> block;  // the entries that were read last
    size_t next = 0;                 // index in `block` of the piece's next line
  };
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // Orders a heap of indexes of pieces, so that the piece whose next line comes first is at the front.
  struct Later {
    const std::vector<Piece>* pieces;
    bool operator()(size_t a, size_t b) const {
      const Piece &one = (*pieces)[a], &other = (*pieces)[b];
      return one.block[one.next] > other.block[other.next];
    }
  };

  // Fills in all of `*entry` but record, offset and bytes. Returns "" or why the line cannot be merged.
  std::string fill_entry(const RecordLine& line, ReadingState* state, IndexedLine* entry);
  // Sorts lines_ and moves them to the end of the temporary file, as a new piece.
  std::string write_piece();
  // Reads the piece's next block if the last one is used up. False: at its end, or it cannot be read.
  bool fill_block(Piece* piece);
  // Notes that `record` has this rank. Returns "" or an error: another record has the rank too.
  std::string note_rank(int64_t rank, uint32_t record);

  std::vector<std::string> paths_;
  // One file of a record. If a record has two, offsets in the newer file continue those of the older one.
  struct SourceFile {
    std::ifstream file;
    uint64_t begin = 0, position = 0;  // offsets in the record: of the first byte, and of the next to read
  };
  std::vector<std::vector<SourceFile>> files_;  // by record
  const size_t most_in_memory_;                 // most lines that are kept in memory
  std::vector<IndexedLine> lines_;              // lines that are not in the temporary file
  size_t next_ = 0;                             // index in lines_; used if there is no temporary file
  uint64_t count_ = 0;
  std::unique_ptr<std::FILE, CloseFile> temporary_;
  std::vector<Piece> pieces_;
  std::vector<size_t> heap_;  // heap of indexes into pieces_, ordered by Later
  std::map<int64_t, uint32_t> record_of_rank_;
  std::map<std::string, uint32_t> subjects_;  // IndexedLine::subject of tensor and model lines, by key_of()
  std::string run_, first_problem_, torn_;
  int64_t world_size_ = 0;
  uint64_t bad_lines_ = 0;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RECORD_INDEX_H_
