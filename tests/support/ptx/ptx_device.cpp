#include "tests/support/ptx/ptx_device.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <stdexcept>

#include "tests/support/ptx/machine.h"

namespace foreshock {
namespace {

// By DeviceKernel.
constexpr size_t kJobBytes[kDeviceKernels] = {
    sizeof(GatherJob),    sizeof(PackedGatherJob), sizeof(KeyGatherJob),
    sizeof(HistogramJob), sizeof(HistogramJob),    sizeof(GradientSumsJob),
    sizeof(AdamSumsJob),  sizeof(ChecksumJob),     sizeof(ScalarsJob)};

ptx::Options options() {
  const auto number = [](const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  return {.seed = number("PTX_SEED", 1), .interleave = static_cast<uint32_t>(number("PTX_INTERLEAVE", 0))};
}

void read_mutant() {
  const char* text = std::getenv("PTX_MUTANT");
  if (!text) return;
  const std::map<std::string, ptx::Mutation> kinds = {{"barrier", ptx::Mutation::kNoBarrier},
                                                      {"fence", ptx::Mutation::kNoFence},
                                                      {"atomic", ptx::Mutation::kPlainAtomic},
                                                      {"parameter", ptx::Mutation::kMisalignedParameter}};
  const std::string word = text;
  const size_t colon = word.find(':');
  ptx::mutant = {kinds.at(word.substr(0, colon)), static_cast<uint32_t>(std::stoul(word.substr(colon + 1)))};
}

void write_reached() {
  std::ofstream out(std::getenv("PTX_REACHED"));
  uint64_t all = 0, reached = 0;
  for (size_t n = 0; n < ptx::code.block_sizes.size(); ++n) {
    all += ptx::code.block_sizes[n];
    if (ptx::reached[n]) reached += ptx::code.block_sizes[n];
  }
  out << all << ' ' << reached << '\n';
  for (size_t n = 1; n < ptx::reached_places().size(); ++n)
    if (ptx::reached_places()[n])
      out << n << ' ' << ptx::code.places[n].kernel << ' ' << ptx::code.places[n].text << '\n';
}

}  // namespace

PtxDevice& PtxDevice::get() {
  static PtxDevice device;
  return device;
}

PtxDevice::PtxDevice() {
  read_mutant();
  if (std::getenv("PTX_REACHED")) std::atexit(write_reached);
}

uint64_t PtxDevice::allocate(size_t bytes) {
  constexpr size_t kAlignment = 256;
  const auto address = reinterpret_cast<uint64_t>(
      std::aligned_alloc(kAlignment, bytes / kAlignment * kAlignment + kAlignment));
  ptx::allocated(address, bytes);
  return address;
}

void PtxDevice::release(uint64_t address) {
  ptx::released(address);
  std::free(reinterpret_cast<void*>(address));
}

void PtxDevice::write(uint64_t to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  ptx::written_by_host(to, bytes);
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
}

void PtxDevice::read(void* to, uint64_t from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
}

void PtxDevice::launch(DeviceKernel kernel, const LaunchShape& shape, const void* job) {
  static uint64_t launches = 0;
  ptx::Options how = options();
  how.seed = 1000 * how.seed + launches++;
  const char* name = name_of(kernel);
  for (const ptx::Kernel& known : ptx::code.kernels)
    if (name == std::string(known.name) && known.parameter_bytes != kJobBytes[static_cast<int>(kernel)])
      throw std::runtime_error(std::string(name) + " has another parameter than the job");
  if (!ptx::launch(name, shape.blocks, shape.threads, shape.shared_bytes, job, how))
    throw std::runtime_error(std::string(name) + " cannot be launched so");
  if (!ptx::reports().empty()) throw std::runtime_error(ptx::reports().front());
}

}  // namespace foreshock
