// Reads the tensors of a model: files in the safetensors format, alone, in shards or in a directory.
#ifndef FORESHOCK_LAB_CHECKPOINT_H_
#define FORESHOCK_LAB_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace foreshock::lab {

struct StoredTensor {
  DType dtype = DType::kNone;  // kNone: a type we have no arithmetic for
  std::string type;            // as the file spells it: "BF16"
  std::vector<int64_t> shape;
  uint64_t offset = 0, bytes = 0;  // in the file

  uint64_t elements() const { return dtype == DType::kNone ? 0 : bytes / size_of(dtype); }
};

// A file in the safetensors format: a length, a JSON header, the data. The header is read and checked when
// the file is opened; data is read in pieces when asked for, so a file may be far larger than memory. It is
// read, not mapped: a file that shrinks or cannot be read is then an error, not a SIGBUS.
class Safetensors {
 public:
  Safetensors() = default;
  ~Safetensors();
  Safetensors(Safetensors&& other) noexcept { swap(&other); }
  Safetensors& operator=(Safetensors&& other) noexcept { return swap(&other), *this; }

  // An empty string, or one line that says what is wrong with the file; nothing in it is trusted.
  std::string open(const std::string& path);

  // Reads bytes [from, from + count) of a tensor of this file. Any thread. An empty string or one line.
  std::string read(const StoredTensor& tensor, uint64_t from, uint64_t count, char* to) const;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void swap(Safetensors* other);
  std::string read_header();

  std::string path_;
  int file_ = -1;
  uint64_t size_ = 0;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Text of a file as it may be shown: on one line, without control characters, no longer than a line.
std::string printable(const std::string& text);

// Opens a regular file for reading; -1 with `problem` set when it is none or cannot be read. Never waits for
// a pipe's other end.
int open_regular(const std::string& path, uint64_t* size, std::string* problem);

// Reads [offset, offset + count), all of it. False when it is not there.
bool read_all(int file, uint64_t offset, uint64_t count, char* to);

// The tensors of a model by name, in whatever files they lie: one safetensors file, the shards that an index
// (model.safetensors.index.json) names, or the safetensors files of a directory.

struct Checkpoint {
  struct Place {
    size_t file = 0;                       // of `files`
    const StoredTensor* tensor = nullptr;  // owned by that file
  };

  std::string path;  // as given
  std::vector<Safetensors> files;
  std::map<std::string, Place> tensors;

  std::string read(const Place& place, uint64_t from, uint64_t count, char* to) const {
    return files[place.file].read(*place.tensor, from, count, to);
  }
};

// Fills `checkpoint`. An empty string, or one line that names the file and says what is wrong with it;
// nothing in files is trusted. An index may name files beside it only.
std::string open_checkpoint(const std::string& path, Checkpoint* checkpoint);

// Whether name `a` comes before `b` as people count: layers.2 before layers.10.
bool natural_less(const std::string& a, const std::string& b);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_CHECKPOINT_H_
