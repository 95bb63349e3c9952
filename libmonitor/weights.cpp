#include "libmonitor/weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "kernels/checksum.h"
#include "kernels/histogram.h"
#include "kernels/packed_counters.h"
#include "kernels/sum_of_squares.h"
#include "kernels/update.h"
#include "libmonitor/clocks.h"
#include "libmonitor/head_copy.h"
#include "libmonitor/optimizer_numbers.h"

namespace foreshock {
namespace {

using segment::HistogramForm;
using segment::TensorRecord;

constexpr uint32_t kMostWeights = 1u << 16;
constexpr uint64_t kSmallBytes = 16 << 10;  // up to here a tensor's values are told themselves
constexpr uint64_t kLeastPiece = 8 << 10;   // of the ring, below which packing is not tried

constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Element n of an array whose element size is the caller's, not ours: structs grow at their end.
template <class T>
const T& element(const T* first, size_t n) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + n * first->size);
}

uint32_t reversed(uint32_t bits) {
  uint32_t result = 0;
  for (int n = 0; n < 32; ++n) result |= (bits >> n & 1) << (31 - n);
  return result;
}

// The number of elements; 0 for what cannot be one.
uint64_t product(const int64_t (&shape)[FORESHOCK_TENSOR_DIMS]) {
  uint64_t elements = 1;
  for (const int64_t size : shape) {
    if (size <= 0 || elements > (uint64_t{1} << 48) / static_cast<uint64_t>(size)) return 0;
    elements *= static_cast<uint64_t>(size);
  }
  return elements;
}

OptimizerState optimizer_of(const foreshock_weight_state& state) {
  return {.gradient = state.gradient,
          .second_moment = state.square_average,
          .step = state.optimizer_step,
          .learning_rate = state.learning_rate,
          .beta1 = state.beta1,
          .beta2 = state.beta2,
          .epsilon = state.epsilon,
          .weight_decay = state.weight_decay};
}

// Whether the elements fill a block of memory, in any order, each once.
bool is_dense(const foreshock_tensor& tensor) {
  bool used[FORESHOCK_TENSOR_DIMS] = {};
  int64_t expected = 1;
  for (int n = 0; n < FORESHOCK_TENSOR_DIMS; ++n) {
    int next = -1;
    for (int d = 0; d < FORESHOCK_TENSOR_DIMS; ++d)
      if (!used[d] && (tensor.shape[d] == 1 || tensor.stride[d] == expected)) next = d;
    if (next < 0) return false;
    used[next] = true;
    expected *= tensor.shape[next];
  }
  return true;
}

bool is_counted(uint32_t dtype) {
  return dtype == FORESHOCK_FP32 || dtype == FORESHOCK_BF16 || dtype == FORESHOCK_FP16;
}

// The end of a name tells more than its beginning.
template <size_t n>
void copy_end(char (&to)[n], const char* from) {
  const size_t length = std::strlen(from);
  std::snprintf(to, n, "%s", from + (length >= n ? length - n + 1 : 0));
}

}  // namespace

void WeightFollower::attach(segment::TensorRing* ring, uint64_t ring_bytes, const segment::Control* control,
                            double max_slowdown, uint64_t fixed_interval, uint64_t memory) {
  writer_.attach(ring, ring_bytes, control);
  cadence_.start(max_slowdown, fixed_interval);
  memory_ = memory;
  count_ = 0;
  bytes_ = copied_ = read_ = 0;
  copy_step_ = -1;
}

int WeightFollower::name(const foreshock_weight* weights, size_t count) {
  count_ = held_ = 0;
  bytes_ = 0;
  if (!writer_.is_attached() || count == 0 || count > kMostWeights) return 0;
  if (!table_.reserve(count * sizeof(Weight)) || !turns_.reserve(count * sizeof(uint32_t)) ||
      !counters_.reserve(kBinWords * sizeof(uint64_t)))
    return 0;
  uint64_t whole = 0, elements = 0, before = 0;
  outputs_ = {};
  for (size_t n = 0; n < count; ++n) whole += product(element(weights, n).shape);
  for (size_t n = 0; n < count; ++n) {
    const foreshock_weight& given = element(weights, n);
    Weight& to = *weight(static_cast<uint32_t>(n));
    to = {};
    copy_end(to.name, given.name != nullptr ? given.name : "");
    copy_end(to.layer, given.layer != nullptr ? given.layer : "");
    std::copy_n(given.shape, segment::kTensorDims, to.shape);
    std::copy_n(given.offset, segment::kTensorDims, to.offset);
    std::copy_n(given.part, segment::kTensorDims, to.part);
    to.dims = given.dims;
    to.elements = product(given.part);
    outputs_.see(to.name, to.shape, to.dims);
    // By the whole tensors' sizes, which all ranks know alike.
    turns()[n] = reversed(
        static_cast<uint32_t>(0x1p32 * (static_cast<double>(before) / static_cast<double>(whole + 1))));
    to.copy_step = to.turn_step = -1;
    before += product(given.shape);
    elements += to.elements;
    held_ += to.elements > 0;
  }
  count_ = static_cast<uint32_t>(count);
  bytes_ = sizeof(float) * elements;
  copies_.reserve(std::max<uint64_t>(std::min(memory_, bytes_ + count * 64), 1));
  segment::TensorRing& ring = *writer_.ring();
  ring.tensors = held_;
  ring.elements = elements;
  ring.interval = cadence_.interval();
  return static_cast<int>(count);
}

size_t WeightFollower::due(int64_t step, uint32_t* numbers, size_t room) {
  if (count_ == 0 || step < 0) return 0;
  const auto interval = static_cast<uint32_t>(cadence_.interval());
  const auto now = static_cast<uint32_t>(static_cast<uint64_t>(step) % interval);
  const bool is_power = (interval & (interval - 1)) == 0;
  size_t found = 0;
  for (uint32_t n = 0; n < count_ && found < room; ++n) {
    const uint32_t own = is_power ? turns()[n] & (interval - 1) : turns()[n] % interval;
    if (own == now && weight(n)->elements > 0 && weight(n)->turn_step != step) numbers[found++] = n;
  }
  return found;
}

bool WeightFollower::check(const foreshock_weight_state& state, segment::TensorSkip* why) {
  const foreshock_tensor& values = state.parameter;
  const auto no = [why](segment::TensorSkip reason) {
    *why = reason;
    return false;
  };
  if (values.device_type != FORESHOCK_DEVICE_CPU) return no(segment::kTensorDevice);
  if (!is_counted(values.dtype)) return no(segment::kTensorFormat);
  if (values.data == nullptr || product(values.shape) != weight(state.number)->elements || !is_dense(values))
    return no(segment::kTensorLayout);
  return true;
}

void WeightFollower::before_step(const foreshock_weight_state* states, size_t count, int64_t step) {
  if (step < 0) return;
  if (copy_step_ != step) copied_ = 0;
  copy_step_ = step;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_weight_state& state = element(states, n);
    segment::TensorSkip why;
    if (state.number >= count_ || !check(state, &why) || !cadence_.allows()) continue;
    Weight& of = *weight(state.number);
    const uint64_t bytes = of.elements * size_of(static_cast<DType>(state.parameter.dtype));
    if (copies_.data() == nullptr || bytes > copies_.bytes() - std::min<uint64_t>(copied_, copies_.bytes()))
      continue;
    std::memcpy(copies_.data() + copied_, state.parameter.data, bytes);
    of.copy = copied_;
    of.copy_step = step;
    of.copy_dtype = state.parameter.dtype;
    copied_ += round_up(bytes, 64);
  }
}

void WeightFollower::after_step(const foreshock_weight_state* states, size_t count, int64_t step) {
  if (step < 0) return;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_weight_state& state = element(states, n);
    segment::TensorSkip why = segment::kTensorBudget;
    if (state.number >= count_) continue;
    weight(state.number)->turn_step = step;
    if (!check(state, &why) || !cadence_.allows())
      writer_.count_skipped(why);
    else
      take(state, step);
  }
}

void WeightFollower::describe(const Weight& of, uint32_t number, DType type, int64_t step,
                              TensorRecord* record) const {
  *record = {};
  record->kind = segment::TensorKind::kSnapshot;
  record->header_size = sizeof(TensorRecord);
  record->step = step;
  record->time_ns = realtime_ns();
  record->interval = cadence_.interval();
  record->snapshot = of.snapshots + 1;
  record->number = number;
  record->tensors = held_;
  record->dims = of.dims;
  record->dtype = static_cast<uint32_t>(type);
  std::copy_n(of.shape, segment::kTensorDims, record->shape);
  std::copy_n(of.offset, segment::kTensorDims, record->offset);
  std::copy_n(of.part, segment::kTensorDims, record->part);
  record->elements = of.elements;
  std::memcpy(record->layer, of.layer, sizeof record->layer);
  std::memcpy(record->name, of.name, sizeof record->name);
}

void WeightFollower::reduce(const Weight& of, const foreshock_tensor& values, DType type, int64_t step,
                            double* reductions) const {
  std::fill_n(reductions, segment::kTensorReductionCount, std::numeric_limits<double>::quiet_NaN());
  // An optimizer may step a master copy in another format that it puts in the parameter's place meanwhile.
  if (of.copy_step != step || of.copy_dtype != static_cast<uint32_t>(type)) {
    reductions[segment::kSumOfSquares] = sum_of_squares(values.data, type, of.elements);
    return;
  }
  const Update update = update_between(copies_.data() + of.copy, values.data, type, of.elements);
  reductions[segment::kSumOfSquares] = update.sum_squares_after;
  reductions[segment::kUpdateSumMagnitude] = update.sum_magnitude;
  reductions[segment::kUpdateSumOfSquares] = update.sum_squares;
  reductions[segment::kUpdateMaxMagnitude] = update.max_magnitude;
}

size_t WeightFollower::pack(const foreshock_tensor& values, DType type, uint64_t elements, char* to,
                            size_t room, HistogramForm* form) {
  const auto* from = static_cast<const char*>(values.data);
  const uint64_t bytes = elements * size_of(type);
  if (bytes <= kSmallBytes) {
    *form = HistogramForm::kValues;
    if (bytes > room) return kPackFailed;
    std::memcpy(to, from, bytes);
    return bytes;
  }
  const bool is_fp32 = type == DType::kFp32;
  *form = is_fp32 ? HistogramForm::kBins : HistogramForm::kPatterns;
  const uint64_t most = is_fp32 ? kMostBinned : kMostPatterns;
  size_t packed = 0;
  for (uint64_t done = 0; done < elements; done += most) {
    const uint64_t some = std::min(most, elements - done);
    size_t size = 0;
    if (is_fp32) {
      auto* words = reinterpret_cast<uint64_t*>(counters_.data());
      count_bins(from + done * sizeof(float), some, words);
      size = pack_bins(words, to + packed, room - packed);
    } else {
      auto* words = reinterpret_cast<uint32_t*>(counters_.data());
      count_patterns(from + done * sizeof(uint16_t), some, words);
      size = pack_patterns(words, to + packed, room - packed);
    }
    if (size == kPackFailed) return kPackFailed;
    packed += size;
  }
  return packed;
}

// The rows of some heads, where the tensor is a projection of queries or keys. Returns where the record ends.
uint64_t WeightFollower::add_heads(const Weight& of, const foreshock_tensor& values, uint64_t at,
                                   uint64_t room, TensorRecord* record) {
  if (of.dims != 2 || projection_kind(of.name) == ProjectionKind::kNone) return at;
  const auto without = [&](segment::TensorHeadSkip reason) {
    writer_.count_heads_skipped(reason);
    return at;
  };
  if (product(of.shape) != of.elements) return without(segment::kHeadsSharded);
  // Rows are found by the shape that was named: one that holds as much in another shape has none of them.
  if (values.dims != 2 || !std::equal(values.shape, values.shape + 2, of.shape))
    return without(segment::kHeadsShape);
  const Projection projection = projection_of(of.name, of.shape, of.dims, heads_);
  const size_t bytes = head_payload_bytes(projection, heads_, values.dtype);
  if (bytes == 0) return without(segment::kHeadsShape);
  if (at + bytes > room) return without(segment::kHeadsRingFull);
  copy_heads(projection, heads_, values, reinterpret_cast<char*>(record) + at);
  record->payload[segment::kTensorHeadRows] = {at, bytes};
  return at + bytes;
}

void WeightFollower::take(const foreshock_weight_state& state, int64_t step) {
  Weight& of = *weight(state.number);
  const foreshock_tensor& values = state.parameter;
  const auto type = static_cast<DType>(values.dtype);
  const uint64_t bytes = of.elements * size_of(type);
  uint64_t room = 0;
  const uint64_t least = std::min(std::max(of.needs, kLeastPiece), writer_.largest_record());
  TensorRecord* record = writer_.begin(least, &room);
  if (record == nullptr) return writer_.count_skipped(segment::kTensorRingFull);
  describe(of, state.number, type, step, record);
  read_ += bytes;
  record->checksum = checksum(values.data, bytes);
  auto* at = reinterpret_cast<char*>(record);
  const uint64_t reductions = round_up(sizeof(TensorRecord), 8);
  record->payload[segment::kTensorReductions] = {reductions, segment::kTensorReductionCount * sizeof(double)};
  reduce(of, values, type, step, reinterpret_cast<double*>(at + reductions));
  const uint64_t optimizer = reductions + record->payload[segment::kTensorReductions].bytes;
  record->payload[segment::kTensorOptimizer] = {optimizer, segment::kOptimizerNumbers * sizeof(double)};
  optimizer_numbers(optimizer_of(state), reinterpret_cast<double*>(at + optimizer));
  const uint64_t histogram = optimizer + record->payload[segment::kTensorOptimizer].bytes;
  const size_t packed = pack(values, type, of.elements, at + histogram, room - histogram, &record->form);
  if (packed == kPackFailed) {
    of.needs = 2 * room;
    return writer_.count_skipped(room >= writer_.largest_record() ? segment::kTensorTooLarge
                                                                  : segment::kTensorRingFull);
  }
  record->payload[segment::kTensorHistogram] = {histogram, packed};
  const uint64_t end = add_heads(of, values, round_up(histogram + packed, 8), room, record);
  record->bytes = of.needs = round_up(end, segment::kTensorAlign);
  ++of.snapshots;
  writer_.publish(record);
}

void WeightFollower::end_step(double step_seconds, double cost_seconds) {
  cadence_.end_step(step_seconds, cost_seconds, static_cast<double>(read_));
  read_ = 0;
  if (count_ == 0) return;
  segment::TensorRing& ring = *writer_.ring();
  cadence_.begin_interval(static_cast<double>(bytes_));
  std::atomic_ref<uint64_t>(ring.interval).store(cadence_.interval(), std::memory_order_relaxed);
}

}  // namespace foreshock
