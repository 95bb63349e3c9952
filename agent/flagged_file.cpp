#include "agent/flagged_file.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "segment/layout.h"
#include "shadow/figures.h"
#include "shadow/stored_slice.h"

namespace foreshock {
namespace {

// What may stand in a name of a file everywhere; a dot separates the parts.
std::string plain(const std::string& text) {
  std::string name = text.substr(0, 64);
  for (char& c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          c == '_' || c == '-' || c == '.';
    if (!is_plain) c = '_';
  }
  if (name.empty() || name[0] == '.') name.insert(0, "_");
  return name;
}

// The segment's nonce and the slice's ticket make it unlike that of any other slice.
std::string name_of_file(FlagReason reason, const segment::Slot& slot, const LayerOfCall& layer,
                         const RankStatistics& rank, const std::string& segment) {
  char middle[64], end[40];
  std::snprintf(middle, sizeof middle, ".rank%04d.step%08lld.%s.", rank.identity.rank,
                static_cast<long long>(slot.step), segment::kPassNames[slot.pass]);
  std::snprintf(end, sizeof end, "-%llu", static_cast<unsigned long long>(slot.ticket));
  const std::string nonce = segment.size() > 8 ? segment.substr(segment.size() - 8) : segment;
  const std::string label = layer.label.empty() ? "unknown" : plain(layer.label);
  return plain(rank.run) + middle + label + "." + kFlagReasonNames[static_cast<int>(reason)] + "." +
         plain(nonce) + end + kFlaggedSuffix;
}

// How much the rows see, in a framework's words; "none" where every row sees every key.
const char* causal_of(const segment::Slot& slot) {
  const auto queries = static_cast<int64_t>(slot.query_length), keys = static_cast<int64_t>(slot.key_length);
  const auto every = [&](int64_t shift) {
    for (uint32_t row = 0; row < slot.rows; ++row) {
      const int64_t sees = std::clamp(int64_t{slot.position[row]} + 1 + shift, int64_t{0}, keys);
      if (slot.key_limit[row] != sees) return false;
    }
    return true;
  };
  if (std::all_of(slot.key_limit, slot.key_limit + slot.rows,
                  [&](uint32_t k) { return k == slot.key_length; }))
    return "none";
  if (every(0)) return "top-left";
  return every(keys - queries) ? "bottom-right" : "other";
}

std::map<std::string, std::string> facts_of_slot(const segment::Slot& slot) {
  const auto text = [](auto number) { return std::to_string(number); };
  return {{"step", text(slot.step)},
          {"call", text(slot.call)},
          {"ticket", text(slot.ticket)},
          {"pass", segment::kPassNames[slot.pass]},
          {"dtype", name_of(static_cast<DType>(slot.dtype))},
          {"batch", text(slot.batch)},
          {"kv_head", text(slot.kv_head)},
          {"heads_in_slice", text(slot.heads_in_slice)},
          {"query_length", text(slot.query_length)},
          {"key_length", text(slot.key_length)},
          {"scale", exact_text(slot.scale)},
          {"causal", causal_of(slot)},
          {"time", exact_text(1e-9 * static_cast<double>(slot.time_ns))}};
}

void add_facts_of_rank(const segment::Slot& slot, const RankStatistics& rank,
                       std::map<std::string, std::string>* facts) {
  const segment::Identity& id = rank.identity;
  const auto op = static_cast<size_t>(slot.op);
  (*facts)["run"] = rank.run;
  (*facts)["rank"] = std::to_string(id.rank);
  (*facts)["attempt"] = std::to_string(id.attempt);
  (*facts)["host"] = segment::text_of(id.host);
  (*facts)["framework"] = segment::text_of(id.framework);
  (*facts)["op"] = slot.op >= 0 && op < rank.ops.size() ? segment::text_of(rank.ops[op].name) : "";
  (*facts)["instruction_set"] = reference_target_name();
  (*facts)["foreshock_version"] = FORESHOCK_VERSION;
  (*facts)["reference_version"] = std::to_string(kReferenceVersion);
}

// What its layer looked like then: a bias is seen in many slices, hardly in one.
void add_figures_of_layer(uint32_t pass, const std::string& label, const RankStatistics& rank,
                          std::map<std::string, std::string>* facts) {
  const auto found = rank.layers.find(label);
  if (label.empty() || found == rank.layers.end()) return;
  const PassStatistics& statistics = found->second.pass[pass];
  (*facts)["layer.judged"] = std::to_string(statistics.judged);
  if (const auto most = max_of(statistics.deviation_ratio))
    (*facts)["layer.deviation_ratio_max"] = exact_text(*most);
  const std::optional<Bias> bias = statistics.bias.bias();
  if (!bias) return;
  (*facts)["layer.bias_ulp"] = exact_text(bias->ulp);
  if (bias->z) (*facts)["layer.bias_z"] = exact_text(*bias->z);
}

FlaggedSlice::Array array_of(const std::string& name, const StoredArray& from) {
  return {name, from.type, from.shape,
          from.bytes > 0 ? std::string(static_cast<const char*>(from.data), from.bytes) : ""};
}

StoredArray words_of(const uint32_t* words, uint32_t count) {
  return {"U32", {count}, words, uint64_t{count} * sizeof *words};
}

uint64_t alignment_of(const std::string& type) {
  return type == "F64" ? 8 : type == "F32" || type == "U32" ? 4 : type == "BOOL" ? 1 : 2;
}

}  // namespace

uint64_t FlaggedSlice::bytes() const {
  uint64_t sum = 0;
  for (const Array& array : arrays) sum += array.bytes.size();
  return sum;
}

FlaggedSlice flagged_slice(FlagReason reason, const segment::Slot& slot, const JudgedSlice& judged,
                           const LayerOfCall& layer, const RankStatistics& rank, const std::string& segment) {
  FlaggedSlice flagged;
  flagged.name = name_of_file(reason, slot, layer, rank, segment);
  flagged.reason = reason;
  flagged.metadata = facts_of_slot(slot);
  flagged.metadata["format"] = "foreshock slice";
  flagged.metadata["schema"] = "1";
  flagged.metadata["reason"] = kFlagReasonNames[static_cast<int>(reason)];
  flagged.metadata["layer"] = layer.label;
  flagged.metadata["layer_name"] = layer.name;
  flagged.metadata["layer_source"] = layer.source;
  add_facts_of_rank(slot, rank, &flagged.metadata);
  add_figures_of_layer(slot.pass, layer.label, rank, &flagged.metadata);
  for (const Figure& figure : figures_of(judged.deviation))
    flagged.metadata[std::string("figure.") + figure.name] = figure.text;
  for (const auto& [name, array] : arrays_of(judged.slice, judged.reference))
    flagged.arrays.push_back(array_of(name, array));
  flagged.arrays.push_back(array_of("position", words_of(slot.position, slot.rows)));
  flagged.arrays.push_back(array_of("head", words_of(slot.head, slot.rows)));
  return flagged;
}

std::string flagged_file(const FlaggedSlice& slice) {
  // The widest first, without gaps: each is aligned, and other readers allow no gap.
  std::vector<const FlaggedSlice::Array*> order;
  for (const FlaggedSlice::Array& array : slice.arrays) order.push_back(&array);
  std::stable_sort(order.begin(), order.end(),
                   [](auto a, auto b) { return alignment_of(a->type) > alignment_of(b->type); });
  nlohmann::json header = {{"__metadata__", slice.metadata}};
  header["__metadata__"]["checksum"] = kNoChecksum;
  uint64_t at = 0;
  for (const FlaggedSlice::Array* array : order) {
    const uint64_t end = at + array->bytes.size();
    header[array->name] = {{"dtype", array->type}, {"shape", array->shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string file(sizeof length, '\0');
  file.reserve(sizeof length + length + at);
  std::memcpy(file.data(), &length, sizeof length);
  file += text;
  const size_t header_end = file.size();
  for (const FlaggedSlice::Array* array : order) file += array->bytes;
  const size_t place = checksum_place(file, header_end);
  return file.replace(place, kNoChecksum.size(), checksum_of(file, place));
}

}  // namespace foreshock
