// Judges slices from standard input as the agent does, for bench/verdicts.py: one line of JSON for each, with
// the alarms of its layer after it. A slice is a Header, then key_limit, query, key, value, out, log_sum_exp
// (fp32, if given) and of a backward slice grad_out and grad_query, each padded to 8 bytes.
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/publish.h"
#include "agent/rank_state.h"

namespace {

using namespace foreshock;

struct Header {
  char layer[32];
  uint32_t pass, dtype, rows, keys, head_dim, value_dim, has_lse, reserved;
  int64_t step, batch, kv_head;
  double scale;
};
static_assert(sizeof(Header) == 96);

bool read_exactly(void* to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }

class Arrays {
 public:
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

nlohmann::json line_of(const SliceDeviation& d, const LayerStatistics& layer, uint32_t pass) {
  nlohmann::json alarms = nlohmann::json::array();
  for (const LayerAlarm& alarm : alarms_of(layer, pass)) alarms.push_back(alarm.of);
  const std::optional<Bias> bias = layer.pass[pass].bias.bias(), excess = layer.pass[pass].excess_bias.bias();
  return {{"fused", number_or_null(d.fused_ratio)},
          {"plain", number_or_null(d.deviation_ratio)},
          {"lse", number_or_null(d.lse_error_ratio)},
          {"partial", d.partial},
          {"bias", bias ? number_or_null(bias->ulp) : nlohmann::json()},
          {"excess", excess ? number_or_null(excess->ulp) : nlohmann::json()},
          {"excess_z", excess ? number_or_null(excess->z) : nlohmann::json()},
          {"alarms", alarms}};
}

}  // namespace

int main() {
  RankStatistics rank;
  DeviationWorkspace workspace;
  Header header;
  while (read_exactly(&header, sizeof header)) {
    Arrays arrays;
    const AttentionSlice slice = read_slice(header, &arrays);
    if (header.pass > 1 || !is_valid(slice)) {
      std::fputs("bench_verdicts_judge: not a slice\n", stderr);
      return 1;
    }
    segment::Slot slot = {};
    slot.pass = header.pass;
    slot.step = header.step;
    slot.batch = header.batch;
    slot.kv_head = header.kv_head;
    const std::string label(header.layer, strnlen(header.layer, sizeof header.layer));
    const SliceDeviation deviation = judge(slice, &workspace);
    observe_slice(slot, {label, "", "annotation"}, deviation, &rank);
    std::puts(line_of(deviation, rank.layers[label], header.pass).dump().c_str());
    std::fflush(stdout);
    if (rank.layers.size() > 256) rank.layers.clear();
  }
}
