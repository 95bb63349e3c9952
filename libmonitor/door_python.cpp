// The door of Python: torch/_C calls `initModule` of libtorch_python through its PLT, once, in `import
// torch`. Ours runs first, calls the real one, then loads the adapter.
//
// Others have copied torch's stub and call an initModule of their own (backends outside of torch's tree),
// some of them while torch is being imported. They come here as well, monitored or not, and must get theirs.
// Our return address does not tell who called, since PyInit__C jumps here and is not returned to, nor does
// the order in which libraries were mapped, where one was mapped before it is imported. Python knows.
#include <dlfcn.h>

#include "foreshock/hook.h"
#include "libmonitor/door.h"
#include "libmonitor/python_import.h"

namespace foreshock {
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
