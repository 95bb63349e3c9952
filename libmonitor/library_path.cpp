// Implements path_beside_library() (cuda_driver.h), which makes the path of a file that is installed beside
// libforeshock.so, the library that contains this code. Unit tests link another definition instead.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "libmonitor/cuda_driver.h"

namespace foreshock {
namespace {

char g_library[4096];  // absolute path of the library; "": unknown

// Finds the path when the library is loaded: the dynamic linker may return a relative path, and the program
// may change its working directory later. 101: before the constructors without a number, which use the path.
__attribute__((constructor(101))) void find_library_path() {
  if (&dladdr == nullptr) return;  // a weak reference: null with an older glibc if libdl is not loaded
  Dl_info about = {};
  if (dladdr(reinterpret_cast<const void*>(&path_beside_library), &about) == 0 || about.dli_fname == nullptr)
    return;
  const bool is_absolute = *about.dli_fname == '/';
  char folder[2048] = "";
  if (!is_absolute && getcwd(folder, sizeof folder) == nullptr) return;
  const int length =
      std::snprintf(g_library, sizeof g_library, "%s%s%s", folder, is_absolute ? "" : "/", about.dli_fname);
  if (length < 0 || static_cast<size_t>(length) >= sizeof g_library) g_library[0] = '\0';
}

}  // namespace

bool path_beside_library(const char* name, char* path, size_t capacity) {
  const char* slash = std::strrchr(g_library, '/');
  if (slash == nullptr) return false;
  const int folder = static_cast<int>(slash + 1 - g_library);
  const int length = std::snprintf(path, capacity, "%.*s%s", folder, g_library, name);
  return length > 0 && static_cast<size_t>(length) < capacity;
}

}  // namespace foreshock
