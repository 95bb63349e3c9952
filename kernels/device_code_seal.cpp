// Defines device_code_seal(): size, checksum and CUDA version of the kernels, as device_seal.cpp wrote them
// during the build. libforeshock.so links this file, but not device_code.cpp, which embeds the kernels.
#include "kernels/device_code.h"

namespace foreshock {

DeviceCodeSeal device_code_seal() {
#ifdef FORESHOCK_DEVICE_SEAL
  return
#include FORESHOCK_DEVICE_SEAL
      ;
#else
  return {};  // the build had no nvcc
#endif
}

}  // namespace foreshock
