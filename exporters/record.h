// Writes the record of a run: a file with one JSON object per line (record_line.h). A separate thread writes
// the file, and lines are spooled in shared memory, so that neither a hung disk nor a killed agent loses
// lines.
#ifndef FORESHOCK_EXPORTERS_RECORD_H_
#define FORESHOCK_EXPORTERS_RECORD_H_

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "exporters/record_line.h"

namespace foreshock {

// write(2), or a test's replacement.
using WriteCall = ssize_t (*)(int file, const void* bytes, size_t count);

// The file of a record. It contains whole lines and has one writer. Thread-compatible.
class RecordFile {
 public:
  // Creates the file, or opens a record to append to it after its last whole line. Returns null and a
  // one-line *error if the file cannot be opened, is not a record, or another writer holds it. `most`: bytes
  // that are kept, 0: all. At half of them the file is renamed to older_part(path), which replaces an earlier
  // one, and a new file begins.
  static std::unique_ptr<RecordFile> open(const std::string& path, std::string* error, WriteCall write,
                                          uint64_t most = 0);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // How many bytes of `lines` are in the file, and the errno if these are not all, else 0. A partly written
  // line is removed again, so that it can be written again as a whole.
  struct Appended {
    size_t bytes = 0;
    int error = 0;
  };
  Appended append(std::string_view lines);

  const std::string& path() const { return path_; }
  bool is_regular() const { return is_regular_; }  // can be truncated
  uint64_t size() const { return size_; }          // bytes of whole lines
  uint64_t inode() const { return inode_; }

 private:
  RecordFile(int file, std::string path, bool is_regular, uint64_t inode, uint64_t size, WriteCall write,
             uint64_t most);
  void begin_new_part();

  int file_;
  const std::string path_;
  const bool is_regular_;
  uint64_t inode_, size_;
  const uint64_t most_;
  const WriteCall write_;
};

// Writes the record. One thread calls it. A second thread, which it starts, writes the file, so that a slow
// or hung disk does not hold up the caller. Up to 4 MiB of lines wait in memory and are written once a
// second. If the disk is full or hangs, the file still consists of whole lines, the others wait for the next
// attempt, and lines beyond the 4 MiB are counted as lost.
class RecordWriter {
 public:
  // An attempt to write that takes longer counts as failed for now: the file hangs.
  static constexpr std::chrono::milliseconds kPatience{2000};
  // Longest time that flush() waits for a file that hangs.
  static constexpr std::chrono::milliseconds kLongestFlush{10000};

  // Opens the file as RecordFile::open() does, and appends the lines of `spool` that it lacks. `spool`: the
  // descriptor for RecordSpool, or -1. `most`: see RecordFile. From now on SIGXFSZ is ignored, so that a
  // limit of file sizes is an error and does not end the process.
  static std::unique_ptr<RecordWriter> open(const std::string& path, std::string* error, int spool = -1,
                                            WriteCall write = ::write, uint64_t most = 0);
  // Flushes. If the file hangs, the thread is detached, and the waiting lines are lost.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  template <class Line>
  void write(const Line& line) {
    append(to_json_line(line));
  }

  // Waits until all lines are in the file or cannot be written; returns false in the second case.
  bool flush() { return write_out(kLongestFlush); }
  // Starts to write all lines, without waiting.
  void begin_flush();

  // Must be called before the trainer may reuse the data that the lines describe: the lines written so far
  // then survive a killed agent. They are put into the spool. If that fails, waits for the file, unless it is
  // known to be full or to hang.
  void hand_over();

  // The first error of a series of failures, returned once; empty if there is none to report.
  std::string take_error();

  // Bytes of whole lines in the file, including those in the spool, which the next agent writes if this one
  // cannot. 0 if the file is not a regular file.
  uint64_t size() const;

  uint64_t errors() const;      // attempts to write that failed
  uint64_t lines_lost() const;  // lines that will never be written
  bool is_incomplete() const;   // lines are lost, or would be if this process were killed

 private:
  struct Shared;  // shared with the thread, which may outlive this object
  explicit RecordWriter(std::shared_ptr<Shared> shared);
  void append(const std::string& line);
  bool write_out(std::chrono::milliseconds most);
  bool start_thread();

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
  std::chrono::steady_clock::time_point last_flush_;
};

// Where the lines of a spool belong: file, and offset of the first line.
struct RecordPlace {
  uint64_t inode = 0;
  uint64_t offset = 0;
};

// A file in shared memory with lines that are not in the record yet, so that they survive a killed agent. Its
// first line is a heading with the place of the other lines in the record. Thread-compatible.
class RecordSpool {
 public:
  static constexpr size_t kMostBytes = size_t{8} << 20;

  // Takes ownership of a descriptor opened for reading and appending. Negative: there is no spool, and
  // nothing can be added.
  explicit RecordSpool(int file);
  ~RecordSpool();
  RecordSpool(const RecordSpool&) = delete;
  RecordSpool& operator=(const RecordSpool&) = delete;

  // The lines that an earlier agent added and that the record, which ends at `end`, lacks. These are all
  // lines of the spool if it belongs to another file, or if the record has become shorter. The spool must be
  // cleared before lines are added.
  std::string missing(const RecordPlace& end) const;

  // Adds lines, the first of which belongs at `place` in the record, directly after the lines added before.
  // Returns false if they could not be added; then none can be until the next clear().
  bool add(std::string_view lines, const RecordPlace& place);

  // Empties the spool. Called when all its lines are in the record.
  void clear();

  // Whether all lines since the last clear() could be added.
  bool is_whole() const { return is_whole_; }

 private:
  const int file_;
  size_t size_ = 0;
  bool is_whole_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_H_
