// How the monitor gets into a PyTorch process that only preloads it, where it loads the adapter that was
// built for exactly this torch. Python: a function that `import torch` calls (foreshock_load_adapter). C++:
// when the trainer is linked with LibTorch, that is mapped before our constructor runs. dlopen and dlsym
// themselves are never interposed: glibc takes the RUNPATH of the caller of dlopen, and cuDNN's sub-libraries
// were not found any more (bloomberg/memray#212).
#include "libmonitor/bootstrap.h"

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

bool can_find() {  // glibc_compat.h
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
  if (dlopen == nullptr || dlsym == nullptr) return g_process.off("adapter_not_loadable");  // glibc_compat.h
  char version[64], commit[64], path[700];
  if (!read_torch_version(torch, version, commit)) return g_process.off("torch_version_unknown");
  std::snprintf(path, sizeof path, "%s/torch-%s-%.12s/adapter.so", adapters, version, commit);
  if (access(path, R_OK) != 0) return g_process.off("adapter_missing");
  become_visible();
  void* adapter = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (adapter == nullptr) return g_process.off("adapter_not_loadable");
  const auto start = reinterpret_cast<int (*)()>(dlsym(adapter, "foreshock_adapter_start"));
  if (start == nullptr || start() <= 0) return g_process.off("adapter_failed");
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
  return read_environment(SafeEnvironment(), &settings);
}

// Nothing is compiled or tested here: that was done by `foreshock run` or `foreshock doctor` in a process of
// their own.
void load_adapter() {
  static std::atomic_flag done;
  Settings settings = {};
  Search torch = {};
  if (!find_mapped("libtorch_cpu.so", &torch)) return;
  const SafeEnvironment variables;
  const char* adapters = option_value(variables, OptionId::kAdapters);
  if (!read_environment(variables, &settings) || *adapters == '\0') return;
  if (!done.test_and_set()) load_adapter_of(torch.path, adapters);
}

// importlib calls _imp.create_dynamic(spec), which maps the file and calls its PyInit_ function, from a
// Python function that has the specification among its variables: as `spec`, or as the first of the `args`
// that it passes on (importlib._bootstrap._call_with_frames_removed, since Python 3.5). All is of Python's
// stable ABI.

namespace {

struct Object;  // PyObject

// Exported by the program, or by a library that may have been loaded locally.
template <class T>
bool find(const char* name, T** found) {
  void* symbol = dlsym != nullptr ? dlsym(RTLD_DEFAULT, name) : nullptr;  // glibc_compat.h
  if (symbol == nullptr) symbol = find_in_mapped("libpython3", name);
  *found = reinterpret_cast<T*>(symbol);
  return symbol != nullptr;
}

bool is_python_ours() {
  int (*is_initialized)() = nullptr;
  int (*is_lock_held)() = nullptr;
  return find("Py_IsInitialized", &is_initialized) && find("PyGILState_Check", &is_lock_held) &&
         is_initialized() != 0 && is_lock_held() != 0;
}

struct Python {
  Object* (*locals)();                               // borrowed
  Object* (*item)(Object* dict, const char* name);   // borrowed
  Object* (*element)(Object* tuple, long position);  // borrowed
  Object* (*attribute)(Object*, const char* name);
  Object* (*bytes)(Object* path);
  const char* (*text)(Object* bytes);
  void (*release)(Object*);  // or null
  void (*forget_error)();

  bool find_all() {
    return find("PyEval_GetLocals", &locals) && find("PyDict_GetItemString", &item) &&
           find("PyTuple_GetItem", &element) && find("PyObject_GetAttrString", &attribute) &&
           find("PyUnicode_EncodeFSDefault", &bytes) && find("PyBytes_AsString", &text) &&
           find("Py_DecRef", &release) && find("PyErr_Clear", &forget_error);
  }
};

// Borrowed, or null.
Object* find_specification(const Python& python) {
  Object* locals = python.locals();
  if (locals == nullptr) return nullptr;
  Object* specification = python.item(locals, "spec");
  if (specification != nullptr) return specification;
  Object* arguments = python.item(locals, "args");
  return arguments != nullptr ? python.element(arguments, 0) : nullptr;
}

bool read_origin(const Python& python, Object* specification, char (&path)[4096]) {
  Object* origin = python.attribute(specification, "origin");
  Object* bytes = origin != nullptr ? python.bytes(origin) : nullptr;
  const char* text = bytes != nullptr ? python.text(bytes) : nullptr;
  const int length = text != nullptr ? std::snprintf(path, sizeof path, "%s", text) : 0;
  python.release(bytes);
  python.release(origin);
  return length > 0 && length < int(sizeof path);
}

}  // namespace

bool read_imported_file(char (&path)[4096]) {
  Python python = {};
  if (!is_python_ours() || !python.find_all()) return false;
  Object* specification = find_specification(python);
  const bool is_known = specification != nullptr && read_origin(python, specification, path);
  if (!is_known) python.forget_error();  // of our questions: an initialization begins without one
  return is_known;
}

void refuse_import(const char* text) {
  void (*set_error)(Object * type, const char* text) = nullptr;
  Object** type = nullptr;
  if (is_python_ours() && find("PyErr_SetString", &set_error) && find("PyExc_ImportError", &type))
    set_error(*type, text);
}

// The door of Python: torch/_C calls `initModule` of libtorch_python through its PLT, once, in `import
// torch`. Ours runs first, calls the real one, then loads the adapter.
//
// Others have copied torch's stub and call an initModule of their own (backends outside of torch's tree),
// some of them while torch is being imported. They come here as well, monitored or not, and must get theirs.
// Our return address does not tell who called, since PyInit__C jumps here and is not returned to, nor does
// the order in which libraries were mapped, where one was mapped before it is imported. Python knows.

namespace {

constexpr const char* kName = "initModule";

// The one that the module being imported sees: its own, or that of a library it is linked with. Where nobody
// knows which module that is, what was mapped last: it has been mapped to be imported.
void* find_own(const void* ours) {
  char path[4096];
  return read_imported_file(path) ? find_at(path, kName, nullptr, ours) : find_last_mapped(kName, ours);
}

bool is_of_torch(const void* function, const void* ours) {
  return function != nullptr && function == find_in_mapped("libtorch_python.so", kName, nullptr, ours);
}

// What is visible to all comes before what a module has, as it does for the dynamic linker.
void* init_module(const void* ours) {
  void* own = find_own(ours);
  void* visible = find_next(kName, nullptr, ours);
  const auto real = reinterpret_cast<void* (*)()>(visible != nullptr ? visible : own);
  if (real == nullptr) {
    refuse_import("undefined symbol: initModule");  // as without us, where the library would not be mapped
    return nullptr;
  }
  void* module = real();
  if (module != nullptr && is_of_torch(own != nullptr ? own : visible, ours)) load_adapter();
  return module;
}

}  // namespace
}  // namespace foreshock

// Not part of hook.h: only the dynamic linker calls it.
extern "C" FORESHOCK_EXPORT void* initModule(void) {
  return foreshock::init_module(reinterpret_cast<void*>(&initModule));
}
