// How the monitor gets into a PyTorch process that only preloads it: torch/_C calls `initModule` of
// libtorch_python through its PLT, once, in `import torch`. Ours runs first, calls the real one, then loads
// the adapter that was built for exactly this torch. dlopen and dlsym themselves are never interposed: glibc
// takes the RUNPATH of the caller of dlopen, and cuDNN's sub-libraries were not found any more
// (bloomberg/memray#212).
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "foreshock/hook.h"
#include "libmonitor/environment.h"
#include "libmonitor/options.h"

namespace foreshock {
namespace {

struct Search {
  const char* ending;
  char path[512];
};

int match_ending(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  const size_t length = std::strlen(info->dlpi_name), ending = std::strlen(search->ending);
  if (length < ending || length >= sizeof search->path) return 0;
  if (std::strcmp(info->dlpi_name + length - ending, search->ending) != 0) return 0;
  std::memcpy(search->path, info->dlpi_name, length + 1);
  return 1;
}

// The path of a library that is mapped already.
bool find_mapped(const char* ending, Search* search) {
  search->ending = ending;
  return dl_iterate_phdr(match_ending, search) != 0;
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

// Version and commit of the torch that `library` (.../torch/lib/libtorch_cpu.so) belongs to.
bool read_torch_version(const char* library, char (&version)[64], char (&commit)[64]) {
  char path[600];
  std::snprintf(path, sizeof path, "%s", library);
  for (int level = 0; level < 2; ++level) {
    char* slash = std::strrchr(path, '/');
    if (slash == nullptr) return false;
    *slash = '\0';
  }
  const size_t length = std::strlen(path);
  std::snprintf(path + length, sizeof path - length, "/version.py");
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[4096];
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return false;
  text[got] = '\0';
  return read_assignment(text, "__version__", version, sizeof version) &&
         read_assignment(text, "git_version", commit, sizeof commit);
}

// Loads the adapter for the torch that is mapped. Nothing is compiled or tested here: that was done by
// `foreshock run` or `foreshock doctor` in a process of their own.
void load_adapter() {
  Settings settings = {};
  Search torch = {};
  const char* adapters = option_value(OptionId::kAdapters);
  if (!read_environment(&settings) || *adapters == '\0' || !find_mapped("/libtorch_cpu.so", &torch)) return;
  if (dlopen == nullptr || dlsym == nullptr) return g_guest.off("adapter_not_loadable");  // old_glibc.h
  char version[64], commit[64], path[700];
  if (!read_torch_version(torch.path, version, commit)) return g_guest.off("torch_version_unknown");
  std::snprintf(path, sizeof path, "%s/torch-%s-%.12s/adapter.so", adapters, version, commit);
  if (access(path, R_OK) != 0) return g_guest.off("adapter_missing");
  void* adapter = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (adapter == nullptr) return g_guest.off("adapter_not_loadable");
  const auto start = reinterpret_cast<int (*)()>(dlsym(adapter, "foreshock_adapter_start"));
  if (start == nullptr || start() <= 0) g_guest.off("adapter_failed");
}

using InitModule = void* (*)();

// libtorch_python is loaded locally, so RTLD_NEXT does not see it: it is found by its place in the link map.
// The return address is no help, since PyInit__C tail-calls initModule.
InitModule real_init_module() {
  Search python = {};
  void* found = nullptr;
  if (dlopen == nullptr || dlsym == nullptr) return nullptr;  // old_glibc.h
  if (find_mapped("/libtorch_python.so", &python)) {
    if (void* handle = dlopen(python.path, RTLD_NOW | RTLD_NOLOAD)) found = dlsym(handle, "initModule");
  }
  if (found == nullptr) found = dlsym(RTLD_NEXT, "initModule");
  return reinterpret_cast<InitModule>(found);
}

}  // namespace
}  // namespace foreshock

// Not part of hook.h: only the dynamic linker calls it.
extern "C" FORESHOCK_EXPORT void* initModule(void) {
  const foreshock::InitModule real = foreshock::real_init_module();
  if (real == nullptr || real == initModule) return nullptr;
  void* module = real();
  if (module != nullptr) foreshock::load_adapter();
  return module;
}
