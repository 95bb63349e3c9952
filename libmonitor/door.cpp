// How the monitor gets into a PyTorch process that only preloads it, where it loads the adapter that was
// built for exactly this torch. Python: a function that `import torch` calls (door_python.cpp). C++: when the
// trainer is linked with LibTorch, that is mapped before our constructor runs. dlopen and dlsym themselves
// are never interposed: glibc takes the RUNPATH of the caller of dlopen, and cuDNN's sub-libraries were not
// found any more (bloomberg/memray#212).
#include "libmonitor/door.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "foreshock/hook.h"
#include "libmonitor/environment.h"
#include "libmonitor/options.h"

namespace foreshock {
namespace {

struct Search {
  const char* name;
  int skip;  // matches to pass over
  char path[512];
};

int match_name(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const size_t length = std::strlen(info->dlpi_name), name = std::strlen(search->name);
  if (slash == nullptr || length >= sizeof search->path) return 0;
  if (std::strncmp(slash + 1, search->name, name) != 0) return 0;
  const bool is_whole = std::strstr(search->name, ".so") != nullptr;
  const char next = slash[1 + name];  // distributions: libtorch_cpu.so.2.6
  if ((is_whole && next != '\0' && next != '.') || search->skip-- > 0) return 0;
  std::memcpy(search->path, info->dlpi_name, length + 1);
  return 1;
}

// The path of a library that is mapped already: the one after `skip` others that match as well.
bool find_mapped(const char* name, Search* search, int skip = 0) {
  search->name = name;
  search->skip = skip;
  return dl_iterate_phdr(match_name, search) != 0;
}

// The quoted value of `name = '...'` at the start of a line of version.py.
bool read_assignment(const char* text, const char* name, char* value, size_t capacity) {
  for (const char* line = text; line != nullptr && *line != '\0'; line = std::strchr(line, '\n')) {
    if (*line == '\n') ++line;
    if (std::strncmp(line, name, std::strlen(name)) != 0) continue;
    const char* at = line + std::strlen(name);
    if (*at == ':') at = std::strpbrk(at, "=\n");  // annotated: `git_version: str = '...'`
    if (at == nullptr) return false;
    while (*at == ' ') ++at;
    if (*at != '=') continue;
    const char* begin = std::strpbrk(at, "'\"\n");
    if (begin == nullptr || *begin == '\n') continue;
    const char* end = std::strchr(begin + 1, *begin);
    const size_t length = end != nullptr ? static_cast<size_t>(end - begin - 1) : capacity;
    if (length == 0 || length >= capacity) return false;
    std::memcpy(value, begin + 1, length);
    value[length] = '\0';
    return true;
  }
  return false;
}

// The start of the file `name` in `folder`; "" when it cannot be read.
void read_start(const char* folder, const char* name, char (&text)[4096]) {
  char path[600];
  text[0] = '\0';
  if (std::snprintf(path, sizeof path, "%s/%s", folder, name) >= int(sizeof path)) return;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  text[got > 0 ? got : 0] = '\0';
}

// The first line of such a file.
bool read_line(const char* folder, const char* name, char* value, size_t capacity) {
  char text[4096];
  read_start(folder, name, text);
  const size_t length = std::strcspn(text, "\r\n");
  if (length == 0 || length >= capacity) return false;
  std::memcpy(value, text, length);
  value[length] = '\0';
  return true;
}

// A Python package has a version.py, the LibTorch archive two files of one line.
bool read_version_at(const char* home, char (&version)[64], char (&commit)[64]) {
  char text[4096];
  read_start(home, "version.py", text);
  if (read_assignment(text, "__version__", version, sizeof version) &&
      read_assignment(text, "git_version", commit, sizeof commit))
    return true;
  return read_line(home, "build-version", version, sizeof version) &&
         read_line(home, "build-hash", commit, sizeof commit);
}

// Takes the last part of a path away.
bool cut(char* path) {
  char* slash = std::strrchr(path, '/');
  if (slash != nullptr) *slash = '\0';
  return slash != nullptr;
}

// Version and commit of the torch that `library` belongs to: <home>/lib/libtorch_cpu.so. Distributions have
// it among the libraries of the system; there torch/_C tells where the Python package is.
bool read_torch_version(const char* library, char (&version)[64], char (&commit)[64]) {
  char home[512];
  std::snprintf(home, sizeof home, "%s", library);
  if (cut(home) && cut(home) && read_version_at(home, version, commit)) return true;
  Search python = {};
  for (int skip = 0; find_mapped("_C.", &python, skip); ++skip) {
    const char* folder = cut(python.path) ? std::strrchr(python.path, '/') : nullptr;
    if (folder == nullptr || std::strcmp(folder, "/torch") != 0) continue;  // others have a _C as well
    return read_version_at(python.path, version, commit);
  }
  return false;
}

bool can_find() {  // old_glibc.h
  return dlopen != nullptr && dlsym != nullptr && dlvsym != nullptr && dlclose != nullptr;
}

void* find_in(void* handle, const char* function, const char* version) {
  return version == nullptr ? dlsym(handle, function) : dlvsym(handle, function, version);
}

// An adapter takes the foreshock_ functions from the process. Where we were opened locally (dlopen without
// RTLD_GLOBAL) they are made visible to it, behind everything that was there before.
void become_visible() {
  Search us = {};
  if (dlsym(RTLD_DEFAULT, "foreshock_abi_version") != nullptr || !find_mapped("libforeshock.so", &us)) return;
  dlopen(us.path, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

void load_adapter_of(const char* torch, const char* adapters) {
  if (dlopen == nullptr || dlsym == nullptr) return g_guest.off("adapter_not_loadable");  // old_glibc.h
  char version[64], commit[64], path[700];
  if (!read_torch_version(torch, version, commit)) return g_guest.off("torch_version_unknown");
  std::snprintf(path, sizeof path, "%s/torch-%s-%.12s/adapter.so", adapters, version, commit);
  if (access(path, R_OK) != 0) return g_guest.off("adapter_missing");
  become_visible();
  void* adapter = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (adapter == nullptr) return g_guest.off("adapter_not_loadable");
  const auto start = reinterpret_cast<int (*)()>(dlsym(adapter, "foreshock_adapter_start"));
  if (start == nullptr || start() <= 0) return g_guest.off("adapter_failed");
  attach_shims(adapter);
  attach_nvte(adapter);
}

// In nearly every process that inherits us there is no torch yet: one look at the list of libraries.
__attribute__((constructor)) void enter_by_linked_torch() { load_adapter(); }

}  // namespace

void* find_at(const char* path, const char* function, const char* version, const void* ours) {
  if (!can_find()) return nullptr;
  void* handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  void* found = handle != nullptr ? find_in(handle, function, version) : nullptr;
  if (found != nullptr && found != ours) return found;  // the handle keeps it mapped
  if (handle != nullptr) dlclose(handle);
  return nullptr;
}

void* find_in_mapped(const char* library, const char* function, const char* version, const void* ours) {
  Search search = {};
  void* found = nullptr;
  for (int skip = 0; found == nullptr && find_mapped(library, &search, skip); ++skip)
    found = find_at(search.path, function, version, ours);
  return found;
}

void* find_last_mapped(const char* function, const void* ours) {
  Search search = {};
  void* last = nullptr;
  for (int skip = 0; find_mapped("", &search, skip); ++skip) {
    void* found = find_at(search.path, function, nullptr, ours);
    if (found != nullptr) last = found;
  }
  return last;
}

void* find_next(const char* function, const char* version, const void* ours) {
  void* found = can_find() ? find_in(RTLD_NEXT, function, version) : nullptr;
  return found != ours ? found : nullptr;
}

void* find_behind(const char* library, const char* function, const char* version, const void* ours) {
  void* found = find_next(function, version, ours);
  if (found == nullptr) found = find_in_mapped(library, function, version, ours);
  return found != nullptr ? found : find_in_mapped("", function, version, ours);
}

bool find_mapped_path(const char* library, char (&path)[512]) {
  Search search = {};
  if (!find_mapped(library, &search)) return false;
  std::memcpy(path, search.path, sizeof search.path);
  return true;
}

bool is_monitored_process() {
  Settings settings = {};
  return read_environment(Variables(), &settings);
}

// Nothing is compiled or tested here: that was done by `foreshock run` or `foreshock doctor` in a process of
// their own.
void load_adapter() {
  static std::atomic_flag done;
  Settings settings = {};
  Search torch = {};
  if (!find_mapped("libtorch_cpu.so", &torch)) return;
  const Variables variables;
  const char* adapters = option_value(variables, OptionId::kAdapters);
  if (!read_environment(variables, &settings) || *adapters == '\0') return;
  if (!done.test_and_set()) load_adapter_of(torch.path, adapters);
}

}  // namespace foreshock
