// Formats the distances between the weights of pairs of checkpoints as JSON, as a web page and as tables for
// the terminal. printable() replaces control characters in texts from files. W1 is the Wasserstein distance,
// its noise floor the W1 to expect from two independent draws of the same distribution.
#include "lab/comparison_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lab/study.h"
#include "text/printable.h"

namespace foreshock::lab {
namespace {

using nlohmann::ordered_json;

ordered_json number(double x) { return std::isfinite(x) ? ordered_json(x) : ordered_json(nullptr); }

void add_figures(const Distance& d, ordered_json* object) {
  ordered_json& json = *object;
  const bool has_pairs = d.difference.pairs > 0;  // pairs of finite values; without any, max_abs is unknown
  json["elements"] = d.elements;
  json["w1"] = number(d.wasserstein.value);
  json["w1_low"] = number(d.wasserstein.low);
  json["w1_high"] = number(d.wasserstein.high);
  json["w1_noise_floor"] = number(d.noise_floor);
  json["mean_abs"] = number(d.difference.mean_magnitude());
  json["max_abs"] = has_pairs ? number(d.difference.max_magnitude) : ordered_json(nullptr);
  json["w1_over_mean_abs"] = number(d.w1_over_mean_abs());
  json["relative_l2"] = number(d.difference.relative_l2());
  json["magnitude"] = number(d.magnitude);
  json["non_finite_a"] = d.non_finite_a;
  json["non_finite_b"] = d.non_finite_b;
}

ordered_json to_json(const TensorDistance& tensor) {
  ordered_json json{{"name", tensor.name},
                    {"type_a", tensor.type_a},
                    {"type_b", tensor.type_b},
                    {"shape", tensor.shape},
                    {"same_bits", tensor.has_same_bits}};
  add_figures(tensor.distance, &json);
  return json;
}

ordered_json to_json(const std::vector<Unlike>& unlike) {  // a and b: the two shapes or types of a tensor
  ordered_json list = ordered_json::array();
  for (const Unlike& u : unlike) list.push_back({{"name", u.name}, {"a", u.a}, {"b", u.b}});
  return list;
}

ordered_json to_json(const PairResult& result) {
  ordered_json json{{"name", result.pair.name}, {"a", result.pair.a}, {"b", result.pair.b}};
  add_figures(result.pooled, &json["pooled"]);
  json["tensors"] = ordered_json::array();
  for (const TensorDistance& tensor : result.tensors) json["tensors"].push_back(to_json(tensor));
  json["only_in_a"] = result.only_in_a;
  json["only_in_b"] = result.only_in_b;
  json["shapes_differ"] = to_json(result.different_shapes);
  json["types_differ"] = to_json(result.different_types);
  json["not_compared"] = to_json(result.unsupported_types);
  return json;
}

ordered_json document(const Comparison& comparison) {
  ordered_json root{{"schema", 1},
                    {"versions", ordered_json::object()},
                    {"checkpoints", comparison.paths},
                    {"pairs", ordered_json::array()}};
  for (const auto& [name, version] : versions()) root["versions"][name] = version;
  for (const PairResult& result : comparison.pairs) root["pairs"].push_back(to_json(result));
  return root;
}

// Returns the JSON as text. Replaces invalid UTF-8, which paths may contain.
std::string dumped(const ordered_json& json, int indent) {
  return foreshock::printable_json(json.dump(indent, ' ', false, ordered_json::error_handler_t::replace));
}

}  // namespace

std::string to_json(const Comparison& comparison) { return dumped(document(comparison), 1) + "\n"; }

std::string to_page(const Comparison& comparison) {
  ordered_json data = document(comparison);
  data["bytes"] = comparison.bytes;
  data["seconds"] = comparison.seconds;
  return report_page("foreshock compare", kCompareScript, dumped(data, -1));
}

namespace {

using Row = std::vector<std::string>;

std::string format_number(const char* format, double x) {  // NaN, an unknown value, as "-"
  if (std::isnan(x)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, x);
  return text;
}

std::string format_count(uint64_t count) {  // 12345678 as "12.3 M"
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};
  double x = static_cast<double>(count);
  size_t unit = 0;
  for (; x >= 999.5 && unit + 1 < std::size(kUnits); x /= 1000) ++unit;  // "%.3g" makes 1e+03 of 999.5
  return format_number(unit == 0 ? "%.0f" : "%.3g", x) + kUnits[unit];
}

// W1 with four digits, followed by half the distance of its bounds if that is more than 0.05 % of W1.
std::string format_distance(const Wasserstein& w) {
  const double half = (w.high - w.low) / 2;
  return format_number("%.3e", w.value) + (half > 5e-4 * w.value ? format_number(" ±%.0e", half) : "");
}

const Row kFigures = {"values", "W1", "noise floor", "mean |d|", "W1/mean |d|", "max |d|", "relative L2"};

Row figures(const Distance& d) {  // the columns with the headings kFigures
  const uint64_t non_finite = d.non_finite_a + d.non_finite_b;
  return {format_count(d.elements),
          format_distance(d.wasserstein),
          format_number("%.1e", d.noise_floor),
          format_number("%.3e", d.difference.mean_magnitude()),
          format_number("%.3f", d.w1_over_mean_abs()),
          d.difference.pairs > 0 ? format_number("%.2e", d.difference.max_magnitude) : "-",
          format_number("%.3e", d.difference.relative_l2()) +
              (non_finite ? "  (" + format_count(non_finite) + " not finite)" : "")};
}

Row joined(Row row, const Row& more) {
  row.insert(row.end(), more.begin(), more.end());
  return row;
}

// The `most` tensors (0: all) with the largest relative L2 distance, the largest first, unknown (NaN) last.
std::vector<const TensorDistance*> farthest(const PairResult& pair, size_t most) {
  std::vector<const TensorDistance*> tensors;
  for (const TensorDistance& tensor : pair.tensors) tensors.push_back(&tensor);
  const auto rank = [](const TensorDistance* t) {
    const double l2 = t->distance.difference.relative_l2();
    return std::isnan(l2) ? -1 : l2;
  };
  std::stable_sort(tensors.begin(), tensors.end(), [&](auto* a, auto* b) { return rank(a) > rank(b); });
  if (most > 0 && tensors.size() > most) tensors.resize(most);
  return tensors;
}

std::string tensors_of(const PairResult& pair, size_t most) {
  const auto shown = farthest(pair, most);
  if (shown.empty()) return "";
  std::string text = printable(pair.pair.name) + ": ";
  text += shown.size() < pair.tensors.size()
              ? "the " + std::to_string(shown.size()) + " of " + std::to_string(pair.tensors.size()) +
                    " tensors that moved farthest\n\n"
              : "its tensors, farthest first\n\n";
  std::vector<Row> rows{joined({"tensor", "type"}, kFigures)};
  for (const TensorDistance* tensor : shown)
    rows.push_back(joined({printable(tensor->name), printable(tensor->type_a)}, figures(tensor->distance)));
  return text + aligned(rows, 2) + "\n";  // the first 2 columns are aligned to the left
}

// A heading and at most kMost lines; only the JSON has all lines. "" if there are no lines.
std::string listed(const std::string& heading, const std::vector<std::string>& lines) {
  constexpr size_t kMost = 20;
  if (lines.empty()) return "";
  std::string text = heading + " (" + std::to_string(lines.size()) + "):\n";
  for (size_t i = 0; i < std::min(kMost, lines.size()); ++i) text += "  " + lines[i] + "\n";
  if (lines.size() > kMost)
    text += "  and " + std::to_string(lines.size() - kMost) + " more: --json lists all\n";
  return text;
}

std::vector<std::string> lines_of(const std::vector<std::string>& names) {
  std::vector<std::string> lines;
  for (const std::string& name : names) lines.push_back(printable(name));
  return lines;
}

std::vector<std::string> lines_of(const std::vector<Unlike>& unlike) {
  std::vector<std::string> lines;
  for (const Unlike& u : unlike)
    lines.push_back(printable(u.name) + "  " + printable(u.a) + " and " + printable(u.b));
  return lines;
}

// Lists tensors with values that are not finite. The list of the farthest tensors may lack them, since the
// distance of a tensor that is all NaN is unknown.
std::string not_finite_of(const Comparison& comparison, const PairResult& pair) {
  const std::string a = printable(comparison.paths[pair.pair.a]),
                    b = printable(comparison.paths[pair.pair.b]);
  std::vector<std::string> lines;
  for (const TensorDistance& tensor : pair.tensors) {
    const Distance& d = tensor.distance;
    if (d.non_finite_a + d.non_finite_b == 0) continue;
    lines.push_back(printable(tensor.name) + "  " + std::to_string(d.non_finite_a) + " and " +
                    std::to_string(d.non_finite_b) + " of " + std::to_string(d.elements));
  }
  return listed("values that are not finite, in " + a + " and in " + b, lines) + (lines.empty() ? "" : "\n");
}

// Lists tensors that were not compared, or whose types differ.
std::string unlike_of(const Comparison& comparison, const PairResult& pair) {
  const std::string a = printable(comparison.paths[pair.pair.a]),
                    b = printable(comparison.paths[pair.pair.b]);
  const std::string text =
      listed("only in " + a, lines_of(pair.only_in_a)) + listed("only in " + b, lines_of(pair.only_in_b)) +
      listed("not compared, shapes differ", lines_of(pair.different_shapes)) +
      listed("not compared, no floating type of 16 bits or more", lines_of(pair.unsupported_types)) +
      listed("compared, though types differ", lines_of(pair.different_types));
  return text.empty() ? "" : printable(pair.pair.name) + ": not alike\n" + text + "\n";
}

// What a pair amounts to: "identical bit for bit (8 tensors)", or "different: relative L2 1.4, most in NAME".
// Tensors that were not compared are counted.
std::string outcome_of(const PairResult& pair) {
  const auto counted = [](size_t count) {
    return std::to_string(count) + (count == 1 ? " tensor" : " tensors");
  };
  const size_t uncompared = pair.only_in_a.size() + pair.only_in_b.size() + pair.different_shapes.size() +
                            pair.unsupported_types.size();
  const std::string rest = uncompared > 0 ? "; " + counted(uncompared) + " not compared" : "";
  if (std::all_of(pair.tensors.begin(), pair.tensors.end(),
                  [](auto& tensor) { return tensor.has_same_bits; }))
    return "identical bit for bit (" + counted(pair.tensors.size()) + ")" + rest;
  const TensorDistance* most = farthest(pair, 1).front();
  return "different: relative L2 " + format_number("%.2g", pair.pooled.difference.relative_l2()) +
         ", most in " + printable(most->name) + " (" +
         format_number("%.2g", most->distance.difference.relative_l2()) + ")" + rest;
}

// ", against " and the path of the checkpoint that is `a` of all pairs; "" if the pairs differ in it.
std::string common_base(const Comparison& comparison) {
  const size_t base = comparison.pairs.front().pair.a;
  const bool common = std::all_of(comparison.pairs.begin(), comparison.pairs.end(),
                                  [&](const PairResult& pair) { return pair.pair.a == base; });
  return common ? ", against " + printable(comparison.paths[base]) : "";
}

}  // namespace

std::string table_of(const Comparison& comparison, size_t most) {
  std::vector<Row> rows{joined({"pair", "tensors"}, kFigures)};
  for (const PairResult& pair : comparison.pairs)
    rows.push_back(
        joined({printable(pair.pair.name), std::to_string(pair.tensors.size())}, figures(pair.pooled)));
  std::string text;
  for (const PairResult& pair : comparison.pairs)
    text += (comparison.pairs.size() > 1 ? printable(pair.pair.name) + ": " : "") + outcome_of(pair) + "\n";
  text += "\nall tensors pooled" + common_base(comparison) + "\n\n" + aligned(rows, 1) + "\n";
  for (const PairResult& pair : comparison.pairs) text += tensors_of(pair, most);
  for (const PairResult& pair : comparison.pairs) text += not_finite_of(comparison, pair);
  for (const PairResult& pair : comparison.pairs) text += unlike_of(comparison, pair);
  return text;
}

}  // namespace foreshock::lab
