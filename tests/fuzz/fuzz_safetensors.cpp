// libFuzzer target: the reader of stored calls and checkpoints. Every byte of a tensor that it lists is
// there, and as many as its shape says.
#include <cstdlib>

#include "lab/checkpoint.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile memory;
  foreshock::lab::Safetensors file;
  if (!file.open(memory.path_of(data, size)).empty()) return 0;
  for (const auto& [name, tensor] : file.tensors()) {
    std::vector<char> bytes(tensor.bytes);  // no more than the file has, or this does not fit
    if (!file.read(tensor, 0, tensor.bytes, bytes.data()).empty()) std::abort();
    if (tensor.dtype == foreshock::DType::kNone) continue;
    uint64_t elements = 1;
    for (int64_t extent : tensor.shape) elements *= static_cast<uint64_t>(extent);
    if (elements != tensor.elements()) std::abort();
  }
  return 0;
}
