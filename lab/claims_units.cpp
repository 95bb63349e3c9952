#include "lab/claims.h"
#include "lab/measured.h"

namespace foreshock::lab {

std::vector<Claim> claims_of_accumulators(Measured measured) {
  const std::vector<Measurement> products = of(measured, "matrix_product");
  const auto error = [&](const char* accumulator, const char* format, int depth) {
    return l2(where(products, [=](const Measurement& m) {
                return m.point.accumulator == accumulator && m.point.format == format && m.point.d == depth;
              }).at(0));
  };
  const double ampere = error("ampere", "bf16", 128), hopper = error("hopper", "bf16", 128);
  const double raw = error("hopper_fp8", "e4m3", 2048), promoted = error("hopper_fp8_promoted", "e4m3", 2048),
               blackwell = error("blackwell_fp8", "e4m3", 2048);
  return {
      {"arXiv 2511.10909", "Hopper's tensor cores keep one bit more than Ampere's",
       text("relative error of a product, depth 128: %.1e against %.1e", hopper, ampere), hopper < ampere},
      {"arXiv 2412.19437",
       "Hopper's fp8 sums keep about 14 bits; promotion every 128 products mends long sums",
       text("depth 2048: %.1e, promoted %.1e, Blackwell %.1e", raw, promoted, blackwell),
       raw > 1e-4 && promoted < raw && blackwell < promoted / 10},
  };
}

std::vector<Claim> claims_of_units(Measured measured) {
  const Range bf16 = range_of(of(measured, "flash2_shipped"), l2),
              fp8 = range_of(of(measured, "flash3_fp8"), l2);
  return {
      {kThisLab, "the unit that adds is invisible in the output of bf16 attention",
       text("relative error %.4e to %.4e over exact, fp64, fp32, Ampere, Hopper", bf16.low, bf16.high),
       bf16.high < 1.02 * bf16.low},
      {kThisLab, "and in that of fp8 attention, whose casts cost far more",
       text("relative error %.4e to %.4e over all units", fp8.low, fp8.high), fp8.high < 1.02 * fp8.low},
  };
}

std::vector<Claim> claims_of_winograd(Measured measured) {
  std::vector<Claim> claims;
  for (const char* format : {"bf16", "fp16", "fp32"}) {
    const auto one = [&](const char* algorithm) {
      return l2(with_format(of(measured, algorithm), format).at(0));
    };
    const double direct = one("direct"), f2 = one("winograd_f2"), f4 = one("winograd_f4"),
                 f6 = one("winograd_f6");
    claims.push_back({"arXiv 1803.10986", text("%s: the error grows with the tile", format),
                      text("relative error: direct %.1e, F2 %.1e, F4 %.1e, F6 %.1e", direct, f2, f4, f6),
                      f2 < f4 && f4 < f6});
  }
  return claims;
}

std::vector<Claim> claims_of_reductions(Measured measured) {
  const auto at = [&](const char* algorithm, const char* input, const char* tensor = "out") {
    return with_input(of(measured, algorithm, tensor), input).at(0);
  };
  const double online = l2_ratio(at("softmax_online", "normal"));
  const double fused = l2_ratio(at("layer_norm_fused", "shifted")),
               welford = l2_ratio(at("layer_norm_welford", "shifted"));
  const double chunked = l2_ratio(at("cross_entropy_chunked", "normal", "loss"));
  const double stored = l2_ratio(at("cross_entropy_chunked_reimplemented", "normal", "loss"));
  return {
      {kThisLab, "online softmax loses when its sum is stored in bf16 after each block",
       text("%.1f times two-pass", online), online > 1.5},
      {"Chan, Golub, LeVeque 1983",
       "mean of squares minus square of mean fails where the mean exceeds the spread",
       text("N(32,1): fused %.2f, Welford %.2f times two-pass", fused, welford),
       fused > 1.1 && welford < 1.1},
      {kThisLab,
       "chunked cross-entropy is better than plain, which stores its logits; state in bf16 undoes that",
       text("loss: %.4f times plain, %.2f with its state in bf16", chunked, stored),
       chunked < 0.1 && stored > 1},
  };
}

std::vector<Claim> claims_of_fp32(Measured measured) {
  const Range tiled = range_of(of(measured, "flash2_shipped"), l2);
  return {{kThisLab,
           "tiled fp32 attention has an error below 2e-6: enough to judge bf16 (2e-3), not fp32 kernels",
           text("%.1e to %.1e for n 1024 and 4096", tiled.low, tiled.high), tiled.within(0, 2e-6)}};
}

}  // namespace foreshock::lab
