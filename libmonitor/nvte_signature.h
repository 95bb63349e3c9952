// Where the arguments of TransformerEngine's fused attention stand. They move between its minor versions, so
// this knows exact versions only.
#ifndef FORESHOCK_LIBMONITOR_NVTE_SIGNATURE_H_
#define FORESHOCK_LIBMONITOR_NVTE_SIGNATURE_H_

#include <cstdint>

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
  int8_t query, key, value, out, grad_out, grad_query, aux;
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

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_NVTE_SIGNATURE_H_
