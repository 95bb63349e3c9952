#include "lab/study.h"

#include <array>
#include <cstdio>

#include "lab/build_info.h"
#include "lab/claims.h"

namespace foreshock::lab {
namespace {

// Every combination of `base` with one value of an axis.
template <class Value, class Values>
std::vector<Point> with(std::vector<Point> base, Value Point::*axis, const Values& values) {
  std::vector<Point> points;
  for (const Point& point : base)
    for (const auto& value : values) {
      points.push_back(point);
      points.back().*axis = value;
    }
  return points;
}

using Names = std::vector<const char*>;

// The input law under which the paper's factor of ten appears.
std::vector<Point> uniform_base() {
  Point point;
  point.input = "uniform";
  return {point};
}

std::vector<Point> fig3_points() {
  return with(with(uniform_base(), &Point::format, Names{"bf16", "fp16", "tf32", "fp32", "fp64"}),
              &Point::algorithm, Names{"plain", "flash_reimplemented"});
}

std::vector<Point> fig4_points() {
  const Names algorithms{"plain", "flash_reimplemented", "flash2_reimplemented", "flash2_shipped"};
  std::vector<Point> points =
      with(with({Point{}}, &Point::input, Names{"uniform", "normal"}), &Point::n, std::vector{1024, 2048});
  Point outlier;  // the error table of FlashAttention-3: fp16, d 128, inputs with outliers, error to the
                  // originals
  outlier.input = "outlier";
  outlier.format = "fp16";
  outlier.d = 128;
  outlier.reference = "original";
  points.push_back(outlier);
  return with(points, &Point::algorithm, algorithms);
}

std::vector<Point> fig5_points() {
  return with(with(uniform_base(), &Point::n, std::vector{128, 256, 512, 1024, 2048, 4096}),
              &Point::algorithm, Names{"plain", "flash_reimplemented", "flash2_shipped"});
}

std::vector<Point> fig6_points() {
  std::vector<Point> points;
  for (const char* format : {"bf16", "fp16", "tf32", "fp32"}) {
    Point point = uniform_base()[0];
    point.algorithm = "flash_reimplemented";
    point.format = format;
    for (int side : {16, 32, 64, 128, 256, 512, 1024}) {  // square
      point.block_q = point.block_k = side;
      points.push_back(point);
    }
    for (int side : {16, 32, 64}) {  // the same area both ways round
      point.block_q = side;
      point.block_k = 4 * side;
      points.push_back(point);
      std::swap(point.block_q, point.block_k);
      points.push_back(point);
    }
  }
  return points;
}

std::vector<Point> ties_points() {
  Point base;
  base.n = base.block_k = 512;
  base.rows = 64;
  base.seeds = 16;
  return with(
      with({base}, &Point::input,
           Names{"ties:2", "ties:3", "ties:4", "ties:8", "ties:2:1.9e-3", "ties:4:1.9e-3", "ties:8:1.9e-3",
                 "ties:16:1.9e-3", "ties:2:4e-3", "ties:4:4e-3"}),
      &Point::algorithm,
      Names{"plain", "flash2_reimplemented", "flash2_dynamic_max", "flash2_shipped", "flash2_cast_sum"});
}

std::vector<Point> logits_points() {
  return with(with({Point{}}, &Point::scale, std::vector{1., 2., 4., 8., 16., 32., 64.}), &Point::algorithm,
              Names{"plain", "flash2_shipped"});
}

std::vector<Point> bias_points() {
  Point base;
  base.seeds = 16;
  return with(with({base}, &Point::input,
                   Names{"normal", "uniform", "one_signed", "flat", "ties:2", "ties:4:1.9e-3"}),
              &Point::algorithm,
              Names{"plain", "flash_reimplemented", "flash2_reimplemented", "flash2_dynamic_max",
                    "flash2_shipped", "flash2_cast_sum", "flash4_lazy", "split_k"});
}

const Names kBf16Units{"exact", "fp64", "fp32", "ampere", "hopper"};
const Names kFp8Units{"exact", "fp32", "hopper_fp8", "hopper_fp8_promoted", "blackwell_fp8"};

std::vector<Point> with_units(const Point& bf16) {
  Point fp8 = bf16;
  fp8.format = "e4m3";
  if (fp8.algorithm == "flash2_shipped") fp8.algorithm = "flash3_fp8";
  std::vector<Point> points = with({bf16}, &Point::accumulator, kBf16Units);
  const std::vector<Point> others = with({fp8}, &Point::accumulator, kFp8Units);
  points.insert(points.end(), others.begin(), others.end());
  return points;
}

std::vector<Point> accumulators_points() {
  Point product;
  product.algorithm = "matrix_product";
  product.n = product.rows = 64;
  return with(with_units(product), &Point::d, std::vector{128, 512, 2048});
}

std::vector<Point> units_points() {
  Point attention;
  attention.algorithm = "flash2_shipped";
  attention.rows = 32;
  attention.block_k = 128;
  return with_units(attention);
}

std::vector<Point> backward_points() {
  Point base;
  base.n = base.block_k = 512;
  base.backward = true;
  return with(with(with({base}, &Point::input, Names{"normal", "ties:4:1.9e-3"}), &Point::delta,
                   Names{"out", "probabilities"}),
              &Point::algorithm, Names{"plain", "flash2_reimplemented", "flash2_shipped"});
}

std::vector<Point> winograd_points() {
  Point base;
  base.n = 14;
  base.rows = 16;
  return with(with({base}, &Point::format, Names{"bf16", "fp16", "fp32"}), &Point::algorithm,
              Names{"direct", "winograd_f2", "winograd_f4", "winograd_f6"});
}

std::vector<Point> reductions_points() {
  Point base;
  base.n = 2048;
  return with(with({base}, &Point::input, Names{"normal", "shifted"}), &Point::algorithm,
              Names{"softmax_two_pass", "softmax_online", "layer_norm_two_pass", "layer_norm_fused",
                    "layer_norm_welford", "cross_entropy_plain", "cross_entropy_chunked",
                    "cross_entropy_chunked_reimplemented"});
}

std::vector<Point> fp32_points() {
  Point base;
  base.format = "fp32";
  return with(
      with(with({base}, &Point::input, Names{"normal", "uniform"}), &Point::n, std::vector{1024, 4096}),
      &Point::algorithm, Names{"plain", "flash2_shipped"});
}

constexpr std::array<Sweep, 13> kSweeps = {{
    {"fig3", "What does each format cost, flash attention re-implemented beside plain?", "format", "max_abs",
     "algorithm", "out", false, true, fig3_points, claims_of_fig3},
    {"fig4", "Is flash attention ten times worse than plain, against fp64?", "algorithm",
     "max_ratio_to_plain", "input,n", "out", false, true, fig4_points, claims_of_fig4},
    {"fig5", "Does the deviation grow with the sequence at a fixed tile?", "n", "max_abs", "algorithm", "out",
     true, true, fig5_points, claims_of_fig5},
    {"fig6", "What do tile size and shape change?", "block_k", "max_abs", "format", "out", true, true,
     fig6_points, claims_of_fig6},
    {"ties", "Which way do repeated maxima round?", "input", "bias_ulp", "algorithm", "out", false, false,
     ties_points, claims_of_ties},
    {"logits", "What do growing logits do to the deviation?", "scale", "relative_l2", "algorithm", "out",
     true, true, logits_points, claims_of_logits},
    {"bias", "Which inputs bias which algorithm?", "input", "bias_ulp", "algorithm", "out", false, false,
     bias_points, claims_of_bias},
    {"accumulators", "How exactly does the unit that adds, add?", "d", "relative_l2", "accumulator,format",
     "out", true, true, accumulators_points, claims_of_accumulators},
    {"units", "Does it matter to attention?", "accumulator", "relative_l2", "format", "out", false, true,
     units_points, claims_of_units},
    {"backward", "What reaches the gradients, and does delta from P help?", "tensor", "relative_l2",
     "algorithm,delta,input", "", false, true, backward_points, claims_of_backward},
    {"winograd", "What does a faster convolution cost?", "algorithm", "relative_l2", "format", "out", false,
     true, winograd_points, claims_of_winograd},
    {"reductions", "What do fused softmax, layer norm and cross-entropy cost?", "algorithm", "relative_l2",
     "input,tensor", "", false, true, reductions_points, claims_of_reductions},
    {"fp32", "Would fp32 do as a reference for bf16?", "n", "relative_l2", "algorithm", "out", true, true,
     fp32_points, claims_of_fp32},
}};

constexpr std::array<std::string_view, 4> kDefault = {"fig3", "fig4", "fig5", "fig6"};

}  // namespace

std::span<const Sweep> sweeps() { return kSweeps; }

const Sweep* find_sweep(std::string_view name) {
  for (const Sweep& sweep : kSweeps)
    if (sweep.name == name) return &sweep;
  return nullptr;
}

std::span<const std::string_view> default_sweeps() { return kDefault; }

namespace {

std::string shortest(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", x);
  return text;
}

}  // namespace

Axes axes_of(const Point& p) {
  const std::string accumulator =
      p.accumulator.empty() ? std::string(natural_accumulator(*parse_format(p.format)).name) : p.accumulator;
  return {{"algorithm", p.algorithm},
          {"format", p.format},
          {"accumulator", accumulator},
          {"rounding", p.rounding},
          {"input", p.input},
          {"n", std::to_string(p.n)},
          {"d", std::to_string(p.d)},
          {"rows", std::to_string(p.rows)},
          {"block_q", std::to_string(p.block_q)},
          {"block_k", std::to_string(p.block_k)},
          {"splits", std::to_string(p.splits)},
          {"key_order", p.reverse ? "reverse" : "forward"},
          {"scale", shortest(p.scale)},
          {"pass", p.backward ? "backward" : "forward"},
          {"delta", p.delta},
          {"reference", p.reference},
          {"seeds", std::to_string(p.seeds)},
          {"first_seed", std::to_string(p.first_seed)}};
}

std::vector<std::pair<std::string, std::string>> versions() {
  return {{"foreshock", kVersion}, {"compiler", kCompiler}, {"chart.js", kChartVersion}};
}

}  // namespace foreshock::lab
