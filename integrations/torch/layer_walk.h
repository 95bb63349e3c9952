// Which parameter did a query come from? The answer names the layer of a call. The query still carries its
// autograd history below autograd, in the forward operation and, saved, in the backward one.
//
// Rule: breadth-first from the query's node to the first matrix multiplication; its weight argument, followed
// only through unary nodes, must be a 2-D leaf. A frozen weight leaves no edge, and walking on past it would
// name the layer before: then the answer is "unknown", never a guess. Costs about 10 us: sampled calls only.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_LAYER_WALK_H_
#define FORESHOCK_INTEGRATIONS_TORCH_LAYER_WALK_H_

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <typeinfo>

namespace foreshock::adapter {

inline constexpr int kMaxNodes = 64;

enum class NodeKind { kLeaf, kProduct, kUnary, kOther, kOpaque };

// Kinds are told from the C++ type's own name: Node::name() takes the interpreter lock for nodes written in
// Python.
inline NodeKind KindOf(const torch::autograd::Node& node) {
  const char* type = typeid(node).name();
  if (std::strstr(type, "14AccumulateGrad")) return NodeKind::kLeaf;
  const char* generated = std::strstr(type, "9generated");
  if (!generated) return NodeKind::kOpaque;  // written by hand, or the other side of a compiled graph
  const char* name = generated + std::strlen("9generated");
  while (*name >= '0' && *name <= '9') ++name;
  const auto is = [name](const char* prefix) { return std::strncmp(name, prefix, std::strlen(prefix)) == 0; };
  for (const char* prefix :
       {"AddmmBackward", "MmBackward", "BmmBackward", "BaddbmmBackward", "LinearBackward"}) {
    if (is(prefix)) return NodeKind::kProduct;
  }
  // Anything that computes like a projection but is none we can read, or that ends the layer before.
  for (const char* prefix :
       {"Convolution", "ScaledDotProduct", "FlashAttention", "EfficientAttention", "Mkldnn"}) {
    if (is(prefix)) return NodeKind::kOpaque;
  }
  for (const char* prefix :
       {"TBackward", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Alias", "ToCopy",
        "Expand", "Unsqueeze", "Squeeze", "Clone", "Slice", "Split", "Select", "Narrow", "Unbind", "Chunk"}) {
    if (is(prefix)) return NodeKind::kUnary;
  }
  return NodeKind::kOther;
}

// The 2-D leaf at the end of a chain of unary nodes, else null.
inline const void* LeafBehind(const torch::autograd::Node* node) {
  for (int hops = 0; node && hops < kMaxNodes; ++hops) {
    const NodeKind kind = KindOf(*node);
    if (kind == NodeKind::kLeaf) {
      const at::Tensor& leaf = static_cast<const torch::autograd::AccumulateGrad*>(node)->variable;
      return leaf.dim() == 2 ? leaf.unsafeGetTensorImpl() : nullptr;
    }
    if (kind != NodeKind::kUnary || node->num_outputs() != 1) return nullptr;
    node = node->next_edge(0).function.get();
  }
  return nullptr;
}

// Edges stand in schema order, absent ones included: (self, mat2), (input, weight, bias), but (bias, mat1,
// mat2).
inline const void* WeightOf(const torch::autograd::Node& product) {
  const char* type = typeid(product).name();
  const bool bias_first = std::strstr(type, "AddmmBackward") || std::strstr(type, "BaddbmmBackward");
  const uint32_t weight = bias_first ? 2 : 1;
  return product.num_outputs() <= weight ? nullptr : LeafBehind(product.next_edge(weight).function.get());
}

// Address of the TensorImpl (Python: parameter._cdata) of the weight that made `query`; null when unknown.
// Reads only; the caller holds a reference to `query`, hence to its graph.
inline const void* LayerOf(const at::Tensor& query) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(query);
  if (!meta || !meta->grad_fn_) return nullptr;
  std::array<const torch::autograd::Node*, kMaxNodes> queue;
  int tail = 0;
  queue[tail++] = meta->grad_fn_.get();
  for (int head = 0; head < tail; ++head) {
    const torch::autograd::Node& node = *queue[head];
    const NodeKind kind = KindOf(node);
    if (kind == NodeKind::kProduct) return WeightOf(node);
    if (kind == NodeKind::kOpaque) return nullptr;
    for (const auto& edge : node.next_edges()) {
      const auto* next = edge.function.get();
      const bool seen = std::find(queue.begin(), queue.begin() + tail, next) != queue.begin() + tail;
      if (next && !seen && tail < kMaxNodes) queue[tail++] = next;
    }
  }
  return nullptr;
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_LAYER_WALK_H_
