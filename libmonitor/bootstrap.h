// Finds the functions that libforeshock.so interposes, and loads the adapter, our library built for this
// process's torch. libforeshock.so is preloaded and interposes functions of other libraries: it defines them
// under the same names and calls the originals. bootstrap.cpp and the interpose_*.cpp files share this
// header.
#ifndef FORESHOCK_LIBMONITOR_BOOTSTRAP_H_
#define FORESHOCK_LIBMONITOR_BOOTSTRAP_H_

namespace foreshock {

// find_in_mapped() and find_original() return the address of `function`, or null if it is not found. They
// never return `ours`, the definition in libforeshock.so. If `version` is not null, only a symbol with
// exactly that version matches. The library that defines the result stays mapped. Slow: they read the list of
// libraries.

// Searches the libraries that are already mapped. `library` is a file name ("libtorch_cpu.so"; a version may
// follow it) or a prefix of file names ("libtorch"; "" matches all). dlsym(RTLD_NEXT) would not find
// libraries that were loaded with RTLD_LOCAL, as Python loads torch.
void* find_in_mapped(const char* library, const char* function, const char* version = nullptr,
                     const void* ours = nullptr);

// Returns the definition that a caller of `ours` would get without libforeshock.so: the next definition in
// the global order of the dynamic linker. If there is none, the function may have been loaded with
// RTLD_LOCAL; then `library` is searched, then all mapped libraries.
void* find_original(const char* library, const char* function, const char* version, const void* ours);

// Gets the path of a mapped library (`library` as in find_in_mapped()). Returns false if none is found.
bool find_mapped_path(const char* library, char (&path)[512]);

bool is_monitored_process();  // whether the environment says that this process is to be monitored

// Loads the adapter for the mapped torch, once. Returns whether torch's attention is hooked: false if no
// torch is mapped, or if this process is not to be monitored. Reads files, so it must not be called on a hot
// path.
bool load_adapter();

// Connects `adapter`, the adapter's handle from dlopen, with our definitions of TransformerEngine's functions
// (interpose_transformer_engine.cpp).
void attach_nvte(void* adapter);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_BOOTSTRAP_H_
