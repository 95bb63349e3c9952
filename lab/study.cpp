// Defines the sweeps of `foreshock lab`, and writes their results as JSON, page and table. A sweep measures a
// list of points. A point has one value for each axis: algorithm (see algorithm.cpp), format, input, ... An
// axis that a sweep does not set has its default (measure.h): bf16, normal inputs, 1024 keys, 8 seeds, ...
#include "lab/study.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "lab/build_info.h"
#include "lab/claims.h"

namespace foreshock::lab {

namespace {

// Returns every point of `base` with every one of `values` on the axis `axis`, a member of Point.
template <class Value, class Values>
std::vector<Point> vary(std::vector<Point> base, Value Point::*axis, const Values& values) {
  std::vector<Point> points;
  for (const Point& point : base)
    for (const auto& value : values) {
      points.push_back(point);
      points.back().*axis = value;
    }
  return points;
}

using Names = std::vector<const char*>;

// fig3 to fig6 repeat figures of arXiv 2405.02803. The paper reports that flash attention deviates ten times
// more than plain attention. Only inputs from U(0,1) show this.
std::vector<Point> uniform_base() {
  Point point;
  point.input = "uniform";
  return {point};
}

std::vector<Point> fig3_points() {
  return vary(vary(uniform_base(), &Point::format, Names{"bf16", "fp16", "tf32", "fp32", "fp64"}),
              &Point::algorithm, Names{"plain", "flash_reimplemented"});
}

std::vector<Point> fig4_points() {
  const Names algorithms{"plain", "flash_reimplemented", "flash2_reimplemented", "flash2_shipped"};
  std::vector<Point> points =
      vary(vary({Point{}}, &Point::input, Names{"uniform", "normal"}), &Point::n, std::vector{1024, 2048});
  // As in the error table of the FlashAttention-3 paper, whose reference uses the inputs before rounding.
  Point outlier;
  outlier.input = "outlier";
  outlier.format = "fp16";
  outlier.d = 128;
  outlier.reference = "original";
  points.push_back(outlier);
  return vary(points, &Point::algorithm, algorithms);
}

std::vector<Point> fig5_points() {
  return vary(vary(uniform_base(), &Point::n, std::vector{128, 256, 512, 1024, 2048, 4096}),
              &Point::algorithm, Names{"plain", "flash_reimplemented", "flash2_shipped"});
}

std::vector<Point> fig6_points() {
  std::vector<Point> points;
  for (const char* format : {"bf16", "fp16", "tf32", "fp32"}) {
    Point point = uniform_base()[0];
    point.algorithm = "flash_reimplemented";
    point.format = format;
    for (int side : {16, 32, 64, 128, 256, 512, 1024}) {  // square tiles
      point.block_q = point.block_k = side;
      points.push_back(point);
    }
    for (int side : {16, 32, 64}) {  // both rectangles with the area of a square of 2 * side
      point.block_q = side;
      point.block_k = 4 * side;
      points.push_back(point);
      std::swap(point.block_q, point.block_k);
      points.push_back(point);
    }
  }
  return points;
}

// Inputs (inputs.h): "ties:T": T scores of each row share the maximum; "ties:T:GAP": T - 1 of these T scores
// are less than the maximum by GAP. exp(-1.9e-3) rounds to 1 in bf16, exp(-4e-3) does not.
std::vector<Point> ties_points() {
  Point base;
  base.n = base.block_k = 512;  // one tile has all keys
  base.rows = 64;
  base.seeds = 16;
  return vary(
      vary({base}, &Point::input,
           Names{"ties:2", "ties:3", "ties:4", "ties:8", "ties:2:1.9e-3", "ties:4:1.9e-3", "ties:8:1.9e-3",
                 "ties:16:1.9e-3", "ties:2:4e-3", "ties:4:4e-3"}),
      &Point::algorithm,
      Names{"plain", "flash2_reimplemented", "flash2_dynamic_max", "flash2_shipped", "flash2_cast_sum"});
}

std::vector<Point> logits_points() {
  return vary(vary({Point{}}, &Point::scale, std::vector{1., 2., 4., 8., 16., 32., 64.}), &Point::algorithm,
              Names{"plain", "flash2_shipped"});
}

std::vector<Point> bias_points() {
  Point base;
  base.seeds = 16;
  return vary(vary({base}, &Point::input,
                   Names{"normal", "uniform", "one_signed", "flat", "ties:2", "ties:4:1.9e-3"}),
              &Point::algorithm,
              Names{"plain", "flash_reimplemented", "flash2_reimplemented", "flash2_dynamic_max",
                    "flash2_shipped", "flash2_cast_sum", "flash4_lazy", "split_k"});
}

// "Units" are the matrix units whose accumulators the lab emulates (tensor_core.h).
const Names kBf16Units{"exact", "fp64", "fp32", "ampere", "hopper"};
const Names kFp8Units{"exact", "fp32", "hopper_fp8", "hopper_fp8_promoted", "blackwell_fp8"};

// Returns the bf16 point with each accumulator of kBf16Units, and its fp8 version with each of kFp8Units.
std::vector<Point> with_units(const Point& bf16) {
  Point fp8 = bf16;
  fp8.format = "e4m3";
  if (fp8.algorithm == "flash2_shipped") fp8.algorithm = "flash3_fp8";  // attention for fp8
  std::vector<Point> points = vary({bf16}, &Point::accumulator, kBf16Units);
  const std::vector<Point> fp8_points = vary({fp8}, &Point::accumulator, kFp8Units);
  points.insert(points.end(), fp8_points.begin(), fp8_points.end());
  return points;
}

std::vector<Point> accumulators_points() {
  Point product;
  product.algorithm = "matrix_product";
  product.n = product.rows = 64;
  return vary(with_units(product), &Point::d, std::vector{128, 512, 2048});
}

std::vector<Point> units_points() {
  Point attention;
  attention.algorithm = "flash2_shipped";
  attention.rows = 32;
  attention.block_k = 128;
  return with_units(attention);
}

// delta is the number that the backward pass subtracts from a row of dP. It is computed from dO * out ("out")
// or from dP * P ("probabilities"), which are equal without rounding (DeltaSource).
std::vector<Point> backward_points() {
  Point base;
  base.n = base.block_k = 512;  // one tile has all keys
  base.backward = true;
  return vary(vary(vary({base}, &Point::input, Names{"normal", "ties:4:1.9e-3"}), &Point::delta,
                   Names{"out", "probabilities"}),
              &Point::algorithm, Names{"plain", "flash2_reimplemented", "flash2_shipped"});
}

std::vector<Point> winograd_points() {
  Point base;
  base.n = 14;     // side of the image
  base.rows = 16;  // output channels
  return vary(vary({base}, &Point::format, Names{"bf16", "fp16", "fp32"}), &Point::algorithm,
              Names{"direct", "winograd_f2", "winograd_f4", "winograd_f6"});
}

std::vector<Point> reductions_points() {
  Point base;
  base.n = 2048;
  return vary(vary({base}, &Point::input, Names{"normal", "shifted"}), &Point::algorithm,
              Names{"softmax_two_pass", "softmax_online", "layer_norm_two_pass", "layer_norm_fused",
                    "layer_norm_welford", "cross_entropy_plain", "cross_entropy_chunked",
                    "cross_entropy_chunked_reimplemented"});
}

std::vector<Point> fp32_points() {
  Point base;
  base.format = "fp32";
  return vary(
      vary(vary({base}, &Point::input, Names{"normal", "uniform"}), &Point::n, std::vector{1024, 4096}),
      &Point::algorithm, Names{"plain", "flash2_shipped"});
}

// Members of a row: name, question, chart (x, y, series, tensor or "" for all, log_x, log_y), points, claims.
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
    {"units", "Does the accumulator change attention?", "accumulator", "relative_l2", "format", "out", false,
     true, units_points, claims_of_units},
    {"backward", "What reaches the gradients, and does delta from probabilities help?", "tensor",
     "relative_l2", "algorithm,delta,input", "", false, true, backward_points, claims_of_backward},
    {"winograd", "What does a faster convolution cost?", "algorithm", "relative_l2", "format", "out", false,
     true, winograd_points, claims_of_winograd},
    {"reductions", "What do fused softmax, layer norm and cross-entropy cost?", "algorithm", "relative_l2",
     "input,tensor", "", false, true, reductions_points, claims_of_reductions},
    {"fp32", "Would fp32 do as a reference for bf16?", "n", "relative_l2", "algorithm", "out", true, true,
     fp32_points, claims_of_fp32},
}};

constexpr std::array<std::string_view, 4> kDefaultSweeps = {"fig3", "fig4", "fig5", "fig6"};

}  // namespace

std::span<const Sweep> sweeps() { return kSweeps; }

const Sweep* find_sweep(std::string_view name) {
  for (const Sweep& sweep : kSweeps)
    if (sweep.name == name) return &sweep;
  return nullptr;
}

std::span<const std::string_view> default_sweeps() { return kDefaultSweeps; }

std::vector<std::pair<std::string, std::string>> versions() {
  return {{"foreshock", kVersion}, {"compiler", kCompiler}, {"chart.js", kChartVersion}};
}

namespace {

std::string as_text(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", x);
  return text;
}

// Names and values of all axes of a point, in the order of the table's columns. If p.accumulator is empty,
// the value is the name of the format's default accumulator.
using Axes = std::vector<std::pair<std::string, std::string>>;
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
          {"scale", as_text(p.scale)},
          {"pass", p.backward ? "backward" : "forward"},
          {"delta", p.delta},
          {"reference", p.reference},
          {"seeds", std::to_string(p.seeds)},
          {"first_seed", std::to_string(p.first_seed)}};
}

using nlohmann::ordered_json;

ordered_json number(double x) { return std::isfinite(x) ? ordered_json(x) : ordered_json(nullptr); }

ordered_json to_json(const Interval& interval) {
  return {{"mean", number(interval.mean)}, {"low", number(interval.low)}, {"high", number(interval.high)}};
}

bool is_number_axis(const std::string& name) {
  for (const char* axis : {"n", "d", "rows", "block_q", "block_k", "splits", "scale", "seeds", "first_seed"})
    if (name == axis) return true;
  return false;
}

ordered_json to_json(const Measurement& m) {
  ordered_json point{{"sweep", m.point.sweep}};
  for (const auto& [axis, value] : axes_of(m.point))
    point[axis] =
        is_number_axis(axis) ? ordered_json(std::strtod(value.c_str(), nullptr)) : ordered_json(value);
  point["tensor"] = m.tensor;
  point["max_abs"] = to_json(m.max_abs);
  point["mean_abs"] = to_json(m.mean_abs);
  point["std_abs"] = to_json(m.std_abs);
  point["relative_l2"] = to_json(m.relative_l2);
  point["bias_ulp"] = to_json(m.bias_ulp);
  // One figure for all seeds: the mean bias divided by its standard error over the seeds.
  point["bias_z"] = {{"mean", number(m.bias_z)}, {"low", nullptr}, {"high", nullptr}};
  point["ratio_to_plain"] = to_json(m.ratio_to_plain);
  point["max_ratio_to_plain"] = to_json(m.max_ratio_to_plain);
  point["max_from_plain"] = to_json(m.max_from_plain);
  point["signed_sum"] = to_json(m.signed_sum);
  point["max_over_roundoff"] = to_json(m.over_roundoff);
  point["non_finite"] = m.non_finite;
  return point;
}

ordered_json study_json(const Study& study) {
  ordered_json root{{"schema", 1},
                    {"versions", ordered_json::object()},
                    {"points", ordered_json::array()},
                    {"claims", ordered_json::array()}};
  for (const auto& [name, version] : versions()) root["versions"][name] = version;
  for (const SweepResult& sweep : study.sweeps) {
    for (const Measurement& m : sweep.measurements) root["points"].push_back(to_json(m));
    for (const Claim& c : sweep.claims)
      root["claims"].push_back({{"sweep", sweep.name},
                                {"source", c.source},
                                {"statement", c.statement},
                                {"measured", c.measured},
                                {"holds", c.holds}});
  }
  return root;
}

// How page/lab.js draws each sweep: the members of Sweep that to_json() does not write.
ordered_json drawings(const Study& study) {
  ordered_json list = ordered_json::array();
  for (const SweepResult& result : study.sweeps) {
    ordered_json drawing{{"name", result.name}};
    if (const Sweep* sweep = result.sweep) {  // null: a custom sweep
      drawing["question"] = sweep->question;
      drawing["x"] = sweep->x;
      drawing["y"] = sweep->y;
      drawing["series"] = sweep->series;
      drawing["tensor"] = sweep->tensor;
      drawing["log_x"] = sweep->log_x;
      drawing["log_y"] = sweep->log_y;
    }
    list.push_back(drawing);
  }
  return list;
}

using Row = std::vector<std::string>;

// Number of characters in UTF-8: all bytes count but continuation bytes (10xxxxxx).
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string formatted(const char* format, double x) {  // `format`: a printf format
  if (!std::isfinite(x)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, x);
  return text;
}

// Half the width of the 95 % confidence interval over the seeds, as a percentage of the mean: " ±3%".
std::string spread(const Interval& interval) {
  const double half = (interval.high - interval.low) / 2;
  return interval.mean == 0 ? "" : formatted(" ±%.0f%%", 100 * half / std::fabs(interval.mean));
}

// Whether the table shows a measurement. If the sweep names a tensor, only that tensor is shown; else all
// tensors except the log-sum-exp, which most algorithms do not store in the format under test.
bool is_shown(const SweepResult& result, const Measurement& m) {
  if (result.sweep && !result.sweep->tensor.empty()) return m.tensor == result.sweep->tensor;
  return m.tensor != "log_sum_exp";
}

std::vector<Measurement> shown(const SweepResult& result) {
  std::vector<Measurement> measurements;
  for (const Measurement& m : result.measurements)
    if (is_shown(result, m)) measurements.push_back(m);
  return measurements;
}

// Names of the axes that vary among the measurements. "algorithm" is always included.
std::set<std::string> varying_axes_of(const std::vector<Measurement>& measurements) {
  std::set<std::string> names;
  const Axes first = axes_of(measurements.front().point);
  for (const Measurement& m : measurements) {
    const Axes axes = axes_of(m.point);
    for (size_t i = 0; i < axes.size(); ++i)
      if (axes[i].second != first[i].second) names.insert(axes[i].first);
  }
  names.insert("algorithm");
  return names;
}

// The columns under kFigureTitles.
Row figures(const Measurement& m) {
  return {m.tensor,
          formatted("%.2e", m.max_abs.mean) + spread(m.max_abs),
          formatted("%.2e", m.mean_abs.mean),
          formatted("%.1e", m.std_abs.mean),
          formatted("%.2e", m.relative_l2.mean) + spread(m.relative_l2),
          formatted("%+.3f", m.bias_ulp.mean),
          formatted("%+.0f", m.bias_z),
          formatted("%.2f", m.ratio_to_plain.mean),
          formatted("%.2f", m.max_ratio_to_plain.mean)};
}

const Row kFigureTitles = {"tensor",   "max", "mean",     "std",      "relative L2",
                           "bias ulp", "z",   "L2/plain", "max/plain"};

// Title of a table, with the axes that do not vary. Omits first_seed and splits, and omits rounding,
// key_order, pass, delta, reference and scale if they have their default value.
std::string heading(const SweepResult& result, const Measurement& first,
                    const std::set<std::string>& varied) {
  std::string text = result.name;
  if (result.sweep) text += ": " + std::string(result.sweep->question);
  text += "\n  ";
  for (const auto& [axis, value] : axes_of(first.point)) {
    const bool is_omitted = value == "rne" || value == "forward" || value == "out" || value == "stored" ||
                            axis == "first_seed" || axis == "splits" || (axis == "scale" && value == "1");
    if (!varied.contains(axis) && !is_omitted) text += axis + " " + value + "  ";
  }
  return text + "\n\n";
}

std::string verdict(const Claim& claim, bool colour) {
  std::string word = claim.holds ? "holds" : "fails";
  if (colour) word = (claim.holds ? "\033[32m" : "\033[31m") + word + "\033[0m";  // green or red
  return "  " + word + "  " + claim.source + ": " + claim.statement + "\n         " + claim.measured + "\n";
}

}  // namespace

std::string to_json(const Study& study) { return study_json(study).dump(1) + "\n"; }

std::string to_page(const Study& study) {
  ordered_json data = study_json(study);
  data["drawings"] = drawings(study);
  data["seconds"] = study.seconds;
  return report_page("foreshock lab", kLabScript, data.dump());
}

std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left_columns) {
  std::vector<size_t> width(rows[0].size(), 0);
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], width_of(row[i]));
  std::string text;
  for (const Row& row : rows) {
    text += " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(width[i] - width_of(row[i]), ' ');
      text += " " + (i < left_columns ? row[i] + padding : padding + row[i]) + " ";
    }
    text += "\n";
  }
  return text;
}

std::string table_of(const SweepResult& result, bool colour) {
  const std::vector<Measurement> measurements = shown(result);
  if (measurements.empty()) return "";
  const std::set<std::string> names = varying_axes_of(measurements);
  std::vector<Row> rows(1);
  for (const auto& [axis, value] : axes_of(measurements.front().point))
    if (names.contains(axis)) rows[0].push_back(axis);
  const size_t left_columns = rows[0].size() + 1;  // the axes and "tensor" are aligned to the left
  rows[0].insert(rows[0].end(), kFigureTitles.begin(), kFigureTitles.end());
  for (const Measurement& m : measurements) {
    Row row;
    for (const auto& [axis, value] : axes_of(m.point))
      if (names.contains(axis)) row.push_back(value);
    const Row own = figures(m);
    row.insert(row.end(), own.begin(), own.end());
    rows.push_back(row);
  }
  std::string text = heading(result, measurements.front(), names) + aligned(rows, left_columns) + "\n";
  for (const Claim& claim : result.claims) text += verdict(claim, colour);
  return text + "\n";
}

namespace {

// Replaces every `marker` in `page` by `text`. A marker that `text` contains is not replaced.
void replace(std::string& page, const std::string& marker, const std::string& text) {
  for (size_t at = page.find(marker); at != std::string::npos; at = page.find(marker, at + text.size()))
    page.replace(at, marker.size(), text);
}

// Escapes '<' in JSON, so that no string in it can close the page's script element, which contains the JSON.
std::string escape_for_script(const std::string& json) {
  std::string text;
  for (char c : json) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

}  // namespace

std::string report_page(const std::string& title, const char* script, const std::string& json) {
  std::string page = kPageHtml;
  // The data is inserted last, so that replace() does not find markers in it.
  replace(page, "/*TITLE*/", title);
  replace(page, "/*STYLE*/", kPageStyle);
  replace(page, "/*SCRIPT*/", std::string(kPageScript) + script);
  replace(page, "/*CHART*/", kChartLibrary);
  const std::string marker = "/*DATA*/";
  page.replace(page.find(marker), marker.size(), escape_for_script(json));
  return page;
}

}  // namespace foreshock::lab
