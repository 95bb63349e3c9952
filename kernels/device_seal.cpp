// foreshock_device_seal FATBIN TOOLKIT OUTPUT: writes the value that device_code_seal() returns for FATBIN,
// as the initializer of a DeviceCodeSeal.
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
  std::fprintf(out, "{.bytes = %zu, .checksum = %lluu, .toolkit = %s}\n", code.size(),
               static_cast<unsigned long long>(foreshock::checksum(code.data(), code.size())), arguments[2]);
  return std::fclose(out) == 0 ? 0 : 1;
}
