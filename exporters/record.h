// The record of a run: a file with one JSON object a line. record_line.h says what a line holds.
#ifndef FORESHOCK_EXPORTERS_RECORD_H_
#define FORESHOCK_EXPORTERS_RECORD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "exporters/record_line.h"

namespace foreshock {

// Thread-compatible. Lines are buffered (4 MiB at most) and go out at flush(), which write() calls by itself
// once a second; the destructor flushes. A full disk does no harm: the file keeps whole lines only, what does
// not fit waits in the buffer for the next attempt, and what no longer fits there is counted as lost.
class RecordWriter {
 public:
  // Creates the file, or goes on behind the last whole line of a record already there. Refuses a file that is
  // not a record, and one that another writer holds. Null: *error is one line. Ignores SIGXFSZ from now on,
  // so that a size limit is an error and not the end of the process.
  static std::unique_ptr<RecordWriter> open(const std::string& path, std::string* error);
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  template <class Line>
  void write(const Line& line) {
    append(to_json_line(line));
  }

  // False while the file cannot be written.
  bool flush();

  // Before a trainer is told that what the lines say was taken: an agent that is killed after that must have
  // written them. While the file cannot be written they wait, as above.
  void hand_over() {
    if (!failing_ && !buffer_.empty()) flush();
  }

  // The first error of a series of failures, handed out once; empty when there is nothing new to say.
  std::string take_error();

  // Bytes of whole lines in the file: where the next flush goes on. 0 for what is no regular file.
  uint64_t size() const { return regular_ ? size_ : 0; }

  uint64_t errors() const { return errors_; }          // failed attempts to write
  uint64_t lines_lost() const { return lines_lost_; }  // lines that will never be written

 private:
  RecordWriter(int file, bool regular, std::string path, uint64_t size);
  void append(const std::string& line);

  int file_;
  bool regular_;  // can be truncated
  std::string path_;
  uint64_t size_;  // bytes of whole lines in the file
  std::string buffer_;
  std::string error_;
  bool failing_ = false;
  int64_t last_flush_ms_ = 0;
  uint64_t errors_ = 0;
  uint64_t lines_lost_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_H_
