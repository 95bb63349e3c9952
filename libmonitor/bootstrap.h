// Functions shared by bootstrap.cpp and the interpose_*.cpp files: they look up the functions that
// libforeshock.so interposes, and load the adapter.
#ifndef FORESHOCK_LIBMONITOR_BOOTSTRAP_H_
#define FORESHOCK_LIBMONITOR_BOOTSTRAP_H_

namespace foreshock {

// The find functions return the address of `function`, or null if it is not found. They never return `ours`,
// the definition in libforeshock.so. If `version` is not null, only a symbol with exactly that version
// matches. The library that defines the result stays mapped.

// Searches the mapped library at `path`, then the libraries it is linked with.
void* find_at(const char* path, const char* function, const char* version, const void* ours);

// Searches the libraries that are already mapped. `library` is a file name ("libtorch_cpu.so"; a version may
// follow it) or a prefix of file names ("libtorch"; "" matches all). dlsym(RTLD_NEXT) would not find
// libraries that were loaded with RTLD_LOCAL, as Python loads torch.
void* find_in_mapped(const char* library, const char* function, const char* version = nullptr,
                     const void* ours = nullptr);

// Returns the definition in the library that was mapped last.
void* find_last_mapped(const char* function, const void* ours);

// Returns the next definition in the global order of the dynamic linker. It may belong to another tool.
void* find_next(const char* function, const char* version, const void* ours);

// Returns the definition that a caller of `ours` would get without libforeshock.so: the result of
// find_next(). If there is none, the function may have been loaded with RTLD_LOCAL; then `library` is
// searched, then all mapped libraries.
void* find_behind(const char* library, const char* function, const char* version, const void* ours);

// Gets the path of a mapped library (`library` as in find_in_mapped()). Returns false if there is none or its
// path is too long.
bool find_mapped_path(const char* library, char (&path)[512]);

// Whether the environment asks to monitor this process.
bool is_monitored_process();

// Loads the adapter for the mapped torch, once. Does nothing if no torch is mapped, or if this process is not
// to be monitored. Reads a file and maps a library, so it must not be called on a hot path.
void load_adapter();

// Connects the adapter, a handle from dlopen, with the shims (interpose_shims.cpp).
void attach_shims(void* adapter);

// Connects the adapter with the functions of TransformerEngine (interpose_transformer_engine.cpp).
void attach_nvte(void* adapter);

// The two functions below use the Python interpreter of this process. They must be called only in a thread
// that may be initializing an extension module. They never take Python's lock (GIL), and do nothing if the
// thread does not hold it.

// Gets the file of the extension module that this thread is importing. Returns false if it is unknown.
bool read_imported_file(char (&path)[4096]);

// Makes the import fail with an ImportError with this text. The module's initialization must then return
// null.
void refuse_import(const char* text);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_BOOTSTRAP_H_
