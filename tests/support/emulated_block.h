// The Block of kernels/block.h on the host: the threads of a block run one after the other, in some order, or
// shared out to several threads, for a race detector. What a device would not forgive ends the program.
#ifndef FORESHOCK_TESTS_SUPPORT_EMULATED_BLOCK_H_
#define FORESHOCK_TESTS_SUPPORT_EMULATED_BLOCK_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "kernels/block.h"
#include "tests/support/emulated_device.h"

namespace foreshock {

class EmulatedBlock {
 public:
  static constexpr uint32_t kMostThreads = kMostThreadsOfABlock;

  template <class T>
  class PerThread {
   public:
    T& operator[](uint32_t thread) { return value_[thread]; }

   private:
    std::array<T, kMostThreads> value_;
  };

  EmulatedBlock(uint32_t index, const LaunchShape& shape, const Emulation& how)
      : index_(index),
        shape_(shape),
        how_(how),
        shared_((shape.shared_bytes + sizeof(Bytes16) - 1) / sizeof(Bytes16)),
        order_(shape.threads) {
    for (Bytes16& bytes : shared_) std::memset(&bytes, 0xa5, sizeof bytes);  // as found: not zero
    std::iota(order_.begin(), order_.end(), 0u);
    if (how.order != 0) std::shuffle(order_.begin(), order_.end(), std::mt19937_64(how.order + index));
  }

  uint32_t index() const { return index_; }
  uint32_t blocks() const { return shape_.blocks; }
  uint32_t threads() const { return shape_.threads; }
  uint32_t shared_bytes() const { return shape_.shared_bytes; }

  template <class F>
  void each(const F& f) {
    const auto work = [&](uint32_t worker) {
      for (uint32_t n = worker; n < shape_.threads; n += how_.workers) f(order_[n]);
    };
    std::vector<std::jthread> others;
    for (uint32_t worker = 1; worker < how_.workers; ++worker) others.emplace_back(work, worker);
    work(0);
  }

  template <class T>
  T* shared(uint32_t bytes, uint32_t count = 1) {
    if (bytes % alignof(T) != 0 || bytes + count * sizeof(T) > shape_.shared_bytes)
      fault("shared memory", bytes);
    return reinterpret_cast<T*>(reinterpret_cast<char*>(shared_.data()) + bytes);
  }

  template <class T>
  T load(uint64_t address) const {
    check<T>(address);
    T value;
    std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
  }
  template <class T>
  void store(uint64_t address, const T& value) {
    check<T>(address);
    std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
  }
  void publish(uint64_t address, uint64_t value) {
    check<uint64_t>(address);
    std::atomic_ref(*reinterpret_cast<uint64_t*>(address)).store(value, std::memory_order_release);
  }
  template <class T>
  T fresh(const T* at) const {
    return *at;
  }

  template <class T>
  T add(T* to, T value) {
    return std::atomic_ref(*to).fetch_add(value, std::memory_order_relaxed);
  }
  uint64_t max(uint64_t* to, uint64_t value) {
    std::atomic_ref word(*to);
    uint64_t old = word.load(std::memory_order_relaxed);
    while (old < value && !word.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
    }
    return old;
  }
  bool last(uint32_t* counter, uint32_t of) {
    std::atomic_ref word(*counter);
    const bool is_last = word.fetch_add(1, std::memory_order_acq_rel) + 1 == of;
    if (is_last) word.store(0, std::memory_order_relaxed);
    return is_last;
  }

  uint64_t now() const {
    if (how_.now) return how_.now();
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

 private:
  [[noreturn]] static void fault(const char* what, uint64_t at) {
    std::fprintf(stderr, "emulated device: %s out of bounds or not aligned at %#llx\n", what,
                 static_cast<unsigned long long>(at));
    std::abort();
  }
  template <class T>
  static void check(uint64_t address) {
    if (address % alignof(T) != 0) fault("address", address);
  }

  uint32_t index_;
  LaunchShape shape_;
  Emulation how_;
  std::vector<Bytes16> shared_;
  std::vector<uint32_t> order_;
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SUPPORT_EMULATED_BLOCK_H_
