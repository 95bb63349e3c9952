// Reads the tensors of a model from one safetensors file, from those that an index names, or from a folder.
#ifndef FORESHOCK_LAB_CHECKPOINT_H_
#define FORESHOCK_LAB_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace foreshock::lab {

// A tensor of a safetensors file, without its data.
struct StoredTensor {
  DType dtype = DType::kNone;  // kNone: a type that is not supported, see `type`
  std::string type;            // the name in the file: "BF16"
  std::vector<int64_t> shape;
  uint64_t offset = 0, bytes = 0;  // position and size in the file

  uint64_t elements() const { return dtype == DType::kNone ? 0 : bytes / size_of(dtype); }
};

// A file in the safetensors format: the header's length, a JSON header, the data. Data is read on request, so
// a file may be far larger than memory. It is not mapped: a mapped file that shrinks would cause SIGBUS.
class Safetensors {
 public:
  Safetensors() = default;
  ~Safetensors();
  Safetensors(Safetensors&& other) noexcept { swap(&other); }
  Safetensors& operator=(Safetensors&& other) noexcept { return swap(&other), *this; }

  // Opens a file and checks its header, which is not trusted. Returns "" or one line that says what is wrong.
  std::string open(const std::string& path);

  // Reads `count` bytes of a tensor from its byte `begin` on. Returns "" or an error. Thread-safe.
  std::string read(const StoredTensor& tensor, uint64_t begin, uint64_t count, char* data) const;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // of the file, in bytes
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void swap(Safetensors* other);
  std::string read_header();

  std::string path_;
  int file_ = -1;  // descriptor; -1: not open
  uint64_t size_ = 0;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Makes text from a file printable: control characters become '?', and the text is cut after 200 bytes.
std::string printable(const std::string& text);

// Opens a regular file for reading. Returns a descriptor and sets `size`. Returns -1 and sets `problem` if
// the file cannot be read or is not regular; does not block on a pipe.
int open_regular(const std::string& path, uint64_t* size, std::string* problem);

// Reads the bytes [offset, offset + count). Returns false if any of them cannot be read.
bool read_all(int file, uint64_t offset, uint64_t count, char* data);

// The tensors of a model by name. They come from one safetensors file, from all .safetensors files of a
// directory, or from the shards (files with a part of the tensors) that model.safetensors.index.json names.
struct Checkpoint {
  struct Place {
    size_t file = 0;                       // index in `files`
    const StoredTensor* tensor = nullptr;  // owned by that file
  };

  std::string path;  // the argument of open_checkpoint()
  std::vector<Safetensors> files;
  std::map<std::string, Place> tensors;

  std::string read(const Place& place, uint64_t begin, uint64_t count, char* data) const {
    return files[place.file].read(*place.tensor, begin, count, data);
  }
};

// Fills `checkpoint`. Returns "" or one line that names the file and the error. The content of files is not
// trusted: an index may only name files in its own directory.
std::string open_checkpoint(const std::string& path, Checkpoint* checkpoint);

// Whether name `a` sorts before `b`, with runs of digits compared as numbers: layers.2 before layers.10.
bool natural_less(const std::string& a, const std::string& b);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_CHECKPOINT_H_
