// Numbers of the trainer's on their way from a device: a kernel of one block, behind the work that makes them
// on the trainer's own stream, stores each into a cell of the host's memory, and the cell's number after it.
// The host looks at its own memory and asks the device nothing; a number that never comes is never there.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_
#define FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_

#include <bit>
#include <cstdint>
#include <span>

#include "foreshock/hook.h"
#include "kernels/device_jobs.h"
#include "libmonitor/cuda_driver.h"

namespace foreshock {

// Whether it is one number, of a floating type, that lies on a CUDA device.
bool is_scalar_on_device(const foreshock_tensor& tensor);

// Numbers on a device that lie one behind the other.
struct ScalarRow {
  cuda::Address at;
  uint32_t dtype;  // as in ScalarsJob
  size_t count;
};

// Thread-compatible but for find().
class ScalarReadback {
 public:
  // In the context that is current, where `module` was loaded. Between steps: maps memory. What was sent
  // before in another context never comes.
  void set_up(const DriverApi& driver, cuda::Module module);
  void lose() { is_usable_ = false; }
  bool is_usable() const { return is_usable_; }

  // Gives the stream a kernel for them, which must not be capturing; all on the device of the context that is
  // current. Returns the number of the first one (the others follow), or 0: none of them will come.
  uint64_t send(const foreshock_tensor* values, size_t count, cuda::Stream stream);
  uint64_t send(std::span<const ScalarRow> rows, cuda::Stream stream);

  // Whether so many more would be sent now.
  bool has_room(size_t count) const;

  // Whether it has come. Any thread. Not after so many others that its cell was given to one of them.
  bool find(uint64_t number, double* value) const;
  // The same, however long ago.
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
  cuda::Address address_ = 0;  // of the cells, as the device sees them
  cuda::Function kernel_ = nullptr;
  bool is_usable_ = false;
  uint64_t next_ = 1;
  uint64_t first_ = 1;  // of this context, whose cells no other has
};

// The squares of a step's gradients, summed on the device that they lie on, in one context: by kernels on the
// trainer's own stream, since once the step is over their memory may be somebody else's. Set up once, which
// may wait for the device and so is done between steps; nothing of it is given back, since that waits too,
// and the context may be gone by then.

// Numbers of ScalarReadback; `stride` from one to the next.
struct SentGradients {
  uint64_t begin,
      end;  // when the first kernel began and the last one ended: the device's ns, as a double's bits
  uint64_t first, stride;  // the squares of the first gradient that has values
};

// Whether its values lie as the kernels read them: in one block, on a CUDA device.
bool is_gradient_on_device(const foreshock_gradient& gradient);

// Thread-compatible. set_up() and send() are called in the context that they are about.
class GradientReadback : public PerContext {
 public:
  static constexpr uint64_t kMostTensors = 4096;
  static constexpr uint64_t kMostChunks = 32768;  // of one tensor: 2^31 elements
  static constexpr uint64_t kShareOfFree = 32;    // of the free memory it takes so little at most
  // Before the sums of gradients their own number: when it began and when it ended.
  static constexpr size_t kTimes = 2;

  void forget() { *this = {}; }
  void set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id);
  static bool is_ready() { return true; }

  // Sums the squares of all that have values, which is_gradient_on_device() holds for, and has `scalars`
  // bring them. Returns -1, or why nothing will come.
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
  uint64_t last_ = 0;  // the last number that was sent; 0: none yet
};

// What it costs the trainer's stream that a step's gradients are read: foretold and charged before they are,
// measured when the device's clock has been brought. What the first was short of is charged then, what it was
// too much is taken off the next ones. Plain arithmetic, fixed state.

// Thread-compatible.
class GradientCost {
 public:
  // So many bytes are wanted to be read, and so many kernels launched beside those that read. Returns what is
  // to be charged for that, ns.
  uint64_t ask(uint64_t bytes, uint64_t kernels);
  // The same of what was asked for last: it will be wanted again.
  double seconds() const { return static_cast<double>(due_ns()) * 1e-9; }

  // They were given to the stream. Returns what is charged for it, ns.
  uint64_t sent(const SentGradients& at);

  // Looks for times that have come: find(number, &value). take_owed() is what was not charged of them, ns.
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
    uint64_t bytes;      // 0: it is settled
    double expected_ns;  // of them, without the kernels beside
  };
  uint64_t due_ns() const;
  void measured(const Sent& one, uint64_t begin_ns, uint64_t end_ns);

  // The memory of no device that trains is slower than 200 bytes a ns, and an empty kernel takes 2 to 3 us
  // from launch to launch.
  static constexpr double kFirstNsPerByte = 1.0 / 200;
  static constexpr double kKernelNs = 4000;
  static constexpr uint32_t kMost =
      8;  // on their way; what comes after so many others was charged as foretold

  double ns_per_byte_ = kFirstNsPerByte;
  bool is_measured_ = false;
  double owed_ns_ = 0;  // negative: too much was charged
  uint64_t bytes_ = 0, kernels_ = 0;
  Sent sent_[kMost] = {};
  uint32_t next_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_
