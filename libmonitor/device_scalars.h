// ScalarReadback copies single values of the trainer (losses, norms) from a device to the host without
// waiting. A kernel of one block is launched on the trainer's stream, after the work that computes the
// values. Each value is identified by a running number. The kernel stores the value into a cell in host
// memory, then its number. The host reads only its own memory; a value that never arrives is never found.
// GradientReadback sums the squares of gradients on the device and sends the sums in the same way.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_
#define FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_

#include <cstdint>
#include <span>

#include "foreshock/hook.h"
#include "kernels/device_jobs.h"
#include "libmonitor/cuda_driver.h"

namespace foreshock {

// Whether the tensor has one element of a floating type and is on a CUDA device.
bool is_scalar_on_device(const foreshock_tensor& tensor);

struct ScalarRow {  // consecutive values in device memory
  cuda::Address at;
  uint32_t dtype;  // a floating DType, or kSumOfSquares: the values are the `squares` of GradientSums
  size_t count;
};

// Sends values from one device and finds them on the host. Thread-compatible; any thread may call find().
class ScalarReadback {
 public:
  // Sets up in the current context, in which `module` was loaded. Maps memory, so it must be called between
  // steps. Values that were sent in an earlier context and have not arrived never arrive.
  void set_up(const DriverApi& driver, cuda::Module module);
  void disable() { is_usable_ = false; }
  bool is_usable() const { return is_usable_; }

  // Launches a kernel for these values on `stream`, which must not be capturing. All must be on the device of
  // the current context. Returns the number of the first value; those of the others follow. 0: none is sent.
  uint64_t send(const foreshock_tensor* values, size_t count, cuda::Stream stream);
  uint64_t send(std::span<const ScalarRow> rows, cuda::Stream stream);

  bool has_room(size_t count) const;  // whether `count` more values can be sent now

  // Reads the value with this number. Returns false if it has not arrived or its cell was reused.
  bool find(uint64_t number, double* value) const;
  // Whether the value has arrived, even if its cell was reused since.
  bool has_arrived(uint64_t number) const;

 private:
  struct Source {
    uint64_t from;
    uint32_t dtype;
  };
  template <class Sources>
  uint64_t send_all(size_t count, cuda::Stream stream, const Sources& source);
  bool is_free(uint64_t number) const;

  const DriverApi* driver_ = nullptr;
  ScalarCell* cells_ = nullptr;
  cuda::Address address_ = 0;  // device address of the cells
  cuda::Function kernel_ = nullptr;
  bool is_usable_ = false;
  uint64_t next_ = 1;   // number of the next value to be sent
  uint64_t first_ = 1;  // first number sent in the present context
};

struct SentGradients {  // numbers under which ScalarReadback finds the values of a step's gradients
  // Numbers of two values that are times: begin of the first kernel, end of the last one. Each is a uint64_t
  // of ns whose bits are sent as those of a double.
  uint64_t begin, end;
  uint64_t first, stride;  // number of the first gradient's sum of squares, and distance to the next number
};

// Whether the kernels can read the gradient: it must be contiguous and on a CUDA device.
bool is_gradient_on_device(const foreshock_gradient& gradient);

// Sums the squares of a step's gradients on their device, in one context. The kernels run on the trainer's
// own stream, since the memory of the gradients may be reused after the step. set_up() must be called between
// steps, because it may wait for the device. No memory is freed, because freeing may wait too and the context
// may no longer exist. set_up() and send() must be called in the same context. Thread-compatible.
class GradientReadback : public PerContext {
 public:
  static constexpr uint64_t kMostTensors = 4096;  // gradients of a step; with more, none is summed
  // Chunks that one kernel can sum, so the largest tensor has 2^31 elements: a chunk has 2^16.
  static constexpr uint64_t kMostChunks = 32768;
  static constexpr uint64_t kShareOfFree = 32;  // takes at most 1/32 of the device's free memory
  static constexpr size_t kTimes = 2;           // times (begin and end) that are sent before the sums

  void forget() { *this = {}; }
  void set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id);
  static bool is_ready() { return true; }  // set_up() queues no work that send() would have to await

  // Sums the squares of all gradients that have values, and sends the sums with `scalars`.
  // is_gradient_on_device() must be true for these gradients. Returns -1, or the FORESHOCK_SKIP_ reason.
  int send(const foreshock_gradient* gradients, size_t count, cuda::Stream stream, ScalarReadback* scalars,
           SentGradients* sent);

 private:
  int try_set_up(std::span<const std::byte> code);
  bool sum_all(const foreshock_gradient* gradients, size_t count, cuda::Stream stream);
  bool store_time(cuda::Address times, cuda::Stream stream);

  const DriverApi* driver_ = nullptr;
  DeviceLimits limits_ = {};
  cuda::Function sums_ = nullptr, clock_ = nullptr;  // clock_: the gather kernel, which also stores times
  cuda::Address memory_ = 0;
  cuda::Stream last_stream_ = nullptr;  // of the last send(), whose work must end before others use memory_
  uint64_t last_number_ = 0;            // the last number sent in last_stream_; 0: none yet
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_
