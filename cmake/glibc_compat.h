// Makes libforeshock.so load on glibc 2.17 and later, regardless of the glibc that it was linked with. CMake
// force-includes this header into every file that calls the dynamic loader. glibc 2.34 moved the loader's
// functions from libdl to libc with a new symbol version. The old version still exists; .symver selects it.
//
// The symbols are weak, because an older glibc has them only in libdl.so.2. Requiring libdl would load one
// more library in every child process that inherits LD_PRELOAD (measured: 40 us per exec). A process that can
// load torch has libdl anyway. Without libdl the functions are null, so callers must check before they call.
#ifndef FORESHOCK_CMAKE_GLIBC_COMPAT_H_
#define FORESHOCK_CMAKE_GLIBC_COMPAT_H_

#include <dlfcn.h>  // clang needs a declaration before #pragma weak
#include <features.h>

#ifdef __GLIBC__
#if defined(__x86_64__)
#define FORESHOCK_OLDEST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FORESHOCK_OLDEST_GLIBC "GLIBC_2.17"
#endif
#endif

#ifdef FORESHOCK_OLDEST_GLIBC
#pragma weak dlopen
#pragma weak dlsym
#pragma weak dlclose
#pragma weak dladdr
__asm__(".symver dlopen, dlopen@" FORESHOCK_OLDEST_GLIBC);
__asm__(".symver dlsym, dlsym@" FORESHOCK_OLDEST_GLIBC);
__asm__(".symver dlclose, dlclose@" FORESHOCK_OLDEST_GLIBC);
__asm__(".symver dladdr, dladdr@" FORESHOCK_OLDEST_GLIBC);
#endif

#endif  // FORESHOCK_CMAKE_GLIBC_COMPAT_H_
