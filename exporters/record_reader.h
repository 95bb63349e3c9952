// Reads a record, the file with one JSON object per line that the agent writes, and converts lines to CSV.
#ifndef FORESHOCK_EXPORTERS_RECORD_READER_H_
#define FORESHOCK_EXPORTERS_RECORD_READER_H_

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "exporters/record.h"

namespace foreshock {

using RecordLine = std::variant<RunLine, StepLine, SampleLine, TensorLine, ModelLine, OptimizerLine,
                                GradientLine, EventLine, FindingLine, VerdictLine>;

// Parses a line of a record, without its newline. Fields that are not in the tables of record.h are
// ignored, since a newer foreshock may have added them. Missing fields get their value for "unknown". The
// field "nonfinite" lists the fields whose number was NaN or infinite; they all become NaN. On failure
// returns nothing and sets *why to a phrase, e.g. "not JSON"; "": a type that only older versions wrote.
// `text` may have any bytes. Thread-safe.
std::optional<RecordLine> parse_record_line(std::string_view text, std::string* why);

// Iterates over the lines of a record. Holds only one line in memory. The last line may be incomplete,
// because its writer was killed. Thread-compatible.
class RecordReader {
 public:
  static constexpr size_t kLongestLine = kLongestRecordLine;  // a longer line counts as bad

  // Opens a record. If it is kept in two files (--record-size), the older part is read first, and offsets in
  // the newer part continue from the end of the older part. Without `with_older_part`, only the newer part is
  // read. On failure, and for a device or a named pipe, returns null and sets *error to one line.
  static std::unique_ptr<RecordReader> open(const std::string& path, std::string* error,
                                            bool with_older_part = true);

  // Returns the next valid line, and nothing at the end of the file. Skips and counts bad lines. A line of
  // more than 64 MiB, as a file of another kind may have, is an end of the file too.
  std::optional<RecordLine> next();

  // Continues at byte `offset`, which must be the first byte of a line. The record must have been opened
  // without its older part. Returns false if the file is shorter than `offset` or cannot be read.
  bool seek(uint64_t offset);

  // Offset of the last line that next() returned, and its length without the newline.
  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_; }

  uint64_t lines() const { return lines_; }  // lines read so far, including bad and empty lines
  uint64_t bad_lines() const { return bad_lines_; }
  bool ends_torn() const { return ends_torn_; }  // the last line is incomplete; it is not a bad line
  // "line 7: not JSON" for the first bad line; "" if there was none.
  const std::string& first_problem() const { return first_problem_; }
  // Returns a one-line error message about the file `path` in which next() has found no valid line.
  std::string no_valid_line_error(const std::string& path) const;

 private:
  RecordReader(std::ifstream file, std::ifstream newer_part);
  bool read_line(std::string_view* text, bool* whole);  // *whole: the line ends with a newline
  void note_bad(const std::string& why);

  std::ifstream file_, newer_part_;  // newer_part_ is open while file_ is the older part
  std::vector<char> buffer_;
  uint64_t offset_ = 0, bytes_ = 0;  // see offset() and bytes()
  uint64_t next_offset_ = 0;         // offset of the next line; of both parts together
  uint64_t lines_ = 0, bad_lines_ = 0;
  bool ends_torn_ = false;
  std::string first_problem_, torn_problem_;  // of the first bad line; of an incomplete last line
};

const char* type_of(const RecordLine& line);  // the field "type" of the line: "run", "step", "sample", ...

// Returns the names of the CSV (RFC 4180) columns for the type of `line`, with a newline. The columns are the
// fields of the type, in the order of record.h.
std::string csv_header(const RecordLine& line);

// Returns the values of the line as CSV, with a newline. An unknown value is empty. A number that is not
// finite is "nan". Numbers have enough digits to be read back exactly. A list is written as numbers separated
// by blanks, an object as "a=1 b=2". Independent of the locale.
std::string csv_row(const RecordLine& line);

// Returns one CSV cell with this text, in quotes if it needs them. Names may come from a trainer, so control
// characters except newlines become '?', and text that a spreadsheet would run as a formula begins with "'".
std::string csv_text(std::string_view text);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_READER_H_
