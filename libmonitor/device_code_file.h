// The kernels for devices, from the file that is installed beside the library. Read once, when the first
// tensor on a device has been seen: a process that has none neither opens it nor has room taken for it.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_CODE_FILE_H_
#define FORESHOCK_LIBMONITOR_DEVICE_CODE_FILE_H_

#include <span>

#include "kernels/device_code.h"

namespace foreshock {

inline constexpr const char* kDeviceCodeFile = "libforeshock.fatbin";

// One caller at a time.
class DeviceCodeFile {
 public:
  // Takes the file only if it is the one that was built with this library, which also keeps out one that is
  // cut short or damaged. Into memory of our own: a file that is mapped and then replaced in place, as some
  // installers do, would be a SIGBUS of the trainer. No descriptor stays open. What could not be read is not
  // tried again.
  void read(const char* path, const DeviceCodeSeal& seal);

  bool is_read() const { return code_.data() != nullptr; }

  // Why there is nothing, in a word, or null.
  const char* failure() const { return failure_; }

  // Stays for the life of the process: a driver may load from it later, kernel by kernel.
  std::span<const std::byte> code() const { return code_; }

 private:
  const char* failure_ = nullptr;
  std::span<const std::byte> code_;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_CODE_FILE_H_
