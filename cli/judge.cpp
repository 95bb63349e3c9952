// Implements foreshock judge, which compares attention with fp64. It judges a whole call in a file, or
// repeats bit for bit how the agent has judged a flagged slice (a part of a call that the agent has stored,
// because it was unusual: --save-flagged). --function and --rerun run a Python script. Unless noted,
// functions that return a string return "" or an error; those that return an int return an exit status.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "agent/flagged.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "cli/words.h"
#include "lab/checkpoint.h"
#include "lab/judgement.h"
#include "lab/number_format.h"
#include "shadow/judgement.h"
#include "shadow/slice.h"
#include "shadow/stored_slice.h"
#include "shadow/written_out.h"

namespace foreshock::cli {

namespace {

int fail(const std::string& problem) {
  say(problem, "foreshock judge");
  return 2;
}

// Replaces this process by `script` of share/foreshock/lab, run with `words` by the interpreter of --python
// EXE (default: python3). Returns only if that fails; then prints one line and returns the exit status 2.
int run_python_script(const std::string& script, std::vector<std::string> words) {
  std::string python = "python3";
  if (const auto option = std::find(words.begin(), words.end(), "--python"); option != words.end()) {
    if (option + 1 == words.end()) return fail("--python needs a value");
    python = *(option + 1);
    words.erase(option, option + 2);
  }
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto path = executable.parent_path().parent_path() / "share/foreshock/lab" / script;
  if (error || !std::filesystem::exists(path)) return fail("it is not installed at " + path.string());
  std::vector<std::string> all{python, path.string()};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(python.c_str(), arguments.data());
  return fail("cannot run " + python + " (" + std::strerror(errno) + "): name one with --python");
}

// The content of a flagged slice's file (agent/flagged.h): query rows of a call, to judge its output and dQ,
// or key positions ("columns"), to judge dK and dV. Nothing in the file is trusted.
struct StoredSlice {
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<char>> data;  // the bytes of all arrays, by name
  bool is_columns = false;
  AttentionSlice slice;         // unless is_columns; borrows from `data`
  KeyColumns columns;           // if is_columns; borrows from `data` and `sums`
  std::vector<ColumnSum> sums;  // sums over all keys of the head, if stored
  bool is_unchanged = false;    // the file's checksum matches its content

  // Returns a value of the metadata, with control characters replaced; "" if there is none.
  std::string printable(const std::string& name) const;
};

constexpr uint64_t kMostBytes = uint64_t{4} << 30;  // more than a trainer's memory for slices

// Returns a value of the metadata; "" if there is none.
std::string text_of(const std::map<std::string, std::string>& metadata, const std::string& name) {
  const auto found = metadata.find(name);
  return found != metadata.end() ? found->second : "";
}

std::string read_arrays(const lab::Safetensors& file, StoredSlice* stored) {
  for (const auto& [name, tensor] : file.tensors()) {
    std::vector<char>& bytes = stored->data[name];
    bytes.resize(tensor.bytes);
    if (const std::string problem = file.read(tensor, 0, bytes.size(), bytes.data()); !problem.empty())
      return problem;
  }
  return "";
}

// Fills in stored->slice, or stored->columns and stored->sums.
std::string slice_from(const StoredArrays& arrays, const StoredNumbers& numbers, StoredSlice* stored) {
  if (!stored->is_columns) return foreshock::slice_from(arrays, numbers, &stored->slice);
  double heads = 0, keys = 0;  // the limits below reject NaN and keep the conversions from overflowing
  if (!lab::read_number(text_of(stored->metadata, "heads_in_slice"), &heads) ||
      !(heads >= 1 && heads < 0x1p30) || !lab::read_number(text_of(stored->metadata, "key_length"), &keys) ||
      !(keys >= 1 && keys < 0x1p53))
    return "its heads or keys are not numbers";
  return columns_from(arrays, numbers, static_cast<int>(heads), static_cast<int64_t>(keys), &stored->sums,
                      &stored->columns);
}

// Whether the checksum in the file matches the whole file, in which its own digits count as zeros. A
// safetensors file begins with the length of its header, in 8 bytes; the checksum is in the header.
bool has_valid_checksum(const lab::Safetensors& file) {
  uint64_t size = 0, length = 0;
  std::string problem, bytes;
  const int descriptor = lab::open_regular(file.path(), &size, &problem);
  if (descriptor < 0) return false;
  bytes.resize(size);
  const bool is_read = lab::read_all(descriptor, 0, size, bytes.data());
  close(descriptor);
  if (!is_read || size < sizeof length) return false;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > size - sizeof length) return false;
  const size_t offset = checksum_offset(bytes, sizeof length + length);
  return offset != bytes.npos && checksum_of(bytes, offset) == bytes.substr(offset, kNoChecksum.size());
}

std::string StoredSlice::printable(const std::string& name) const {
  return lab::printable(text_of(metadata, name));
}

bool is_slice_file(const lab::Safetensors& file) {
  return text_of(file.metadata(), "format") == "foreshock slice";
}

std::string read_slice(const std::string& path, StoredSlice* stored) {
  lab::Safetensors file;
  if (const std::string problem = file.open(path); !problem.empty()) return problem;
  const std::string shown = lab::printable(path);
  if (!is_slice_file(file)) return shown + " is not a flagged slice";
  stored->metadata = file.metadata();
  const std::string schema = stored->printable("schema");
  stored->is_columns = schema == kSchemaOfColumns;
  if (schema != kSchemaOfRows && !stored->is_columns)
    return shown + " has schema '" + schema + "', this foreshock reads 1 and 2: use the one that wrote it";
  StoredNumbers numbers;
  for (const auto& [name, number] :
       {std::pair("scale", &numbers.scale), std::pair("soft_cap", &numbers.soft_cap),
        std::pair("dropout", &numbers.dropout)}) {
    const bool may_be_absent = number != &numbers.scale;
    const std::string text = text_of(stored->metadata, name);
    if ((!may_be_absent || !text.empty()) && !lab::read_number(text, number))
      return shown + ": its " + name + " is not a number";
  }
  if (file.size() > kMostBytes) return shown + " is too large to be a slice";
  if (const std::string problem = read_arrays(file, stored); !problem.empty()) return problem;
  StoredArrays arrays;
  for (const auto& [name, tensor] : file.tensors())
    arrays[name] = {tensor.type, tensor.shape, stored->data[name].data(), tensor.bytes};
  if (const std::string problem = slice_from(arrays, numbers, stored); !problem.empty())
    return shown + ": " + problem;
  stored->is_unchanged = has_valid_checksum(file);
  return "";
}

// Number of values of the fp64 reference compared with the stored ones, and how many have other bits.
struct BitComparison {
  size_t values = 0, different = 0;
};

// Compares `count` values of an array. NaN values count as equal, since their bits depend on the processor.
// If the stored array has another size, all values differ.
BitComparison compare_bits(const std::vector<char>& stored, const std::vector<double>& computed,
                           size_t count) {
  BitComparison bits = {count, 0};
  if (stored.size() != count * sizeof(double)) return {count, count};
  for (size_t n = 0; n < count; ++n) {
    double old;
    std::memcpy(&old, stored.data() + n * sizeof old, sizeof old);
    const bool is_same = std::isnan(old)
                             ? std::isnan(computed[n])
                             : std::bit_cast<uint64_t>(old) == std::bit_cast<uint64_t>(computed[n]);
    bits.different += !is_same;
  }
  return bits;
}

// Adds the counts for the stored array `name` to `*sum`. If it is missing, all values differ.
void compare_array(const StoredSlice& stored, const char* name, const std::vector<double>& computed,
                   size_t count, BitComparison* sum) {
  const auto found = stored.data.find(name);
  const BitComparison bits =
      found != stored.data.end() ? compare_bits(found->second, computed, count) : BitComparison{count, count};
  *sum = {sum->values + bits.values, sum->different + bits.different};
}

BitComparison compare_reference(const StoredSlice& stored, const Reference& reference) {
  const AttentionSlice& slice = stored.slice;
  const auto rows = static_cast<size_t>(slice.rows);
  BitComparison sum;
  compare_array(stored, "reference_out", reference.out, rows * slice.value_dim, &sum);
  compare_array(stored, "reference_lse", reference.log_sum_exp, rows, &sum);
  if (slice.backward())
    compare_array(stored, "reference_dq", reference.grad_query, rows * slice.head_dim, &sum);
  return sum;
}

BitComparison compare_reference(const StoredSlice& stored, const ColumnGradients& exact) {
  const auto count = static_cast<size_t>(stored.columns.columns);
  BitComparison sum;
  compare_array(stored, "reference_dk", exact.grad_key, count * stored.columns.head_dim, &sum);
  compare_array(stored, "reference_dv", exact.grad_value, count * stored.columns.value_dim, &sum);
  return sum;
}

void print_description(const std::string& path, const StoredSlice& stored) {
  const AttentionSlice& slice = stored.slice;
  const KeyColumns& columns = stored.columns;
  std::printf("%s\n", lab::printable(path).c_str());
  // The reason "control": an ordinary slice, kept for comparison.
  const std::string reason = stored.printable("reason");
  std::printf(
      "  %s: run %s, rank %s, step %s, %s, layer %s%s\n",
      reason == "control" ? "kept as control" : ("flagged for " + reason).c_str(),
      stored.printable("run").c_str(), stored.printable("rank").c_str(), stored.printable("step").c_str(),
      stored.printable("pass").c_str(), stored.printable("layer").c_str(),
      stored.printable("layer_name").empty() ? "" : (" (" + stored.printable("layer_name") + ")").c_str());
  std::printf("  %s, %s, %s on %s\n", stored.printable("op").c_str(),
              foreshock::name_of(stored.is_columns ? columns.dtype : slice.dtype),
              stored.printable("framework").c_str(), stored.printable("host").c_str());
  if (stored.is_columns)
    std::printf("  %d of %s key positions, %d heads of %d queries, d %d, scale %g, causal %s\n\n",
                columns.columns, stored.printable("key_length").c_str(), columns.heads, columns.queries,
                columns.head_dim, columns.scale, stored.printable("causal").c_str());
  else
    std::printf("  %d rows of %s queries, %d of %s keys, d %d, scale %g, causal %s\n\n", slice.rows,
                stored.printable("query_length").c_str(), slice.keys, stored.printable("key_length").c_str(),
                slice.head_dim, slice.scale, stored.printable("causal").c_str());
}

// Prints the figures (numbers of the slice's result, as text), except those that are empty both here and in
// the file. Returns how many differ from the stored texts.
size_t print_figures(const StoredSlice& stored, const SliceDeviation& deviation) {
  size_t different = 0;
  for (const Figure& figure : figures_of(deviation)) {
    const std::string old = stored.printable(figure_key(deviation.tensor, figure));
    const bool is_same = old == figure.text;
    different += !is_same;
    if (is_same && figure.text.empty()) continue;
    std::printf("  %-34s %-24s %s\n", figure.name, figure.text.empty() ? "-" : figure.text.c_str(),
                is_same ? "as stored" : ("stored: " + (old.empty() ? "-" : old)).c_str());
  }
  return different;
}

// Explains why the judgement may differ from the stored one.
std::string explanation(const StoredSlice& stored) {
  if (!stored.is_unchanged) return "the file was changed after it was written (checksum)";
  const std::string old = stored.printable("reference_version"), now = std::to_string(kReferenceVersion);
  if (old != now) return "it was judged by reference version " + old + ", this foreshock has " + now;
  return "the file is as it was written by foreshock " + stored.printable("foreshock_version") +
         " with instruction set " + stored.printable("instruction_set") + "; here it is " +
         reference_target_name();
}

// Judges a flagged slice again and prints its figures next to the stored ones. Returns 0 if every bit is
// equal and the file is unchanged, 1 if not, 2 if the slice cannot be judged.
int judge_slice(const std::string& path) {
  StoredSlice stored;
  if (const std::string problem = read_slice(path, &stored); !problem.empty()) return fail(problem);
  print_description(path, stored);
  const std::string op = stored.printable("op");
  size_t different_figures = 0;
  BitComparison bits;
  if (stored.is_columns) {
    ColumnReference workspace;
    ColumnDeviation deviation = foreshock::judge(stored.columns, &workspace);
    for (SliceDeviation* gradient : {&deviation.grad_key, &deviation.grad_value}) {
      allow_for_operation(op, gradient);
      std::printf("  %s\n", kJudgedTensorNames[static_cast<uint32_t>(gradient->tensor)]);
      different_figures += print_figures(stored, *gradient);
    }
    bits = compare_reference(stored, workspace.exact);  // judge() has computed the reference in the workspace
  } else {
    DeviationWorkspace workspace;
    SliceDeviation deviation = foreshock::judge(stored.slice, &workspace);
    allow_for_operation(op, &deviation);
    different_figures = print_figures(stored, deviation);
    bits = compare_reference(stored, workspace.reference);
  }
  std::printf("  %-34s %zu values, %zu with other bits\n\n", "reference", bits.values, bits.different);
  const bool is_reproduced = different_figures == 0 && bits.different == 0;
  if (is_reproduced && stored.is_unchanged) return std::puts("reproduced bit for bit"), 0;
  std::printf("%s: %s\n", is_reproduced ? "the figures are those stored, but" : "not reproduced",
              explanation(stored).c_str());
  return 1;
}

struct Request {
  std::vector<std::string> paths;
  std::vector<lab::Algorithm> algorithms;  // emulated; their results are shown beside the stored ones
  lab::Tiling tiling;                      // tile sizes of these algorithms
};

// Adds the algorithms named in `list`, which is separated by commas.
std::string add_algorithms(const std::string& list, Request* request) {
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    const auto algorithm = lab::find_algorithm(list.substr(begin, comma - begin));
    if (!algorithm || algorithm->family != lab::Family::kAttention)
      return "--algorithm takes attention algorithms of foreshock lab --list";
    request->algorithms.push_back(*algorithm);
    begin = comma + 1;
  }
  return "";
}

constexpr WordOption kJudgeOptions[] = {
    {"--algorithm", "NAMES", "also compute what these algorithms of the lab give (forward, no causal mask)"},
    {"--block-k", "COUNT", "keys of a tile of these algorithms"},
    {"--key-order", "ORDER", "order of the tiles: forward or reverse"},
};

constexpr WordsHelp kHelp = {
    "judge FILE.safetensors ... [options]\n"
    "judge --rerun SLICE.safetensors ... [--times N] [--device NAME] [--python EXE]\n"
    "judge --function MODULE:NAME|FILE.py:NAME [--python EXE] [--device NAME] [--dtype NAME] [--grad] "
    "[--quick] "
    "[--strict]",
    "compare a stored attention call, a captured sample or an attention function with fp64 and with unfused "
    "attention",
    kJudgeOptions,
    "Example: foreshock judge --function my_module:my_attention\n\n"
    "A stored call has q, k, v, out and may have lse, dout, dq, dk, dv; its metadata may have scale and "
    "causal.\n\n"
    "The exit status is 1 if the error exceeds 2 times the noise floor forward or 3 times backward, if a "
    "value is not finite, or if the bias exceeds 0.05 ulp. A bias that PyTorch's own attention has too, bit "
    "for bit, is listed as known; with --strict it fails.\n\n"
    "A captured sample (foreshock run --save-flagged DIR) is judged again: exit status 0 if every bit is "
    "equal "
    "to the stored one, else 1. --rerun runs its operation again with torch: 0 if the result is sound and "
    "repeats, else 1."};

std::string parse(const Words& words, Request* request) {
  request->paths = words.files();
  for (const Words::Given& given : words.given()) {
    const std::string& value = given.values[0];
    if (given.flag == "--algorithm") {
      if (const std::string problem = add_algorithms(value, request); !problem.empty()) return problem;
    } else if (given.flag == "--key-order") {
      if (value != "forward" && value != "reverse") return "--key-order is forward or reverse";
      request->tiling.reverse = value == "reverse";
    } else {  // --block-k
      if (!lab::read_number(value, &request->tiling.block_k) || request->tiling.block_k < 1)
        return "--block-k takes a number from 1 up";
    }
  }
  return request->paths.empty() ? "name a file: foreshock judge FILE.safetensors, or --function MODULE:NAME"
                                : "";
}

// Returns the first line on a stored call: "PASS: out, dq, dk, dv are within the limits", or "FAIL: dq wrong
// by 5 % (20 times its noise floor)" for the result that is farthest beyond its limit.
std::string headline_of(const std::vector<lab::Verdict>& verdicts) {
  const lab::Verdict* worst = nullptr;
  std::string passed;
  for (const lab::Verdict& v : verdicts) {
    if (!v.judged) continue;
    if (v.failure.empty()) passed += (passed.empty() ? "" : ", ") + v.name;
    if (!v.failure.empty() && (worst == nullptr || v.ratio > worst->ratio)) worst = &v;
  }
  if (worst == nullptr) return "PASS: " + passed + " within the limits";
  constexpr double kLeastShown = 2;  // below, a result fails for another reason than the size of its error
  char text[128];
  std::snprintf(text, sizeof text, "FAIL: %s wrong by %.2g %% (%.3g times its noise floor)",
                worst->name.c_str(), 100 * worst->relative_l2, worst->ratio);
  return worst->ratio > kLeastShown && std::isfinite(worst->ratio)
             ? text
             : "FAIL: " + worst->name + " " + worst->failure;
}

// Judges a whole call. Returns 0 if all tensors are within the limits, 1 if not, 2 after an error.
int judge_call(const Request& request, const std::string& path) {
  lab::StoredCall call;
  const std::string problem = lab::read_call(path, &call);
  if (!problem.empty()) return fail(problem);
  if (!request.algorithms.empty() && call.causal != lab::Causal::kNone)
    return fail("--algorithm needs a call without a causal mask");
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const auto verdicts = lab::judge(call, request.algorithms, request.tiling, threads);
  std::printf("%s\n%s: %s, batch %d, heads %d over %d, queries %d, keys %d, d %d, scale %g%s\n\n",
              headline_of(verdicts).c_str(), lab::printable(path).c_str(), foreshock::name_of(call.dtype),
              call.batch, call.heads, call.kv_heads, call.queries, call.keys, call.d, call.scale,
              call.causal == lab::Causal::kNone ? "" : ", causal");
  std::printf("  %-22s %10s %12s %12s %8s %10s %6s %14s\n", "tensor", "max", "relative L2", "noise floor",
              "ratio", "bias ulp", "z", "rounded bias");
  bool failed = false;
  for (const lab::Verdict& v : verdicts) {
    std::printf("  %-22s %10.2e %12.3e %12.3e %8.2f %+10.3f %+6.0f %+14.3f  %s\n", v.name.c_str(), v.max_abs,
                v.relative_l2, v.floor_l2, v.ratio, v.bias_ulp, v.bias_z, v.rounded_bias_ulp,
                !v.judged           ? "model"  // the result of an emulated algorithm
                : v.failure.empty() ? "ok"
                                    : ("FAILS: " + v.failure).c_str());
    failed |= !v.failure.empty();
  }
  // Leaves out lse, which is not finite in rows without keys, whatever the inputs are.
  for (const lab::Verdict& v : verdicts)
    if (v.judged && v.not_compared > 0 && v.name != "lse")
      std::printf("\n%llu of %llu values of %s are not compared: NaN or Inf in the inputs reaches them\n",
                  static_cast<unsigned long long>(v.not_compared), static_cast<unsigned long long>(v.values),
                  v.name.c_str());
  return failed ? 1 : 0;
}

int judge_file(const Request& request, const std::string& path) {
  lab::Safetensors file;
  if (const std::string problem = file.open(path); !problem.empty()) return fail(problem);
  if (!is_slice_file(file)) return judge_call(request, path);
  return request.algorithms.empty() ? judge_slice(path)
                                    : fail("--algorithm is of whole calls, " + path + " is a flagged slice");
}

int judge_files(const Request& request) {
  int status = 0;
  for (const std::string& path : request.paths) {
    if (path != request.paths.front()) std::puts("");
    status = std::max(status, judge_file(request, path));
  }
  return status;
}

}  // namespace

int judge(const std::vector<std::string>& words) {
  const auto has = [&](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (has("--help") || has("-h")) return print_help(kHelp), 0;
  if (has("--rerun")) return run_python_script("foreshock_rerun.py", words);
  if (has("--function")) return run_python_script("foreshock_judge.py", words);
  Words parsed_words;
  if (const std::string problem = parsed_words.parse(words, "judge", kJudgeOptions); !problem.empty())
    return fail(problem);
  Request request;
  const std::string problem = parse(parsed_words, &request);
  return problem.empty() ? judge_files(request) : fail(problem);
}

}  // namespace foreshock::cli
