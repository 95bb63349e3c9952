// Writes the record of a run: a file with one JSON object a line (record_line.h), written by a thread of its
// own and spooled in shared memory, so that neither a hung disk nor a killed agent loses lines.
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

// write(2), or what a test puts in its place.
using WriteCall = ssize_t (*)(int file, const void* bytes, size_t count);

// The file: whole lines, one writer. Thread-compatible.
class RecordFile {
 public:
  // Creates the file, or goes on behind the last whole line of a record already there. Refuses a file that is
  // not a record, and one that another writer holds. Null: *error is one line.
  // `most` bytes are kept, 0: all. At half of them the file is renamed to older_part(path), in place of an
  // older one, and a new one begins.
  static std::unique_ptr<RecordFile> open(const std::string& path, std::string* error, WriteCall write,
                                          uint64_t most = 0);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // What went into the file of `lines`, and why not all: an errno, or 0. A torn line is taken back, so that
  // it can be written again as a whole.
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
  // process. `spool`: a descriptor as RecordSpool takes it over, or -1. `most`: as of RecordFile.
  static std::unique_ptr<RecordWriter> open(const std::string& path, std::string* error, int spool = -1,
                                            WriteCall write = ::write, uint64_t most = 0);
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

// Which bytes of which file the lines of a spool are to be.
struct RecordPlace {
  uint64_t inode = 0;
  uint64_t offset = 0;
};

// Lines on their way into a record, in a file in shared memory: they survive an agent that is killed.
// Thread-compatible. The file holds one line that says where its first byte belongs, then lines of the
// record.
class RecordSpool {
 public:
  static constexpr size_t kMostBytes = size_t{8} << 20;

  // Takes over the descriptor, of a file to read and to append to; negative: there is no spool, and nothing
  // can be added.
  explicit RecordSpool(int file);
  ~RecordSpool();
  RecordSpool(const RecordSpool&) = delete;
  RecordSpool& operator=(const RecordSpool&) = delete;

  // The lines that an agent before this one has added and not brought into the record, which ends at `end`.
  // If the spool belongs to another file, or the record has become shorter, that is all lines of the spool.
  // Nothing can be added before the spool is cleared.
  std::string missing(const RecordPlace& end) const;

  // Adds lines, the first of which will stand in the record at `place`, behind those that were added before.
  // False: they are not there, or would not be understood, until the next clear().
  bool add(std::string_view lines, const RecordPlace& place);

  // Everything that was added is in the record.
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
