#include "libmonitor/logged_name.h"

#include <cstddef>
#include <string_view>

namespace foreshock {
namespace {

// Words of a name, whatever stands between them; and who logs so, where it is not everybody.
constexpr std::string_view kLosses[] = {
    "loss",                          // Hugging Face
    "loss step",                     // Lightning, self.log(on_step=True)
    "loss train",                    //
    "loss train total",              // Composer
    "lm loss",                       // Megatron-LM
    "samples train loss",            // DeepSpeed
    "loss metrics global avg loss",  // torchtitan
};
constexpr std::string_view kNorms[] = {
    "grad norm",  // Hugging Face, Megatron-LM, torchtitan: of clip_grad_norm_
    "gradient norm",
};
constexpr std::string_view kOfTraining[] = {"train ", "training "};

constexpr bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
constexpr bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || is_upper(c); }

}  // namespace

Logged logged_as(const char* name) {
  if (name == nullptr) return Logged::kOther;
  char words[48];
  size_t length = 0;
  for (; *name != '\0'; ++name) {
    if (length == sizeof words) return Logged::kOther;  // longer than any that is known
    if (is_word(*name))
      words[length++] = static_cast<char>(is_upper(*name) ? *name - 'A' + 'a' : *name);
    else if (length > 0 && words[length - 1] != ' ')
      words[length++] = ' ';
  }
  std::string_view said(words, length);
  if (said.ends_with(' ')) said.remove_suffix(1);
  for (const std::string_view where : kOfTraining)
    if (said.starts_with(where)) said.remove_prefix(where.size());
  for (const std::string_view loss : kLosses)
    if (said == loss) return Logged::kLoss;
  for (const std::string_view norm : kNorms)
    if (said == norm) return Logged::kGradientNorm;
  return Logged::kOther;
}

}  // namespace foreshock
