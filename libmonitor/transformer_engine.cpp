// Reads calls of TransformerEngine's fused attention. Part 1 finds the index of each argument from tables of
// argument names, one table for each range of versions. Part 2 describes a call for the monitor. Part 3
// checks that the words (the integer and pointer arguments) can be the expected arguments, since a build may
// have other arguments than its version says. Part 4 reads the version of an installed package.
#include "libmonitor/transformer_engine.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <iterator>

namespace foreshock {
namespace {

// The names of the arguments in TransformerEngine's fused_attn.h, in order and without the floats (scale,
// dropout). Each macro is a sequence of names that occurs in several versions.
#define FORWARD_SIZES "cu_seqlens_q cu_seqlens_kv cu_seqlens_q_padded cu_seqlens_kv_padded "
#define PAGES "page_table_k page_table_v "
#define FORWARD_BEGIN "Q K V Bias S O Aux_CTX_Tensors " FORWARD_SIZES
#define FORWARD_BEGIN_OFFSET "Q K V Bias SoftmaxOffset S O Aux_CTX_Tensors " FORWARD_SIZES PAGES
#define LENGTHS "max_seqlen_q max_seqlen_kv "
#define FORWARD_LENGTHS "rng_state " LENGTHS "is_training "
#define KINDS "bias_type attn_mask_type "
#define WINDOW "window_size_left window_size_right "
#define END "workspace stream"
#define BACKWARD_BEGIN "Q K V O dO S dP Aux_CTX_Tensors dQ dK dV dBias "

struct Names {
  const char *forward, *backward;  // names separated by spaces
};

constexpr Names kNames[] = {
    // each with the first version that has these names
    // 2.0
    {FORWARD_BEGIN FORWARD_LENGTHS "qkv_layout " KINDS WINDOW END,
     BACKWARD_BEGIN FORWARD_SIZES LENGTHS "qkv_layout " KINDS WINDOW "deterministic " END},
    // 2.2: adds page tables, which map positions to memory when keys and values are cached in pages
    {FORWARD_BEGIN PAGES FORWARD_LENGTHS "qkv_layout " KINDS WINDOW END,
     BACKWARD_BEGIN FORWARD_SIZES LENGTHS "qkv_layout " KINDS WINDOW "deterministic " END},
    // 2.8: adds attention sinks
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW END, BACKWARD_BEGIN
     "dSoftmaxOffset " FORWARD_SIZES LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW "deterministic " END},
    // 2.9: can return the largest score
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS "return_max_logit qkv_layout " KINDS "softmax_type " WINDOW END,
     BACKWARD_BEGIN "dSoftmaxOffset " FORWARD_SIZES LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW
                    "deterministic " END},
    // 2.10: adds cuda_graph
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS "return_max_logit cuda_graph qkv_layout " KINDS
                                          "softmax_type " WINDOW END,
     BACKWARD_BEGIN "dSoftmaxOffset " FORWARD_SIZES LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW
                    "deterministic cuda_graph " END},
    // 2.12: adds the corner of the causal diagonal
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS "return_max_logit cuda_graph qkv_layout " KINDS
                                          "softmax_type " WINDOW "bottom_right_diagonal " END,
     BACKWARD_BEGIN "dSoftmaxOffset " FORWARD_SIZES LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW
                    "bottom_right_diagonal deterministic cuda_graph " END},
    // 2.15: separate formats for the results
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS
     "return_max_logit cuda_graph qkv_layout o_format qkv_scale_inv_format " KINDS "softmax_type " WINDOW
     "bottom_right_diagonal " END,
     BACKWARD_BEGIN
     "dSoftmaxOffset " FORWARD_SIZES LENGTHS
     "qkv_layout o_format do_format dqkv_layout qkv_scale_inv_format do_scale_inv_format " KINDS
     "softmax_type " WINDOW "bottom_right_diagonal deterministic cuda_graph " END},
};

struct Version {
  const char* version;
  uint8_t names;  // index in kNames
};

// Read from the headers of the released versions. Builds from source have a commit after their version
// ("2.8.0+5a5b5ea"). They are not supported, because the branches of several releases (2.8, 2.9, 2.12, 2.15)
// began with the arguments of the earlier version.
constexpr Version kVersions[] = {
    {"2.0.0", 0},  {"2.1.0", 0},  {"2.2.0", 1},  {"2.3.0", 1},  {"2.4.0", 1},  {"2.5.0", 1},
    {"2.6.0", 1},  {"2.7.0", 1},  {"2.8.0", 2},  {"2.9.0", 3},  {"2.10.0", 4}, {"2.11.0", 4},
    {"2.12.0", 5}, {"2.13.0", 5}, {"2.14.0", 5}, {"2.14.1", 5}, {"2.15.0", 6}, {"2.16.0", 6},
    {"2.16.1", 6}, {"2.17.0", 6}, {"2.17.1", 6}, {"2.18.0", 6},
};
// Index of 2.4.0 in kVersions. This version added int16 to the number formats and changed the shape struct.
constexpr size_t kIndexOf240 = 4;

struct KindOfName {
  const char* prefix;
  NvteKind kind;
};

// The first entry whose prefix a name has gives its kind. Arguments with other names are handles, words that
// stand for a tensor (class Handles below).
constexpr KindOfName kKinds[] = {
    {"Aux_CTX_Tensors", NvteKind::kPack},       {"max_seqlen", NvteKind::kLength},
    {"is_training", NvteKind::kBoolean},        {"return_max_logit", NvteKind::kBoolean},
    {"cuda_graph", NvteKind::kBoolean},         {"bottom_right_diagonal", NvteKind::kBoolean},
    {"deterministic", NvteKind::kBoolean},      {"qkv_layout", NvteKind::kLayout},
    {"dqkv_layout", NvteKind::kLayout},         {"o_format", NvteKind::kFormat},
    {"do_format", NvteKind::kFormat},           {"qkv_scale_inv_format", NvteKind::kFormat},
    {"do_scale_inv_format", NvteKind::kFormat}, {"bias_type", NvteKind::kBias},
    {"attn_mask_type", NvteKind::kMask},        {"softmax_type", NvteKind::kSoftmax},
    {"window_size", NvteKind::kWindow},         {"stream", NvteKind::kStream},
};

NvteKind kind_of(const char* name) {
  for (const KindOfName& entry : kKinds)
    if (std::strncmp(name, entry.prefix, std::strlen(entry.prefix)) == 0) return entry.kind;
  return NvteKind::kHandle;
}

// Returns the index of `name` in `names`, a list separated by spaces; -1 if it is absent.
int8_t index_of(const char* names, const char* name) {
  int8_t index = 0;
  for (const char* next = names;; ++index) {
    const size_t length = std::strcspn(next, " ");
    if (length == std::strlen(name) && std::memcmp(next, name, length) == 0) return index;
    next += length;
    if (*next == '\0') return -1;
    ++next;
  }
}

NvteIndices indices_of(const char* names) {
  const auto find = [names](const char* name) { return index_of(names, name); };
  NvteIndices indices = {};
  indices.query = find("Q");
  indices.key = find("K");
  indices.value = find("V");
  indices.out = find("O");
  indices.grad_out = find("dO");
  indices.grad_query = find("dQ");
  indices.grad_key = find("dK");
  indices.grad_value = find("dV");
  indices.aux = find("Aux_CTX_Tensors");
  indices.is_training = find("is_training");
  indices.returns_max = find("return_max_logit");
  indices.layout = find("qkv_layout");
  indices.out_format = find("o_format");
  indices.grad_out_format = find("do_format");
  indices.grad_layout = find("dqkv_layout");
  indices.bias = find("bias_type");
  indices.mask = find("attn_mask_type");
  indices.softmax = find("softmax_type");
  indices.window_left = find("window_size_left");
  indices.window_right = find("window_size_right");
  indices.bottom_right = find("bottom_right_diagonal");
  indices.workspace = find("workspace");
  indices.stream = find("stream");
  for (const char* name = names; indices.count < kMostNvteWords; ++name) {  // ++name skips the space
    indices.kinds[indices.count++] = kind_of(name);
    name += std::strcspn(name, " ");
    if (*name == '\0') break;
  }
  return indices;
}

}  // namespace

bool find_nvte_signature(const char* version, NvteSignature* found) {
  for (size_t n = 0; n < sizeof kVersions / sizeof *kVersions; ++n) {
    if (std::strcmp(kVersions[n].version, version) != 0) continue;
    const Names& names = kNames[kVersions[n].names];
    *found = {indices_of(names.forward), indices_of(names.backward), /*has_int16=*/n >= kIndexOf240,
              /*has_new_shape=*/n >= kIndexOf240};
    return true;
  }
  return false;
}

namespace {

// Values of NVTE_QKV_Layout, NVTE_QKV_Format and NVTE_Mask_Type, which have not changed since 2.0. A layout
// names the dimensions in memory: s position, b batch, h head, d element. kSbhdBshd: query sbhd, key bshd.
enum Layout : uint32_t { kSbhdBshd = 15, kBshdSbhd = 16 };  // other values are used only in kLayouts
enum Format : uint32_t { kFormatSbhd = 0, kFormatBshd = 1, kFormatBhsd = 7 };
enum Mask : uint32_t { kNoMask = 0, kCausal = 2, kCausalBottomRight = 4 };

// The order of a tensor's dimensions, the number of tensors that are packed together (itself included), and
// whether they are packed per head ([..., heads, packed, dim]) or as a whole ([..., packed, heads, dim]).
struct Arrangement {
  Format format;
  int packed;
  bool per_head;
};
constexpr Arrangement kSbhd = {kFormatSbhd, 1, false}, kBshd = {kFormatBshd, 1, false},
                      kBhsd = {kFormatBhsd, 1, false};

struct Arrangements {
  uint32_t layout;
  Arrangement query, key;  // the value is arranged like the key
};
constexpr Arrangements kLayouts[] = {
    {0, {kFormatSbhd, 3, false}, {kFormatSbhd, 3, false}},  // sb3hd
    {1, {kFormatSbhd, 3, true}, {kFormatSbhd, 3, true}},    // sbh3d
    {2, kSbhd, {kFormatSbhd, 2, false}},                    // sbhd_sb2hd
    {3, kSbhd, {kFormatSbhd, 2, true}},                     // sbhd_sbh2d
    {4, kSbhd, kSbhd},                                      // sbhd_sbhd_sbhd
    {5, {kFormatBshd, 3, false}, {kFormatBshd, 3, false}},  // bs3hd
    {6, {kFormatBshd, 3, true}, {kFormatBshd, 3, true}},    // bsh3d
    {7, kBshd, {kFormatBshd, 2, false}},                    // bshd_bs2hd
    {8, kBshd, {kFormatBshd, 2, true}},                     // bshd_bsh2d
    {9, kBshd, kBshd},                                      // bshd_bshd_bshd
    {kSbhdBshd, kSbhd, kBshd},                              // sbhd_bshd_bshd
    {kBshdSbhd, kBshd, kSbhd},                              // bshd_sbhd_sbhd
    {25, kBhsd, kBhsd},                                     // bhsd_bhsd_bhsd
};

// Returns false for a layout that is not in kLayouts: sequences packed without padding (thd) or in pages,
// because their lengths are on the device, and layouts of later versions.
bool arrangements_of(uint32_t layout, Arrangements* found) {
  for (const Arrangements& entry : kLayouts) {
    if (entry.layout != layout) continue;
    *found = entry;
    return true;
  }
  return false;
}

constexpr Word kFirstAddress = 4096, kEndOfAddresses = Word{1} << 48;
// Since 2.8, handles are indexes in a table of some 100'000 entries, all below this limit. Addresses in the
// heap are above it, since even a program without address randomization begins at 4 MiB.
constexpr Word kEndOfHandleIndexes = Word{1} << 21;

bool is_address(Word word) { return word >= kFirstAddress && word < kEndOfAddresses; }

// Handles are addresses of tensors until 2.7, and indexes in a table since 2.8. 0 always stands for an absent
// tensor. If the query's handle is an address, so are all handles of the call.
class Handles {
 public:
  explicit Handles(Word query) : are_addresses_(query >= kEndOfHandleIndexes) {}

  bool is_handle(Word word) const {
    return word == 0 ||
           (are_addresses_ ? is_address(word) && word % alignof(void*) == 0 : word < kEndOfHandleIndexes);
  }
  // Whether the word may be passed to the library, which reads at least 16 bytes of a tensor.
  bool can_be_dereferenced(Word word) const {
    return word != 0 && is_handle(word) && (!are_addresses_ || is_readable(word, 2 * sizeof(Word)));
  }

 private:
  bool are_addresses_;
};

struct Pack {  // NVTETensorPack
  Word tensors[10];
  size_t size;
};

// Describes one call. `nvte_call` has the words of the call, `indices` the index of each argument's word.
class Describer {
 public:
  Describer(const NvteCall& nvte_call, const NvteIndices& indices)
      : nvte_call_(nvte_call), indices_(indices) {}

  int describe(foreshock_attention_call* call) const;

 private:
  Word word(int8_t index) const { return nvte_call_.words[index]; }
  // An enumeration uses only the lower half of its word, a boolean only the lowest byte.
  uint32_t number(int8_t index, uint32_t absent = 0) const {
    return index < 0 ? absent : static_cast<uint32_t>(word(index));
  }
  bool is_true(int8_t index) const { return index >= 0 && (word(index) & 0xff) != 0; }

  bool all_have_data() const;
  bool all_are_floating() const;
  bool fit_together(const foreshock_attention_call& call) const;
  int dtype_of(Word tensor) const;
  bool shape_of(Word tensor, NvteTensorFunctions::Shape* shape) const;
  bool view(Word tensor, Arrangement arranged, foreshock_tensor* to) const;
  void add_optional(int8_t index, Arrangement arranged, foreshock_tensor* to) const;
  int causal(int64_t queries, int64_t keys) const;
  void add_log_sum_exp(foreshock_attention_call* call) const;

  const NvteCall& nvte_call_;
  const NvteIndices& indices_;
};

// Whether condition(index) is true for each required tensor. In a forward call dO and dQ, whose index is -1,
// are not required.
bool all_required_tensors(const NvteIndices& indices, auto condition) {
  const int8_t required[] = {indices.query, indices.key,      indices.value,
                             indices.out,   indices.grad_out, indices.grad_query};
  return std::all_of(std::begin(required), std::end(required),
                     [condition](int8_t index) { return index < 0 || condition(index); });
}

// Must be checked before shapes are read. For an unknown handle, the library returns a null data pointer, but
// throws an exception when the shape is read.
bool Describer::all_have_data() const {
  return all_required_tensors(
      indices_, [this](int8_t index) { return nvte_call_.functions->data(word(index)) != nullptr; });
}

// Whether all required tensors hold floating-point numbers (fp8 and narrower formats included), not bytes or
// integers.
bool Describer::all_are_floating() const {
  const int first = nvte_call_.signature->has_int16 ? 4 : 3;  // NVTE_DType of fp32, the first floating format
  return all_required_tensors(indices_, [this, first](int8_t index) {
    const int type = nvte_call_.functions->type(word(index));
    return type >= first && type <= first + 8;  // first + 6 in 2.8; the rest is room for later versions
  });
}

// Whether the shapes (batch, heads, positions, elements) belong to one call of attention. The batch of keys
// and values must be that of the query, except in the two layouts for cached keys, where it may differ.
bool Describer::fit_together(const foreshock_attention_call& call) const {
  const auto fit = [](const foreshock_tensor& a, const foreshock_tensor& b, std::initializer_list<int> axes) {
    return std::all_of(axes.begin(), axes.end(), [&](int axis) { return a.shape[axis] == b.shape[axis]; });
  };
  const uint32_t layout = number(indices_.layout);
  const bool may_be_cached = layout == kSbhdBshd || layout == kBshdSbhd;
  const int64_t kv_heads = call.key.shape[1];
  return fit(call.query, call.out, {0, 1, 2}) && fit(call.key, call.value, {0, 1, 2}) &&
         fit(call.query, call.key, {3}) && fit(call.value, call.out, {3}) &&
         (may_be_cached || fit(call.query, call.key, {0})) && kv_heads > 0 &&
         call.query.shape[1] % kv_heads == 0 &&
         (call.grad_out.data == nullptr ||
          (fit(call.grad_out, call.out, {0, 1, 2, 3}) && fit(call.grad_query, call.query, {0, 1, 2, 3})));
}

constexpr int kFp8 = -2;  // result of dtype_of() for fp8 and for formats with fewer bits

// Returns the FORESHOCK_ format of a tensor (FORESHOCK_DTYPE_NONE for integers), or kFp8. In NVTE_DType
// without int16, 0 to 2 are integers; 3, 4, 5 are fp32, fp16, bf16; above are narrower formats.
int Describer::dtype_of(Word tensor) const {
  const int type = nvte_call_.functions->type(tensor) - (nvte_call_.signature->has_int16 ? 1 : 0);
  constexpr int kFormats[] = {FORESHOCK_FP32, FORESHOCK_FP16, FORESHOCK_BF16};
  if (type >= 3 && type < 6) return kFormats[type - 3];
  return type < 3 ? FORESHOCK_DTYPE_NONE : kFp8;
}

// Reads the shape. Returns false if it does not have four dimensions.
bool Describer::shape_of(Word tensor, NvteTensorFunctions::Shape* shape) const {
  void* function = nvte_call_.functions->shape;
  if (nvte_call_.signature->has_new_shape) {
    *shape = reinterpret_cast<NvteTensorFunctions::Shape (*)(Word)>(function)(tensor);
  } else {
    const auto older = reinterpret_cast<NvteTensorFunctions::OlderShape (*)(Word)>(function)(tensor);
    if (older.dims > 4 || older.sizes == nullptr) return false;
    shape->dims = older.dims;
    std::copy_n(older.sizes, older.dims, shape->sizes);
  }
  return shape->dims == 4;
}

// Describes a tensor as a view with the dimensions (batch, heads, position, element). Returns false if the
// tensor has no data or not four dimensions, or if the order of its dimensions is not supported.
bool Describer::view(Word tensor, Arrangement arranged, foreshock_tensor* to) const {
  NvteTensorFunctions::Shape shape;
  if (nvte_call_.functions->data(tensor) == nullptr || !shape_of(tensor, &shape)) return false;
  constexpr int kSbhdAxes[] = {1, 2, 0, 3}, kBshdAxes[] = {0, 2, 1, 3}, kBhsdAxes[] = {0, 1, 2, 3};
  const int* axes = arranged.format == kFormatSbhd   ? kSbhdAxes
                    : arranged.format == kFormatBshd ? kBshdAxes
                    : arranged.format == kFormatBhsd ? kBhsdAxes
                                                     : nullptr;
  if (axes == nullptr) return false;
  // strides[n] belongs to the n-th axis in memory, counted from the outermost. Tensors that are packed per
  // head multiply the stride of the heads (axis 2). Both kinds of packing multiply the stride of axis 1.
  int64_t strides[4] = {0, 0, 0, 1};
  const auto size = [&shape](int axis) { return static_cast<int64_t>(shape.sizes[axis]); };
  strides[2] = arranged.per_head ? arranged.packed * size(3) : size(3);
  strides[1] = size(2) * size(3) * arranged.packed;
  strides[0] = size(1) * strides[1];
  to->data = nvte_call_.functions->data(tensor);
  for (int n = 0; n < 4; ++n) {
    to->shape[n] = size(axes[n]);
    to->stride[n] = strides[axes[n]];
  }
  to->dims = 4;
  to->dtype = static_cast<uint32_t>(std::max(dtype_of(tensor), 0));  // kFp8: FORESHOCK_DTYPE_NONE
  to->device_type = nvte_call_.device < 0 ? FORESHOCK_DEVICE_CPU : FORESHOCK_DEVICE_CUDA;  // -1: host
  to->device_index = std::max(nvte_call_.device, 0);
  return true;
}

// Leaves `to` absent if the tensor cannot be described; the rest of the call can be judged without it.
void Describer::add_optional(int8_t index, Arrangement arranged, foreshock_tensor* to) const {
  if (index < 0 || !view(word(index), arranged, to) || dtype_of(word(index)) == kFp8) *to = {};
}

// Returns FORESHOCK_CAUSAL_..., or -1 if the mask is not supported. Not supported are padding (its lengths
// are on the device), a bias (its format cannot be determined reliably) and a window. Without a window, both
// limits are -1; with a causal mask, the right limit may also be 0.
int Describer::causal(int64_t queries, int64_t keys) const {
  const auto left = static_cast<int64_t>(word(indices_.window_left));
  const auto right = static_cast<int64_t>(word(indices_.window_right));
  const uint32_t mask = number(indices_.mask);
  if (number(indices_.bias) != 0 || left != -1 || right < -1 || right > 0) return -1;
  if (mask == kNoMask) return right == -1 ? FORESHOCK_CAUSAL_NONE : -1;
  if (mask != kCausal && mask != kCausalBottomRight) return -1;
  const bool is_bottom_right = mask == kCausalBottomRight;
  // Since 2.12 two arguments give the corner in which the causal diagonal begins. If they contradict each
  // other, the mask is unknown; but with as many queries as keys, both corners give the same mask.
  if (indices_.bottom_right >= 0 && is_true(indices_.bottom_right) != is_bottom_right && queries != keys)
    return -1;
  return is_bottom_right ? FORESHOCK_CAUSAL_BOTTOM_RIGHT : FORESHOCK_CAUSAL_TOP_LEFT;
}

// Adds log_sum_exp if the first auxiliary tensor holds it, as in a training: fp32 of [batch, heads, queries,
// 1]. For short sequences, older kernels return the matrix of probabilities there, which has another shape.
// If the largest score is requested (returns_max), the tensor may hold that score instead.
void Describer::add_log_sum_exp(foreshock_attention_call* call) const {
  const auto* pack = reinterpret_cast<const Pack*>(word(indices_.aux));
  if (pack == nullptr || pack->size < 1 || pack->size > std::size(pack->tensors) ||
      is_true(indices_.returns_max))
    return;
  if (nvte_call_.pass == FORESHOCK_FORWARD && !is_true(indices_.is_training)) return;
  const Word tensor = pack->tensors[0];
  // are_words_plausible() has checked the address of the pack, but not the handles in it.
  if (!Handles(word(indices_.query)).can_be_dereferenced(tensor)) return;
  foreshock_tensor stats = {};
  if (!view(tensor, {kFormatBhsd, 1, false}, &stats) || stats.dtype != FORESHOCK_FP32 ||
      !std::equal(stats.shape, stats.shape + 3, call->query.shape) || stats.shape[3] != 1)
    return;
  stats.dims = 3;
  call->log_sum_exp = stats;
}

// Fills in *call and returns -1, or returns the reason why not: FORESHOCK_SKIP_... or kNotAnNvteCall.
int Describer::describe(foreshock_attention_call* call) const {
  const bool is_backward = nvte_call_.pass == FORESHOCK_BACKWARD;
  if (!all_have_data()) return FORESHOCK_SKIP_LAYOUT;
  if (!all_are_floating()) return kNotAnNvteCall;
  for (const int8_t index : {indices_.query, indices_.key, indices_.value, indices_.out})
    if (dtype_of(word(index)) == kFp8) return FORESHOCK_SKIP_FP8;
  if (is_backward &&
      (dtype_of(word(indices_.grad_out)) == kFp8 || dtype_of(word(indices_.grad_query)) == kFp8))
    return FORESHOCK_SKIP_FP8;
  if (number(indices_.softmax) != 0) return FORESHOCK_SKIP_UNKNOWN;  // has attention sinks

  Arrangements inputs, grads;
  if (!arrangements_of(number(indices_.layout), &inputs) ||
      !arrangements_of(number(indices_.grad_layout, number(indices_.layout)), &grads))
    return FORESHOCK_SKIP_LAYOUT;
  const Arrangement out = {static_cast<Format>(number(indices_.out_format, inputs.query.format)), 1, false};
  const Arrangement grad_out = {static_cast<Format>(number(indices_.grad_out_format, inputs.query.format)), 1,
                                false};
  *call = {};
  call->size = sizeof *call;
  call->version = FORESHOCK_ABI_VERSION;
  call->scale = nvte_call_.scale;
  call->dropout = is_backward || is_true(indices_.is_training) ? nvte_call_.dropout : 0;
  if (!view(word(indices_.query), inputs.query, &call->query) ||
      !view(word(indices_.key), inputs.key, &call->key) ||
      !view(word(indices_.value), inputs.key, &call->value) || !view(word(indices_.out), out, &call->out))
    return FORESHOCK_SKIP_LAYOUT;
  if (is_backward && (!view(word(indices_.grad_out), grad_out, &call->grad_out) ||
                      !view(word(indices_.grad_query), grads.query, &call->grad_query)))
    return FORESHOCK_SKIP_LAYOUT;
  if (!fit_together(*call)) return kNotAnNvteCall;
  if (is_backward) {
    add_optional(indices_.grad_key, grads.key, &call->grad_key);
    add_optional(indices_.grad_value, grads.key, &call->grad_value);
  }
  const int mask = causal(call->query.shape[2], call->key.shape[2]);
  if (mask < 0) return FORESHOCK_SKIP_MASK;
  call->causal = mask;
  add_log_sum_exp(call);
  return -1;
}

}  // namespace

int describe_nvte_call(const NvteCall& nvte_call, foreshock_attention_call* call) {
  const NvteIndices& indices =
      nvte_call.pass == FORESHOCK_BACKWARD ? nvte_call.signature->backward : nvte_call.signature->forward;
  return Describer(nvte_call, indices).describe(call);
}

namespace {

constexpr Word kEndOfLengths = Word{1} << 31;  // a larger length or window is not plausible

// Whether a word can be an argument of this kind. A boolean uses only the lowest byte of its word, an
// enumeration only the lower half. Limits of enumerations: the largest values in 2.18, "not set" included.
bool is_plausible(NvteKind kind, Word word, const Handles& handles) {
  const auto number = static_cast<uint32_t>(word);
  switch (kind) {
    case NvteKind::kHandle:
      return handles.is_handle(word);
    case NvteKind::kPack:
      return is_address(word) && word % alignof(void*) == 0 && is_readable(word, sizeof(Pack));
    case NvteKind::kLength:
      return word < kEndOfLengths;
    case NvteKind::kBoolean:
      return (word & 0xff) <= 1;
    case NvteKind::kLayout:
      return number <= 26;
    case NvteKind::kFormat:
      return number <= 8;
    case NvteKind::kBias:
      return number <= 3;
    case NvteKind::kMask:
      return number <= 5;
    case NvteKind::kSoftmax:
      return number <= 2;
    case NvteKind::kWindow:
      return word == ~Word{0} || word < kEndOfLengths;  // ~0: -1, no limit
    case NvteKind::kStream:
      return word <= 2 || is_address(word);  // up to 2: default streams
  }
  return false;
}

}  // namespace

bool is_readable(Word address, size_t bytes) {
  const int saved_errno = errno;
  bool can_be_read = true;
  // Calls rt_sigprocmask with the invalid operation ~0. The kernel first copies 8 bytes, which fails with
  // EFAULT if they cannot be read. If they can, it returns EINVAL. No signal mask is changed.
  for (const Word checked : {address, address + bytes - sizeof(Word)}) {
    syscall(SYS_rt_sigprocmask, ~0, reinterpret_cast<const void*>(checked), nullptr, sizeof(Word));
    can_be_read &= errno == EINVAL;
  }
  errno = saved_errno;
  return can_be_read;
}

bool are_words_plausible(const NvteIndices& indices, const Word* words, float scale, float dropout) {
  // scale * 0 is 0 only if the scale is finite.
  if (!(scale > 0 && scale * 0 == 0) || !(dropout >= 0 && dropout <= 1)) return false;
  const Handles handles(words[indices.query]);
  for (int n = 0; n < indices.count; ++n)
    if (!is_plausible(indices.kinds[n], words[n], handles)) return false;
  // The words that describe_nvte_call() and its caller pass to the library as handles.
  const int8_t dereferenced[] = {indices.query,    indices.key,        indices.value,
                                 indices.out,      indices.grad_out,   indices.grad_query,
                                 indices.grad_key, indices.grad_value, indices.workspace};
  return std::all_of(std::begin(dereferenced), std::end(dereferenced),
                     [&](int8_t index) { return index < 0 || handles.can_be_dereferenced(words[index]); });
}

namespace {

enum class VersionsFound { kNone, kOne, kSeveral };  // number of different versions in a folder

// Sets `version` from "<package>-<version>.dist-info" or "<package>_cuNN-<version>.dist-info", or else to "".
void read_entry(const char* entry, const char* package, char (&version)[64]) {
  constexpr const char* kSuffix = ".dist-info";
  version[0] = '\0';
  const size_t length = std::strlen(entry), name_length = std::strlen(package);
  const size_t suffix_length = std::strlen(kSuffix);
  if (length <= name_length + suffix_length || std::strncmp(entry, package, name_length) != 0 ||
      std::strcmp(entry + length - suffix_length, kSuffix) != 0)
    return;
  const char* begin = entry + name_length;
  if (std::strncmp(begin, "_cu", 3) == 0) begin += 3 + std::strspn(begin + 3, "0123456789");
  const char* end = entry + length - suffix_length;
  const auto size = static_cast<size_t>(end - begin - 1);
  if (*begin != '-' || begin + 1 >= end || size >= sizeof version) return;
  std::memcpy(version, begin + 1, size);
  version[size] = '\0';
}

// Reads the version from the names in `folder`. Several names with the same version give kOne.
VersionsFound read_folder(const char* folder, const char* package, char (&version)[64]) {
  DIR* entries = opendir(folder);
  if (entries == nullptr) return VersionsFound::kNone;
  VersionsFound found = VersionsFound::kNone;
  while (const dirent* entry = readdir(entries)) {
    char entry_version[64];
    read_entry(entry->d_name, package, entry_version);
    if (entry_version[0] == '\0') continue;
    if (found != VersionsFound::kNone && std::strcmp(entry_version, version) != 0) {
      found = VersionsFound::kSeveral;
      break;
    }
    found = VersionsFound::kOne;
    std::memcpy(version, entry_version, sizeof version);
  }
  closedir(entries);
  return found;
}

}  // namespace

bool read_package_version(const char* library, const char* package, char (&version)[64]) {
  char folder[512];
  if (std::snprintf(folder, sizeof folder, "%s", library) >= int(sizeof folder)) return false;
  for (int level = 0; level < 3; ++level) {  // the library's folder, and two above it
    char* slash = std::strrchr(folder, '/');
    if (slash == nullptr || slash == folder) return false;
    *slash = '\0';
    const VersionsFound found = read_folder(folder, package, version);
    if (found != VersionsFound::kNone) return found == VersionsFound::kOne;
  }
  return false;
}

}  // namespace foreshock
