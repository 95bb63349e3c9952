#include "libmonitor/library_place.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

namespace foreshock {

bool path_beside_library(const char* name, char* path, size_t capacity) {
  if (&dladdr == nullptr) return false;  // weak, see old_glibc.h
  Dl_info about = {};
  if (dladdr(reinterpret_cast<const void*>(&path_beside_library), &about) == 0 || about.dli_fname == nullptr)
    return false;
  const char* slash = std::strrchr(about.dli_fname, '/');
  const int folder = slash == nullptr ? 0 : static_cast<int>(slash + 1 - about.dli_fname);
  const int length = std::snprintf(path, capacity, "%.*s%s", folder, about.dli_fname, name);
  return folder > 0 && length > 0 && static_cast<size_t>(length) < capacity;
}

}  // namespace foreshock
