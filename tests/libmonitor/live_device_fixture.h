// The library in a process of its own that has a real device; skipped, saying why, where there is none.
#ifndef FORESHOCK_TESTS_LIBMONITOR_LIVE_DEVICE_FIXTURE_H_
#define FORESHOCK_TESTS_LIBMONITOR_LIVE_DEVICE_FIXTURE_H_

#include <string>
#include <utility>
#include <vector>

#include "tests/libmonitor/monitor_fixture.h"
#include "tests/support/live_device.h"

namespace foreshock {

enum class StreamKind { kLegacy, kOfTheThread, kBlocking, kNonBlocking };

struct NamedStreamKind {
  StreamKind kind;
  const char* name;
};
inline constexpr NamedStreamKind kStreamKinds[] = {{StreamKind::kLegacy, "legacy"},
                                                   {StreamKind::kOfTheThread, "of the thread"},
                                                   {StreamKind::kBlocking, "blocking"},
                                                   {StreamKind::kNonBlocking, "non-blocking"}};

// The handles 1 and 2 are CU_STREAM_LEGACY and CU_STREAM_PER_THREAD of cuda.h.
inline void* stream_of(const LiveDevice& device, StreamKind kind) {
  switch (kind) {
    case StreamKind::kLegacy:
      return reinterpret_cast<void*>(uintptr_t{1});
    case StreamKind::kOfTheThread:
      return reinterpret_cast<void*>(uintptr_t{2});
    case StreamKind::kBlocking:
      return device.new_stream(0);
    case StreamKind::kNonBlocking:
      return device.new_stream(1);
  }
  return nullptr;
}

class LiveDeviceFixture : public MonitorTest {
 protected:
  void SetUp() override {
    MonitorTest::SetUp();
    if (IsSkipped()) return;
    const std::string missing = missing_device();
    if (!missing.empty()) GTEST_SKIP() << "no device: " << missing;
  }

  template <class Body>
  void on_device(std::vector<std::pair<const char*, const char*>> variables, Body body) {
    in_child(std::move(variables), [&] {
      alarm(kLongest);
      LiveDevice device;
      body(device);
    });
  }

  // What the children so far have left.
  void clear() {
    for (const auto& entry : fs::directory_iterator(base_ + "/r")) fs::remove(entry.path());
  }

 private:
  static constexpr unsigned kLongest = 120;  // seconds of a case: what waits for ever is ended
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_LIVE_DEVICE_FIXTURE_H_
