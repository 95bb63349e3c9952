// device_code_program cpu|cuda IMAGE: a short training through the library that is preloaded, whose tensors
// are said to be there; writes down what the driver was given as kernels, and tells what its process has.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/libmonitor/device_trainer.h"

namespace {

uint64_t address_space() {  // pages
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

long descriptors() {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3 || chdir("/") != 0) return 2;  // from where it was started
  fake_cuda::start(fake_cuda::Run::kByHand);
  foreshock::DeviceTrainer trainer;
  trainer.on_device = false;
  trainer.train(3);  // the segment is there
  const long opened_before = descriptors();
  const uint64_t pages_before = address_space();
  trainer.on_device = std::strcmp(arguments[1], "cuda") == 0;
  trainer.train(5);
  const uint64_t pages = address_space() - pages_before;
  const long opened = descriptors() - opened_before;
  const auto images = fake_cuda::images();
  std::ofstream out(arguments[2], std::ios::binary);
  for (const std::string& image : images) out << image;
  std::printf("{\"images\": %zu, \"pages\": %llu, \"descriptors\": %ld, \"objections\": %zu}\n",
              images.size(), static_cast<unsigned long long>(pages), opened, fake_cuda::violations().size());
  return 0;
}
