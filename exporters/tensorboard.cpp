// Makes scalars from lines of a record, and encodes them as protocol buffers in TFRecords without a library.
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

// A protocol buffer's integer: 7 bits per byte, the lowest first. The top bit is set if more bytes follow.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// Wire types of a protocol buffer's fields.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string key(uint32_t field, WireType type) { return varint(field << 3 | type); }

std::string bytes_field(uint32_t field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

// The field numbers here and below are those of tensorflow.Event, Summary and Summary.Value
// (tensorboard/compat/proto/event.proto, summary.proto).
std::string wall_time_field(double wall_time) { return key(1, kFixed64) + bytes_of(wall_time); }

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;  // CRC-32C
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(crc.checksum(), 15) + 0xa282ead8u;
}

std::string framed_record(std::string_view payload) {
  const std::string length = bytes_of(static_cast<uint64_t>(payload.size()));
  return length + bytes_of(masked_crc32c(length)) + std::string(payload) + bytes_of(masked_crc32c(payload));
}

std::string version_event(double wall_time) {
  return wall_time_field(wall_time) + bytes_field(3, "brain.Event:2");  // file_version
}

std::string scalar_event(double wall_time, int64_t step, std::string_view tag, float value) {
  const std::string simple_value = key(2, kFixed32) + bytes_of(value);
  const std::string summary = bytes_field(1, bytes_field(1, tag) + simple_value);
  return wall_time_field(wall_time) + key(2, kVarint) + varint(static_cast<uint64_t>(step)) +
         bytes_field(5, summary);
}

namespace {

template <class Mean>
void add(Mean* mean, const std::optional<double>& value) {
  if (!value) return;
  mean->sum += *value;
  mean->count += 1;
}

}  // namespace

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
  if (line.overhead_seconds && line.duration_seconds > line.overhead_seconds)
    put("monitor/slowdown_ratio", *line.overhead_seconds / (*line.duration_seconds - *line.overhead_seconds));
  for (const auto& [name, value] : line.logged) {
    const auto own_step = line.logged_step.find(name);
    const int64_t step = own_step == line.logged_step.end() ? *line.step : own_step->second;
    out->push_back({line.run, *line.rank, line.time.value_or(0), step, "logged/" + name, value});
  }
}

void RecordScalars::take_event(const EventLine& line, std::vector<Scalar>* out) {
  if (!line.rank || !line.step || line.event.empty()) return;
  const std::string tag = "event/" + line.event + (line.layer.empty() ? "" : "_" + line.layer);
  out->push_back({line.run, *line.rank, line.time.value_or(0), *line.step, tag, line.value.value_or(1)});
}

void RecordScalars::take_sample(const SampleLine& line, std::vector<Scalar>* out) {
  if (!line.rank || !line.step || line.pass.empty()) return;
  // Samples of dK and dV are of the backward pass, but have their own scalars. Those of the pass are of dQ.
  const bool is_of_keys = line.tensor == "grad_key" || line.tensor == "grad_value";
  const std::string& pass = is_of_keys ? line.tensor : line.pass;
  gather({line.run, *line.rank, pass, ""}, line, out);
  if (!line.layer.empty()) gather({line.run, *line.rank, pass, line.layer}, line, out);
}

// Adds a sample to the open step of `key`. If its step is another one, first appends the open step's scalars.
void RecordScalars::gather(const Key& key, const SampleLine& line, std::vector<Scalar>* out) {
  auto place = open_.find(key);
  if (place != open_.end() && place->second.step != *line.step) {
    append_scalars(key, place->second, out);
    open_.erase(place);
    place = open_.end();
  }
  if (place == open_.end()) {
    place = open_.emplace(key, Gathered()).first;
    place->second.step = *line.step;
  }
  Gathered& sums = place->second;
  sums.time = std::max(sums.time, line.time.value_or(0));
  add(&sums.relative_error, line.relative_error_mean);
  add(&sums.deviation_ratio, line.deviation_ratio);
  add(&sums.entropy, line.entropy_nats_mean);
  sums.ratio_max = std::max(sums.ratio_max, line.deviation_ratio.value_or(0));
  sums.logit_max = std::max(sums.logit_max, line.logit_abs_max.value_or(0));
  sums.bias_error += line.bias_error_sum.value_or(0);
  sums.bias_ulp += line.bias_ulp_sum.value_or(0);
}

void RecordScalars::append_scalars(const Key& key, const Gathered& of, std::vector<Scalar>* out) {
  // Clang before 16 can capture structured bindings only with an initializer.
  const auto& [run, rank, pass, layer] = key;
  const auto put = [&, &run = run, &rank = rank, &pass = pass, &layer = layer](const std::string& name,
                                                                               double value, bool is_known) {
    const std::string tag =
        layer.empty() ? "attention_" + pass + "/" + name : "layer_" + name + "_" + pass + "/" + layer;
    if (is_known) out->push_back({run, rank, of.time, of.step, tag, value});
  };
  const auto put_mean = [&](const char* name, const Mean& mean) {
    put(name, mean.sum / mean.count, mean.count > 0);
  };
  put_mean("deviation_ratio", of.deviation_ratio);
  put("bias_ulp", of.bias_error / of.bias_ulp, of.bias_ulp > 0);
  put("logit_abs_max", of.logit_max, of.logit_max > 0);
  if (!layer.empty()) return;  // the other scalars exist only for the whole rank
  put("deviation_ratio_max", of.ratio_max, of.deviation_ratio.count > 0);
  put_mean("relative_error", of.relative_error);
  put_mean("entropy_nats", of.entropy);
}

}  // namespace foreshock
