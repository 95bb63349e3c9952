// One call of TransformerEngine's fused attention, described.
#ifndef FORESHOCK_LIBMONITOR_NVTE_CALL_H_
#define FORESHOCK_LIBMONITOR_NVTE_CALL_H_

#include <cstddef>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/nvte_signature.h"
#include "libmonitor/passed_words.h"

namespace foreshock {

// Of libtransformer_engine.so: what its handles stand for. Until 2.3 a shape is two words, then a struct.
struct NvteTensors {
  struct Shape {
    size_t sizes[15];
    size_t dims;
  };
  struct OlderShape {
    const size_t* sizes;
    size_t dims;
  };
  void* (*data)(Word tensor);
  int32_t (*type)(Word tensor);
  void* shape;  // function of either return type

  bool are_known() const { return data != nullptr && type != nullptr && shape != nullptr; }
};

// The places in memory are the device's of this number; -1: the host's.
struct NvteGiven {
  const NvteSignature* signature;
  const NvteTensors* tensors;
  const Word* words;
  float scale, dropout;
  uint32_t pass;
  int32_t device;
};

inline constexpr int kNotAnNvteCall = -2;

// Fills *call in (but for op, layer and stream) and returns -1, or returns the FORESHOCK_SKIP_ reason, or
// kNotAnNvteCall where tensors that belong together do not fit. After the function has returned, and with
// words that were found plausible.
int describe_nvte_call(const NvteGiven& given, foreshock_attention_call* call);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_NVTE_CALL_H_
