// Defines device_code_seal(): size, checksum and oldest driver of the file of device kernels (fatbin). The
// program device_seal.cpp writes them during the build, as a braced initializer, into the file whose path is
// FORESHOCK_DEVICE_SEAL. libforeshock.so links this file, to check the fatbin that it loads at run time. It
// does not link device_code.cpp, which embeds the fatbin.
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
