#include "libmonitor/nvte_signature.h"

#include <cstddef>
#include <cstring>

namespace foreshock {
namespace {

// The names of the arguments in TransformerEngine's fused_attn.h, without the floats.
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
  const char *forward, *backward;
};

constexpr Names kNames[] = {
    // 2.0
    {FORWARD_BEGIN FORWARD_LENGTHS "qkv_layout " KINDS WINDOW END,
     BACKWARD_BEGIN FORWARD_SIZES LENGTHS "qkv_layout " KINDS WINDOW "deterministic " END},
    // 2.2: tables of pages
    {FORWARD_BEGIN PAGES FORWARD_LENGTHS "qkv_layout " KINDS WINDOW END,
     BACKWARD_BEGIN FORWARD_SIZES LENGTHS "qkv_layout " KINDS WINDOW "deterministic " END},
    // 2.8: sinks
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW END, BACKWARD_BEGIN
     "dSoftmaxOffset " FORWARD_SIZES LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW "deterministic " END},
    // 2.9: the largest score may be asked for
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS "return_max_logit qkv_layout " KINDS "softmax_type " WINDOW END,
     BACKWARD_BEGIN "dSoftmaxOffset " FORWARD_SIZES LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW
                    "deterministic " END},
    // 2.10
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS "return_max_logit cuda_graph qkv_layout " KINDS
                                          "softmax_type " WINDOW END,
     BACKWARD_BEGIN "dSoftmaxOffset " FORWARD_SIZES LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW
                    "deterministic cuda_graph " END},
    // 2.12
    {FORWARD_BEGIN_OFFSET FORWARD_LENGTHS "return_max_logit cuda_graph qkv_layout " KINDS
                                          "softmax_type " WINDOW "bottom_right_diagonal " END,
     BACKWARD_BEGIN "dSoftmaxOffset " FORWARD_SIZES LENGTHS "qkv_layout " KINDS "softmax_type " WINDOW
                    "bottom_right_diagonal deterministic cuda_graph " END},
    // 2.15: results in formats of their own
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
  uint8_t names;
};

// Read from the headers of the released versions. Builds from source have a commit behind their version
// ("2.8.0+5a5b5ea"): they are not here, since the branches of several releases (2.8, 2.9, 2.12, 2.15) began
// with the arguments of the version before.
constexpr Version kVersions[] = {
    {"2.0.0", 0},  {"2.1.0", 0},  {"2.2.0", 1},  {"2.3.0", 1},  {"2.4.0", 1},  {"2.5.0", 1},
    {"2.6.0", 1},  {"2.7.0", 1},  {"2.8.0", 2},  {"2.9.0", 3},  {"2.10.0", 4}, {"2.11.0", 4},
    {"2.12.0", 5}, {"2.13.0", 5}, {"2.14.0", 5}, {"2.14.1", 5}, {"2.15.0", 6}, {"2.16.0", 6},
    {"2.16.1", 6}, {"2.17.0", 6}, {"2.17.1", 6}, {"2.18.0", 6},
};
constexpr size_t kFirstWithInt16 = 4;  // 2.4.0; the struct of a shape has changed in the same version

struct KindOfName {
  const char* begin;  // of the name
  NvteKind kind;
};

// All others are handles.
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
  for (const KindOfName& of : kKinds)
    if (std::strncmp(name, of.begin, std::strlen(of.begin)) == 0) return of.kind;
  return NvteKind::kHandle;
}

int8_t place_of(const char* names, const char* name) {
  int8_t place = 0;
  for (const char* at = names;; ++place) {
    const size_t length = std::strcspn(at, " ");
    if (length == std::strlen(name) && std::memcmp(at, name, length) == 0) return place;
    at += length;
    if (*at == '\0') return -1;
    ++at;
  }
}

NvteWords words_of(const char* names) {
  const auto at = [names](const char* name) { return place_of(names, name); };
  NvteWords words = {};
  words.query = at("Q");
  words.key = at("K");
  words.value = at("V");
  words.out = at("O");
  words.grad_out = at("dO");
  words.grad_query = at("dQ");
  words.aux = at("Aux_CTX_Tensors");
  words.is_training = at("is_training");
  words.returns_max = at("return_max_logit");
  words.layout = at("qkv_layout");
  words.out_format = at("o_format");
  words.grad_out_format = at("do_format");
  words.grad_layout = at("dqkv_layout");
  words.bias = at("bias_type");
  words.mask = at("attn_mask_type");
  words.softmax = at("softmax_type");
  words.window_left = at("window_size_left");
  words.window_right = at("window_size_right");
  words.bottom_right = at("bottom_right_diagonal");
  words.workspace = at("workspace");
  words.stream = at("stream");
  for (const char* name = names; words.count < kMostNvteWords; ++name) {
    words.kinds[words.count++] = kind_of(name);
    name += std::strcspn(name, " ");
    if (*name == '\0') break;
  }
  return words;
}

}  // namespace

bool find_nvte_signature(const char* version, NvteSignature* found) {
  for (size_t n = 0; n < sizeof kVersions / sizeof *kVersions; ++n) {
    if (std::strcmp(kVersions[n].version, version) != 0) continue;
    const Names& names = kNames[kVersions[n].names];
    *found = {words_of(names.forward), words_of(names.backward), n >= kFirstWithInt16, n >= kFirstWithInt16};
    return true;
  }
  return false;
}

}  // namespace foreshock
