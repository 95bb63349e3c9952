// How the monitor comes into a process: what the doors share.
#ifndef FORESHOCK_LIBMONITOR_BOOTSTRAP_H_
#define FORESHOCK_LIBMONITOR_BOOTSTRAP_H_

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

// From the adapter, to the shims (interpose_shims.cpp). `adapter` is a handle of dlopen.
void attach_shims(void* adapter);

// And to the door of TransformerEngine (interpose_transformer_engine.cpp).
void attach_nvte(void* adapter);

// The import that Python is in the middle of, asked of the Python that is in this process, whichever that is.

// Both only in a thread that may be initializing an extension module: Python's lock is never taken here, and
// nothing is asked of Python by whoever does not hold it.

// The file of the extension module that this thread is importing; false where nobody knows.
bool read_imported_file(char (&path)[4096]);

// Makes that import an ImportError with this text, when the initialization returns null.
void refuse_import(const char* text);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_BOOTSTRAP_H_
