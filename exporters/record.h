// The record of a run: a file with one JSON object a line. record_line.h says what a line holds.
#ifndef FORESHOCK_EXPORTERS_RECORD_H_
#define FORESHOCK_EXPORTERS_RECORD_H_

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "exporters/record_file.h"
#include "exporters/record_line.h"

namespace foreshock {

// One thread calls it; another one, of its own, writes the file, so that a disk that is slow or hangs holds
// up nobody else. Lines wait for it (4 MiB at most) and go out once a second. A full disk or one that hangs
// does no harm: the file keeps whole lines only, what does not fit waits for the next attempt, and what no
// longer fits into the 4 MiB is counted as lost.
class RecordWriter {
 public:
  // An attempt to write that takes longer has failed for the time being: the file hangs.
  static constexpr std::chrono::milliseconds kPatience{2000};
  // That flush() waits for a file that hangs.
  static constexpr std::chrono::milliseconds kLongestFlush{10000};

  // Creates the file, or goes on behind the last whole line of a record already there, at once with the lines
  // of `spool` that it lacks. Refuses a file that is not a record, and one that another writer holds. Null:
  // *error is one line. Ignores SIGXFSZ from now on, so that a size limit is an error and not the end of the
  // process. `spool`: a descriptor as RecordSpool takes it over, or -1.
  static std::unique_ptr<RecordWriter> open(const std::string& path, std::string* error, int spool = -1,
                                            WriteCall write = ::write);
  // Flushes. With a file that hangs the thread is left behind, and what waits is lost.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  template <class Line>
  void write(const Line& line) {
    append(to_json_line(line));
  }

  // Waits until everything is in the file or cannot be written; false in the second case.
  bool flush() { return write_out(kLongestFlush); }
  // The same without waiting.
  void begin_flush();

  // Before a trainer is told that what the lines say was taken: an agent that is killed after that must leave
  // them behind. They go into the spool; where they cannot, it waits for the file, but for one that is known
  // to be full or to hang.
  void hand_over();

  // The first error of a series of failures, handed out once; empty when there is nothing new to say.
  std::string take_error();

  // Bytes of whole lines in the file once what was handed over is there, which the next agent sees to if need
  // be; without a spool, those there now. 0 for what is no regular file.
  uint64_t size() const;

  uint64_t errors() const;      // attempts to write that failed
  uint64_t lines_lost() const;  // lines that will never be written
  bool is_incomplete() const;   // lines are lost, or would be with this process

 private:
  struct Shared;  // with the thread, which may outlive this
  explicit RecordWriter(std::shared_ptr<Shared> shared);
  void append(const std::string& line);
  bool write_out(std::chrono::milliseconds most);
  bool start_thread();

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
  std::chrono::steady_clock::time_point last_flush_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_H_
