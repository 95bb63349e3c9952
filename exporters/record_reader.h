// Reads a record back: what RecordWriter wrote, whole or not, one line after the other.
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

// The line that `text` (without its newline) holds. A field that a newer foreshock has added is left out; one
// that is missing is unknown; a number named in "nonfinite" is NaN, whatever it was. Nothing: *why is a
// phrase. Any bytes may be passed; thread-safe.
std::optional<RecordLine> parse_record_line(std::string_view text, std::string* why);

// Thread-compatible. Holds one line at a time, so the size of the file does not matter.
class RecordReader {
 public:
  static constexpr size_t kLongestLine = kLongestRecordLine;  // a longer one is a bad line

  // If the record is kept in two parts (--record-size), the older part is read first unless `with_older_part`
  // is false, and the offsets of the second part go on from the first. Returns null with a one-line *error.
  static std::unique_ptr<RecordReader> open(const std::string& path, std::string* error,
                                            bool with_older_part = true);

  // The next line that can be read; bad ones before it are passed over and counted. Nothing: the end of the
  // file.
  std::optional<RecordLine> next();

  // Goes on at this byte, the first of a line, of a file opened without its older part. False when it is
  // shorter.
  bool seek(uint64_t offset);

  // Where the line that next() gave last stands in the file, without its newline.
  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_; }

  uint64_t lines() const { return lines_; }  // so far, bad ones and empty ones included
  uint64_t bad_lines() const { return bad_lines_; }
  // The file ends within a line, as when its writer was killed. Such a line is no bad one.
  bool ends_torn() const { return ends_torn_; }
  // "line 7: not JSON" for the first bad one; "" when there was none.
  const std::string& first_problem() const { return first_problem_; }
  // One line for who has got nothing from next(); `path` is what it calls the file.
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

// "run", "step", "sample" or "event".
const char* type_of(const RecordLine& line);

// The names of the columns for lines of the type of `line`, with a newline.
std::string csv_header(const RecordLine& line);

// The values, with a newline. Unknown is empty; a number that is not finite is "nan"; numbers come back to
// the last bit; a list is its numbers with blanks between them, an
// object its names and numbers ("a=1 b=2"). Independent of the locale.
std::string csv_row(const RecordLine& line);

// One cell, quoted where it must be.
std::string csv_text(std::string_view text);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_READER_H_
