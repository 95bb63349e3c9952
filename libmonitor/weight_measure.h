// The values of a tensor in the form in which a record tells them: themselves where they are few, else
// counted.
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

// One caller at a time.
class HistogramPacker {
 public:
  static constexpr uint64_t kSmallBytes = 16 << 10;  // up to here a tensor's values are told themselves

  // Set-up. False: there is no memory for the counters.
  bool reserve();

  // Packs dense values of fp32, bf16 or fp16 into `room` bytes. Returns how many it took, or kPackFailed.
  size_t pack(const void* values, DType type, uint64_t elements, char* to, size_t room,
              segment::HistogramForm* form);

  // The same of values that were counted elsewhere: one set of the words of kernels/histogram.h, which are
  // all zero afterwards.
  static size_t pack_counted(void* words, DType type, char* to, size_t room, segment::HistogramForm* form);

 private:
  size_t count(const char* values, DType type, uint64_t elements, char* to, size_t room);

  MmapBuffer counters_;  // all zero between calls
};

// What tensors held before an optimizer step, so that it can be told what the step has changed: of one that
// is larger than its share of the room some pieces, spread evenly over it.

// One caller at a time.
class UpdateSnapshots {
 public:
  static constexpr uint64_t kPiece = uint64_t{16} << 10;  // bytes

  struct Copy {
    uint64_t at = 0, bytes = 0;  // bytes 0: there is none
    uint64_t of = 0;             // bytes of the whole
    DType type = DType::kNone;
    uint64_t round = 0;
  };

  // Set-up; copies are lost. Without memory there will be none.
  void reserve(uint64_t bytes) { memory_.reserve(bytes); }
  uint64_t room() const { return memory_.bytes(); }

  // Copies are not needed any more.
  void forget() {
    used_ = 0;
    ++round_;
  }
  bool holds(const Copy& copy) const { return copy.bytes > 0 && copy.round == round_; }

  // Of `bytes` dense ones at `values` at most `share`, if there is room.
  Copy keep(const void* values, uint64_t bytes, DType type, uint64_t share);
  // The same again in place of a copy that has not been forgotten.
  void renew(const Copy& copy, const void* values);

  // What has changed since, of a copy that is held; `values` have the same size and type. *elements: so many
  // of them were compared.
  Update update(const Copy& copy, const void* values, uint64_t* elements) const;

  // The most that each of some tensors may have, so that all of them fit: `bytes_of(n)`, n < count.
  template <class BytesOf>
  static uint64_t share(uint64_t room, uint64_t count, const BytesOf& bytes_of);

 private:
  static uint64_t piece_at(uint64_t n, uint64_t kept, uint64_t of);  // where its n-th piece lies in a tensor

  MmapBuffer memory_;
  uint64_t used_ = 0, round_ = 1;
};

// What small ones leave is the large ones'. Each round's share is kept and larger than the one before.
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

// One pass over a gradient and its second moment at the end of an optimizer step, for the record of their
// tensor.

// Borrowed. Absent tensors have data NULL; numbers that are not known are NaN, the step -1.
struct OptimizerState {
  foreshock_tensor gradient, second_moment;
  int64_t step;  // of this tensor, the one that has just been taken included
  double learning_rate, beta1, beta2, epsilon, weight_decay;
};

OptimizerState optimizer_of(const foreshock_weight_state& state);

// Fills kOptimizerNumbers of them. What lies on a device, has another format or shapes that differ is not
// known.
void optimizer_numbers(const OptimizerState& state, double* numbers);

// The same with sums that were taken elsewhere; null: not known. Those of a second moment know the gradient.
void tell_optimizer(const OptimizerState& state, const GradientSums* gradient, const AdamSums* moment,
                    double* numbers);

// The dimensions that are there become the last ones: rows are walked along the last.
TensorView view_of(const foreshock_tensor& tensor);
bool is_same_shape(const foreshock_tensor& a, const foreshock_tensor& b);
// False: too little of it is known for anything to be counted.
bool adam_step_of(const OptimizerState& state, AdamStep* step);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHT_MEASURE_H_
