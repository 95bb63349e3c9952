// Clipping by value: the norms of what was clipped are not told, whoever takes them later and in whatever way
// the values were written.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_CLIP_HOOK_H_
#define FORESHOCK_INTEGRATIONS_TORCH_CLIP_HOOK_H_

#include "gradient_norms.h"

namespace foreshock::adapter {

inline void NoteClipped(const at::Tensor& tensor) noexcept {
  if (HasData(tensor) && !tensor.requires_grad()) Norms().NoteClipped(tensor);
}

// The operations that clip_grad_value_ and its like call for a list of gradients, or hardly anybody.
class ClipHook final : public c10::OperatorKernel {
 public:
  explicit ClipHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())), self_(ArgumentIndex(schema, "self")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (GoesToDevice(below)) Look(Peek(*stack, arguments_, self_));
    op.redispatchBoxed(below, stack);
  }

 private:
  static void Look(const c10::IValue& self) {
    if (self.isTensor()) return NoteClipped(self.toTensor());
    if (!self.isTensorList()) return;
    for (const at::Tensor& tensor : self.toTensorList()) NoteClipped(tensor);
  }

  const int arguments_, self_;
};

// clamp_. Not boxed: models call it, too.
inline at::Tensor& Clamp(c10::DispatchKeySet keys, at::Tensor& self, const std::optional<at::Scalar>& least,
                         const std::optional<at::Scalar>& most) {
  using Signature =
      at::Tensor&(at::Tensor&, const std::optional<at::Scalar>&, const std::optional<at::Scalar>&);
  static const auto below =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::clamp_", "").typed<Signature>();
  const c10::DispatchKeySet rest = keys & kBelow;
  if (GoesToDevice(rest)) NoteClipped(self);
  return below.redispatch(rest, self, least, most);
}

inline void HookClipping(torch::Library& aten) {
  aten.impl("clamp_", torch::CppFunction(TORCH_FN(Clamp)));
  Hook<ClipHook>(aten, "clamp_", "Tensor");
  for (const char* name : {"clamp_min_", "clamp_max_"})
    for (const char* overload : {"", "Tensor"}) Hook<ClipHook>(aten, name, overload);
  for (const char* name : {"_foreach_clamp_min_", "_foreach_clamp_max_"})
    for (const char* overload : {"Scalar", "ScalarList", "List"}) Hook<ClipHook>(aten, name, overload);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_CLIP_HOOK_H_
