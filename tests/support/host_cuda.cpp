// A CUDA device for a torch without CUDA: tensors that say they lie on one, in memory of the host. Every
// operation that nobody else implements for it runs on the CPU, on the same bytes, so that a training gives
// the bits that it gives on the CPU. Streams are numbers with handles as the test gives them; each operation
// is done when it returns. What a real device would be asked is counted, so that a test sees who asks.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using Stack = torch::jit::Stack;

constexpr int kDevices = 2;

std::atomic<bool> guard_tells{true};
std::atomic<int64_t> waits{0}, handles_asked{0}, backend{1}, operations{0};
thread_local int64_t current_stream[kDevices] = {};
thread_local c10::DeviceIndex current_device = 0;
// Is told when an operation begins and when memory is given back: a driver that stands in has to have done
// by then what was enqueued before.
std::atomic<void (*)()> catch_up{nullptr};

void CatchUp() {
  if (auto* all = catch_up.load()) all();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device At(int64_t index) {
    return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  }
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return At(std::exchange(current_device, device.index()));
  }
  c10::Device getDevice() const override { return At(current_device); }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream[device.index()]);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    const c10::Stream before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return ++waits > 0; }
  bool queryStream(const c10::Stream&) const override { return ++waits > 0; }
  void synchronizeStream(const c10::Stream&) const override { ++waits; }
#ifdef HOST_CUDA_HANDLES
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    ++handles_asked;
    TORCH_CHECK(guard_tells, "Backend doesn't support getting stream native handle.");
    return reinterpret_cast<void*>(stream.id());
  }
#endif
};

// Autograd asks whether there is such a device before it runs on its streams.
struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  int getNumGPUs() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { ::current_device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return ::current_device; }
};

at::Tensor Shaped(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return made;
}

// The same bytes, as the CPU sees them.
at::Tensor OnHost(const at::Tensor& tensor) {
  const size_t bytes = tensor.storage().nbytes();
  c10::DataPtr data(const_cast<void*>(tensor.storage().data()), c10::Device(c10::kCPU));
  return Shaped(c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, false),
                c10::DispatchKey::CPU, tensor);
}

// Takes the CPU tensor's memory over.
at::Tensor OnDevice(const at::Tensor& tensor, int64_t device) {
  const size_t bytes = tensor.storage().nbytes();
  const auto free = [](void* owner) {
    CatchUp();
    delete static_cast<at::Tensor*>(owner);
  };
  c10::DataPtr data(const_cast<void*>(tensor.storage().data()), new at::Tensor(tensor), free,
                    Guard::At(device));
  return Shaped(c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, false),
                c10::DispatchKey::CUDA, tensor);
}

// What one operation's tensors became on the host.
class Lowered {
 public:
  at::Tensor Lower(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    device_ = tensor.get_device();
    pairs_.emplace_back(tensor, OnHost(tensor));
    return pairs_.back().second;
  }
  at::Tensor Raise(const at::Tensor& result) const {
    if (!result.defined() || !result.is_cpu()) return result;
    for (const auto& [device, host] : pairs_) {
      if (result.is_same(host)) return device;
      if (host.storage().data() && result.storage().data() == host.storage().data())
        return Shaped(device.storage(), c10::DispatchKey::CUDA, result);
    }
    return OnDevice(result, device_);
  }
  void CheckShapes() const {
    for (const auto& [device, host] : pairs_)
      TORCH_CHECK(device.sizes() == host.sizes(), "the stand-in device cannot resize");
  }
  void SetDevice(int64_t device) { device_ = device; }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
  int64_t device_ = current_device;
};

template <typename Change>
void ChangeTensors(c10::IValue* value, const Change& change) {
  if (value->isTensor()) {
    *value = change(value->toTensor());
  } else if (value->isTensorList()) {
    std::vector<at::Tensor> changed;
    for (const at::Tensor& each : value->toTensorVector()) changed.push_back(change(each));
    *value = changed;
  } else if (value->isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& each : value->toOptionalTensorVector())
      changed.push_back(each ? std::optional<at::Tensor>(change(*each)) : std::nullopt);
    *value = changed;
  }
}

void RunOnHost(const c10::OperatorHandle& op, Stack* stack) {
  CatchUp();
  ++operations;
  Lowered lowered;
  const size_t arguments = op.schema().arguments().size(), results = op.schema().returns().size();
  for (size_t n = stack->size() - arguments; n < stack->size(); ++n) {
    c10::IValue& value = (*stack)[n];
    if (value.isDevice() && value.toDevice().is_cuda()) {
      lowered.SetDevice(value.toDevice().has_index() ? value.toDevice().index() : current_device);
      value = c10::Device(c10::kCPU);
    }
    ChangeTensors(&value, [&](const at::Tensor& tensor) { return lowered.Lower(tensor); });
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  lowered.CheckShapes();
  for (size_t n = stack->size() - results; n < stack->size(); ++n)
    ChangeTensors(&(*stack)[n], [&](const at::Tensor& tensor) { return lowered.Raise(tensor); });
}

at::Tensor Put(const at::Tensor& tensor, int64_t device) {
  return OnDevice(tensor.detach().clone(at::MemoryFormat::Preserve), device);
}
at::Tensor Get(const at::Tensor& tensor) {
  CatchUp();
  return OnHost(tensor.detach()).clone(at::MemoryFormat::Preserve);
}

// Which backend scaled_dot_product_attention takes: 1 flash, 2 efficient, 3 cuDNN.
int64_t Choice(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
               double, bool, std::optional<double>, bool) {
  return backend;
}

const at::RegistererCUDAHooksRegistry hooks("CUDAHooks", at::CUDAHooksRegistry(),
                                            at::RegistererCUDAHooksRegistry::DefaultCreator<Hooks>);
const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, new Guard());
const at::native::RegisterCUDADispatch<at::native::_fused_sdp_choice_stub_DECLARE_DISPATCH_type> choice(
    at::native::_fused_sdp_choice_stub, &Choice);

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&RunOnHost>()); }
// It has a kernel for all devices, which asks a table that the device's library would have filled.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&RunOnHost>());
}

TORCH_LIBRARY(host_cuda, m) {
  m.def("put(Tensor tensor, int device) -> Tensor", &Put);
  m.def("get(Tensor tensor) -> Tensor", &Get);
}

}  // namespace

extern "C" {
// The handle of this thread's stream on a device; 0: the default stream.
__attribute__((visibility("default"))) void host_cuda_set_stream(int device, int64_t handle) {
  current_stream[device] = handle;
}
__attribute__((visibility("default"))) void host_cuda_set_backend(int number) { backend = number; }
__attribute__((visibility("default"))) void host_cuda_guard_tells(int tells) { guard_tells = tells != 0; }
__attribute__((visibility("default"))) void host_cuda_catch_up(void (*all)()) { catch_up = all; }
__attribute__((visibility("default"))) int64_t host_cuda_waits() { return waits; }
__attribute__((visibility("default"))) int64_t host_cuda_operations() { return operations; }
__attribute__((visibility("default"))) int64_t host_cuda_handles_asked() { return handles_asked; }
// What torch's CUDA library offers to compiled graphs, from a library of this name.
__attribute__((visibility("default"))) int32_t aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                  void** stream) {
  *stream = reinterpret_cast<void*>(current_stream[device]);
  return 0;
}
}
