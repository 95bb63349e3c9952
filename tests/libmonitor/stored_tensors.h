// Tensors that an optimizer steps, and what a segment says of them.
#ifndef FORESHOCK_TESTS_LIBMONITOR_STORED_TENSORS_H_
#define FORESHOCK_TESTS_LIBMONITOR_STORED_TENSORS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "segment/reader.h"
#include "tests/libmonitor/described_weights.h"

namespace foreshock {

// A parameter with its gradient and second moment.
struct StoredTensor {
  std::string name;
  int64_t rows, columns;
  uint32_t dtype;
  std::vector<char> values, gradient, moment;

  StoredTensor(std::string of, int64_t height, int64_t width, uint32_t type)
      : name(std::move(of)), rows(height), columns(width), dtype(type) {
    for (auto* each : {&values, &gradient, &moment}) each->resize(count() * bytes());
    for (size_t n = 0; n < count(); ++n) {
      const float x = 0.01f * static_cast<float>(n % 321) - 1;
      set(&values, n, x);
      set(&gradient, n, 0.5f * x);
      set(&moment, n, 0.25f * x * x + 1e-3f);
    }
  }
  size_t count() const { return static_cast<size_t>(rows * columns); }
  size_t bytes() const { return dtype == FORESHOCK_FP32 ? 4 : 2; }
  // bf16 of what has few digits.
  void set(std::vector<char>* of, size_t n, float x) const {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (bytes() == 2) bits >>= 16;
    std::memcpy(of->data() + n * bytes(), &bits, bytes());
  }
  // As AdamW shows it in a step.
  foreshock_weight_state state(uint32_t number, int64_t step) const {
    foreshock_weight_state state = state_of(number, values.data(), rows, columns, dtype);
    state.gradient = state.square_average = state.parameter;
    state.gradient.data = gradient.data();
    state.square_average.data = moment.data();
    state.optimizer_step = step;
    state.learning_rate = 1e-3;
    state.beta1 = 0.9;
    state.beta2 = 0.95;
    state.epsilon = 1e-8;
    state.weight_decay = 0.1;
    return state;
  }
  // One step of an optimizer: the values move on, none of them far.
  void move(int64_t step) {
    for (size_t n = 0; n < count(); n += 3)
      set(&values, n, 0.01f * static_cast<float>((n + static_cast<size_t>(step)) % 321) - 1);
  }
};

// A record with its payloads, of which more than that is not kept.
struct StoredRecord {
  segment::TensorRecord record;
  std::vector<std::byte> payload[segment::kTensorPayloads];

  double number(segment::TensorPayloadId id, uint32_t n) const {
    double value;
    std::memcpy(&value, payload[id].data() + n * sizeof value, sizeof value);
    return value;
  }
};
using StoredRecords = std::map<std::pair<std::string, int64_t>, StoredRecord>;

inline StoredRecords read_records(segment::SegmentReader* reader) {
  StoredRecords found;
  segment::SegmentReader::ReadyTensor ready;
  int64_t last = -1;
  while (reader != nullptr && reader->next_tensor(&ready)) {
    EXPECT_EQ(ready.why, nullptr) << ready.why;
    const segment::TensorRecord& record = ready.view.record;
    EXPECT_GE(record.step, last) << "an agent would take it for a training that went back";
    last = record.step;
    StoredRecord& stored = found[{segment::text_of(record.name), record.step}];
    stored.record = record;
    for (uint32_t n = 0; n < segment::kTensorPayloads; ++n)
      stored.payload[n].assign(ready.view.payload[n].begin(), ready.view.payload[n].end());
    reader->consume_tensor();
  }
  return found;
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_STORED_TENSORS_H_
