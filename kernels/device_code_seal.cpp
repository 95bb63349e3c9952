// Defines device_code_seal(), with the initializer that device_seal.cpp wrote during the build. It is apart
// from device_code.cpp because libforeshock.so links this file but must not embed the kernels.
#include "kernels/device_code.h"

namespace foreshock {

DeviceCodeSeal device_code_seal() {
#ifdef FORESHOCK_DEVICE_SEAL
  return
#include FORESHOCK_DEVICE_SEAL
      ;
#else
  return {};
#endif
}

}  // namespace foreshock
