// How the monitor comes into a process: what the doors share.
#ifndef FORESHOCK_LIBMONITOR_DOOR_H_
#define FORESHOCK_LIBMONITOR_DOOR_H_

namespace foreshock {

// Of these, `function` is a name, with a version only what has exactly that, and null where nobody has it.
// Never `ours`. What is found stays mapped.

// As a library that is mapped already sees it from within: its own, or that of one it is linked with.
void* find_at(const char* path, const char* function, const char* version, const void* ours);

// Of the libraries that are mapped already. `library` is a file name, after which a version may stand
// ("libtorch_cpu.so"), or how several begin ("libtorch"; "": all). dlsym(RTLD_NEXT) does not see what was
// loaded locally, as Python loads torch.
void* find_in_mapped(const char* library, const char* function, const char* version = nullptr,
                     const void* ours = nullptr);

// Of all of them, the one that was mapped last.
void* find_last_mapped(const char* function, const void* ours);

// What comes next in the order of the dynamic linker: visible to all, and maybe another tool's.
void* find_next(const char* function, const char* version, const void* ours);

// What a caller of our `ours` would have met without us: what comes next. Else, where it was loaded locally,
// that of `library`, or of whatever defines it.
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
