// Build tool: foreshock_device_seal FATBIN DRIVER OUTPUT. Writes a C++ initializer of a DeviceCodeSeal to
// OUTPUT: size and checksum of the file FATBIN (compiled device kernels), and DRIVER, the version of
// the oldest driver that can load them.
// libforeshock.so loads a FATBIN only if it has the size and checksum of this seal. Exits with 2 after wrong
// usage, with 1 if a file cannot be read or written.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "kernels/sums.h"

int main(int count, char** arguments) {
  if (count != 4) return 2;
  std::ifstream in(arguments[1], std::ios::binary);
  const std::string code{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::FILE* out = code.empty() ? nullptr : std::fopen(arguments[3], "w");
  if (out == nullptr) return 1;
  std::fprintf(out, "{.bytes = %zu, .checksum = %lluu, .oldest_driver = %s}\n", code.size(),
               static_cast<unsigned long long>(foreshock::checksum(code.data(), code.size())), arguments[2]);
  return std::fclose(out) == 0 ? 0 : 1;
}
