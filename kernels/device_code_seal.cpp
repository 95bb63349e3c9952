// Defines device_code_seal() apart from device_code.cpp: libforeshock.so links this file but must not embed
// the kernels.
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
