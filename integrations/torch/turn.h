// What the hooks keep is used by one thread at a time, and none waits for another.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_TURN_H_
#define FORESHOCK_INTEGRATIONS_TORCH_TURN_H_

#include <atomic>

namespace foreshock::adapter {

// Who finds `busy` set has no turn, and goes without.
class Turn {
 public:
  explicit Turn(std::atomic_flag& busy) noexcept
      : is_mine(!busy.test_and_set(std::memory_order_acquire)), busy_(busy) {}
  ~Turn() {
    if (is_mine) busy_.clear(std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  const bool is_mine;

 private:
  std::atomic_flag& busy_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_TURN_H_
