// Measures a weight tensor for its record in the segment: packs its values or their counts (a histogram),
// measures the change that an optimizer step made, and sums the optimizer's state. For a tensor on a device,
// plans the kernels, launches them, and collects their results without waiting.
#ifndef FORESHOCK_LIBMONITOR_WEIGHT_MEASURE_H_
#define FORESHOCK_LIBMONITOR_WEIGHT_MEASURE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "foreshock/hook.h"
#include "kernels/device_code.h"
#include "kernels/device_jobs.h"
#include "kernels/dtype.h"
#include "kernels/histogram.h"
#include "kernels/sums.h"
#include "libmonitor/base.h"
#include "libmonitor/cuda_driver.h"
#include "segment/layout.h"

namespace foreshock {

// Packs the values of a small tensor, or the counts of the values of a large one: by bit pattern for 16-bit
// formats, by bin for fp32 (kernels/histogram.h). One caller at a time.
class HistogramPacker {
 public:
  static constexpr uint64_t kSmallBytes = 16 << 10;  // largest tensor whose values are packed themselves

  bool reserve();  // for set-up; false: no memory for the counters

  // Packs dense values of fp32, bf16 or fp16; *form says whether as values or as counts. Returns the bytes
  // written; kPackFailed: `room` is too small.
  size_t pack(const void* values, DType type, uint64_t elements, char* to, size_t room,
              segment::HistogramForm* form);

  // Packs the counts of values that a device has counted. `words`: one set of counters, as
  // kernels/histogram.h lays them out; the call zeroes them.
  static size_t pack_counted(void* words, DType type, char* to, size_t room, segment::HistogramForm* form);

 private:
  size_t count_and_pack(const char* values, DType type, uint64_t elements, char* to, size_t room);

  MmapBuffer counters_;  // all zero between calls
};

// Stores copies of tensors before an optimizer step, to measure the change that the step makes. If a tensor
// is larger than its share of the memory, only some pieces are stored, evenly spread over the tensor. One
// caller at a time. The caller keeps a Copy for each tensor.
class CopiesBeforeStep {
 public:
  static constexpr uint64_t kPiece = uint64_t{16} << 10;  // bytes

  struct Copy {
    uint64_t offset = 0, bytes = 0;  // the copy's offset in memory_ and its size; 0 bytes: no copy
    uint64_t whole_bytes = 0;        // size of the whole tensor
    DType type = DType::kNone;
    uint64_t round = 0;  // round_ when the copy was made; forget() begins the next round
  };

  // For set-up. Call forget() afterwards. If no memory could be mapped, no copies will be stored.
  void reserve(uint64_t bytes) { memory_.reserve(bytes); }
  uint64_t room() const { return memory_.bytes(); }  // the memory for all copies, including the used part

  void forget() {  // drops all copies
    used_ = 0;
    ++round_;
  }
  // Whether the copy has not been dropped.
  bool holds(const Copy& copy) const { return copy.bytes > 0 && copy.round == round_; }

  // Copies at most `share` bytes of the `bytes` dense bytes at `values`, fewer if the memory is used up.
  Copy keep(const void* values, uint64_t bytes, DType type, uint64_t share);
  void overwrite(const Copy& copy, const void* values);  // stores new values in a held copy

  // Returns the change since the copy was made. holds(copy) must be true, and `values` must have the same
  // size and type. Sets *elements to the number of elements compared.
  Update update_since(const Copy& copy, const void* values, uint64_t* elements) const;

  // Returns a limit of bytes per tensor, near the largest with which the copies of `count` tensors fit into
  // `room` bytes. Tensor n has bytes_of(n) bytes, of which at most the limit is copied.
  template <class BytesOf>
  static uint64_t share_per_tensor(uint64_t room, uint64_t count, const BytesOf& bytes_of);

 private:
  static uint64_t piece_offset(uint64_t n, uint64_t kept, uint64_t bytes);

  MmapBuffer memory_;
  uint64_t used_ = 0, round_ = 1;
};

// Begins with equal shares. Small tensors (of at most `share` bytes) do not use all of theirs; each pass
// divides the rest among the large ones. All copies fit with the share of any pass, and the share never
// becomes smaller.
template <class BytesOf>
uint64_t CopiesBeforeStep::share_per_tensor(uint64_t room, uint64_t count, const BytesOf& bytes_of) {
  constexpr int kPasses = 8;  // limits the time; the share may then be below the largest
  uint64_t share = count > 0 ? room / count : room;
  for (int pass = 0; pass < kPasses; ++pass) {
    uint64_t small = 0, large = 0;  // bytes of all small tensors, number of large tensors
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

// Keeps the bits of a few elements of a tensor, spread evenly over it, from one snapshot to the next. A type
// without a constructor: all zero is empty.
struct ElementSample {
  static constexpr uint64_t kMost = 32;

  // Compares the elements with the kept ones, and keeps them instead. Sets *compared to the number of kept
  // elements (0 the first time, or if type or size have changed) and *unmoved to those with the same bits.
  void renew(const void* values, DType type, uint64_t elements, uint64_t* compared, uint64_t* unmoved);

  uint64_t elements;  // of the tensor; 0: nothing is kept
  DType type;
  uint32_t bits[kMost];
};

// An optimizer's state for one weight; does not own the data. `data` NULL: absent. NaN, and step -1: unknown.
struct OptimizerState {
  foreshock_tensor gradient, second_moment;
  int64_t step;  // steps of this tensor, including the one just taken
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  uint32_t gradient_state = FORESHOCK_GRADIENT_UNKNOWN;
};

OptimizerState optimizer_of(const foreshock_weight_state& state);

// Fills `numbers`, an array indexed by segment::OptimizerNumber, from gradient and second moment on the host.
// NaN: unknown, since a tensor is on a device or in another format, or the second moment has another shape.
void optimizer_numbers(const OptimizerState& state, double* numbers);

// Fills `numbers` from sums that the caller has. A null pointer means that these sums are unknown. If
// `moment` is not null, `gradient` is not read, since `moment` includes its sums.
void write_optimizer_numbers(const OptimizerState& state, const GradientSums* gradient,
                             const AdamSums* moment, double* numbers);

// Returns a view with four dimensions: dimensions of length 1, then those of the tensor.
TensorView view_of(const foreshock_tensor& tensor);
bool is_same_shape(const foreshock_tensor& a, const foreshock_tensor& b);
// Gets the parameters of the Adam step. Returns false if step count, beta2 or epsilon is unknown or invalid.
bool adam_step_of(const OptimizerState& state, AdamStep* step);

// Results of one measurement (WeightWork), at the beginning of its device memory. Zero before the launch.
struct WeightResults {
  // Begin and end of the first kernel and of the last one, in ns of the device's clock.
  uint64_t first[2], last[2];
  GatherClock clock;           // scratch memory of the kernels that read the device's clock
  uint32_t arrived, reserved;  // arrived: scratch memory of the kernels that sum
  uint64_t checksum;           // only if the values are counted
  GradientSums values;         // only if the values are counted
  GradientSums gradient;       // not with `moment`, which includes these sums
  AdamSums moment;
};
static_assert(sizeof(WeightResults) == 184);  // no padding, and at most WeightWork::kPayload

// The measurement of one tensor on a device. Its device memory holds WeightResults, then the payload at
// offset kPayload (the values themselves or their counts), then scratch memory.
struct WeightWork {
  static constexpr uint64_t kAlign = 256;  // in bytes, of payload and scratch memory; that of StagingRing
  static constexpr uint64_t kPayload = kAlign;

  uint64_t from;   // address of the dense values
  uint64_t count;  // number of values
  DType type;
  bool is_counted;  // true: the payload is counters as in kernels/histogram.h; false: the values themselves
  bool has_gradient, has_moment;  // whether `gradient` is set, whether `adam` is set; at most one of them is
  GradientTensor gradient;
  AdamTensor adam;
  uint64_t payload_bytes;
  uint64_t bytes;  // size of the work's memory

  uint64_t result_bytes() const { return kPayload + payload_bytes; }
};

// Plans the work for `elements` dense values of fp32, bf16 or fp16 on a device. Returns false if the counters
// cannot count so many values. The work includes sums over the optimizer's tensors if that device can read
// them.
bool plan_weight(const foreshock_tensor& values, uint64_t elements, const OptimizerState& optimizer,
                 WeightWork* work);

// The functions below return the kernel jobs of a work whose device memory begins at address `at`.

// Copies the values to the payload, and stores the times of this copy in WeightResults::first.
GatherJob copy_of_values(const WeightWork& work, uint64_t at);
// Copies nothing, but stores begin and end of its own kernel in the uint64_t[2] at address `times`. `clock`:
// address of a GatherClock.
GatherJob clock_job(uint64_t times, uint64_t clock);
// Sums the squares of the values (if they are counted) and of the gradient (if has_gradient).
GradientSumsJob sums_of_values_and_gradient(const WeightWork& work, uint64_t at);
AdamSumsJob sums_of_moment(const WeightWork& work, uint64_t at);

// Calls launch(kernel, shape, &job) for every job of the work, in order. Returns false at the first launch
// that returns false. Values that the device only copies are counted and summed by the host, from the copy.
template <class Launch>
bool launch_all(const WeightWork& work, uint64_t at, const DeviceLimits& limits, const Launch& launch) {
  const uint64_t clock = at + offsetof(WeightResults, clock);
  const auto gather = [&](GatherJob job) { return launch(DeviceKernel::kGather, launch_of(job), &job); };
  if (work.is_counted) {
    if (!gather(clock_job(at + offsetof(WeightResults, first), clock))) return false;
    HistogramJob histogram = {work.from, work.count, at + WeightWork::kPayload};
    const bool is_fp32 = work.type == DType::kFp32;
    if (!launch(is_fp32 ? DeviceKernel::kCountBins : DeviceKernel::kCountPatterns,
                is_fp32 ? launch_of_bins(histogram, limits) : launch_of_patterns(histogram, limits),
                &histogram))
      return false;
    ChecksumJob checksum = {work.from, work.count * size_of(work.type),
                            at + offsetof(WeightResults, checksum)};
    if (!launch(DeviceKernel::kChecksum, launch_of(checksum, limits), &checksum)) return false;
  } else if (!gather(copy_of_values(work, at))) {
    return false;
  }
  GradientSumsJob sums = sums_of_values_and_gradient(work, at);
  if (sums.tensors > 0 && !launch(DeviceKernel::kGradientSums, launch_of(sums, limits), &sums)) return false;
  if (work.has_moment) {
    AdamSumsJob moment = sums_of_moment(work, at);
    if (!launch(DeviceKernel::kAdamSums, launch_of(moment, limits), &moment)) return false;
  }
  return gather(clock_job(at + offsetof(WeightResults, last), clock));
}

// Identifies work that was sent to a device, and the location of its results.
struct SentWork {
  uint64_t context_id;
  uint64_t ticket;  // number of the work, from 1
  uint64_t offset;  // of the work's memory in the device memory, and of its results in the copy on the host
  uint32_t place;   // index of the word in host memory that holds the ticket once the results have arrived
};

// Sends measurements of weights to one device in one CUDA context, and receives their results. Has memory on
// the device, the same amount of memory on the host, and a stream. set_up() must be called between steps,
// because it may wait for the device. Nothing is freed, because freeing may wait too and the context may no
// longer exist. set_up() and send() must be called in the context `context_id`. Thread-compatible.
class WeightStaging : public PerContext {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;  // room for an fp32 histogram and small tensors
  static constexpr uint64_t kLeastBytes = uint64_t{1} << 20;  // with less memory, the set-up fails
  static constexpr uint64_t kShareOfFree = 32;                // takes at most 1/32 of the free device memory

  void forget() { *this = {}; }
  void set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id);
  bool is_ready();  // whether the device has finished the set-up
  bool can_fit(const WeightWork& work) const { return work.bytes <= ring_.bytes(); }

  // Launches the work on the trainer's `stream`, and copies the results to the host on this object's own
  // stream. Returns -1, or the FORESHOCK_SKIP_ reason why no results will arrive.
  int send(const WeightWork& work, cuda::Stream stream, SentWork* sent);

  // Returns the results: WeightResults, and the payload at WeightWork::kPayload, which the caller may
  // overwrite. Null if they have not arrived. Reads only host memory.
  char* results(const SentWork& sent) const;
  // Whether the results may still arrive: false if the device was set up again, in another context.
  bool is_awaited(const SentWork& sent) const { return sent.context_id == context_id(); }
  void release(const SentWork& sent);  // frees the memory of the results for other work

 private:
  int try_set_up(std::span<const std::byte> code);
  bool load_kernels(std::span<const std::byte> code);
  bool queue_copy(const WeightWork& work, const SentWork& sent);
  uint64_t* word(uint32_t n) const { return reinterpret_cast<uint64_t*>(host_.data()) + n; }
  cuda::Address word_on_device(uint32_t n) const { return words_ + n * sizeof(uint64_t); }

  const DriverApi* driver_ = nullptr;
  DeviceLimits limits_ = {};
  cuda::Function function_[kDeviceKernels] = {};
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  MmapBuffer host_;                       // pinned: words, then a copy of memory_
  cuda::Address words_ = 0, memory_ = 0;  // device addresses of the words in host_, and of the device memory
  uint64_t ticket_ = 0;                   // of the last work
  StagingRing ring_;                      // allocates memory_
  uint64_t released_[StagingRing::kMostSlices] = {};  // by place: ticket of the last released work
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHT_MEASURE_H_
