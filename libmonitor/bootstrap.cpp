// Starts the monitor in a PyTorch process: loads the adapter, a library that was built for exactly this torch
// and hooks its attention.
//
// In Python, `import torch` calls the helper (foreshock_torch), which opens this library and calls
// foreshock_load_adapter(). In a C++ program linked with LibTorch, LibTorch is mapped before the constructor
// of this library runs, and the constructor loads the adapter. Failures call g_process.off(), which switches
// the monitor off and reports the reason to the launcher.
//
// This library interposes no function of another one. An interposed dlopen, for example, would break cuDNN:
// glibc searches the RUNPATH of the library that calls dlopen (bloomberg/memray#212).
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "foreshock/hook.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/mapped_libraries.h"
#include "libmonitor/options.h"
#include "libmonitor/process.h"
#include "libmonitor/trusted_path.h"

namespace foreshock {
namespace {

constexpr const char* kLibrary = "libforeshock.so";  // name of this library's file
constexpr const char* kTorch = "libtorch_cpu.so";

// Gets the quoted value of a line `name = '...'` in `text`, the content of torch's version.py.
bool read_assignment(const char* text, const char* name, char* value, size_t capacity) {
  for (const char* line = text; line != nullptr && *line != '\0'; line = std::strchr(line, '\n')) {
    if (*line == '\n') ++line;
    if (std::strncmp(line, name, std::strlen(name)) != 0) continue;
    const char* equals = line + std::strlen(name);
    if (*equals == ':') equals = std::strpbrk(equals, "=\n");  // annotated: `git_version: str = '...'`
    if (equals == nullptr) return false;
    while (*equals == ' ') ++equals;
    if (*equals != '=') continue;
    const char* begin = std::strpbrk(equals, "'\"\n");
    if (begin == nullptr || *begin == '\n') continue;
    const char* end = std::strchr(begin + 1, *begin);
    // Without a closing quote, `length` is set to a value that is refused below.
    const size_t length = end != nullptr ? static_cast<size_t>(end - begin - 1) : capacity;
    if (length == 0 || length >= capacity) return false;
    std::memcpy(value, begin + 1, length);
    value[length] = '\0';
    return true;
  }
  return false;
}

// Sets `text` to the first 4095 bytes of the file `name` in `folder`, or to "" if it cannot be read.
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

bool read_first_line(const char* folder, const char* name, char* value, size_t capacity) {
  char text[4096];
  read_start(folder, name, text);
  const size_t length = std::strcspn(text, "\r\n");
  if (length == 0 || length >= capacity) return false;
  std::memcpy(value, text, length);
  value[length] = '\0';
  return true;
}

// Reads version and commit of the torch in `home`: from version.py, or in LibTorch from two one-line files.
bool read_version_at(const char* home, char (&version)[64], char (&commit)[64]) {
  char text[4096];
  read_start(home, "version.py", text);
  if (read_assignment(text, "__version__", version, sizeof version) &&
      read_assignment(text, "git_version", commit, sizeof commit))
    return true;
  return read_first_line(home, "build-version", version, sizeof version) &&
         read_first_line(home, "build-hash", commit, sizeof commit);
}

bool remove_last_component(char* path) {
  char* slash = std::strrchr(path, '/');
  if (slash != nullptr) *slash = '\0';
  return slash != nullptr;
}

// Reads version and commit of the torch that `library` (<home>/lib/libtorch_cpu.so) belongs to. Linux
// distributions put `library` into a system folder; the mapped module torch/_C then shows where torch is.
bool read_torch_version(const char* library, char (&version)[64], char (&commit)[64]) {
  char home[512];
  std::snprintf(home, sizeof home, "%s", library);
  if (remove_last_component(home) && remove_last_component(home) && read_version_at(home, version, commit))
    return true;
  char python[512];
  for (int skip = 0; find_mapped_path("_C.", python, skip); ++skip) {
    const char* folder = remove_last_component(python) ? std::strrchr(python, '/') : nullptr;
    if (folder == nullptr || std::strcmp(folder, "/torch") != 0) continue;  // other packages have a _C too
    return read_version_at(python, version, commit);
  }
  return false;
}

// The adapter finds the foreshock_ functions of this library by name, in the global scope. A library that is
// opened enters this scope only after its constructors, and with RTLD_LOCAL never. So this function adds it.
void make_symbols_global() {
  char path[512];
  if (find_mapped_path(kLibrary, path)) dlopen(path, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

// Reports why torch's attention is not hooked. Returns false.
bool report_failure(const char* reason) {
  g_process.off(reason);
  return false;
}

// `torch`: path of libtorch_cpu.so; `adapters`: folder with one built adapter for each version of torch.
// Returns whether torch's attention is hooked.
bool load_adapter_for(const char* torch, const char* adapters) {
  if (dlopen == nullptr || dlsym == nullptr) return report_failure("adapter_not_loadable");  // weak
  char version[64], commit[64], path[700];
  if (!read_torch_version(torch, version, commit)) return report_failure("torch_version_unknown");
  // The folder's name has the first 12 digits of the commit.
  std::snprintf(path, sizeof path, "%s/torch-%s-%.12s/adapter.so", adapters, version, commit);
  if (access(path, R_OK) != 0) return report_failure("adapter_missing");
  if (!is_trusted(path)) return report_failure("adapter_untrusted");
  make_symbols_global();
  void* adapter = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (adapter == nullptr) return report_failure("adapter_not_loadable");
  // The function returns the number of operations that it has hooked.
  const auto start = reinterpret_cast<int (*)()>(dlsym(adapter, "foreshock_adapter_start"));
  if (start == nullptr || start() <= 0) return report_failure("adapter_failed");
  return true;
}

// Whether the environment says that this process is to be monitored.
bool is_monitored_process() {
  Settings settings = {};
  return read_environment(SafeEnvironment(), &settings);
}

// Loads the adapter for the mapped torch, once. Returns whether torch's attention is hooked: false if no
// torch is mapped, or if this process is not to be monitored. Usually `foreshock run` or `foreshock doctor`
// has compiled and tested the adapter.
bool load_adapter() {
  static std::atomic_flag is_tried;
  static std::atomic<bool> is_loaded;
  Settings settings = {};
  char torch[512];
  if (is_loaded.load(std::memory_order_acquire)) return true;
  if (!find_mapped_path(kTorch, torch)) return false;
  const SafeEnvironment variables;
  const char* adapters = option_value(variables, OptionId::kAdapters);
  // read_environment() returns false if this process is not to be monitored.
  if (!read_environment(variables, &settings) || *adapters == '\0' || is_tried.test_and_set()) return false;
  is_loaded.store(load_adapter_for(torch, adapters), std::memory_order_release);
  return is_loaded.load(std::memory_order_relaxed);
}

// Called for each mapped library, in the order of the dynamic linker. Returns 1 for this library, and 2 for
// the C library.
int is_ours_or_libc(dl_phdr_info* info, size_t, void*) {
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const char* name = slash != nullptr ? slash + 1 : info->dlpi_name;
  return std::strcmp(name, kLibrary) == 0 ? 1 : std::strncmp(name, "libc.so", 7) == 0 ? 2 : 0;
}

// Whether the dynamic linker loaded this library at the start of the program, so that no thread exists yet
// that could read the environment. A library that is opened later comes behind the C library.
bool is_loaded_at_start() { return dl_iterate_phdr(is_ours_or_libc, nullptr) == 1; }

// The separators of the entries of LD_PRELOAD.
constexpr const char* kSeparators = " :";

// Whether an entry of LD_PRELOAD names this library, by its path or by its file name.
bool is_this_library(const char* entry, size_t length) {
  const size_t name = std::strlen(kLibrary);
  return length >= name && std::strncmp(entry + length - name, kLibrary, name) == 0 &&
         (length == name || entry[length - name - 1] == '/');
}

// Copies the entries of `preload` that do not name this library to `rest`, separated by ':'. Returns whether
// an entry names it. `rest` must have room for all of `preload`.
bool without_this_library(const char* preload, char* rest) {
  bool is_named = false;
  char* end = rest;
  while (*(preload += std::strspn(preload, kSeparators)) != '\0') {
    const size_t length = std::strcspn(preload, kSeparators);
    if (is_this_library(preload, length)) {
      is_named = true;
    } else {
      if (end != rest) *end++ = ':';
      std::memcpy(end, preload, length);
      end += length;
    }
    preload += length;
  }
  *end = '\0';
  return is_named;
}

// Puts the helper (the Python package that `import torch` starts) in front of PYTHONPATH. Does nothing if the
// helper is not installed beside this library, or if PYTHONPATH has it already.
void add_helper_to_python_path(const char* path) {
  constexpr size_t kLongest = 65536;  // of PYTHONPATH; a longer one is left as it is
  static char joined[kLongest];
  char helper[4096];
  if (!path_beside_library("", helper, sizeof helper) || !remove_last_component(helper) ||
      !remove_last_component(helper))
    return;
  const size_t root = std::strlen(helper);
  if (std::snprintf(helper + root, sizeof helper - root, "/share/foreshock/python") >=
          static_cast<int>(sizeof helper - root) ||
      std::strchr(helper, ':') != nullptr || access(helper, R_OK) != 0 || !is_trusted(helper))
    return;
  const size_t length = std::strlen(helper);
  for (const char* entry = path; entry != nullptr; entry = std::strchr(entry, ':')) {
    if (*entry == ':') ++entry;
    if (std::strncmp(entry, helper, length) == 0 && (entry[length] == ':' || entry[length] == '\0')) return;
  }
  const bool is_set = path != nullptr && *path != '\0';
  const int needed =
      std::snprintf(joined, sizeof joined, "%s%s%s", helper, is_set ? ":" : "", is_set ? path : "");
  if (needed > 0 && needed < static_cast<int>(sizeof joined)) setenv("PYTHONPATH", joined, /*overwrite=*/1);
}

// Whether this program is a Python interpreter.
bool is_python() { return dlsym != nullptr && dlsym(RTLD_DEFAULT, "Py_BytesMain") != nullptr; }  // weak

// Prepares the environment of a monitored process that preloads this library. Python finds the helper in
// PYTHONPATH. A trainer (Python, or a program linked with torch) does not pass the preload on to the programs
// that it starts: a Python among them finds the helper. Other programs (env, srun, a shell) pass it on, since
// the trainer may come behind them.
void prepare_environment(bool has_torch) {
  static char rest[65536];
  const char* preload = std::getenv("LD_PRELOAD");
  if (preload == nullptr || std::strlen(preload) >= sizeof rest || !without_this_library(preload, rest))
    return;
  add_helper_to_python_path(std::getenv("PYTHONPATH"));
  if (!has_torch && !is_python()) return;
  if (*rest != '\0')
    setenv("LD_PRELOAD", rest, /*overwrite=*/1);
  else
    unsetenv("LD_PRELOAD");
}

// Runs when this library is loaded. In a process without torch, it only looks at the mapped libraries and at
// the environment.
__attribute__((constructor)) void enter_process() {
  char torch[512];
  load_adapter();
  if (is_loaded_at_start() && is_monitored_process()) prepare_environment(find_mapped_path(kTorch, torch));
}

}  // namespace
}  // namespace foreshock

extern "C" int foreshock_load_adapter(void) { return foreshock::load_adapter() ? 1 : 0; }
