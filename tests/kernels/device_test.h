// Launches kernels on a device and beside it their bodies on the emulated one, and expects the same bits.
// Skips a test, saying why, where there is no device. What the emulated bodies compute is judged by
// device_bodies_test.
#ifndef FORESHOCK_TESTS_KERNELS_DEVICE_TEST_H_
#define FORESHOCK_TESTS_KERNELS_DEVICE_TEST_H_

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "tests/support/emulated_device.h"
#ifdef FORESHOCK_PTX_DEVICE
#include "tests/support/ptx/ptx_device.h"
#else
#include "bench/gpu/cuda_device.h"
#endif

namespace foreshock {

#ifdef FORESHOCK_PTX_DEVICE
using TestedDevice = PtxDevice;
#else
using TestedDevice = CudaDevice;
#endif
using Bytes = std::vector<char>;

// What a kernel reads and writes. On the device every buffer begins at an address that is aligned to 256.
struct Buffers {
  std::vector<Bytes> bytes;

  size_t add(Bytes of) {
    bytes.push_back(std::move(of));
    return bytes.size() - 1;
  }
  size_t zeros(size_t count) { return add(Bytes(count)); }
};

class Device : public testing::Test {
 protected:
  void SetUp() override {
    if (!device().missing().empty()) GTEST_SKIP() << "no device: " << device().missing();
    RecordProperty("device", device().name());
  }
  static TestedDevice& device() { return TestedDevice::get(); }

  using Addresses = std::vector<uint64_t>;

  // Launches job_at(addresses of the buffers) twice, on both sides, and expects the same bytes in all buffers
  // but `apart`. Twice, because some of them are added to and counters have to be left as they were.
  template <class Job>
  void expect_same(DeviceKernel kernel, const LaunchShape& shape, const Buffers& buffers,
                   const std::function<Job(const Addresses&)>& job_at, size_t apart = SIZE_MAX) {
    std::vector<std::vector<Aligned>> emulated;
    Addresses on_host, on_device;
    for (const Bytes& bytes : buffers.bytes) {
      emulated.emplace_back(bytes.size() / sizeof(Aligned) + 1);
      std::memcpy(emulated.back().data(), bytes.data(), bytes.size());
      on_host.push_back(reinterpret_cast<uint64_t>(emulated.back().data()));
      on_device.push_back(device().allocate(bytes.size() + 1));
      device().write(on_device.back(), bytes.data(), bytes.size());
    }
    const Job host_job = job_at(on_host), device_job = job_at(on_device);
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(run_emulated(name_of(kernel), shape, &host_job));
      device().launch(kernel, shape, &device_job);
    }
    for (size_t n = 0; n < buffers.bytes.size(); ++n) {
      results_.emplace_back(buffers.bytes[n].size());
      device().read(results_.back().data(), on_device[n], results_.back().size());
      device().release(on_device[n]);
      if (n == apart) continue;
      EXPECT_EQ(std::memcmp(results_.back().data(), emulated[n].data(), results_.back().size()), 0)
          << "buffer " << n << " on " << device().name();
    }
  }

  template <class T>
  T result(size_t buffer, size_t n) const {
    T value;
    std::memcpy(&value, results_[buffer].data() + n * sizeof value, sizeof value);
    return value;
  }

 private:
  struct alignas(256) Aligned {
    char bytes[256];
  };
  std::vector<Bytes> results_;
};

inline Bytes noise(size_t bytes) {
  std::mt19937_64 random(bytes);
  Bytes out(bytes);
  for (char& byte : out) byte = static_cast<char>(random());
  return out;
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_KERNELS_DEVICE_TEST_H_
