// The table of known defects of attention kernels (known_bad.h), and how installed versions are found.
#include "cli/known_bad.h"

#include <charconv>
#include <sstream>

#include "cli/process.h"
#include "cli/words.h"

namespace foreshock::cli {
namespace {

// The members of a row: {component, first bad version, first good one}, the same of a second component that
// must also be installed ({}: none), inputs, symptom, remedy, source. A version "" is unknown: no limit.
constexpr KnownBad kTable[] = {
    {{"torch", "2.11", ""},
     {"cudnn", "", "9.26"},
     "explicit attn_mask, length % 128 == 64, a row's log-sum-exp below -88.7, Hopper, default backend",
     "dQ is NaN; output, dK and dV are right",
     "cuDNN 9.26, is_causal instead of a mask, or torch.backends.cuda.enable_cudnn_sdp(False)",
     "https://github.com/pytorch/pytorch/issues/196678"},
    {{"cudnn", "9.26", ""},
     {},
     "one query, 128 keys, log-sum-exp near -122, no padding mask, H200",
     "dK and dV are NaN",
     "use a padding mask or another backend",
     "https://github.com/NVIDIA/cudnn-frontend/issues/1072"},
    {{"cudnn-frontend", "", "1.15"},
     {},
     "lengths that are no multiple of the tile, no padding mask, H100",
     "gradients are NaN",
     "cudnn-frontend 1.15, or a padding mask",
     "https://github.com/NVIDIA/cudnn-frontend/issues/160"},
    {{"torch", "2.9.0", "2.9.1"},
     {},
     "default backend on Hopper and Blackwell, which became cuDNN",
     "NaN that comes and goes",
     "torch 2.9.1, or enable_cudnn_sdp(False)",
     "https://github.com/pytorch/pytorch/issues/166211"},
    {{"torch", "2.5.0", "2.5.1"},
     {},
     "default backend on Hopper, which became cuDNN",
     "gradients are NaN",
     "torch 2.5.1, or enable_cudnn_sdp(False)",
     "https://github.com/huggingface/diffusers/issues/9768"},
    {{"cudnn", "", "9.3"},
     {},
     "fp16 and bf16, large queries and keys",
     "wrong softmax statistics in the forward; losses explode",
     "cuDNN 9.3",
     "https://github.com/pytorch/pytorch/issues/139298"},
    {{"transformer-engine", "", ""},
     {"cudnn", "9.13", "9.15"},
     "CUDA graphs, more than 1024 keys, masks other than causal",
     "reads beyond its memory, NaN",
     "cuDNN 9.15",
     "https://github.com/NVIDIA/TransformerEngine/pull/2344"},
    {{"transformer-engine", "", ""},
     {"cudnn", "9.23.0", "9.23.2"},
     "MXFP8 attention",
     "infinities and NaN",
     "cuDNN 9.23.2",
     "https://github.com/NVIDIA/TransformerEngine/pull/3173"},
    {{"transformer-engine", "", ""},
     {"cudnn", "", "9.26"},
     "ragged batches with a learnable softmax offset, value dimension other than 64, 128, 256",
     "the offset's gradient is wrong or NaN, or memory is read out of bounds",
     "cuDNN 9.26",
     "https://github.com/NVIDIA/TransformerEngine/issues/3249"},
    {{"transformer-engine", "", ""},
     {"cudnn", "9.13.1", "9.14"},
     "fp8 attention with current scaling",
     "wrong results",
     "cuDNN 9.14",
     "https://github.com/NVIDIA/TransformerEngine/pull/2236"},
    {{"transformer-engine", "", ""},
     {"cudnn", "9.1", "9.3"},
     "ragged batches",
     "wrong results",
     "another cuDNN",
     "https://github.com/NVIDIA/TransformerEngine/pull/975"},
    {{"transformer-engine", "1.4", "1.7"},
     {},
     "fused attention",
     "a gradient is NaN",
     "Transformer Engine 1.7",
     "https://github.com/NVIDIA/TransformerEngine/issues/1101"},
    {{"flash-attn", "2.0.0", "2.0.1"},
     {},
     "one query and one key, fp16",
     "dQ is NaN",
     "a later flash-attn",
     "https://github.com/Dao-AILab/flash-attention/issues/334"},
    {{"flash-attn", "2.0.4", "2.0.5"},
     {},
     "variable lengths, causal, more queries than keys",
     "dQ is NaN",
     "a later flash-attn",
     "https://github.com/Dao-AILab/flash-attention/issues/443"},
    {{"flash-attn", "2.4.2", "2.4.3"},
     {},
     "variable lengths, packed qkv, causal",
     "gradients are NaN",
     "unknown: the issue is open",
     "https://github.com/Dao-AILab/flash-attention/issues/752"},
    {{"torch", "2.13.0", "2.13.1"},
     {},
     "CPU, bf16, scores within 2^-9 of each other",
     "the output is biased away from zero by about 0.17 ulp",
     "none needed unless heads stay that flat",
     "foreshock judge --function torch.nn.functional:scaled_dot_product_attention"},
    // All torch versions measured here have the defect: 2.6, 2.8, 2.13, 2.14 and 2.15.
    {{"torch", "2.6", ""},
     {},
     "CPU, bf16, backward over 32 thousand keys or more",
     "dQ errs with the root of the number of keys: 2 times as much as plain attention at 32768, 3.6 at "
     "131072",
     "fp32 or fp16 around the attention, or fewer keys",
     "tests/e2e/test_long_context.py"},
};

// Returns the numbers at the start of a version: {2, 9, 0} for 2.9.0+cu128.
std::vector<int> numbers_of(std::string_view version) {
  std::vector<int> numbers;
  const char *begin = version.data(), *end = begin + version.size();
  while (begin != end) {
    int number = 0;
    const auto [next, error] = std::from_chars(begin, end, number);
    if (error != std::errc()) break;
    numbers.push_back(number);
    if (next == end || *next != '.') break;
    begin = next + 1;
  }
  return numbers;
}

// Whether version a is older than b; missing numbers count as 0.
bool is_older(std::string_view a, std::string_view b) {
  std::vector<int> left = numbers_of(a), right = numbers_of(b);
  left.resize(std::max(left.size(), right.size()));
  right.resize(left.size());
  return left < right;
}

// Whether the component of the range is installed in a bad version, or the range has no component.
bool matches(const VersionRange& range, const Versions& versions) {
  if (range.component.empty()) return true;
  const auto installed = versions.find(range.component);
  if (installed == versions.end() || numbers_of(installed->second).empty()) return false;
  return (range.from.empty() || !is_older(installed->second, range.from)) &&
         (range.before.empty() || is_older(installed->second, range.before));
}

// Prints a line "component version" for each component of which one of the listed packages is installed.
constexpr const char* kVersionsProgram = R"(
import importlib.metadata as m
for part, names in (("torch", ["torch"]), ("cudnn", ["nvidia-cudnn-cu13", "nvidia-cudnn-cu12"]),
                    ("cudnn-frontend", ["nvidia-cudnn-frontend"]), ("flash-attn", ["flash-attn"]),
                    ("transformer-engine", ["transformer-engine", "transformer-engine-cu13", "transformer-engine-cu12"])):
    for name in names:
        try:
            print(part, m.version(name))
            break
        except m.PackageNotFoundError:
            pass
)";

}  // namespace

std::span<const KnownBad> known_bad_table() { return kTable; }

std::vector<const KnownBad*> known_bad(const Versions& versions, bool has_device) {
  std::vector<const KnownBad*> rows;
  for (const KnownBad& row : kTable)
    if (matches(row.versions, versions) && matches(row.together_with, versions) &&
        (has_device || row.inputs.starts_with("CPU")))
      rows.push_back(&row);
  return rows;
}

std::string known_bad_text(const std::vector<const KnownBad*>& rows, size_t columns) {
  if (rows.empty()) return "";
  std::ostringstream text;
  text << "\n  Known defects of the attention kernels installed here:\n";
  // Adds a paragraph whose first line is indented by `indent`, the others by 6.
  const auto add = [&](size_t indent, std::string begin, std::string_view words) {
    text << std::string(indent, ' ') << wrapped(begin.append(words), 6, columns) << "\n";
  };
  for (const KnownBad* row : rows) {
    add(2, std::string(row->versions.component) + ": ", row->symptom);
    add(6, "when: ", row->inputs);
    add(6, "remedy: ", row->remedy);
    add(6, "source: ", row->source);
  }
  return text.str();
}

Versions installed_versions(const std::string& python) {
  Versions versions;
  constexpr int kTimeoutMs = 10000;
  const Captured printed = run_and_capture({python, "-c", kVersionsProgram}, own_environment(), kTimeoutMs);
  if (printed.start_error != 0 || printed.timed_out || printed.status.code != 0 || printed.status.signal != 0)
    return versions;  // empty
  std::istringstream lines(printed.output);
  for (std::string component, version; lines >> component >> version;) versions[component] = version;
  return versions;
}

}  // namespace foreshock::cli
