// What it costs the trainer's stream that a step's gradients are read: foretold and charged before they are,
// measured when the device's clock has been brought. What the first was short of is charged then, what it was
// too much is taken off the next ones. Plain arithmetic, fixed state.
#ifndef FORESHOCK_LIBMONITOR_GRADIENT_COST_H_
#define FORESHOCK_LIBMONITOR_GRADIENT_COST_H_

#include <bit>
#include <cstdint>

#include "libmonitor/device_gradients.h"

namespace foreshock {

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

#endif  // FORESHOCK_LIBMONITOR_GRADIENT_COST_H_
