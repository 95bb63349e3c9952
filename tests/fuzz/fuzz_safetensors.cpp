// libFuzzer target: the reader of stored calls and checkpoints. Every byte of a tensor that it lists is
// there.
#include "lab/safetensors.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile memory;
  foreshock::lab::Safetensors file;
  if (!foreshock::lab::read_safetensors(memory.path_of(data, size), &file).empty()) return 0;
  volatile unsigned sum = 0;
  for (const auto& [name, tensor] : file.tensors) {
    size_t bytes = foreshock::element_bytes(tensor.dtype);
    for (int64_t extent : tensor.shape) bytes *= static_cast<size_t>(extent);
    for (size_t n = 0; n < bytes; ++n) sum = sum + static_cast<unsigned char>(file.data(tensor)[n]);
  }
  return 0;
}
