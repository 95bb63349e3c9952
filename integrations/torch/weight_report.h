// Converts the weight tensors that the Python helper reports before or after an optimizer step into
// foreshock_weight_state (hook.h), and passes them to the core (libforeshock.so). Makes views, no copies.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_WEIGHT_REPORT_H_
#define FORESHOCK_INTEGRATIONS_TORCH_WEIGHT_REPORT_H_

#include <vector>

#include "tensor_view.h"

extern "C" {

// One weight tensor as the Python helper reports it (WeightState in core.py). Pointers are addresses of live
// TensorImpls, NULL if absent. An unknown step is -1, other unknown numbers are NaN.
typedef struct foreshock_adapter_weight {
  uint64_t number;          // index in the array given to foreshock_name_weights
  uint64_t gradient_state;  // FORESHOCK_GRADIENT_... of hook.h
  const void* parameter;
  const void* gradient;
  const void* average;         // exp_avg of Adam: running mean of the gradient
  const void* square_average;  // exp_avg_sq of Adam: running mean of the squared gradient
  int64_t optimizer_step;
  double learning_rate, beta1, beta2, epsilon, weight_decay;
} foreshock_adapter_weight;

}  // extern "C"

namespace foreshock::adapter {

// A reference to the tensor with this TensorImpl.
inline at::Tensor tensor_at(const void* address) {
  auto* impl = static_cast<c10::TensorImpl*>(const_cast<void*>(address));
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

// Returns a view of the tensor. If the tensor is contiguous and has more than FORESHOCK_TENSOR_DIMS
// dimensions, the view joins the last ones into one. If the tensor cannot be read, the view is empty.
inline foreshock_tensor view_of_weight(const void* address) noexcept try {
  if (!address) return {};
  const at::Tensor tensor = tensor_at(address);
  if (!has_data(tensor) || tensor.layout() != at::kStrided) return {};
  // view_of() returns an empty view of a tensor with more dimensions, here of one that is not contiguous.
  if (tensor.dim() <= FORESHOCK_TENSOR_DIMS || !tensor.is_contiguous()) return view_of(tensor);
  if (!is_in_memory(tensor)) return {};
  foreshock_tensor view = {};
  view.data = tensor.const_data_ptr();
  view.dtype = dtype_of(tensor);
  view.dims = FORESHOCK_TENSOR_DIMS;
  view.device_type = device_type_of(tensor);
  view.device_index = tensor.get_device();
  constexpr int64_t kLast = FORESHOCK_TENSOR_DIMS - 1;
  for (int64_t d = 0; d < kLast; ++d) {
    view.shape[d] = tensor.size(d);
    view.stride[d] = tensor.stride(d);
  }
  view.shape[kLast] = 1;  // the other dimensions, joined
  for (int64_t d = kLast; d < tensor.dim(); ++d) view.shape[kLast] *= tensor.size(d);
  view.stride[kLast] = 1;
  return view;
} catch (...) {
  return {};
}

// The stream of the work on a parameter: the current one, since the helper runs in the optimizer's thread.
inline void* stream_of_weight(const void* address) noexcept try {
  return address ? stream_of(tensor_at(address)) : nullptr;
} catch (...) {
  return nullptr;
}

// Reports tensors to the core. `when`: bits FORESHOCK_BEFORE_STEP, ... (hook.h). Must not be called by two
// threads at once: the helper, the only caller, holds the interpreter lock. Returns the ns spent in the core.
inline uint64_t observe_weights(const foreshock_adapter_weight* rows, size_t count, uint32_t when) {
  static auto* states = new std::vector<foreshock_weight_state>;  // kept, so that later calls do not allocate
  states->clear();
  for (size_t i = 0; i < count; ++i) {
    foreshock_weight_state state{};
    state.size = sizeof(state);
    state.version = FORESHOCK_ABI_VERSION;
    state.number = static_cast<uint32_t>(rows[i].number);
    state.gradient_state = static_cast<uint32_t>(rows[i].gradient_state);
    state.parameter = view_of_weight(rows[i].parameter);
    state.gradient = view_of_weight(rows[i].gradient);
    state.average = view_of_weight(rows[i].average);
    state.square_average = view_of_weight(rows[i].square_average);
    state.optimizer_step = rows[i].optimizer_step;
    state.learning_rate = rows[i].learning_rate;
    state.beta1 = rows[i].beta1;
    state.beta2 = rows[i].beta2;
    state.epsilon = rows[i].epsilon;
    state.weight_decay = rows[i].weight_decay;
    state.stream = stream_of_weight(rows[i].parameter);
    states->push_back(state);
  }
  const uint64_t begin = now_ns();
  foreshock_observe_weights(states->data(), states->size(), when);
  return now_ns() - begin;
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_WEIGHT_REPORT_H_
