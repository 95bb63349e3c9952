// What a framework package sees of TransformerEngine 2.TE_MINOR: types, and both functions of fused attention
// with the arguments of that version. 99 is a version that there is not, with more of them.
#pragma once

#include <cstddef>
#include <cstdint>

struct Tensor {
  void* data;
  size_t shape[15];
  size_t dims;
  int type;
  int id;  // what stands for it in the digest of the arguments
};
// The address of a tensor until 2.7, then its number in a table; the stand-in has either in all versions.
#ifdef TE_HANDLES_ARE_NUMBERS
using NVTETensor = struct Number*;
#else
using NVTETensor = Tensor*;
#endif
struct NVTETensorPack {
  NVTETensor tensors[10];
  size_t size;
};

enum NVTE_QKV_Layout : int {};
enum NVTE_QKV_Format : int {};
enum NVTE_Bias_Type : int {};
enum NVTE_Mask_Type : int {};
enum NVTE_Softmax_Type : int {};

constexpr int kFloat32 = TE_MINOR >= 4 ? 4 : 3;
constexpr int kFloat8 = kFloat32 + 3;

struct NVTEShape {
#if TE_MINOR >= 4
  size_t data[15];
#else
  const size_t* data;
#endif
  size_t ndim;
};

#if TE_MINOR >= 99
#define IF99(...) __VA_ARGS__
#else
#define IF99(...)
#endif
#if TE_MINOR >= 15
#define IF15(...) __VA_ARGS__
#else
#define IF15(...)
#endif
#if TE_MINOR >= 12
#define IF12(...) __VA_ARGS__
#else
#define IF12(...)
#endif
#if TE_MINOR >= 10
#define IF10(...) __VA_ARGS__
#else
#define IF10(...)
#endif
#if TE_MINOR >= 9
#define IF9(...) __VA_ARGS__
#else
#define IF9(...)
#endif
#if TE_MINOR >= 8
#define IF8(...) __VA_ARGS__
#else
#define IF8(...)
#endif
#if TE_MINOR >= 2
#define IF2(...) __VA_ARGS__
#else
#define IF2(...)
#endif

// clang-format off
// X(type, name) for every argument in its order, but for the last one: the stream.
#define FORWARD_ARGUMENTS(X)                                                                             \
  IF99(X(double, temperature)) X(NVTETensor, Q) X(NVTETensor, K) X(NVTETensor, V) X(NVTETensor, Bias)    \
  IF8(X(NVTETensor, SoftmaxOffset)) X(NVTETensor, S) X(NVTETensor, O) X(NVTETensorPack*, Aux)            \
  X(NVTETensor, cu_seqlens_q) X(NVTETensor, cu_seqlens_kv) X(NVTETensor, cu_seqlens_q_padded)            \
  X(NVTETensor, cu_seqlens_kv_padded) IF2(X(NVTETensor, page_table_k) X(NVTETensor, page_table_v))       \
  X(NVTETensor, rng_state) X(size_t, max_seqlen_q) X(size_t, max_seqlen_kv) X(bool, is_training)         \
  IF9(X(bool, return_max_logit)) IF10(X(bool, cuda_graph)) X(float, attn_scale) X(float, dropout)        \
  X(NVTE_QKV_Layout, qkv_layout) IF15(X(NVTE_QKV_Format, o_format) X(NVTE_QKV_Format, scale_inv_format)) \
  X(NVTE_Bias_Type, bias_type) X(NVTE_Mask_Type, mask_type) IF8(X(NVTE_Softmax_Type, softmax_type))      \
  X(int64_t, window_left) X(int64_t, window_right) IF12(X(bool, bottom_right_diagonal)) MORE(X)          \
  X(NVTETensor, workspace)

#define BACKWARD_ARGUMENTS(X)                                                                            \
  IF99(X(double, temperature)) X(NVTETensor, Q) X(NVTETensor, K) X(NVTETensor, V) X(NVTETensor, O)       \
  X(NVTETensor, dO) X(NVTETensor, S) X(NVTETensor, dP) X(const NVTETensorPack*, Aux) X(NVTETensor, dQ)   \
  X(NVTETensor, dK) X(NVTETensor, dV) X(NVTETensor, dBias) IF8(X(NVTETensor, dSoftmaxOffset))            \
  X(NVTETensor, cu_seqlens_q) X(NVTETensor, cu_seqlens_kv) X(NVTETensor, cu_seqlens_q_padded)            \
  X(NVTETensor, cu_seqlens_kv_padded) X(size_t, max_seqlen_q) X(size_t, max_seqlen_kv)                   \
  X(float, attn_scale) X(float, dropout) X(NVTE_QKV_Layout, qkv_layout)                                  \
  IF15(X(NVTE_QKV_Format, o_format) X(NVTE_QKV_Format, do_format) X(NVTE_QKV_Layout, dqkv_layout)        \
       X(NVTE_QKV_Format, scale_inv_format) X(NVTE_QKV_Format, do_scale_inv_format))                     \
  X(NVTE_Bias_Type, bias_type) X(NVTE_Mask_Type, mask_type) IF8(X(NVTE_Softmax_Type, softmax_type))      \
  X(int64_t, window_left) X(int64_t, window_right) IF12(X(bool, bottom_right_diagonal))                  \
  X(bool, deterministic) IF10(X(bool, cuda_graph)) MORE(X) X(NVTETensor, workspace)

#define MORE(X)                                                                                          \
  IF99(X(int64_t, m0) X(int64_t, m1) X(int64_t, m2) X(int64_t, m3) X(int64_t, m4) X(int64_t, m5)         \
       X(int64_t, m6) X(int64_t, m7) X(float, f0) X(float, f1) X(int, last))
// clang-format on
#define PARAMETER(type, name) type name,
#define FIELD(type, name) type name = {};

struct ForwardArguments {
  FORWARD_ARGUMENTS(FIELD) void* stream = nullptr;
};
struct BackwardArguments {
  BACKWARD_ARGUMENTS(FIELD) void* stream = nullptr;
};

// The handle of one of the trainer's tensors, and the tensor of a handle.
NVTETensor stand_in_handle(Tensor* tensor);
Tensor* stand_in_tensor(NVTETensor handle);

extern "C" {
void* nvte_tensor_data(NVTETensor tensor);
int nvte_tensor_type(NVTETensor tensor);
NVTEShape nvte_tensor_shape(NVTETensor tensor);
void nvte_fused_attn_fwd(FORWARD_ARGUMENTS(PARAMETER) void* stream);
void nvte_fused_attn_bwd(BACKWARD_ARGUMENTS(PARAMETER) void* stream);
uint64_t stand_in_digest();  // of every argument that has come
}
