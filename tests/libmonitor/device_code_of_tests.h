// A small file in place of the kernels for devices, the same where there is no nvcc: the fake driver goes by
// the names of kernels.
#ifndef FORESHOCK_TESTS_LIBMONITOR_DEVICE_CODE_OF_TESTS_H_
#define FORESHOCK_TESTS_LIBMONITOR_DEVICE_CODE_OF_TESTS_H_

#include <string>

#include "kernels/device_code.h"

namespace foreshock {

// What belongs into the file: a container as the driver knows it, with nothing of use in it.
const std::string& code_of_tests();

// Where what is tested looks for it; it lies there from the start.
const std::string& path_of_code();
void write_code(const std::string& code);

// What it is sealed with from now on.
void set_seal(const DeviceCodeSeal& seal);

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_DEVICE_CODE_OF_TESTS_H_
