// foreshock/libtorch.h: reports layer names and gradients before clipping from a C++ trainer on LibTorch. All
// calls are optional: without them foreshock counts steps itself and numbers layers in the order of their
// attention calls. The calls have no effect in a process without libforeshock.so. C++17. Include this header
// after torch's headers, which it does not include itself.
//
//   foreshock::name_layers(*model);                   // once the model is built, and after it has changed
//   loss.backward();
//   foreshock::observe_gradients(*model);             // before clipping
//   clip and optimizer.step();
//   foreshock_annotate_step(step, loss_value);        // <foreshock/annotate.h>
#ifndef FORESHOCK_LIBTORCH_H_
#define FORESHOCK_LIBTORCH_H_

#include <foreshock/annotate.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace foreshock {

// Returns the label of a parameter's layer: the first number between dots in its name, with three digits
// ("003" for "blocks.3.query.weight"). For a name without a number, returns the text before its last dot.
inline std::string layer_label(const std::string& name) {
  for (size_t begin = 0; begin < name.size(); begin = name.find('.', begin) + 1) {
    char* end = nullptr;
    const unsigned long number = std::strtoul(name.c_str() + begin, &end, 10);
    if (end != name.c_str() + begin && (*end == '.' || *end == '\0')) {
      char label[24];
      std::snprintf(label, sizeof label, "%03lu", number);
      return label;
    }
    if (name.find('.', begin) == std::string::npos) break;  // this was the last component
  }
  return name.substr(0, name.rfind('.'));
}

// Reports the names and layer labels of a torch::nn::Module's parameters. Returns how many names foreshock
// keeps. Call it again when the tensors have been replaced, for example by a move to a device.
template <class Module>
int name_layers(const Module& module) {
  const auto named = module.named_parameters();
  std::vector<std::string> labels;
  std::vector<foreshock_parameter> rows;
  labels.reserve(named.size());  // the vector must not move the labels: `rows` keeps pointers to them
  for (const auto& item : named) {
    labels.push_back(layer_label(item.key()));
    foreshock_parameter row{};
    row.size = sizeof row;
    row.version = FORESHOCK_ABI_VERSION;
    row.identity = item.value().unsafeGetTensorImpl();
    row.name = item.key().c_str();
    row.layer = labels.back().c_str();
    row.elements = static_cast<uint64_t>(item.value().numel());
    rows.push_back(row);
  }
  return foreshock_annotate_name_parameters(rows.data(), rows.size());
}

// Reports all gradients, if foreshock samples this step. Every gradient must be dense, contiguous, on the CPU
// and in fp32 or fp64. Otherwise no gradient is reported, because the gradient norm would lack a part.
template <class Module>
void observe_gradients(const Module& module) {
  if (!foreshock_annotate_step_is_sampled()) return;
  std::vector<foreshock_gradient> rows;
  for (const auto& item : module.named_parameters()) {
    const auto& gradient = item.value().grad();
    if (!gradient.defined()) continue;
    if (!gradient.is_cpu() || gradient.is_sparse() || !gradient.is_contiguous()) return;
    const auto bytes = gradient.element_size();
    if (!gradient.is_floating_point() || (bytes != 4 && bytes != 8)) return;
    foreshock_gradient row{};
    row.size = sizeof row;
    row.version = FORESHOCK_ABI_VERSION;
    row.identity = item.value().unsafeGetTensorImpl();
    row.values.data = gradient.const_data_ptr();
    row.values.dtype = bytes == 4 ? FORESHOCK_FP32 : FORESHOCK_FP64;
    row.values.dims = 1;
    for (int64_t& size : row.values.shape) size = 1;
    row.values.shape[0] = gradient.numel();
    row.values.stride[0] = 1;
    rows.push_back(row);
  }
  foreshock_annotate_observe_gradients(rows.data(), rows.size());
}

}  // namespace foreshock

#endif  // FORESHOCK_LIBTORCH_H_
