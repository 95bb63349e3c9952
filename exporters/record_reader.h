// Reads a record line by line, also one whose last line RecordWriter did not complete.
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

#include "exporters/record_line.h"

namespace foreshock {

using RecordLine = std::variant<RunLine, StepLine, SampleLine, TensorLine, ModelLine, OptimizerLine,
                                SpectrumLine, EventLine>;

// Parses a line of a record, without its newline. Fields that a newer foreshock has added are ignored,
// missing fields are unknown, and a number named in "nonfinite" becomes NaN, also if it was infinite. On
// failure returns nothing, and *why is a phrase. `text` may have any bytes. Thread-safe.
std::optional<RecordLine> parse_record_line(std::string_view text, std::string* why);

// Thread-compatible. Holds one line at a time, so the size of the file does not matter.
class RecordReader {
 public:
  static constexpr size_t kLongestLine = kLongestRecordLine;  // a longer line counts as bad

  // If the record is kept in two parts (--record-size), the older part is read first unless `with_older_part`
  // is false, and the offsets of the second part go on from the first. Returns null with a one-line *error.
  static std::unique_ptr<RecordReader> open(const std::string& path, std::string* error,
                                            bool with_older_part = true);

  // The next line that can be read. Bad lines before it are skipped and counted. Nothing at the end of the
  // file.
  std::optional<RecordLine> next();

  // Continues at byte `offset`, the first of a line. The file must have been opened without its older part.
  // False if it is shorter.
  bool seek(uint64_t offset);

  // Offset of the last line that next() returned, and its length without the newline.
  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_; }

  uint64_t lines() const { return lines_; }  // so far, including bad and empty lines
  uint64_t bad_lines() const { return bad_lines_; }
  // Whether the file ends within a line, as after its writer was killed. Such a line does not count as bad.
  bool ends_torn() const { return ends_torn_; }
  // "line 7: not JSON" for the first bad line; "" if there was none.
  const std::string& first_problem() const { return first_problem_; }
  // A one-line error for a file in which next() has found no line. `path`: the file's name in it.
  std::string why_nothing(const std::string& path) const;

 private:
  RecordReader(std::ifstream file, std::ifstream next);
  bool read_line(std::string_view* text, bool* whole);
  void note_bad(const std::string& why);

  std::ifstream file_, next_;  // next_: the newer part, while the older one is read
  std::vector<char> buffer_;
  uint64_t offset_ = 0, bytes_ = 0, read_ = 0;
  uint64_t lines_ = 0, bad_lines_ = 0;
  bool ends_torn_ = false;
  std::string first_problem_, torn_problem_;
};

// Lines of a record as comma separated values (RFC 4180), the columns in the order of the fields.

// "run", "step", "sample", ...: the field "type" of the line.
const char* type_of(const RecordLine& line);

// The column names for lines of this type, with a newline.
std::string csv_header(const RecordLine& line);

// The values, with a newline. An unknown value is empty, and a number that is not finite is "nan". Numbers
// have enough digits to be read back exactly. A list is written as numbers with blanks between them, an
// object as names and numbers ("a=1 b=2"). Independent of the locale.
std::string csv_row(const RecordLine& line);

// One cell, in quotes if it needs them.
std::string csv_text(std::string_view text);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_READER_H_
