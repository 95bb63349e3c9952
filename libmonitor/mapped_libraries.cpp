// Searches the list of mapped libraries of the dynamic linker.
//
// The functions of the dynamic loader are weak symbols (glibc_compat.h): they are null in a process that has
// neither libdl nor glibc 2.34. They are checked before use, here and in bootstrap.cpp.
#include "libmonitor/mapped_libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

namespace foreshock {
namespace {

struct Search {
  const char* name;  // a file name ("libtorch_cpu.so"), or the beginning of one ("libtorch")
  int skip;          // number of matches still to ignore
  char* path;        // the result, kPathBytes
};
constexpr size_t kPathBytes = 512;

// Called for each mapped library (`data`: a Search). For the wanted one, sets search->path and returns 1,
// which ends the search.
int match_name(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const size_t length = std::strlen(info->dlpi_name), name_length = std::strlen(search->name);
  if (slash == nullptr || length >= kPathBytes) return 0;  // the program has an empty name here
  if (std::strncmp(slash + 1, search->name, name_length) != 0) return 0;
  const bool is_file_name = std::strstr(search->name, ".so") != nullptr;
  const char next = slash[1 + name_length];  // '.' if a distribution appends a version: libtorch_cpu.so.2.6
  if (is_file_name && next != '\0' && next != '.') return 0;
  if (search->skip > 0) {
    --search->skip;
    return 0;
  }
  std::memcpy(search->path, info->dlpi_name, length + 1);
  return 1;
}

// Searches the mapped library at `path`, then the libraries it is linked with.
void* find_at(const char* path, const char* function) {
  if (dlopen == nullptr || dlsym == nullptr || dlclose == nullptr) return nullptr;  // weak
  void* handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* found = dlsym(handle, function);
  if (found == nullptr) dlclose(handle);  // else it stays open, so that the library stays mapped
  return found;
}

}  // namespace

bool find_mapped_path(const char* library, char (&path)[512], int skip) {
  static_assert(sizeof path == kPathBytes);
  Search search = {library, skip, path};
  return dl_iterate_phdr(match_name, &search) != 0;
}

void* find_in_mapped(const char* library, const char* function) {
  char path[kPathBytes];
  void* found = nullptr;
  for (int skip = 0; found == nullptr && find_mapped_path(library, path, skip); ++skip)
    found = find_at(path, function);
  return found;
}

}  // namespace foreshock
