// A segment as a trainer leaves it, for the tests of the agent.
#ifndef FORESHOCK_TESTS_AGENT_SEGMENT_OF_A_TRAINER_H_
#define FORESHOCK_TESTS_AGENT_SEGMENT_OF_A_TRAINER_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "segment/layout.h"
#include "segment/reader.h"
#include "segment/writer.h"

namespace foreshock {

class SegmentOfATrainer {
 public:
  SegmentOfATrainer() : SegmentOfATrainer("", 0) {}

  // Rank `rank` in a directory of somebody else, or of its own ("").
  SegmentOfATrainer(const std::string& given, int rank, uint64_t nonce = 0x10)
      : directory(given), owns_directory_(given.empty()) {
    std::string pattern =
        std::filesystem::is_directory("/dev/shm") ? "/dev/shm/agent-XXXXXX" : "/tmp/agent-XXXXXX";
    if (owns_directory_ && mkdtemp(pattern.data()) != nullptr) directory = pattern;
    EXPECT_EQ(writer.create({directory.c_str(), rank, nonce, 8, 1 << 16, 1 << 18}), nullptr);
    writer.identity()->rank = rank;
    segment::Op* ops = writer.ops();
    ops[0] = {"attention", 0, 1};
    ops[1] = {"attention_backward", 1, 1};
    segment::Layer& layer = writer.layers()[0];
    std::strcpy(layer.label, "003");
    std::strcpy(layer.name, "blocks.3.attention.qkv.weight");
    layer.ready = 1;
    tensors_.attach(writer.tensors(), writer.tensor_bytes(), &writer);
    writer.publish_facts();
  }
  ~SegmentOfATrainer() {
    if (!owns_directory_) return;
    close_segments();
    std::filesystem::remove_all(directory);
  }

  std::unique_ptr<segment::SegmentReader> open() {
    std::string why;
    auto reader = segment::SegmentReader::open(directory, "0-0000000000000010", &why);
    EXPECT_NE(reader, nullptr) << why;
    return reader;
  }

  // Writes a record of the segment at the end of the statement: trainer.identity()->rank = 1.
  template <class T>
  struct Published {
    segment::SegmentWriter* writer;
    T* record;
    T* operator->() const { return record; }
    T& operator*() const { return *record; }
    ~Published() { writer->write({{record, sizeof *record}}); }
  };
  Published<segment::Identity> identity() { return {&writer, writer.identity()}; }
  Published<segment::Layer> layer(uint32_t index) { return {&writer, &writer.layers()[index]}; }
  Published<segment::ThreadBlock> thread() { return {&writer, &writer.threads()[0]}; }
  // As the trainer reads it now.
  const segment::Control& control() const {
    writer.refresh_control();
    return *writer.control();
  }

  // Eight fp64 rows over four keys; `factor` is how wrong the kernel's output is. A backward one has
  // gradients that belong to nothing.
  void sample(int64_t step, double factor, int layer = 0, uint32_t pass = 0, uint32_t nonfinite_out = 0) {
    constexpr int kRows = 8, kKeys = 4, kDim = 2;
    segment::Slot* slot = claim(step, pass, layer);
    ASSERT_NE(slot, nullptr);
    slot->window = {};
    slot->dtype = 1;
    slot->nonfinite_out = nonfinite_out;
    slot->rows = slot->query_length = kRows;
    slot->keys = slot->key_length = kKeys;
    slot->head_dim = slot->value_dim = kDim;
    double query[kRows * kDim], key[kKeys * kDim], value[kKeys * kDim], out[kRows * kDim],
        grad_out[kRows * kDim];
    for (int n = 0; n < kKeys * kDim; ++n) {
      key[n] = 0.2 * (n % 5) + 0.01 * static_cast<double>(tickets_);
      value[n] = 1 + n;
    }
    for (int n = 0; n < kRows * kDim; ++n) {
      query[n] = 0.1 * (n % 3);
      grad_out[n] = 1 + n;
    }
    for (int row = 0; row < kRows; ++row) {
      slot->seen_end[row] = kKeys;
      slot->position[row] = static_cast<uint32_t>(row);
      double sum = 0, mean[kDim] = {};
      for (int k = 0; k < kKeys; ++k) {
        const double p = std::exp(query[row * 2] * key[k * 2] + query[row * 2 + 1] * key[k * 2 + 1]);
        sum += p;
        for (int d = 0; d < kDim; ++d) mean[d] += p * value[k * kDim + d];
      }
      for (int d = 0; d < kDim; ++d) out[row * kDim + d] = mean[d] / sum * factor;
    }
    uint64_t at = kPayloadBegins;
    const auto put = [&](segment::PayloadId id, const auto& values) { store<double>(slot, id, values, &at); };
    put(segment::kQuery, query);
    put(segment::kKey, key);
    put(segment::kValue, value);
    put(segment::kOut, out);
    if (pass == 1) put(segment::kGradOut, grad_out);
    if (pass == 1) put(segment::kGradQuery, query);
    writer.publish(slot, tickets_);
  }

  // Four key positions of eight query rows, in fp32; the factors are how wrong dK and dV are.
  // `elsewhere` is what dK of a key that is not sampled has more than it should.
  void sample_columns(int64_t step, double key_factor, double value_factor, int layer = 0,
                      double elsewhere = 0) {
    constexpr int kRows = 8, kKeys = 4, kDim = 2;
    segment::Slot* slot = claim(step, 1, layer);
    ASSERT_NE(slot, nullptr);
    slot->window = {};
    slot->columns = 1;
    slot->dtype = slot->lse_dtype = 2;
    slot->rows = slot->key_length = kKeys;
    slot->keys = slot->query_length = kRows;
    slot->head_dim = slot->value_dim = kDim;
    double query[kRows * kDim], out[kRows * kDim], grad_out[kRows * kDim], log_sum_exp[kRows];
    double key[kKeys * kDim], value[kKeys * kDim], grad_key[kKeys * kDim] = {}, grad_value[kKeys * kDim] = {};
    for (int n = 0; n < kKeys * kDim; ++n) {
      key[n] = 0.2 * (n % 5);
      value[n] = 1 + n;
    }
    for (int row = 0; row < kRows; ++row) {
      double sum = 0, weight[kKeys], delta = 0;
      for (int d = 0; d < kDim; ++d) {
        query[row * kDim + d] = 0.1 * ((row + d) % 3);
        grad_out[row * kDim + d] = 0.1 * row + d;
        out[row * kDim + d] = 0;
      }
      for (int k = 0; k < kKeys; ++k)
        sum += weight[k] = std::exp(query[row * 2] * key[k * 2] + query[row * 2 + 1] * key[k * 2 + 1]);
      log_sum_exp[row] = std::log(sum);
      for (int n = 0; n < kKeys * kDim; ++n) out[row * kDim + n % kDim] += weight[n / kDim] / sum * value[n];
      for (int d = 0; d < kDim; ++d) delta += grad_out[row * kDim + d] * out[row * kDim + d];
      for (int k = 0; k < kKeys; ++k) {
        double grad_weight = 0;
        for (int d = 0; d < kDim; ++d) grad_weight += grad_out[row * kDim + d] * value[k * kDim + d];
        for (int d = 0; d < kDim; ++d) {
          grad_value[k * kDim + d] += value_factor * weight[k] / sum * grad_out[row * kDim + d];
          grad_key[k * kDim + d] +=
              key_factor * weight[k] / sum * (grad_weight - delta) * query[row * kDim + d];
        }
      }
    }
    for (uint32_t k = 0; k < kKeys; ++k) slot->position[k] = k, slot->seen_end[k] = kRows;
    uint64_t at = kPayloadBegins;
    const auto put = [&](segment::PayloadId id, const auto& values) { store<float>(slot, id, values, &at); };
    put(segment::kQuery, query);
    put(segment::kOut, out);
    put(segment::kGradOut, grad_out);
    put(segment::kLogSumExp, log_sum_exp);
    put(segment::kKey, key);
    put(segment::kValue, value);
    put(segment::kGradKey, grad_key);
    put(segment::kGradValue, grad_value);
    // kernels/key_sums.h: a sum, squared ulps and a count for each column of dK, of dV, and for dQ.
    uint64_t* sums = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(slot) + at);
    slot->payload[segment::kKeySums] = {at, (2 * kDim + 1) * segment::kKeySumBytes};
    std::fill_n(sums, 3 * (2 * kDim + 1), 0);
    for (int column = 0; column < 2 * kDim; ++column) {
      double sum = 0;
      for (int k = 0; k < kKeys; ++k)
        sum += static_cast<float>((column < kDim ? grad_key : grad_value)[k * kDim + column % kDim]);
      sums[3 * column] = std::bit_cast<uint64_t>(sum + (column == 0 ? elsewhere : 0));
      sums[3 * column + 2] = std::isnan(elsewhere) && column == 0 ? 1 : 0;
      sums[3 * column + 1] = std::bit_cast<uint64_t>(0x1p-46 * kKeys);
    }
    writer.publish(slot, tickets_);
  }

  void step(int64_t number, double loss) {
    segment::StepRecord record = {};
    record.step = number;
    record.loss = loss;
    record.given = 1;
    record.duration_ns = 10'000'000;
    record.cost_ns = 100'000;
    record.loss_source = 2;
    record.step_source = 2;
    writer.append_step(record);
  }

  // The qkv projection of a layer after a step of Adam: one of `layers` tensors that the rank has.
  void weights(int64_t step, int layer, int layers, uint64_t interval = 1) {
    uint64_t room = 0;
    segment::TensorRecord* record = tensors_.begin(4096, &room);
    ASSERT_NE(record, nullptr);
    constexpr uint32_t kWidth = 4, kValues = 12 * kWidth;
    *record = {};
    record->kind = segment::TensorKind::kSnapshot;
    record->step = step;
    record->interval = interval;
    record->snapshot = static_cast<uint64_t>(step) / interval;
    record->number = static_cast<uint32_t>(layer);
    record->tensors = static_cast<uint32_t>(layers);
    record->dims = 2;
    record->dtype = 2;
    for (int n = 0; n < 4; ++n) record->shape[n] = record->part[n] = 1;
    record->shape[0] = record->part[0] = kValues / kWidth;
    record->shape[1] = record->part[1] = kWidth;
    record->elements = kValues;
    std::snprintf(record->layer, sizeof record->layer, "%03d", layer);
    std::snprintf(record->name, sizeof record->name, "blocks.%d.attention.qkv.weight", layer);
    float values[kValues];
    const auto turn = static_cast<uint32_t>(record->snapshot);
    for (uint32_t n = 0; n < kValues; ++n)
      values[n] = 0.01f * static_cast<float>((n * 7 + n * turn * turn) % 13);
    uint64_t at = (sizeof *record + 7) / 8 * 8;
    const auto put = [&](segment::TensorPayloadId id, const void* bytes, uint64_t size) {
      std::memcpy(reinterpret_cast<char*>(record) + at, bytes, size);
      record->payload[id] = {at, size};
      at = (at + size + 7) / 8 * 8;
    };
    record->form = segment::HistogramForm::kValues;
    put(segment::kTensorHistogram, values, sizeof values);
    const double reductions[segment::kTensorReductionCount] = {4, 0.5, 1, 0.25};
    put(segment::kTensorReductions, reductions, sizeof reductions);
    double optimizer[segment::kOptimizerNumbers];
    std::fill(std::begin(optimizer), std::end(optimizer), double{kValues});
    put(segment::kTensorOptimizer, optimizer, sizeof optimizer);
    record->bytes = (at + segment::kTensorAlign - 1) / segment::kTensorAlign * segment::kTensorAlign;
    writer.tensors()->tensors = static_cast<uint64_t>(layers);
    writer.tensors()->interval = 1;
    tensors_.publish_snapshot(record);
    writer.publish_facts();
  }

  std::string directory;
  segment::SegmentWriter writer;

 private:
  static constexpr uint64_t kPayloadBegins = (sizeof(segment::Slot) + 63) / 64 * 64;

  // The slot of the next ticket, counted as sampled; what does not depend on its kind is filled in.
  segment::Slot* claim(int64_t step, uint32_t pass, int layer) {
    writer.threads()[0].claimed = 1;
    ++writer.threads()[0].calls[pass];
    ++writer.threads()[0].all_calls;
    ++writer.threads()[0].sampled[pass];
    writer.publish_threads();
    segment::Slot* slot = writer.claim(++tickets_);
    if (slot == nullptr) return nullptr;
    slot->step = step;
    slot->op = static_cast<int32_t>(pass);
    slot->pass = pass;
    slot->heads_in_slice = 1;
    slot->scale = 1;
    slot->layer = layer;
    slot->layer_source = static_cast<uint32_t>(segment::LayerSource::kParameter);
    return slot;
  }

  // Copies `values` to `*at` of the slot, as Element, and moves `*at` on.
  template <class Element>
  static void store(segment::Slot* slot, segment::PayloadId id, const auto& values, uint64_t* at) {
    const size_t bytes = std::size(values) * sizeof(Element);
    slot->payload[id] = {*at, bytes};
    std::copy(std::begin(values), std::end(values),
              reinterpret_cast<Element*>(reinterpret_cast<char*>(slot) + *at));
    *at += (bytes + 63) / 64 * 64;
  }

  // Trainers hold theirs for the life of their process, which has other tests to come. Readers of them have
  // opened them to read only.
  void close_segments() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string path = std::filesystem::read_symlink(entry, gone);
      const int file = std::stoi(entry.path().filename());
      if (path.starts_with(directory + "/") && path.find(".seg") != std::string::npos &&
          (fcntl(file, F_GETFL) & O_ACCMODE) == O_RDWR)
        close(file);
    }
  }

  bool owns_directory_;
  segment::TensorWriter tensors_;
  uint64_t tickets_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_AGENT_SEGMENT_OF_A_TRAINER_H_
