#include "lab/study.h"

#include <cstdio>

#include "lab/build_info.h"

namespace foreshock::lab {
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
