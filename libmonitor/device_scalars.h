// Copies numbers of the trainer from a device to the host without waiting. A kernel of one block, launched on
// the trainer's stream behind the work that computes them, stores each number into a cell in host memory and
// the cell's number after it. The host reads only its own memory; a number that never comes is just never
// found.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_
#define FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_

#include <bit>
#include <cstdint>
#include <span>

#include "foreshock/hook.h"
#include "kernels/device_jobs.h"
#include "libmonitor/cuda_driver.h"

namespace foreshock {

// Whether the tensor has one element of a floating type and is on a CUDA device.
bool is_scalar_on_device(const foreshock_tensor& tensor);

// Consecutive numbers on a device.
struct ScalarRow {
  cuda::Address at;
  uint32_t dtype;  // as in ScalarsJob
  size_t count;
};

// Sends numbers from one device and finds them on the host. Thread-compatible; find() may be called by any
// thread.
class ScalarReadback {
 public:
  // Sets up in the current context, in which `module` was loaded. Maps memory: call it between steps. Numbers
  // sent before in another context never come.
  void set_up(const DriverApi& driver, cuda::Module module);
  void lose() { is_usable_ = false; }
  bool is_usable() const { return is_usable_; }

  // Launches a kernel for these values on `stream`, which must not be capturing. All values must be on the
  // device of the current context. Returns the number of the first value (the others follow), or 0 if none
  // will come.
  uint64_t send(const foreshock_tensor* values, size_t count, cuda::Stream stream);
  uint64_t send(std::span<const ScalarRow> rows, cuda::Stream stream);

  // Whether `count` more values can be sent now.
  bool has_room(size_t count) const;

  // Reads the value with this number; false if it has not come, or if its cell was reused for a later one.
  // Any thread.
  bool find(uint64_t number, double* value) const;
  // Whether the value has come, even if its cell was reused.
  bool has_come(uint64_t number) const;

 private:
  struct Source {
    uint64_t from;
    uint32_t dtype;
  };
  template <class Sources>
  uint64_t send_all(size_t count, cuda::Stream stream, const Sources& source);
  bool is_free(uint64_t number) const;
  bool launch(ScalarsJob* job, cuda::Stream stream);

  const DriverApi* driver_ = nullptr;
  ScalarCell* cells_ = nullptr;
  cuda::Address address_ = 0;  // device address of the cells
  cuda::Function kernel_ = nullptr;
  bool is_usable_ = false;
  uint64_t next_ = 1;
  uint64_t first_ = 1;  // first number of the present context
};

// Numbers of ScalarReadback that belong to a step's gradients.
struct SentGradients {
  // Times when the first kernel began and when the last one ended: the device's ns, as the bits of a double.
  uint64_t begin, end;
  uint64_t first, stride;  // squares of the first gradient with values, and distance to the next one
};

// Whether the kernels can read the gradient: it must be in one block, on a CUDA device.
bool is_gradient_on_device(const foreshock_gradient& gradient);

// Sums the squares of a step's gradients on their device, in one context. The kernels run on the trainer's
// own stream, since the memory of the gradients may be reused after the step. Set up once, between steps,
// because set-up may wait for the device. Nothing is freed, because that may wait too and the context may no
// longer exist. set_up() and send() must be called in that context. Thread-compatible.
class GradientReadback : public PerContext {
 public:
  static constexpr uint64_t kMostTensors = 4096;
  static constexpr uint64_t kMostChunks = 32768;  // per tensor: 2^31 elements
  static constexpr uint64_t kShareOfFree = 32;    // it takes at most 1/32 of the free memory
  // Two times, begin and end, precede the sums of the gradients.
  static constexpr size_t kTimes = 2;

  void forget() { *this = {}; }
  void set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id);
  static bool is_ready() { return true; }

  // Sums the squares of all gradients that have values, and sends the sums by `scalars`.
  // is_gradient_on_device() must hold for these gradients. Returns -1, or the FORESHOCK_SKIP_ reason why
  // nothing will come.
  int send(const foreshock_gradient* gradients, size_t count, cuda::Stream stream, ScalarReadback* scalars,
           SentGradients* sent);

 private:
  int try_set_up(std::span<const std::byte> code);
  bool sum_all(const foreshock_gradient* gradients, size_t count, cuda::Stream stream);
  bool look_at_clock(cuda::Address times, cuda::Stream stream);
  bool launch(cuda::Function kernel, const LaunchShape& shape, void* job, cuda::Stream stream);

  const DriverApi* driver_ = nullptr;
  DeviceLimits limits_ = {};
  cuda::Function sums_ = nullptr, clock_ = nullptr;
  cuda::Address memory_ = 0;
  cuda::Stream last_stream_ = nullptr;
  uint64_t last_ = 0;  // the last number sent; 0: none yet
};

// Estimates the time that reading a step's gradients takes on the trainer's stream. The estimate is charged
// before the gradients are read; when the device's times have come, a shortfall is charged and an excess is
// deducted from later charges. Plain arithmetic, fixed state. Thread-compatible.
class GradientCost {
 public:
  // Returns the charge, in ns, for reading `bytes` bytes and launching `kernels` further kernels.
  uint64_t ask(uint64_t bytes, uint64_t kernels);
  // The charge for a repetition of the last ask(), in seconds.
  double seconds() const { return static_cast<double>(due_ns()) * 1e-9; }

  // The kernels were launched. Returns the charge in ns.
  uint64_t sent(const SentGradients& at);

  // Reads times that have come, by find(number, &value). take_owed() then returns the shortfall in ns.
  void look(const auto& find) {
    if (next_ == 0) return;
    for (Sent& one : sent_) {
      double begin = 0, end = 0;
      if (one.bytes == 0 || !find(one.at.begin, &begin) || !find(one.at.end, &end)) continue;
      measured(one, std::bit_cast<uint64_t>(begin), std::bit_cast<uint64_t>(end));
      one.bytes = 0;
    }
  }

  uint64_t take_owed();

 private:
  struct Sent {
    SentGradients at;
    uint64_t bytes;      // 0: already measured
    double expected_ns;  // estimate for `bytes`, without the further kernels
  };
  uint64_t due_ns() const;
  void measured(const Sent& one, uint64_t begin_ns, uint64_t end_ns);

  // Memory of training devices reads at least 200 bytes per ns, and an empty kernel takes 2 to 3 us from
  // launch to launch.
  static constexpr double kFirstNsPerByte = 1.0 / 200;
  static constexpr double kKernelNs = 4000;
  // Most steps on their way. The times of a step that come after those of so many later steps are ignored.
  static constexpr uint32_t kMost = 8;

  double ns_per_byte_ = kFirstNsPerByte;
  bool is_measured_ = false;
  double owed_ns_ = 0;  // negative: too much was charged
  uint64_t bytes_ = 0, kernels_ = 0;
  Sent sent_[kMost] = {};
  uint32_t next_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_
