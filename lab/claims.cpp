// Checks claims about the lab's measurements. A sweep measures algorithms while some settings vary; each
// function takes the measurements of one sweep. A Claim has its source, its statement, the measured figures
// as text, and whether it holds. The limits are those of the source, or leave some room around what was
// measured. "Plain" is unfused attention. n: keys, d: head dimension, P: exp(score - maximum). largest(),
// l2(), bias(): means over the seeds; max_ratio(), l2_ratio(): such errors divided by those of plain.
// flash_reimplemented rounds every intermediate result to the format, as in kStability (arXiv 2405.02803),
// whose figures are "Fig. 3" to "Fig. 6"; flash2_shipped works in registers. kLowPrecision is arXiv
// 2510.04212. Claims of kThisLab are not from a paper, but from this lab.
#include "lab/claims.h"

namespace foreshock::lab {

std::vector<Claim> claims_of_fig3(Measured measured) {
  std::vector<Measurement> flash = with_algorithm(measured, "flash_reimplemented");
  const auto max_error = [&](const char* format) { return largest(with_format(flash, format).at(0)); };
  const double bf16 = max_error("bf16"), fp16 = max_error("fp16"), tf32 = max_error("tf32"),
               fp32 = max_error("fp32"), fp64 = max_error("fp64");
  const auto from_plain = [&](const char* format) {
    return with_format(flash, format).at(0).max_from_plain.mean;
  };
  return {
      {kStability,
       "the more mantissa bits, the smaller the deviation (Fig. 3); fp16 and tf32 have equally many",
       text("bf16 %.1e, fp16 %.1e, tf32 %.1e, fp32 %.1e, fp64 %.1e", bf16, fp16, tf32, fp32, fp64),
       bf16 > fp16 && std::fabs(fp16 / tf32 - 1) < 0.05 && tf32 > fp32 && fp32 > fp64},
      {kStability, "flash attention and plain come closer in wider formats (Fig. 3)",
       text("largest difference between them: bf16 %.1e, fp16 %.1e, fp32 %.1e, fp64 %.1e", from_plain("bf16"),
            from_plain("fp16"), from_plain("fp32"), from_plain("fp64")),
       from_plain("bf16") > from_plain("fp16") && from_plain("fp16") > from_plain("fp32") &&
           from_plain("fp32") > from_plain("fp64")},
      {"unit roundoff", "three bits more make bf16 / fp16 about 8", text("%.2f", bf16 / fp16),
       bf16 / fp16 > 6 && bf16 / fp16 < 11},
  };
}

std::vector<Claim> claims_of_fig4(Measured measured) {
  const auto of_algorithm_and_input = [&](const char* algorithm, const char* input) {
    return with_input(with_algorithm(measured, algorithm), input);
  };
  const Range uniform = range_of(of_algorithm_and_input("flash_reimplemented", "uniform"), max_ratio);
  const Range normal = range_of(of_algorithm_and_input("flash_reimplemented", "normal"), max_ratio);
  const Range shipped = range_of(with_format(with_algorithm(measured, "flash2_shipped"), "bf16"), l2_ratio);
  const Range in_roundoffs = range_of(with_format(with_algorithm(measured, "flash2_shipped"), "bf16"),
                                      [](const Measurement& m) { return m.over_roundoff.mean; });
  const Range shipped_max = range_of(with_algorithm(measured, "flash2_shipped"), max_ratio);
  // The sweep has one point of each algorithm with the inputs "outlier", in fp16.
  const double fp16_gain = 1 / l2_ratio(of_algorithm_and_input("flash2_shipped", "outlier").at(0));
  return {
      {kStability, "flash attention deviates about ten times more than plain at bf16 (Fig. 4)",
       text("inputs U(0,1), n 1024 and 2048, every intermediate in bf16: %.1f to %.1f times", uniform.low,
            uniform.high),
       uniform.within(5, 20)},
      {kThisLab, "that factor belongs to its inputs: with N(0,1) it is 1.5 to 3.5",
       text("%.1f to %.1f times", normal.low, normal.high), normal.within(1.5, 3.5)},
      {kThisLab, "and to the re-implementation: the kernel as shipped is better than plain",
       text("relative error %.2f to %.2f of plain's", shipped.low, shipped.high), shipped.within(0.3, 1)},
      {"arXiv 2407.08608",
       "flash attention in fp16 has a 1.7 times smaller error than standard attention (Table 3)",
       text("%.2f times, inputs with outliers, d 128, against fp64 of the inputs before rounding", fp16_gain),
       fp16_gain > 1.2 && fp16_gain < 2},
      {"vLLM kernel tests", "largest error is at most 2 unit roundoffs of the largest output",
       text("%.2f to %.2f", in_roundoffs.low, in_roundoffs.high), in_roundoffs.within(0, 2)},
      {"flash-attention tests", "largest error is at most twice plain's",
       text("%.2f to %.2f times", shipped_max.low, shipped_max.high), shipped_max.within(0, 2)},
  };
}

std::vector<Claim> claims_of_fig5(Measured measured) {
  const std::vector<Measurement> flash = with_algorithm(measured, "flash_reimplemented");
  const Range shipped = range_of(with_algorithm(measured, "flash2_shipped"), largest);
  const double middle = (shipped.low + shipped.high) / 2;
  const double growth = largest(flash.back()) / largest(flash.front());
  return {
      {kStability, "at a fixed tile the deviation grows with the sequence (Fig. 5)",
       text("largest deviation %.1e at n 128, %.1e at n 4096: %.1f times, at every step %s",
            largest(flash.front()), largest(flash.back()), growth,
            is_rising(flash, largest) ? "up" : "not up"),
       is_rising(flash, largest) && growth > 3},
      {kThisLab, "the kernel as shipped does not care about the sequence length (within 10 %)",
       text("%.2e to %.2e", shipped.low, shipped.high), shipped.within(0.9 * middle, 1.1 * middle)},
  };
}

std::vector<Claim> claims_of_fig6(Measured measured) {
  const std::vector<Measurement> bf16 = with_format(with_algorithm(measured, "flash_reimplemented"), "bf16");
  const auto square = where(bf16, [](const Measurement& m) { return m.point.block_q == m.point.block_k; });
  const double gain = largest(square.front()) / largest(square.back());
  bool rows_matter = false;  // blocks with equal key sides and different query sides have different errors
  int swaps = 0, worse = 0, fp32_swaps = 0, fp32_worse = 0;
  for (const Measurement& a : measured)
    for (const Measurement& b : measured) {
      const Point &p = a.point, &q = b.point;
      if (p.format != q.format || a.tensor != b.tensor) continue;
      if (p.block_k == q.block_k) rows_matter |= a.max_abs.mean != b.max_abs.mean;
      const bool is_swap = p.block_q == q.block_k && p.block_k == q.block_q;
      if (a.tensor != "out" || !is_swap || p.block_k >= q.block_k) continue;  // `a` has the shorter key side
      const bool is_fp32 = a.point.format == "fp32";
      ++(is_fp32 ? fp32_swaps : swaps);
      if (largest(a) > largest(b)) ++(is_fp32 ? fp32_worse : worse);
    }
  return {
      {kStability, "larger blocks, smaller deviation (Fig. 6c)",
       text("bf16: %.1e with 16 x 16, %.1e with 1024 x 1024: %.1f times", largest(square.front()),
            largest(square.back()), gain),
       is_falling(square, largest) && gain >= 5},
      {kStability, "swapping the block's sides makes it worse (Fig. 6a)",
       text("bf16, fp16, tf32: the block with the shorter key side is worse in %d of %d pairs", worse, swaps),
       worse == swaps},
      {kThisLab, "not so in fp32, where short blocks of keys also make short sums",
       text("worse in %d of %d pairs", fp32_worse, fp32_swaps), fp32_worse < fp32_swaps},
      {kStability, "a square block deviates as much as any block with the same key side (Fig. 6b)",
       rows_matter ? "the query side changes results"
                   : "the query side of a block changes no bit of any figure",
       !rows_matter},
  };
}

std::vector<Claim> claims_of_ties(Measured measured) {
  const auto at = [&](const char* algorithm, const char* input) {
    return with_input(with_algorithm(measured, algorithm), input).at(0);
  };
  // ties:N: N keys of each row have the largest score. ties:N:GAP: one has it, and N - 1 lie GAP below. In
  // bf16 exp(-GAP) rounds to 1 for GAP up to about 2^-9: for 1.9e-3, but not for 4e-3.
  const Measurement in_format = at("flash2_reimplemented", "ties:2");
  const double shifted_bias = at("flash2_dynamic_max", "ties:2").bias_ulp.mean;
  const auto shipped_near = where(with_algorithm(measured, "flash2_shipped"),
                                  [](const Measurement& m) { return m.point.input.ends_with(":1.9e-3"); });
  // Leaves out ties:2:1.9e-3. Its two P are equal after the cast, and two equal P have a small bias of their
  // own.
  const auto cast_sum_near = where(with_algorithm(measured, "flash2_cast_sum"), [](const Measurement& m) {
    return m.point.input.ends_with(":1.9e-3") && m.point.input != "ties:2:1.9e-3";
  });
  const auto shipped_beyond = where(with_algorithm(measured, "flash2_shipped"),
                                    [](const Measurement& m) { return m.point.input.ends_with(":4e-3"); });
  const Range biased = range_of(shipped_near, bias), unbiased = range_of(cast_sum_near, bias),
              outside = range_of(shipped_beyond, bias);
  return {
      {kLowPrecision, "a repeated maximum biases the output away from zero when P . V is stored in bf16",
       text("two ties: %+.3f ulp, %.0f standard errors from 0", bias(in_format), in_format.bias_z),
       bias(in_format) > 0.1 && in_format.bias_z > 10},
      {kLowPrecision, "a maximum shifted where it is repeated removes the bias",
       text("two ties: %+.4f ulp", shifted_bias), std::fabs(shifted_bias) < 0.02},
      {kThisLab,
       "scores within 2^-9 of the maximum bias even the shipped kernel, whose P rounds to 1 while its sum "
       "does not",
       text("gap 1.9e-3, 2 to 16 near ties: %+.2f to %+.2f ulp", biased.low, biased.high),
       biased.within(0.1, 0.35)},
      {kThisLab, "a gap of 4e-3 is outside that window",
       text("%+.3f to %+.3f ulp", outside.low, outside.high), outside.within(-0.02, 0.02)},
      {kThisLab, "summing P after its cast removes it",
       text("4 to 16 near ties: %+.3f to %+.3f ulp", unbiased.low, unbiased.high),
       unbiased.within(-0.03, 0.03)},
  };
}

std::vector<Claim> claims_of_logits(Measured measured) {
  const std::vector<Measurement> plain = with_algorithm(measured, "plain"),
                                 shipped = with_algorithm(measured, "flash2_shipped");
  return {
      {"error model",
       "scores stored in bf16 have errors in proportion to their size: plain gets worse as logits grow",
       text("relative error %.1e to %.1e", l2(plain.front()), l2(plain.back())), is_rising(plain, l2)},
      {"error model", "scores in fp32 do not: a kernel's deviation says nothing about growing logits",
       text("relative error %.1e down to %.1e", l2(shipped.front()), l2(shipped.back())),
       is_falling(shipped, l2)},
  };
}

std::vector<Claim> claims_of_bias(Measured measured) {
  const auto at = [&](const char* algorithm, const char* input) {
    return with_input(with_algorithm(measured, algorithm), input).at(0);
  };
  const Measurement flat = at("flash2_shipped", "flat"), flat_cast = at("flash2_cast_sum", "flat");
  const Measurement healthy = at("flash2_shipped", "normal");
  return {
      {kThisLab, "healthy inputs do not bias the shipped kernel", text("N(0,1): %+.4f ulp", bias(healthy)),
       std::fabs(bias(healthy)) < 0.02},
      {kThisLab, "flat scores do: every P is cast to 1, the sum is not",
       text("%+.3f ulp, z %.0f", bias(flat), flat.bias_z),
       bias(flat) > 0.1 && bias(flat) < 0.25 && flat.bias_z > 10},
      {kThisLab, "summing P after its cast removes that", text("%+.3f ulp", bias(flat_cast)),
       std::fabs(bias(flat_cast)) < 0.03},
  };
}

std::vector<Claim> claims_of_backward(Measured measured) {
  const auto drift = [&](const char* delta) {
    const auto found = where(with_algorithm(measured, "flash2_shipped", "delta"), [=](const Measurement& m) {
      return m.point.delta == delta && m.point.input == "ties:4:1.9e-3";
    });
    return std::fabs(found.at(0).signed_sum.mean);
  };
  Range gradients;
  for (const char* tensor : {"grad_query", "grad_key", "grad_value"}) {
    const Range one =
        range_of(with_input(with_algorithm(measured, "flash2_shipped", tensor), "normal"), max_ratio);
    if (std::isnan(one.low)) gradients = one;  // stays NaN, which fails the claim
    if (!std::isnan(gradients.low))
      gradients = {std::min(gradients.low, one.low), std::max(gradients.high, one.high)};
  }
  const double from_out = drift("out"), from_probabilities = drift("probabilities");
  return {
      {kLowPrecision, "delta from P instead of O removes its drift (section 3.2)",
       text("|sum of delta's error| %.2g from O, %.2g from P", from_out, from_probabilities),
       from_out > 10 * from_probabilities},
      {"flash-attention tests", "gradients are at most three times worse than plain's",
       text("%.2f to %.2f times", gradients.low, gradients.high), gradients.within(0, 3)},
  };
}

std::vector<Claim> claims_of_accumulators(Measured measured) {
  const std::vector<Measurement> products = with_algorithm(measured, "matrix_product");
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
  const Range bf16 = range_of(with_algorithm(measured, "flash2_shipped"), l2),
              fp8 = range_of(with_algorithm(measured, "flash3_fp8"), l2);
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
      return l2(with_format(with_algorithm(measured, algorithm), format).at(0));
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
    return with_input(with_algorithm(measured, algorithm, tensor), input).at(0);
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
  const Range tiled = range_of(with_algorithm(measured, "flash2_shipped"), l2);
  return {{kThisLab,
           "tiled fp32 attention has an error below 2e-6: enough to judge bf16 (2e-3), not fp32 kernels",
           text("%.1e to %.1e for n 1024 and 4096", tiled.low, tiled.high), tiled.within(0, 2e-6)}};
}

}  // namespace foreshock::lab
