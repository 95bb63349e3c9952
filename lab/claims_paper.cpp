#include "lab/claims.h"
#include "lab/measured.h"

namespace foreshock::lab {

std::vector<Claim> claims_of_fig3(Measured measured) {
  std::vector<Measurement> flash = of(measured, "flash_reimplemented");
  const auto max_of = [&](const char* format) { return largest(with_format(flash, format).at(0)); };
  const double bf16 = max_of("bf16"), fp16 = max_of("fp16"), tf32 = max_of("tf32"), fp32 = max_of("fp32"),
               fp64 = max_of("fp64");
  const auto apart = [&](const char* format) { return with_format(flash, format).at(0).max_from_plain.mean; };
  return {
      {kStability,
       "the more mantissa bits, the smaller the deviation (Fig. 3); fp16 and tf32 have equally many",
       text("bf16 %.1e, fp16 %.1e, tf32 %.1e, fp32 %.1e, fp64 %.1e", bf16, fp16, tf32, fp32, fp64),
       bf16 > fp16 && std::fabs(fp16 / tf32 - 1) < 0.05 && tf32 > fp32 && fp32 > fp64},
      {kStability, "flash attention and plain come closer in wider formats (Fig. 3)",
       text("largest difference between them: bf16 %.1e, fp16 %.1e, fp32 %.1e, fp64 %.1e", apart("bf16"),
            apart("fp16"), apart("fp32"), apart("fp64")),
       apart("bf16") > apart("fp16") && apart("fp16") > apart("fp32") && apart("fp32") > apart("fp64")},
      {"unit roundoff", "three bits more make bf16 / fp16 about 8", text("%.2f", bf16 / fp16),
       bf16 / fp16 > 6 && bf16 / fp16 < 11},
  };
}

std::vector<Claim> claims_of_fig4(Measured measured) {
  const auto of_both = [&](const char* algorithm, const char* input) {
    return with_input(of(measured, algorithm), input);
  };
  const Range uniform = range_of(of_both("flash_reimplemented", "uniform"), max_ratio);
  const Range normal = range_of(of_both("flash_reimplemented", "normal"), max_ratio);
  const Range shipped = range_of(with_format(of(measured, "flash2_shipped"), "bf16"), l2_ratio);
  const Range constant = range_of(with_format(of(measured, "flash2_shipped"), "bf16"),
                                  [](const Measurement& m) { return m.over_roundoff.mean; });
  const Range every = range_of(of(measured, "flash2_shipped"), max_ratio);
  const double fp16_gain = 1 / l2_ratio(of_both("flash2_shipped", "outlier").at(0));
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
       text("%.2f to %.2f", constant.low, constant.high), constant.within(0, 2)},
      {"flash-attention tests", "largest error is at most twice plain's",
       text("%.2f to %.2f times", every.low, every.high), every.within(0, 2)},
  };
}

std::vector<Claim> claims_of_fig5(Measured measured) {
  const std::vector<Measurement> flash = of(measured, "flash_reimplemented");
  const Range shipped = range_of(of(measured, "flash2_shipped"), largest);
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
  const std::vector<Measurement> bf16 = with_format(of(measured, "flash_reimplemented"), "bf16");
  const auto square = where(bf16, [](const Measurement& m) { return m.point.block_q == m.point.block_k; });
  const double gain = largest(square.front()) / largest(square.back());
  // Same key block, other query block: nothing may change. Swapped: the key block shrinks.
  bool rows_matter = false;
  int swaps = 0, worse = 0, fp32_worse = 0;
  for (const Measurement& a : measured)
    for (const Measurement& b : measured) {
      if (a.point.format != b.point.format || a.tensor != b.tensor) continue;
      if (a.point.block_k == b.point.block_k) rows_matter |= a.max_abs.mean != b.max_abs.mean;
      if (a.tensor == "out" && a.point.block_q == b.point.block_k && a.point.block_k == b.point.block_q &&
          a.point.block_k < b.point.block_k)
        (a.point.format == "fp32" ? fp32_worse : worse) += largest(a) > largest(b);
      swaps += a.tensor == "out" && a.point.block_q == b.point.block_k &&
               a.point.block_k == b.point.block_q && a.point.block_k < b.point.block_k &&
               a.point.format != "fp32";
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
       text("worse in %d of %d pairs", fp32_worse, swaps / 3), fp32_worse < swaps / 3},
      {kStability, "a square block changes nothing (Fig. 6b): only the key side counts",
       rows_matter ? "the query side changes results"
                   : "the query side of a block changes no bit of any figure",
       !rows_matter},
  };
}

}  // namespace foreshock::lab
