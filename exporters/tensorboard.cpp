// Converts record lines to scalars, and encodes them for TensorBoard (protocol buffers in TFRecords).
#include "exporters/tensorboard.h"

#include <algorithm>
#include <bit>
#include <boost/crc.hpp>
#include <cstring>

namespace foreshock {
namespace {

static_assert(std::endian::native == std::endian::little, "words are stored in native byte order");

template <class Word>
std::string bytes_of(Word word) {
  char bytes[sizeof word];
  std::memcpy(bytes, &word, sizeof word);
  return {bytes, sizeof bytes};
}

// Encodes an integer: 7 bits per byte, the lowest bits first. A byte's top bit is set if more bytes follow.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// How the value of a protocol buffer's field is encoded.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string field_key(uint32_t field, WireType type) { return varint(field << 3 | type); }

std::string bytes_field(uint32_t field, std::string_view bytes) {
  return field_key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

// The field numbers in this function, version_event() and scalar_event() are those of tensorflow.Event,
// Summary and Summary.Value (tensorboard/compat/proto/event.proto, summary.proto).
std::string wall_time_field(double wall_time) { return field_key(1, kFixed64) + bytes_of(wall_time); }

// A template only because RecordScalars::Mean is private.
template <class Mean>
void add(Mean* mean, const std::optional<double>& value) {
  if (!value) return;
  mean->sum += *value;
  mean->count += 1;
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;  // CRC-32C
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(crc.checksum(), 15) + 0xa282ead8u;  // the mask that the TFRecord format prescribes
}

std::string framed_record(std::string_view payload) {
  const std::string length = bytes_of(static_cast<uint64_t>(payload.size()));
  return length + bytes_of(masked_crc32c(length)) + std::string(payload) + bytes_of(masked_crc32c(payload));
}

std::string version_event(double wall_time) {
  return wall_time_field(wall_time) + bytes_field(3, "brain.Event:2");  // file_version
}

std::string scalar_event(double wall_time, int64_t step, std::string_view tag, float value) {
  const std::string simple_value = field_key(2, kFixed32) + bytes_of(value);
  const std::string summary = bytes_field(1, bytes_field(1, tag) + simple_value);
  return wall_time_field(wall_time) + field_key(2, kVarint) + varint(static_cast<uint64_t>(step)) +
         bytes_field(5, summary);
}

std::vector<Scalar> RecordScalars::take(const RecordLine& line) {
  std::vector<Scalar> out;
  if (const auto* step = std::get_if<StepLine>(&line)) take_step(*step, &out);
  if (const auto* event = std::get_if<EventLine>(&line)) take_event(*event, &out);
  if (const auto* sample = std::get_if<SampleLine>(&line)) take_sample(*sample, &out);
  return out;
}

std::vector<Scalar> RecordScalars::finish() {
  std::vector<Scalar> out;
  for (const auto& [key, gathered] : open_) append_scalars(key, gathered, &out);
  open_.clear();
  return out;
}

void RecordScalars::take_step(const StepLine& line, std::vector<Scalar>* out) {
  if (!line.rank || !line.step) return;
  const auto put = [&](const char* tag, const std::optional<double>& value) {
    if (value) out->push_back({line.run, *line.rank, line.time.value_or(0), *line.step, tag, *value});
  };
  put("training/loss", line.loss);
  put("training/gradient_norm", line.gradient_norm);
  put("training/learning_rate", line.learning_rate);
  put("training/step_seconds", line.duration_seconds);
  // False also if the duration is unknown: an empty std::optional is less than any value.
  if (line.overhead_seconds && line.duration_seconds > line.overhead_seconds)
    put("monitor/slowdown_ratio", *line.overhead_seconds / (*line.duration_seconds - *line.overhead_seconds));
  for (const auto& [name, value] : line.logged) {
    const auto own_step = line.logged_step.find(name);  // the training's own step number, if it gave one
    const int64_t step = own_step == line.logged_step.end() ? *line.step : own_step->second;
    out->push_back({line.run, *line.rank, line.time.value_or(0), step, "logged/" + name, value});
  }
}

void RecordScalars::take_event(const EventLine& line, std::vector<Scalar>* out) {
  if (!line.rank || !line.step || line.event.empty()) return;
  const std::string tag = "event/" + line.event + (line.layer.empty() ? "" : "_" + line.layer);
  const double value = line.value.value_or(1);  // an event without a value is drawn as a point at 1
  out->push_back({line.run, *line.rank, line.time.value_or(0), *line.step, tag, value});
}

void RecordScalars::take_sample(const SampleLine& line, std::vector<Scalar>* out) {
  if (!line.rank || !line.step || line.pass.empty()) return;
  // The scalars of pass "backward" are errors of dQ. Those of dK and dV have the tensor's name as their pass.
  const bool is_key_gradient = line.tensor == "grad_key" || line.tensor == "grad_value";
  const std::string& pass = is_key_gradient ? line.tensor : line.pass;
  gather({line.run, *line.rank, pass, ""}, line, out);  // layer "": all layers of the rank
  if (!line.layer.empty()) gather({line.run, *line.rank, pass, line.layer}, line, out);
}

// Adds a sample to the sums of `key` (run, rank, pass, layer), which are those of one step. If the sample is
// of another step, first appends the finished step's scalars to `out` and starts new sums.
void RecordScalars::gather(const Key& key, const SampleLine& line, std::vector<Scalar>* out) {
  auto open = open_.find(key);
  if (open != open_.end() && open->second.step != *line.step) {
    append_scalars(key, open->second, out);
    open_.erase(open);
    open = open_.end();
  }
  if (open == open_.end()) {
    open = open_.emplace(key, Gathered()).first;
    open->second.step = *line.step;
  }
  Gathered& sums = open->second;
  sums.time = std::max(sums.time, line.time.value_or(0));
  add(&sums.relative_error, line.relative_error_mean);
  add(&sums.fused_ratio, line.fused_ratio);
  add(&sums.entropy, line.entropy_nats_mean);
  sums.ratio_max = std::max(sums.ratio_max, line.fused_ratio.value_or(0));
  sums.logit_max = std::max(sums.logit_max, line.logit_abs_max.value_or(0));
  sums.bias_error += line.bias_error_sum.value_or(0);
  sums.bias_ulp += line.bias_ulp_sum.value_or(0);
}

void RecordScalars::append_scalars(const Key& key, const Gathered& gathered, std::vector<Scalar>* out) {
  // Clang before 16 can capture structured bindings only with an initializer.
  const auto& [run, rank, pass, layer] = key;
  const auto put = [&, &run = run, &rank = rank, &pass = pass, &layer = layer](const std::string& name,
                                                                               double value, bool is_known) {
    const std::string tag =
        layer.empty() ? "attention_" + pass + "/" + name : "layer_" + name + "_" + pass + "/" + layer;
    if (is_known) out->push_back({run, rank, gathered.time, gathered.step, tag, value});
  };
  const auto put_mean = [&](const char* name, const Mean& mean) {
    put(name, mean.sum / mean.count, mean.count > 0);
  };
  put_mean("fused_ratio", gathered.fused_ratio);
  put("bias_ulp", gathered.bias_error / gathered.bias_ulp, gathered.bias_ulp > 0);
  put("logit_abs_max", gathered.logit_max, gathered.logit_max > 0);
  if (!layer.empty()) return;  // the other scalars exist only for all layers together
  put("fused_ratio_max", gathered.ratio_max, gathered.fused_ratio.count > 0);
  put_mean("relative_error", gathered.relative_error);
  put_mean("entropy_nats", gathered.entropy);
}

}  // namespace foreshock
