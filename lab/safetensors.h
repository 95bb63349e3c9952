// Reads tensors from a file in the safetensors format: a length, a JSON header, the data.
#ifndef FORESHOCK_LAB_SAFETENSORS_H_
#define FORESHOCK_LAB_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace foreshock::lab {

struct StoredTensor {
  DType dtype = DType::kNone;
  std::vector<int64_t> shape;
  size_t offset = 0;  // into Safetensors::bytes
};

struct Safetensors {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<char> bytes;

  const char* data(const StoredTensor& tensor) const { return bytes.data() + tensor.offset; }
};

// Fills `file`. An empty string, or one line that says what is wrong with the file; nothing in it is trusted.
std::string read_safetensors(const std::string& path, Safetensors* file);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_SAFETENSORS_H_
