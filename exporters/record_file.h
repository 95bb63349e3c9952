// The file of a record: whole lines, one writer.
#ifndef FORESHOCK_EXPORTERS_RECORD_FILE_H_
#define FORESHOCK_EXPORTERS_RECORD_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace foreshock {

// write(2), or what a test puts in its place.
using WriteCall = ssize_t (*)(int file, const void* bytes, size_t count);

// Thread-compatible.
class RecordFile {
 public:
  // Creates the file, or goes on behind the last whole line of a record already there. Refuses a file that is
  // not a record, and one that another writer holds. Null: *error is one line.
  static std::unique_ptr<RecordFile> open(const std::string& path, std::string* error, WriteCall write);
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
  RecordFile(int file, std::string path, bool is_regular, uint64_t inode, uint64_t size, WriteCall write);

  const int file_;
  const std::string path_;
  const bool is_regular_;
  const uint64_t inode_;
  uint64_t size_;
  const WriteCall write_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_FILE_H_
