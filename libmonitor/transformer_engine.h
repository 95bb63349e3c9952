// Reads the arguments of TransformerEngine's fused attention. The order of the arguments changes between
// minor versions, so only exact versions are supported.
#ifndef FORESHOCK_LIBMONITOR_TRANSFORMER_ENGINE_H_
#define FORESHOCK_LIBMONITOR_TRANSFORMER_ENGINE_H_

#include <cstddef>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/base.h"

namespace foreshock {

inline constexpr int kMostNvteWords = 35;

enum class NvteKind : uint8_t {
  kHandle,
  kPack,
  kLength,
  kBoolean,
  kLayout,
  kFormat,
  kBias,
  kMask,
  kSoftmax,
  kWindow,
  kStream
};

// Indices of the arguments among the integer and pointer words. -1: this function has no such argument in
// this version. Floats are passed separately: scale first, then dropout.
struct NvteWords {
  int8_t query, key, value, out, grad_out, grad_query, grad_key, grad_value, aux;
  int8_t is_training, returns_max;
  int8_t layout, out_format, grad_out_format, grad_layout;
  int8_t bias, mask, softmax, window_left, window_right, bottom_right;
  int8_t workspace, stream;
  int8_t count;                    // number of words
  NvteKind kinds[kMostNvteWords];  // by word
};

struct NvteSignature {
  NvteWords forward, backward;
  bool has_int16;     // the enumeration of formats has int16 before fp32
  bool shape_is_own;  // shapes are returned by value, not as a pointer
};

// Finds the signature for the version of the package ("2.8.0"). Returns false if the version is unknown.
bool find_nvte_signature(const char* version, NvteSignature* found);

// Functions of libtransformer_engine.so that read a tensor handle. Until 2.3 a shape has two words, later it
// is a larger struct.
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
  void* shape;  // function that returns Shape or OlderShape

  bool are_known() const { return data != nullptr && type != nullptr && shape != nullptr; }
};

// The arguments of one call. `device` is the index of the device of its tensors, or -1 for the host.
struct NvteGiven {
  const NvteSignature* signature;
  const NvteTensors* tensors;
  const Word* words;
  float scale, dropout;
  uint32_t pass;
  int32_t device;
};

inline constexpr int kNotAnNvteCall = -2;

// Fills in *call, except for op, layer and stream, and returns -1. Otherwise returns the FORESHOCK_SKIP_
// reason, or kNotAnNvteCall if the tensors do not fit together. Must be called after the function has
// returned, with words that are_words_plausible() has accepted.
int describe_nvte_call(const NvteGiven& given, foreshock_attention_call* call);

// Whether these words can be the arguments of a signature. A build between two releases may have the version
// of one release and the signature of the other, so that for example a length is in the place of a handle. If
// true, the handles may be passed to the library. Reads only the words themselves.
bool are_words_plausible(const NvteWords& places, const Word* words, float scale, float dropout);

// Whether `bytes` bytes at `address` can be read, according to the kernel.
bool is_readable(Word address, size_t bytes);

// Reads the version of an installed Python package from the name of its metadata folder,
// "<package>-<version>.dist-info", or that of a variant, "<package>_cu12-...". `library` is a file of the
// package, in its folder or up to two folders below. The nearest folder above it with metadata is used.
// Returns false if there is no metadata, or if several versions are found there. Opens folders, so it must
// not be called on a hot path.
bool read_package_version(const char* library, const char* package, char (&version)[64]);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_TRANSFORMER_ENGINE_H_
