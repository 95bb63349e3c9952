// Gets data about a tensor for the hooks: a view (foreshock_tensor of hook.h), the current CUDA stream, and,
// from the autograd history of a query, the weight that identifies its layer. Only reads tensors.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_TENSOR_VIEW_H_
#define FORESHOCK_INTEGRATIONS_TORCH_TENSOR_VIEW_H_

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <typeinfo>

#include "dispatch.h"

// A shipped adapter must load on every glibc on which its torch loads. glibc 2.34 gave dlopen and dlsym a new
// symbol version, but still has the old one, which is used here. The symbols are weak, because before 2.34
// they are in libdl. The adapter is not linked with libdl, but every process with torch has loaded libdl.
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#if defined(__x86_64__)
#define FORESHOCK_OLD_LOADER "GLIBC_2.2.5"
#else
#define FORESHOCK_OLD_LOADER "GLIBC_2.17"
#endif
#pragma weak dlopen
#pragma weak dlsym
__asm__(".symver dlopen, dlopen@" FORESHOCK_OLD_LOADER);
__asm__(".symver dlsym, dlsym@" FORESHOCK_OLD_LOADER);
// glibc 2.34 also gave pthread_mutex_trylock a new version. This symbol is not weak: before 2.34 it is in
// libpthread, with which torch itself is linked.
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@" FORESHOCK_OLD_LOADER);
#define FORESHOCK_HAS_LOADER (dlopen != nullptr && dlsym != nullptr)
#else
#define FORESHOCK_HAS_LOADER true
#endif

namespace foreshock::adapter {

// The handle that hook.h uses for CUDA's legacy default stream. The CUDA runtime uses null for this stream.
inline constexpr uintptr_t kLegacyStream = 1;

// Reads the handle of the current CUDA stream from torch's device guard. Returns false if the guard has no
// function for it (torch 2.6) or fails.
template <typename Guard>
bool stream_of_guard(const Guard& guard, c10::Device device, void** handle) noexcept try {
  if constexpr (requires(const Guard& g, c10::Stream s) { g.getStreamNativeHandle(s); }) {
    *handle = guard.getStreamNativeHandle(guard.getStream(device));
    return true;
  }
  return false;
} catch (...) {
  return false;
}

// The handle of a library of torch if the process has loaded it, else null. Debian's package of torch has
// another file name.
#define FORESHOCK_LOADED_TORCH_LIBRARY(name) \
  ::foreshock::adapter::loaded_library(      \
      name ".so", name ".so." C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(TORCH_VERSION_MINOR))
inline void* loaded_library(const char* name, const char* name_in_debian) noexcept {
  if (!FORESHOCK_HAS_LOADER) return nullptr;
  void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  return library ? library : dlopen(name_in_debian, RTLD_LAZY | RTLD_NOLOAD);
}

// Whether the tensor is on a CUDA device. In a torch for ROCm, AMD's devices have the type CUDA too, but no
// CUDA driver. An adapter that was built for the same release of torch for the CPU is used there as well, so
// the answer is not known when this is compiled: torch's library for ROCm is loaded if there is such a
// tensor.
inline bool is_on_cuda(const at::Tensor& tensor) noexcept {
  if (!tensor.is_cuda()) return false;
  static const bool is_rocm = FORESHOCK_LOADED_TORCH_LIBRARY("libtorch_hip") != nullptr;
  return !is_rocm;
}

// Reads the handle of the current stream through torch's C shim for compiled graphs, which is a stable ABI.
// The shim is in torch's CUDA library, which is loaded if there is a CUDA tensor.
inline bool stream_of_shim(c10::Device device, void** handle) noexcept {
  using CurrentStream = int32_t (*)(int32_t, void**);
  static const CurrentStream current = [] {
    void* library = FORESHOCK_LOADED_TORCH_LIBRARY("libtorch_cuda");
    void* symbol = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
    return reinterpret_cast<CurrentStream>(symbol);
  }();
  return current && current(device.index(), handle) == 0;
}

// Returns the current stream of this thread on the tensor's device; null if the tensor is not a CUDA tensor
// or the stream is unknown. The tensor's device need not be the current device, since hooks run before the
// operation switches to it. torch has a current stream per thread and device; reading it initializes nothing.
inline void* stream_of(const at::Tensor& tensor) noexcept {
  if (!is_on_cuda(tensor)) return nullptr;
  static constinit std::atomic<bool> guard_has_handle{true};
  const c10::Device device = tensor.device();
  void* handle = nullptr;
  bool known = false;
  // VirtualGuardImpl is not used, since in torch 2.8 it needs a newer C++ runtime than our packages require.
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(device.type())].load();
  if (guard_has_handle.load(std::memory_order_relaxed) && guard != nullptr) {
    known = stream_of_guard(*guard, device, &handle);
    if (!known)
      guard_has_handle.store(false, std::memory_order_relaxed);  // avoids an exception at every call
  }
  if (!known && !stream_of_shim(device, &handle)) return nullptr;
  return handle ? handle : reinterpret_cast<void*>(kLegacyStream);
}

inline uint32_t dtype_of(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::kDouble) return FORESHOCK_FP64;
  if (type == at::kFloat) return FORESHOCK_FP32;
  if (type == at::kBFloat16) return FORESHOCK_BF16;
  if (type == at::kHalf) return FORESHOCK_FP16;
  return type == at::kBool ? FORESHOCK_BOOL : FORESHOCK_DTYPE_NONE;
}

inline bool is_fp8(const at::Tensor& tensor) {  // all floating formats of one byte are fp8 formats
  return tensor.is_floating_point() && tensor.element_size() == 1;
}

inline int32_t device_type_of(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return FORESHOCK_DEVICE_CPU;
  return is_on_cuda(tensor) ? FORESHOCK_DEVICE_CUDA : FORESHOCK_DEVICE_OTHER;
}

// Returns a view of the tensor; an absent one (data null) if the tensor is undefined or empty, has too many
// dimensions, or its memory was freed. Uses const_data_ptr, since data_ptr would copy a copy-on-write tensor.
inline foreshock_tensor view_of(const at::Tensor& tensor) {
  foreshock_tensor view{};
  if (!tensor.defined() || tensor.dim() > FORESHOCK_TENSOR_DIMS || !is_in_memory(tensor)) return view;
  view.data = tensor.const_data_ptr();
  view.dtype = dtype_of(tensor);
  view.dims = static_cast<uint32_t>(tensor.dim());
  view.device_type = device_type_of(tensor);
  view.device_index = tensor.get_device();
  for (int64_t d = 0; d < FORESHOCK_TENSOR_DIMS; ++d) {
    view.shape[d] = d < tensor.dim() ? tensor.size(d) : 1;
    view.stride[d] = d < tensor.dim() ? tensor.stride(d) : 0;
  }
  return view;
}

// The functions below find the parameter from which a query was computed; it identifies the layer of a call.
// The hooks run after autograd's part of an operation. There the query still has its history (the graph of
// autograd nodes): it is an argument of the forward operation, and a saved tensor of the backward operation.
//
// Rule: search breadth-first from the query's node for the first matrix multiplication ("product"). Its
// weight argument must be a 2-D leaf, reached only through unary nodes. Two kinds of nodes give no weight and
// end the search on their branch, since the previous layer is behind them: a product with a frozen weight, to
// which the graph has no edge, and a hand-written operation, whose arguments are not known ("opaque"). After
// the first such node, the search goes on in parallel branches (LoRA). A product found there is accepted only
// if it was computed from the input of that node, so it cannot belong to an earlier layer. In all other cases
// the layer is unknown. The search takes about 10 us, so it runs in sampled calls only.

inline constexpr int kMaxNodes = 64;  // visited in one search; bounds its time

// kLeaf: a parameter. kProduct: a matrix multiplication. kUnary: only views, slices, copies or converts its
// input. kOpaque: the search must not go past the node. kOther: the search goes on with the node's inputs.
enum class NodeKind { kLeaf, kProduct, kUnary, kOther, kOpaque };

// Returns the kind of a node, from the mangled name of its C++ type, in which the length of each identifier
// precedes it. Nodes of torch's own operations are in the namespace "generated". Node::name() is not used,
// since it takes the interpreter lock for Python nodes.
inline NodeKind kind_of(const torch::autograd::Node& node) {
  const char* type = typeid(node).name();
  if (std::strstr(type, "14AccumulateGrad")) return NodeKind::kLeaf;
  const char* generated = std::strstr(type, "9generated");
  if (!generated) return NodeKind::kOpaque;  // hand-written, or the border of a compiled graph
  const char* name = generated + std::strlen("9generated");
  while (*name >= '0' && *name <= '9') ++name;  // skips the length
  const auto is = [name](const char* prefix) { return std::strncmp(name, prefix, std::strlen(prefix)) == 0; };
  for (const char* prefix :
       {"AddmmBackward", "MmBackward", "BmmBackward", "BaddbmmBackward", "LinearBackward"})
    if (is(prefix)) return NodeKind::kProduct;
  // Operations that may compute the query but whose weight cannot be read, or that end the previous layer.
  for (const char* prefix :
       {"Convolution", "ScaledDotProduct", "FlashAttention", "EfficientAttention", "Mkldnn"})
    if (is(prefix)) return NodeKind::kOpaque;
  for (const char* prefix :
       {"TBackward", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Alias", "ToCopy",
        "Expand", "Unsqueeze", "Squeeze", "Clone", "Slice", "Split", "Select", "Narrow", "Unbind", "Chunk"})
    if (is(prefix)) return NodeKind::kUnary;
  return NodeKind::kOther;
}

// Returns the leaf at the end of a chain of unary nodes; null if the chain does not end at a 2-D leaf. A node
// has num_outputs() edges, one for each input of its operation: in a chain, one.
inline const void* leaf_behind(const torch::autograd::Node* node) {
  for (int hops = 0; node && hops < kMaxNodes; ++hops) {
    const NodeKind kind = kind_of(*node);
    if (kind == NodeKind::kLeaf) {
      const at::Tensor& leaf = static_cast<const torch::autograd::AccumulateGrad*>(node)->variable;
      return leaf.dim() == 2 ? leaf.unsafeGetTensorImpl() : nullptr;
    }
    if (kind != NodeKind::kUnary || node->num_outputs() != 1) return nullptr;
    node = node->next_edge(0).function.get();
  }
  return nullptr;
}

// Returns the weight of a product; null if frozen, since the edge of an argument without gradient is empty.
// The edges, num_outputs() of them, are in the order of the operation's arguments: (self, mat2), (input,
// weight, bias), or (bias, mat1, mat2).
inline const void* weight_of(const torch::autograd::Node& product) {
  const char* type = typeid(product).name();
  const bool bias_first = std::strstr(type, "AddmmBackward") || std::strstr(type, "BaddbmmBackward");
  const uint32_t index = bias_first ? 2 : 1;  // of the weight
  return product.num_outputs() <= index ? nullptr : leaf_behind(product.next_edge(index).function.get());
}

// A breadth-first walk over the history of a tensor, each node once. next() returns null after the last node
// that was added, or after kMaxNodes nodes.
class HistoryWalk {
 public:
  explicit HistoryWalk(const torch::autograd::Node* first) { add(first); }
  const torch::autograd::Node* next() { return head_ < tail_ ? queue_[head_++] : nullptr; }
  void add(const torch::autograd::Node* node) {
    const bool seen = std::find(queue_.begin(), queue_.begin() + tail_, node) != queue_.begin() + tail_;
    if (node && !seen && tail_ < kMaxNodes) queue_[tail_++] = node;
  }
  void add_inputs_of(const torch::autograd::Node& node) {
    for (const auto& edge : node.next_edges()) add(edge.function.get());
  }

 private:
  std::array<const torch::autograd::Node*, kMaxNodes> queue_;
  int head_ = 0, tail_ = 0;
};

// Returns the first node that is not unary in the chain that begins with `node`.
inline const torch::autograd::Node* skip_unary_nodes(const torch::autograd::Node* node) {
  for (int hops = 0; node && hops < kMaxNodes; ++hops) {
    if (kind_of(*node) != NodeKind::kUnary || node->num_outputs() != 1) return node;
    node = node->next_edge(0).function.get();
  }
  return nullptr;
}

// Returns the node that computed the input of a frozen product or an opaque operation, taken to be its first
// argument that is not a weight. Null: unknown.
inline const torch::autograd::Node* input_of(const torch::autograd::Node& node) {
  for (const auto& edge : node.next_edges()) {
    const auto* input = skip_unary_nodes(edge.function.get());
    if (input && !leaf_behind(input)) return input;
  }
  return nullptr;
}

inline bool is_computed_from(const torch::autograd::Node& node, const torch::autograd::Node* input) {
  HistoryWalk walk(&node);
  while (const auto* next = walk.next()) {
    if (next == input) return true;
    walk.add_inputs_of(*next);
  }
  return false;
}

// Address of the TensorImpl (Python: parameter._cdata) of the weight from which the result of `last` was
// computed by the rule above; null if unknown. Reads only; the caller holds a reference to the graph.
inline const void* layer_behind(const torch::autograd::Node* last) {
  HistoryWalk walk(last);
  const torch::autograd::Node* frozen_input = nullptr;  // input of the first frozen product or opaque node
  while (const auto* node = walk.next()) {
    const NodeKind kind = kind_of(*node);
    if (kind != NodeKind::kProduct && kind != NodeKind::kOpaque) {
      walk.add_inputs_of(*node);
      continue;
    }
    const void* weight = kind == NodeKind::kProduct ? weight_of(*node) : nullptr;
    if (weight && (!frozen_input || is_computed_from(*node, frozen_input))) return weight;
    if (weight || frozen_input) return nullptr;  // an earlier layer's weight, or a second node without weight
    frozen_input = input_of(*node);
    if (!frozen_input) return nullptr;
  }
  return nullptr;
}

// The layer of a query; the caller holds a reference to it.
inline const void* layer_of(const at::Tensor& query) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(query);
  return meta ? layer_behind(meta->grad_fn_.get()) : nullptr;
}

// Where a query is among the tensors that an autograd.Function was called with.
struct QueryPlace {
  int32_t place = -1, inputs = 0;  // -1: unknown
};
inline thread_local QueryPlace query_place;

// The layer of a query that a compiled graph was called with, in the backward pass of the graph. The graph
// keeps a view of the query that has no history. The running node has an edge to each tensor of the call.
inline const void* layer_of_input(const QueryPlace& at, const at::Tensor& query) {
  if (at.place < 0) return nullptr;
  const auto node = torch::autograd::get_current_node();
  if (!node || node->num_outputs() != static_cast<uint32_t>(at.inputs) || at.place >= at.inputs)
    return nullptr;
  const torch::autograd::Edge& edge = node->next_edge(static_cast<size_t>(at.place));
  if (!edge.function || !edge.function->input_metadata(edge.input_nr).is_same_shape(query)) return nullptr;
  return layer_behind(edge.function.get());
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_TENSOR_VIEW_H_
