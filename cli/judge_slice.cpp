#include "cli/judge_slice.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cli/python_script.h"
#include "cli/stored_slice_file.h"
#include "shadow/figures.h"

namespace foreshock::cli {
namespace {

// What was found about one stored array of the reference.
struct Bits {
  size_t values = 0, different = 0;
};

// NaN counts as one value: which of them comes out is up to the processor.
Bits compare_bits(const std::vector<char>& stored, const std::vector<double>& now, size_t count) {
  Bits bits = {count, 0};
  if (stored.size() != count * sizeof(double)) return {count, count};
  for (size_t n = 0; n < count; ++n) {
    double then;
    std::memcpy(&then, stored.data() + n * sizeof then, sizeof then);
    const bool is_same = std::isnan(then) ? std::isnan(now[n])
                                          : std::bit_cast<uint64_t>(then) == std::bit_cast<uint64_t>(now[n]);
    bits.different += !is_same;
  }
  return bits;
}

Bits compare_reference(const StoredSlice& stored, const Reference& reference) {
  const AttentionSlice& slice = stored.slice;
  const auto rows = static_cast<size_t>(slice.rows);
  Bits sum;
  const auto add = [&](const char* name, const std::vector<double>& now, size_t count) {
    const auto found = stored.data.find(name);
    const Bits bits =
        found != stored.data.end() ? compare_bits(found->second, now, count) : Bits{count, count};
    sum = {sum.values + bits.values, sum.different + bits.different};
  };
  add("reference_out", reference.out, rows * slice.value_dim);
  add("reference_lse", reference.log_sum_exp, rows);
  if (slice.backward()) add("reference_dq", reference.grad_query, rows * slice.head_dim);
  return sum;
}

void print_head(const std::string& path, const StoredSlice& stored) {
  const AttentionSlice& slice = stored.slice;
  std::printf("%s\n", path.c_str());
  const std::string reason = stored.fact("reason");
  std::printf("  %s: run %s, rank %s, step %s, %s, layer %s%s\n",
              reason == "control" ? "kept as control" : ("flagged for " + reason).c_str(),
              stored.fact("run").c_str(), stored.fact("rank").c_str(), stored.fact("step").c_str(),
              stored.fact("pass").c_str(), stored.fact("layer").c_str(),
              stored.fact("layer_name").empty() ? "" : (" (" + stored.fact("layer_name") + ")").c_str());
  std::printf("  %s, %s, %s on %s\n", stored.fact("op").c_str(), foreshock::name_of(slice.dtype),
              stored.fact("framework").c_str(), stored.fact("host").c_str());
  std::printf("  %d rows of %s queries, %d of %s keys, d %d, scale %g, causal %s\n\n", slice.rows,
              stored.fact("query_length").c_str(), slice.keys, stored.fact("key_length").c_str(),
              slice.head_dim, slice.scale, stored.fact("causal").c_str());
}

// Prints every figure; returns how many are not the stored ones.
size_t print_figures(const StoredSlice& stored, const SliceDeviation& deviation) {
  size_t different = 0;
  for (const Figure& figure : figures_of(deviation)) {
    const std::string then = stored.fact(std::string("figure.") + figure.name);
    const bool is_same = then == figure.text;
    different += !is_same;
    if (is_same && figure.text.empty()) continue;
    std::printf("  %-34s %-24s %s\n", figure.name, figure.text.empty() ? "-" : figure.text.c_str(),
                is_same ? "as stored" : ("stored: " + (then.empty() ? "-" : then)).c_str());
  }
  return different;
}

// Why the bits may not be the stored ones.
std::string explanation(const StoredSlice& stored) {
  if (!stored.is_unchanged) return "the file was changed after it was written (checksum)";
  const std::string then = stored.fact("reference_version"), now = std::to_string(kReferenceVersion);
  if (then != now) return "it was judged by reference version " + then + ", this foreshock has " + now;
  return "the file is as it was written by foreshock " + stored.fact("foreshock_version") +
         " with instruction set " + stored.fact("instruction_set") + "; here it is " +
         reference_target_name();
}

}  // namespace

int judge_slice(const std::string& path) {
  StoredSlice stored;
  if (const std::string problem = read_slice(path, &stored); !problem.empty()) {
    std::fprintf(stderr, "foreshock judge: %s\n", problem.c_str());
    return 2;
  }
  DeviationWorkspace workspace;
  const SliceDeviation deviation = foreshock::judge(stored.slice, &workspace);
  print_head(path, stored);
  const size_t figures = print_figures(stored, deviation);
  const Bits bits = compare_reference(stored, workspace.reference);
  std::printf("  %-34s %zu values, %zu with other bits\n\n", "reference", bits.values, bits.different);
  const bool is_reproduced = figures == 0 && bits.different == 0;
  if (is_reproduced && stored.is_unchanged) return std::puts("reproduced bit for bit"), 0;
  std::printf("%s: %s\n", is_reproduced ? "the figures are those stored, but" : "not reproduced",
              explanation(stored).c_str());
  return 1;
}

int judge_rerun(const std::vector<std::string>& words) {
  return run_python_script("foreshock_rerun.py", words);
}

}  // namespace foreshock::cli
