// Tests an adapter, the library that hooks attention in one version of torch, on LibTorch without Python: the
// hooks must see each call once and keep its bits. Usage: LD_PRELOAD=libforeshock.so self_test ADAPTER.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

// Returns the output and the gradients of an attention call, on inputs that are the same at every call.
std::vector<at::Tensor> attention() {
  auto generator = at::detail::createCPUGenerator(0);
  std::vector<at::Tensor> inputs;
  for (int n = 0; n < 3; ++n) inputs.push_back(at::randn({1, 2, 8, 16}, generator).requires_grad_());
  at::Tensor out =
      at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0.0, /*is_causal=*/true);
  out.square().sum().backward();
  return {out.detach(), inputs[0].grad(), inputs[1].grad(), inputs[2].grad()};
}

// Returns what is wrong with the adapter at `path`, or null.
const char* check(const char* path) {
  if (!dlsym(RTLD_DEFAULT, "foreshock_abi_version")) return "the core library is not preloaded";
  const std::vector<at::Tensor> before = attention();
  void* adapter = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!adapter) return dlerror();
  const auto start = reinterpret_cast<int (*)()>(dlsym(adapter, "foreshock_adapter_start"));
  const auto calls = reinterpret_cast<uint64_t (*)(int)>(dlsym(adapter, "foreshock_adapter_calls"));
  if (!start || !calls) return "the adapter lacks a function";
  const int hooked = start();  // number of hooked operations: at least forward and backward
  if (hooked < 2) return "hardly any attention operation could be hooked";
  if (start() != hooked) return "starting twice hooked twice";
  const std::vector<at::Tensor> after = attention();
  if (calls(/*forward*/ 0) != 1 || calls(/*backward*/ 1) != 1)
    return "one forward and one backward call were not seen once each";
  for (size_t n = 0; n < before.size(); ++n)
    if (!at::equal(before[n], after[n])) return "results differ with the hooks in place";
  return nullptr;
}

}  // namespace

int main(int count, char** words) {
  const char* problem = count == 2 ? check(words[1]) : "usage: self_test ADAPTER";
  if (problem) std::fprintf(stderr, "error: %s\n", problem);
  return problem ? 1 : 0;
}
