// Where the arguments of TransformerEngine's fused attention stand. They move between its minor versions, so
// this knows exact versions only.
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

// Places among the words: integers and pointers in their order, floats apart (the scale is the first of them,
// the dropout the second). -1: this function of this version has no such argument.
struct NvteWords {
  int8_t query, key, value, out, grad_out, grad_query, grad_key, grad_value, aux;
  int8_t is_training, returns_max;
  int8_t layout, out_format, grad_out_format, grad_layout;
  int8_t bias, mask, softmax, window_left, window_right, bottom_right;
  int8_t workspace, stream;
  int8_t count;  // of all words, and what each of them is:
  NvteKind kinds[kMostNvteWords];
};

struct NvteSignature {
  NvteWords forward, backward;
  bool has_int16;     // numbers of the formats: one more before fp32
  bool shape_is_own;  // shapes are returned with their values, not with a pointer to them
};

// `version` as the package tells it ("2.8.0"). False: not a version whose signature was read.
bool find_nvte_signature(const char* version, NvteSignature* found);

// One call of TransformerEngine's fused attention, described.

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

// Whether words that were taken for arguments of TransformerEngine's fused attention can be those. A version
// names a signature, but what was built between two releases may say the version of the one and have the
// signature of the other: then a length stands where a handle is looked for.

// True: the library may be asked about the handles among them. Nothing is read here but the words themselves.
bool are_words_plausible(const NvteWords& places, const Word* words, float scale, float dropout);

// Whether so many bytes at `address` can be read, by what the kernel says.
bool is_readable(Word address, size_t bytes);

// The version of an installed Python package, from the folder of its metadata.

// `library` is a file of the package: lib.so in it or up to two folders below. Of the nearest folder above it
// that has metadata "<package>-<version>.dist-info", or of a variant "<package>_cu12-...". False: there is
// none, or they disagree. Opens folders, so not for a hot path.
bool read_package_version(const char* library, const char* package, char (&version)[64]);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_TRANSFORMER_ENGINE_H_
