#include "libmonitor/kernel_names.h"

#include <cstring>
#include <initializer_list>

namespace foreshock {
namespace {

struct Name {
  const char* part;
  int pass;
};

constexpr Name kNames[] = {
    {"flash_fwd_kernel", 0},  // flash-attn 2, and PyTorch's copy of it
    {"flash_fwd_splitkv_kernel", 0}, {"flash_bwd_dq_dk_dv_loop", 1}, {"FlashAttnFwdSm", 0},  // flash-attn 3
    {"FlashAttnBwdSm", 1},           {"FlashAttentionForwardSm", 0},                         // flash-attn 4
    {"FlashAttentionBackwardSm", 1}, {"fmha_cutlassF_", 0},  // memory-efficient attention
    {"fmha_cutlassB_", 1},
};

// cuDNN: cudnn_generated_fort_native_sdpa_sm90_flash_fprop_...
constexpr Name kOfCudnn[] = {{"_flash_fprop", 0}, {"_flash_bprop", 1}};

}  // namespace

int attention_pass_of_kernel(const char* symbol) {
  if (symbol == nullptr) return -1;
  for (const Name& name : kNames)
    if (std::strstr(symbol, name.part) != nullptr) return name.pass;
  if (std::strstr(symbol, "sdpa") == nullptr) return -1;
  for (const char* helper : {"dot_do_o", "convert", "combine", "clear"})
    if (std::strstr(symbol, helper) != nullptr) return -1;
  for (const Name& name : kOfCudnn)
    if (std::strstr(symbol, name.part) != nullptr) return name.pass;
  return -1;
}

}  // namespace foreshock
