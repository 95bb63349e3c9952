#include "libmonitor/package_version.h"

#include <dirent.h>

#include <cstdio>
#include <cstring>

namespace foreshock {
namespace {

enum class Found { kNothing, kOne, kSeveral };

// What stands between "<package>-", or "<package>_cuNN-", and ".dist-info"; "" if `entry` is no such name.
void read_entry(const char* entry, const char* package, char (&version)[64]) {
  constexpr const char* kEnd = ".dist-info";
  version[0] = '\0';
  const size_t length = std::strlen(entry), name = std::strlen(package), end = std::strlen(kEnd);
  if (length <= name + end || std::strncmp(entry, package, name) != 0 ||
      std::strcmp(entry + length - end, kEnd) != 0)
    return;
  const char* begin = entry + name;
  if (std::strncmp(begin, "_cu", 3) == 0) begin += 3 + std::strspn(begin + 3, "0123456789");
  const char* last = entry + length - end;
  const auto size = static_cast<size_t>(last - begin - 1);
  if (*begin != '-' || begin + 1 >= last || size >= sizeof version) return;
  std::memcpy(version, begin + 1, size);
  version[size] = '\0';
}

Found read_folder(const char* folder, const char* package, char (&version)[64]) {
  DIR* open = opendir(folder);
  if (open == nullptr) return Found::kNothing;
  Found found = Found::kNothing;
  while (const dirent* entry = readdir(open)) {
    char read[64];
    read_entry(entry->d_name, package, read);
    if (read[0] == '\0') continue;
    if (found != Found::kNothing && std::strcmp(read, version) != 0) {
      found = Found::kSeveral;
      break;
    }
    found = Found::kOne;
    std::memcpy(version, read, sizeof version);
  }
  closedir(open);
  return found;
}

}  // namespace

bool read_package_version(const char* library, const char* package, char (&version)[64]) {
  char folder[512];
  if (std::snprintf(folder, sizeof folder, "%s", library) >= int(sizeof folder)) return false;
  for (int level = 0; level < 3; ++level) {
    char* slash = std::strrchr(folder, '/');
    if (slash == nullptr || slash == folder) return false;
    *slash = '\0';
    const Found found = read_folder(folder, package, version);
    if (found != Found::kNothing) return found == Found::kOne;
  }
  return false;
}

}  // namespace foreshock
