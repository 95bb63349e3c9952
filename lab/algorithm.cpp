// The table of all algorithms that the lab measures.
#include "lab/algorithm.h"

#include <array>

#include "lab/attention.h"
#include "lab/other_operations.h"

namespace foreshock::lab {
namespace {

Tensors matrix_product(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  return {{"out", arithmetic.multiply(inputs.at("left"), inputs.at("right"))}};
}

// The first row of a family is its unfused algorithm, which plain_of() returns. "The same" in a summary means
// the algorithm of the row above. FA1 to FA4: versions of FlashAttention. "The format": the number format
// under test. "State": kept from one tile to the next (maximum, sum, output). P: exp(score - maximum).
constexpr std::array<Algorithm, 22> kAlgorithms = {{
    {"plain", Family::kAttention, attention_plain, "unfused attention"},
    {"flash_reimplemented", Family::kAttention, flash_reimplemented, "FA1, every intermediate in the format"},
    {"flash2_reimplemented", Family::kAttention, flash2_reimplemented, "FA2, running state in the format"},
    {"flash2_dynamic_max", Family::kAttention, flash2_dynamic_max, "the same, repeated maxima shifted"},
    {"flash2_shipped", Family::kAttention, flash2_shipped, "FA2 as shipped, state in registers"},
    {"flash2_cast_sum", Family::kAttention, flash2_cast_sum, "the same, the sum taken from the cast P"},
    {"flash3_fp8", Family::kAttention, flash3_fp8, "FA3 in fp8, one scale per tile"},
    {"flash4_lazy", Family::kAttention, flash4_lazy, "maximum renewed beyond a factor 2^8 only"},
    {"split_k", Family::kAttention, split_k, "keys in parts, merged by log-sum-exp"},
    {"direct", Family::kConvolution, convolution_direct, "convolution as a matrix product"},
    {"winograd_f2", Family::kConvolution, winograd_f2, "Winograd F(2x2, 3x3)"},
    {"winograd_f4", Family::kConvolution, winograd_f4, "Winograd F(4x4, 3x3)"},
    {"winograd_f6", Family::kConvolution, winograd_f6, "Winograd F(6x6, 3x3)"},
    {"softmax_two_pass", Family::kSoftmax, softmax_two_pass, "maximum, then sum"},
    {"softmax_online", Family::kSoftmax, softmax_online, "one pass, state in the format"},
    {"layer_norm_two_pass", Family::kLayerNorm, layer_norm_two_pass, "mean, then centred squares"},
    {"layer_norm_fused", Family::kLayerNorm, layer_norm_fused, "one pass, mean of squares"},
    {"layer_norm_welford", Family::kLayerNorm, layer_norm_welford, "one pass, Welford"},
    {"cross_entropy_plain", Family::kCrossEntropy, cross_entropy_plain, "logits stored"},
    {"cross_entropy_chunked", Family::kCrossEntropy, cross_entropy_chunked, "chunks, state in registers"},
    {"cross_entropy_chunked_reimplemented", Family::kCrossEntropy, cross_entropy_chunked_reimplemented,
     "chunks, state in the format"},
    {"matrix_product", Family::kMatrixProduct, matrix_product, "one product, to see the accumulator alone"},
}};

}  // namespace

std::span<const Algorithm> algorithms() { return kAlgorithms; }

std::optional<Algorithm> find_algorithm(std::string_view name) {
  for (const Algorithm& algorithm : kAlgorithms)
    if (algorithm.name == name) return algorithm;
  return std::nullopt;
}

const Algorithm& plain_of(Family family) {
  for (const Algorithm& algorithm : kAlgorithms)
    if (algorithm.family == family) return algorithm;
  return kAlgorithms[0];  // not reached: every family has a row
}

std::string_view name_of(Family family) {
  constexpr std::string_view kNames[] = {"attention",  "convolution",   "softmax",
                                         "layer_norm", "cross_entropy", "matrix_product"};
  return kNames[static_cast<size_t>(family)];
}

}  // namespace foreshock::lab
