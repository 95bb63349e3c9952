// Judges slices (parts of attention calls) from standard input as the agent does, for bench/verdicts.py:
// compares each with its fp64 reference. Prints one line of JSON per slice, with its layer's alarms so far.
// Every array of the input is padded to 8 bytes.
//
// A slice of rows (pass 0: forward, 1: backward) is a Header, then the arrays key_limit (uint32: for each
// row, how many keys it sees), query, key, value, out, log_sum_exp (fp32, if has_lse), and in a backward
// slice grad_out and grad_query.
//
// A slice of key positions (pass 2) is a Header, then first_query (uint32: for each key position, the first
// query that sees it), query, out, grad_out, log_sum_exp, key, value, grad_key and grad_value. Then, for the
// conservation check (sums over all keys, shadow/conservation.h), grad_key and grad_value of all keys of the
// kv-head, and grad_query of all query heads that share it. In the Header, `rows` is the number of key
// positions and `keys` the number of queries of one head. The printed line has two objects, grad_key and
// grad_value.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/publish.h"
#include "agent/rank_state.h"
#include "agent/record_lines.h"

namespace {

using namespace foreshock;

struct Header {
  char layer[32];  // label, padded with 0
  uint32_t pass, dtype, rows, keys, head_dim, value_dim, has_lse;
  uint32_t heads;  // query heads that share the kv-head; only for slices of key positions
  int64_t step, batch, kv_head;
  double scale;
  int64_t all_keys;       // keys of the call; only for slices of key positions
  int64_t nonfinite_out;  // NaN and Inf in the output of one head, as in segment::Slot
};
static_assert(sizeof(Header) == 112);

bool read_exactly(void* to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }

// Reads arrays from standard input and owns them.
class Arrays {
 public:
  // Returns the next array; null at the end of the input. is_valid() rejects a slice with a null array.
  const void* read(size_t bytes) {
    arrays_.emplace_back((bytes + 7) / 8);
    return read_exactly(arrays_.back().data(), arrays_.back().size() * 8) ? arrays_.back().data() : nullptr;
  }

 private:
  std::vector<std::vector<uint64_t>> arrays_;
};

AttentionSlice read_slice(const Header& h, Arrays* arrays) {
  AttentionSlice s;
  s.dtype = static_cast<DType>(h.dtype);
  s.rows = static_cast<int>(h.rows);
  s.keys = static_cast<int>(h.keys);
  s.head_dim = static_cast<int>(h.head_dim);
  s.value_dim = static_cast<int>(h.value_dim);
  s.scale = h.scale;
  const size_t element = size_of(s.dtype), rows = h.rows, keys = h.keys;
  s.key_limit = static_cast<const uint32_t*>(arrays->read(rows * sizeof(uint32_t)));
  s.query = arrays->read(rows * h.head_dim * element);
  s.key = arrays->read(keys * h.head_dim * element);
  s.value = arrays->read(keys * h.value_dim * element);
  s.out = arrays->read(rows * h.value_dim * element);
  if (h.has_lse != 0) {
    s.log_sum_exp = arrays->read(rows * sizeof(float));
    s.log_sum_exp_dtype = DType::kFp32;
  }
  if (h.pass == 0) return s;
  s.grad_out = arrays->read(rows * h.value_dim * element);
  s.grad_query = arrays->read(rows * h.head_dim * element);
  return s;
}

// Reads a slice of key positions. Sums the gradients of all keys into `sums`, to which the result points.
KeyColumns read_columns(const Header& h, Arrays* arrays, std::vector<ColumnSum>* sums) {
  KeyColumns c;
  c.dtype = static_cast<DType>(h.dtype);
  c.columns = static_cast<int>(h.rows);
  c.heads = static_cast<int>(h.heads);
  c.queries = static_cast<int>(h.keys);
  c.head_dim = static_cast<int>(h.head_dim);
  c.value_dim = static_cast<int>(h.value_dim);
  c.scale = h.scale;
  const size_t element = size_of(c.dtype), head = h.head_dim * element, value = h.value_dim * element;
  const size_t columns = h.rows, rows = c.rows();
  c.first_query = static_cast<const uint32_t*>(arrays->read(columns * sizeof(uint32_t)));
  c.query = arrays->read(rows * head);
  c.out = arrays->read(rows * value);
  c.grad_out = arrays->read(rows * value);
  c.log_sum_exp = arrays->read(rows * sizeof(float));
  c.log_sum_exp_dtype = DType::kFp32;
  c.key = arrays->read(columns * head);
  c.value = arrays->read(columns * value);
  c.grad_key = arrays->read(columns * head);
  c.grad_value = arrays->read(columns * value);
  const auto view = [&](int64_t heads, int64_t length, int64_t width) {
    const void* data = arrays->read(static_cast<size_t>(heads * length * width) * element);
    return TensorView{data, c.dtype, {1, heads, length, width}, {0, length * width, width, 1}};
  };
  const TensorView grad_key = view(1, h.all_keys, h.head_dim), grad_value = view(1, h.all_keys, h.value_dim);
  sums->resize(key_sum_count(h.head_dim, h.value_dim));
  // The views have one batch element and one kv-head, both with the index 0.
  sum_over_keys(view(h.heads, h.keys, h.head_dim), grad_key, grad_value, 0, 0, sums->data());
  c.sums = sums->data();
  c.keys = h.all_keys;
  return c;
}

// Returns the result of a slice, with its layer's biases and alarms. `tensor`: a JudgedTensor (out, dQ, ...).
// fused: the error divided by that of correct fused attention. plain: the error divided by that of unfused
// attention. one_sided: the unexplained bias in ulp of bf16. excess: the bias minus that of a correct
// algorithm.
nlohmann::json line_of(const SliceDeviation& d, DType dtype, const LayerStatistics& layer, uint32_t tensor) {
  nlohmann::json alarms = nlohmann::json::array();
  for (const LayerAlarm& alarm : alarms_of(layer, tensor)) alarms.push_back(alarm.kind);
  const PassStatistics& statistics = *statistics_of(layer, tensor);
  const std::optional<Bias> bias = statistics.bias.bias(), excess = statistics.excess_bias.bias();
  return {{"fused", number_or_null(d.fused_ratio)},
          {"plain", number_or_null(d.deviation_ratio)},
          {"one_sided",
           std::ldexp(d.unexplained_bias, format_of(DType::kBf16).precision - format_of(dtype).precision)},
          {"lse", number_or_null(d.lse_error_ratio)},
          {"partial", d.partial},
          {"conservation", number_or_null(d.conservation_ratio)},
          {"bias", bias ? number_or_null(bias->ulp) : nlohmann::json()},
          {"excess", excess ? number_or_null(excess->ulp) : nlohmann::json()},
          {"excess_z", excess ? number_or_null(excess->z) : nlohmann::json()},
          {"alarms", alarms}};
}

// Judges the slices one after the other and keeps the statistics of their layers.
class Stream {
 public:
  // Reads and judges the slice that follows `header`; null if it is invalid.
  nlohmann::json judge_next(const Header& header) {
    Arrays arrays;
    segment::Slot slot = {};
    slot.pass = header.pass == 0 ? 0 : 1;
    slot.step = header.step;
    slot.batch = header.batch;
    slot.kv_head = header.kv_head;
    slot.dtype = header.dtype;
    const std::string label(header.layer, strnlen(header.layer, sizeof header.layer));
    if (header.pass == 2) {
      const KeyColumns columns = read_columns(header, &arrays, &sums_);
      if (!is_valid(columns)) return {};
      slot.columns = 1;  // a slice of key positions
      slot.rows = static_cast<uint32_t>(columns.columns);
      slot.keys = static_cast<uint32_t>(columns.queries * columns.heads);
      const ColumnDeviation deviation = judge(columns, &column_reference_);
      return {{"grad_key", observe(slot, label, deviation.grad_key)},
              {"grad_value", observe(slot, label, deviation.grad_value)}};
    }
    const AttentionSlice slice = read_slice(header, &arrays);
    if (header.pass > 2 || !is_valid(slice)) return {};
    slot.rows = static_cast<uint32_t>(slice.rows);
    SliceDeviation deviation = judge(slice, &workspace_);
    deviation.nonfinite_anywhere = header.nonfinite_out > 0;
    return observe(slot, label, deviation);
  }

 private:
  nlohmann::json observe(const segment::Slot& slot, const std::string& label,
                         const SliceDeviation& deviation) {
    // Trials run one after the other, each with a layer of its own. Dropping the layers of earlier trials,
    // when a new trial begins, limits the memory.
    if (rank_.layers.size() > 256 && !rank_.layers.contains(label)) rank_.layers.clear();
    const LayerOfCall layer = {label, /*name=*/"", /*source=*/"annotation"};
    foreshock::observe(sample_line(rank_, slot, layer, deviation, /*judge_seconds=*/0), &rank_);
    return line_of(deviation, static_cast<DType>(slot.dtype), rank_.layers[label],
                   static_cast<uint32_t>(deviation.tensor));
  }

  RankStatistics rank_;
  DeviationWorkspace workspace_;
  ColumnReference column_reference_;
  std::vector<ColumnSum> sums_;
};

}  // namespace

int main() {
  Stream stream;
  Header header;
  while (read_exactly(&header, sizeof header)) {
    const nlohmann::json line = stream.judge_next(header);
    if (line.is_null()) {
      std::fputs("bench_verdicts_judge: not a slice\n", stderr);
      return 1;
    }
    std::puts(line.dump().c_str());
    std::fflush(stdout);
  }
}
