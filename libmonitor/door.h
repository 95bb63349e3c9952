// How the monitor comes into a process: what the doors share.
#ifndef FORESHOCK_LIBMONITOR_DOOR_H_
#define FORESHOCK_LIBMONITOR_DOOR_H_

namespace foreshock {

// A function of the libraries that are mapped already, or null. `library` is a file name, after which a
// version may stand ("libtorch_cpu.so"), or how several begin ("libtorch"; "": all). dlsym(RTLD_NEXT) does
// not see what was loaded locally, as Python loads torch. With a version only what has exactly that; never
// `ours`.
void* find_in_mapped(const char* library, const char* function, const char* version = nullptr,
                     const void* ours = nullptr);

// What a caller of our `ours` would have met without us: what comes next in the order of the dynamic linker,
// which may be another tool's. Else, where it was loaded locally, that of `library`, or of whatever defines
// it. Null where nobody does.
void* find_behind(const char* library, const char* function, const char* version, const void* ours);

// The path of such a library that is mapped; false when there is none, or when it is too long.
bool find_mapped_path(const char* library, char (&path)[512]);

// Whether this process is to be monitored, as far as its environment tells.
bool is_monitored_process();

// Loads the adapter of the torch that is mapped, once; nothing when there is none, or when this process is
// not to be monitored. Reads a file and maps a library, so not for a hot path.
void load_adapter();

// From the adapter, to the shims (door_shims.cpp). `adapter` is a handle of dlopen.
void attach_shims(void* adapter);

// And to the door of TransformerEngine (door_nvte.cpp).
void attach_nvte(void* adapter);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DOOR_H_
