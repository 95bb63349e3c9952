// Decides whether a driver loads a container of kernels. Known of the drivers: they load machine code of the
// device's architecture, or of a smaller one with the same first digits, made by an assembler of their own
// major version or an older one; else PTX of a smaller architecture and of a version that they know.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/support/fake_cuda/world.h"

namespace fake_cuda {
namespace {

constexpr uint16_t kPtx = 1, kElf = 2;

struct Driver {
  int version;            // cuDriverGetVersion
  int ptx;                // latest version of PTX, 10 * major + minor
  int abi;                // latest ABI version of machine code, in the ELF header
  int last_architecture;  // of the devices that it knows
};
constexpr Driver kDrivers[] = {
    {12000, 80, 7, 90},   // 525
    {12020, 82, 7, 90},   // 535
    {12040, 84, 7, 90},   // 550
    {12080, 87, 8, 120},  // 570
    {13000, 90, 8, 121},  // 580
};

const Driver* driver_of(int version) {
  const Driver* found = nullptr;
  for (const Driver& driver : kDrivers)
    if (driver.version <= version) found = &driver;
  return found;
}

template <class T>
T read(std::string_view bytes, size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The version in the text behind `word`, as 10 * major + minor of "12.9" with `scale` 10; 0 if it is not
// there.
int version_behind(std::string_view text, std::string_view word, int scale) {
  const size_t at = text.find(word);
  if (at == std::string_view::npos) return 0;
  int major = 0, minor = 0;
  return std::sscanf(std::string(text.substr(at + word.size(), 8)).c_str(), "%d.%d", &major, &minor) == 2
             ? scale * major + minor
             : 0;
}

bool loads_elf(const Driver& driver, int device, int architecture, std::string_view elf) {
  if (architecture / 10 != device / 10 || architecture > device) return false;
  if (!elf.starts_with("\x7f"
                       "ELF") ||
      elf[8] > driver.abi)
    return false;
  // Assemblers of ABI 7 write no version: they are of CUDA 12.
  return version_behind(elf, "Cuda compilation tools, release ", 1000) / 1000 <= driver.version / 1000;
}

bool loads_ptx(const Driver& driver, int device, int architecture, std::string_view ptx) {
  const int version = version_behind(ptx, ".version ", 10);
  return architecture <= device && version > 0 && version <= driver.ptx;
}

}  // namespace

int load_error(std::string_view container, int version, int device) {
  const Driver* driver = driver_of(version);
  if (driver == nullptr || device > driver->last_architecture) return kNoBinary;
  bool found = false;
  for (size_t at = read<uint16_t>(container, 6); at < container.size() && !found;) {
    const auto kind = read<uint16_t>(container, at);
    const auto header = read<uint32_t>(container, at + 4);
    const auto bytes = read<uint64_t>(container, at + 8);
    const auto architecture = static_cast<int>(read<uint32_t>(container, at + 28));
    const bool is_packed = read<uint32_t>(container, at + 16) != 0;
    if (header == 0) return kInvalidImage;
    const std::string_view image = container.substr(std::min(at + header, container.size()), bytes);
    if (!is_packed && kind == kElf) found = loads_elf(*driver, device, architecture, image);
    if (!is_packed && kind == kPtx) found = loads_ptx(*driver, device, architecture, image);
    at += header + bytes;
  }
  return found ? kSuccess : kNoBinary;
}

}  // namespace fake_cuda

extern "C" int fake_cuda_load_error(const char* container, size_t bytes, int version, int device) {
  return fake_cuda::load_error({container, bytes}, version, device);
}
