// Lines that are on their way into a record, in a file that no disk holds up (shared memory): an agent that
// is killed has handed them over all the same.
#ifndef FORESHOCK_EXPORTERS_RECORD_SPOOL_H_
#define FORESHOCK_EXPORTERS_RECORD_SPOOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace foreshock {

// Which bytes of which file the lines of a spool are to be.
struct RecordPlace {
  uint64_t inode = 0;
  uint64_t offset = 0;
};

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
  // Of a spool of another file, or of one that has become shorter, all. Nothing is added before it is
  // cleared.
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

#endif  // FORESHOCK_EXPORTERS_RECORD_SPOOL_H_
