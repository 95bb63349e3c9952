// Reads the arguments of the fused attention of NVIDIA's TransformerEngine (functions nvte_fused_attn_fwd and
// _bwd of "the library", libtransformer_engine.so). The arguments are given as words: the 64-bit contents of
// registers and stack. The order of the arguments changes between minor versions, so only the released
// versions in a table are supported. A tensor is passed as a handle, an opaque word that functions of the
// library can read. Finds the installed version, too.
#ifndef FORESHOCK_LIBMONITOR_TRANSFORMER_ENGINE_H_
#define FORESHOCK_LIBMONITOR_TRANSFORMER_ENGINE_H_

#include <cstddef>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/base.h"

namespace foreshock {

inline constexpr int kMostNvteWords = 35;  // at least the number of words of each supported function

// The kind of an argument. kPack: a pointer to several handles. kLength and kWindow: integers. kStream: a
// CUDA stream. kLayout to kSoftmax: enumerations of the library (NVTE_QKV_Layout, ...).
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

// The indices of the arguments among the integer and pointer words of a function. -1: the function does not
// have the argument in this version. `aux`: a pack of auxiliary tensors; in a training it holds the
// log-sum-exp. `bottom_right`: with a causal mask, the last query sees all keys. `returns_max`: the call
// returns the largest score. Scale and dropout are floats, which are not among these words.
struct NvteIndices {
  int8_t query, key, value, out, grad_out, grad_query, grad_key, grad_value, aux;
  int8_t is_training, returns_max;
  int8_t layout, out_format, grad_out_format, grad_layout;
  int8_t bias, mask, softmax, window_left, window_right, bottom_right;
  int8_t workspace, stream;
  int8_t count;                    // number of words
  NvteKind kinds[kMostNvteWords];  // kinds[n]: the kind of word n
};

// The arguments of one version of the library.
struct NvteSignature {
  NvteIndices forward, backward;
  bool has_int16;      // the library's enumeration of number formats has int16 before fp32
  bool has_new_shape;  // shapes are returned as NvteTensorFunctions::Shape, not as OlderShape
};

// Finds the signature for the version of the package ("2.8.0"). Returns false if the version is unknown.
bool find_nvte_signature(const char* version, NvteSignature* found);

// Functions of the library that read a tensor handle. `shape` returns OlderShape before version 2.4.
struct NvteTensorFunctions {
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
  void* shape;  // a function like `data`, but with another result type

  bool are_known() const { return data != nullptr && type != nullptr && shape != nullptr; }
};

// One call: its arguments, and what is needed to read them. `device` is the index of the device of the
// tensors, or -1 for the host. `pass` is FORESHOCK_FORWARD or _BACKWARD.
struct NvteCall {
  const NvteSignature* signature;
  const NvteTensorFunctions* functions;
  const Word* words;
  float scale, dropout;
  uint32_t pass;
  int32_t device;
};

inline constexpr int kNotAnNvteCall = -2;

// Describes a call for the monitor: fills in *call, except for op, layer and stream, and returns -1. On
// failure returns the reason, FORESHOCK_SKIP_... (0 or more). Returns kNotAnNvteCall if the words are not the
// arguments of the signature, because a tensor holds integers or the shapes do not fit together. Must be
// called after the attention function has returned, with words that are_words_plausible() has accepted.
int describe_nvte_call(const NvteCall& nvte_call, foreshock_attention_call* call);

// Whether `words`, `scale` and `dropout` can be the arguments of a function whose arguments have `indices`. A
// build between two releases may have the version of one release and the signature of the other, so that for
// example a length is where a handle is expected. If true, the handles may be passed to the library. Does not
// follow pointers, but checks that the memory they point to can be read.
bool are_words_plausible(const NvteIndices& indices, const Word* words, float scale, float dropout);

// Whether `bytes` bytes at `address` can be read, according to the kernel. Only the first and the last word
// are checked, so `bytes` must be at least 8 and at most a page.
bool is_readable(Word address, size_t bytes);

// Reads the version of an installed Python package from the name of its metadata folder,
// "<package>-<version>.dist-info" or, for a variant, "<package>_cu12-...". `library` is a file of the
// package: its folder is searched, then the two folders above, until one has metadata. Returns false if there
// is no metadata, or if a folder has several versions. Slow, since it opens folders.
bool read_package_version(const char* library, const char* package, char (&version)[64]);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_TRANSFORMER_ENGINE_H_
