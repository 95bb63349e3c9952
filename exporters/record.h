// Writes the record of a run: a file with one JSON object per line (record_line.h). A separate thread writes
// the file, so that a hung disk does not delay the agent. Lines that are not in the file yet are also copied
// to a spool, a file in shared memory, so that they survive a killed agent.
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

// The signature of write(2), which tests replace.
using WriteCall = ssize_t (*)(int file, const void* bytes, size_t count);

// The file of a record. It contains whole lines and has one writer. It may also be a pipe or a device, which
// cannot be locked or truncated. Thread-compatible.
class RecordFile {
 public:
  // Creates the file, or opens a record to append to it after its last whole line. Returns null and a
  // one-line *error if the file cannot be opened, is not a record, or another writer has locked it. With a
  // `max_bytes` above 0, the record is kept in two parts of at most half of `max_bytes` each: before a part
  // would become larger, it is renamed to older_part(path), which replaces the earlier older part, and a new
  // file is started at `path`.
  static std::unique_ptr<RecordFile> open(const std::string& path, std::string* error, WriteCall write,
                                          uint64_t max_bytes = 0);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // `bytes`: how many bytes of `lines` are in the file. `error`: the errno if some are missing, else 0. A
  // partly written line is removed from a regular file, so that a later call can write the whole line. In a
  // pipe or device the written part stays and is counted in `bytes`; the later call must pass the rest.
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
             uint64_t max_bytes);
  void begin_new_part();

  int file_;
  const std::string path_;
  const bool is_regular_;
  uint64_t inode_, size_;
  const uint64_t max_bytes_;
  const WriteCall write_;
};

// Writes the record. Only one thread may call it. It starts a second thread that writes the file. Lines wait
// in memory, up to 4 MiB, and are written once a second. If the disk is full or hangs, the file keeps whole
// lines only. The other lines wait for the next attempt to write; lines beyond the 4 MiB are counted as lost.
class RecordWriter {
 public:
  static constexpr std::chrono::milliseconds kPatience{2000};       // after this, a write counts as hung
  static constexpr std::chrono::milliseconds kLongestFlush{10000};  // flush() waits no longer for a hung file

  // Opens the file as RecordFile::open() does, and appends the lines of the spool that are not in the file.
  // `spool`: the descriptor for RecordSpool, or -1. Makes the process ignore SIGXFSZ, so that exceeding a
  // limit of file sizes is an error of write() and does not end the process.
  static std::unique_ptr<RecordWriter> open(const std::string& path, std::string* error, int spool = -1,
                                            WriteCall write = ::write, uint64_t max_bytes = 0);
  // Writes the waiting lines, for at most kPatience. If the file hangs, the writing thread is detached, and
  // the waiting lines are lost unless the spool has them.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  template <class Line>
  void write(const Line& line) {
    append(to_json_line(line));
  }

  // Waits until all lines are written or cannot be written. Returns whether all were written.
  bool flush() { return write_out(kLongestFlush); }
  // Starts to write all lines, without waiting.
  void begin_flush();

  // Copies the lines passed to write() so far to the spool, where they survive a killed agent. Must be called
  // before the trainer may reuse the shared memory that the lines describe. If the spool fails, waits until
  // the lines are in the file, at most 2 * kPatience; not while the file is known to be full or to hang.
  void copy_to_spool();

  // Returns a one-line error once after the first of consecutive failed attempts to write; else "".
  std::string take_error();

  // Bytes of whole lines in the file and in the spool. The spool counts, since the next agent writes its
  // lines to the file if this agent is killed. 0 if the file is not a regular file.
  uint64_t size() const;

  uint64_t errors() const;      // attempts to write that failed
  uint64_t lines_lost() const;  // lines that will never be written
  bool is_incomplete() const;   // lines are lost, or would be if this process were killed

 private:
  struct Shared;  // shared with the writing thread, which may outlive this object
  explicit RecordWriter(std::shared_ptr<Shared> shared);
  void append(const std::string& line);
  bool write_out(std::chrono::milliseconds max_wait);  // returns whether all lines were written
  bool start_thread();                                 // returns whether the writing thread exists

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
  std::chrono::steady_clock::time_point last_flush_;
};

// A position in a record: the file and a byte offset in it.
struct RecordPlace {
  uint64_t inode = 0;
  uint64_t offset = 0;
};

// A file in shared memory for lines that are not yet in the record. The first line of the spool is a heading:
// the position at which the other lines belong in the record. Thread-compatible.
class RecordSpool {
 public:
  static constexpr size_t kMostBytes = size_t{8} << 20;

  // Takes ownership of a descriptor opened for reading and appending. If it is negative, add() always fails.
  explicit RecordSpool(int file);
  ~RecordSpool();
  RecordSpool(const RecordSpool&) = delete;
  RecordSpool& operator=(const RecordSpool&) = delete;

  // Returns the lines of an earlier agent that are not in the record. `end`: the end of the record. Returns
  // all lines if the spool belongs to another file, or if the record has become shorter. Call clear() before
  // the first add(): under the heading of the earlier agent, new lines would have a wrong position.
  std::string missing(const RecordPlace& end) const;

  // Adds lines. `place`: the position of the first of them in the record, directly after the lines added
  // before. Returns false on failure; later calls then also fail until the next clear().
  bool add(std::string_view lines, const RecordPlace& place);

  // Empties the spool. Must be called only if all its lines are in the record or will be added again.
  void clear();

  // Whether the spool exists and has all lines passed to add() since the last clear().
  bool is_whole() const { return is_whole_; }

 private:
  const int file_;
  size_t size_ = 0;
  bool is_whole_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_H_
