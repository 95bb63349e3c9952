// In place of kernels/device_code_seal.cpp and libmonitor/library_path.cpp.
#include "tests/libmonitor/device_code_of_tests.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "kernels/sums.h"
#include "libmonitor/cuda_driver.h"

namespace foreshock {
namespace {

DeviceCodeSeal seal_of(const std::string& code) {
  return {.bytes = code.size(), .checksum = checksum(code.data(), code.size()), .oldest_driver = 13000};
}

DeviceCodeSeal g_seal = seal_of(code_of_tests());

// Of this process and its children; gone with it.
class Folder {
 public:
  Folder() {
    std::filesystem::create_directory(path());
    write_code(code_of_tests());
  }
  ~Folder() { std::filesystem::remove_all(path()); }
  static std::string path() { return std::filesystem::path(path_of_code()).parent_path(); }
} g_folder;

}  // namespace

const std::string& code_of_tests() {
  static const std::string code = [] {
    const uint32_t magic = 0xba55ed50;
    const uint16_t version = 1, header = 16;
    const uint64_t bytes = 1000;
    std::string out;
    const auto put = [&out](const auto& value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    put(magic), put(version), put(header), put(bytes);
    while (out.size() < header + bytes) out.push_back(static_cast<char>(out.size() * 7));
    return out;
  }();
  return code;
}

const std::string& path_of_code() {
  static const std::string path =
      "/tmp/foreshock-device-test-" + std::to_string(getpid()) + "/libforeshock.fatbin";
  return path;
}

void write_code(const std::string& code) {
  std::filesystem::remove_all(path_of_code());
  std::ofstream(path_of_code(), std::ios::binary) << code;
}

void set_seal(const DeviceCodeSeal& seal) { g_seal = seal; }

DeviceCodeSeal device_code_seal() { return g_seal; }

bool path_beside_library(const char* name, char* path, size_t capacity) {
  return std::snprintf(path, capacity, "%s/%s", Folder::path().c_str(), name) > 0;
}

}  // namespace foreshock
