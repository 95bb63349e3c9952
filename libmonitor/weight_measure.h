// Measures a tensor for its record. Packs its values or their counts, measures the change that an optimizer
// step made, and sums the optimizer's state.
#ifndef FORESHOCK_LIBMONITOR_WEIGHT_MEASURE_H_
#define FORESHOCK_LIBMONITOR_WEIGHT_MEASURE_H_

#include <cstddef>
#include <cstdint>

#include "foreshock/hook.h"
#include "kernels/dtype.h"
#include "kernels/histogram.h"
#include "kernels/sums.h"
#include "libmonitor/base.h"
#include "segment/layout.h"

namespace foreshock {

// Packs the values of a small tensor, or the counts of the values of a large one. One caller at a time.
class HistogramPacker {
 public:
  static constexpr uint64_t kSmallBytes = 16 << 10;  // largest tensor whose values are packed themselves

  // For set-up. Returns false if there is no memory for the counters.
  bool reserve();

  // Packs dense values of fp32, bf16 or fp16 into at most `room` bytes. Returns the bytes written, or
  // kPackFailed.
  size_t pack(const void* values, DType type, uint64_t elements, char* to, size_t room,
              segment::HistogramForm* form);

  // Packs the counts of values that were counted elsewhere. `words` is one set of counters of
  // kernels/histogram.h; it is zeroed.
  static size_t pack_counted(void* words, DType type, char* to, size_t room, segment::HistogramForm* form);

 private:
  size_t count(const char* values, DType type, uint64_t elements, char* to, size_t room);

  MmapBuffer counters_;  // all zero between calls
};

// Stores copies of tensors before an optimizer step, to measure the change that the step makes. If a tensor
// is larger than its share of the memory, only some pieces are stored, evenly spread over the tensor. One
// caller at a time.
class UpdateSnapshots {
 public:
  static constexpr uint64_t kPiece = uint64_t{16} << 10;  // bytes

  struct Copy {
    uint64_t at = 0, bytes = 0;  // bytes 0: no copy
    uint64_t of = 0;             // bytes of the whole tensor
    DType type = DType::kNone;
    uint64_t round = 0;
  };

  // For set-up. Drops all copies. If there is no memory, no copies will be stored.
  void reserve(uint64_t bytes) { memory_.reserve(bytes); }
  uint64_t room() const { return memory_.bytes(); }

  // Drops all copies.
  void forget() {
    used_ = 0;
    ++round_;
  }
  bool holds(const Copy& copy) const { return copy.bytes > 0 && copy.round == round_; }

  // Copies at most `share` bytes of the `bytes` dense bytes at `values`, if there is room.
  Copy keep(const void* values, uint64_t bytes, DType type, uint64_t share);
  // Replaces the content of a held copy.
  void renew(const Copy& copy, const void* values);

  // Returns the change since the copy was made. The copy must be held, and `values` must have the same size
  // and type. Sets *elements to the number of elements compared.
  Update update(const Copy& copy, const void* values, uint64_t* elements) const;

  // Returns the largest share that each of `count` tensors may have so that all fit into `room`. Tensor n has
  // bytes_of(n) bytes.
  template <class BytesOf>
  static uint64_t share(uint64_t room, uint64_t count, const BytesOf& bytes_of);

 private:
  static uint64_t piece_at(uint64_t n, uint64_t kept, uint64_t of);  // offset of the n-th piece in the tensor

  MmapBuffer memory_;
  uint64_t used_ = 0, round_ = 1;
};

// Distributes memory that small tensors do not use among the large ones. The share of every round is valid
// and at least that of the previous round.
template <class BytesOf>
uint64_t UpdateSnapshots::share(uint64_t room, uint64_t count, const BytesOf& bytes_of) {
  constexpr int kRounds = 8;
  uint64_t share = count > 0 ? room / count : room;
  for (int round = 0; round < kRounds; ++round) {
    uint64_t small = 0, large = 0;
    for (uint64_t n = 0; n < count; ++n) {
      const uint64_t bytes = bytes_of(n);
      large += bytes > share;
      small += bytes > share ? 0 : bytes;
    }
    if (large == 0 || (room - small) / large == share) break;
    share = (room - small) / large;
  }
  return share;
}

// An optimizer's state for one tensor. Does not own the data. Absent tensors have data NULL, unknown numbers
// are NaN, an unknown step is -1.
struct OptimizerState {
  foreshock_tensor gradient, second_moment;
  int64_t step;  // steps of this tensor, including the one just taken
  double learning_rate, beta1, beta2, epsilon, weight_decay;
};

OptimizerState optimizer_of(const foreshock_weight_state& state);

// Fills `numbers` (segment::OptimizerNumber) in one pass over gradient and second moment. Sums are unknown
// for tensors on a device, with another format or with different shapes.
void optimizer_numbers(const OptimizerState& state, double* numbers);

// Does the same as optimizer_numbers() with sums that were computed elsewhere; null means unknown. `moment`
// includes the sums of the gradient.
void tell_optimizer(const OptimizerState& state, const GradientSums* gradient, const AdamSums* moment,
                    double* numbers);

// Returns a view of the tensor. Its dimensions become the last ones of the view, since rows are read along
// the last one.
TensorView view_of(const foreshock_tensor& tensor);
bool is_same_shape(const foreshock_tensor& a, const foreshock_tensor& b);
// Gets the parameters of the Adam step. Returns false if too few are known for any statistic.
bool adam_step_of(const OptimizerState& state, AdamStep* step);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHT_MEASURE_H_
