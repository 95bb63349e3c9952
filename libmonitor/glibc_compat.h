// Force-included into what is only part of the shared library (bootstrap.cpp, interpose_*.cpp): the library
// loads on glibc 2.17 and later, whichever it was linked on. glibc 2.34 moved the dynamic loader's functions
// from libdl into libc under a new version; the old one is served by both.
//
// Weak, since an older glibc has them only where libdl.so.2 is loaded, and needing that would cost every
// child that inherits the preload another library (40 us per exec, measured). Nothing is lost: whoever can
// load a torch has them at the start; dlopen is null elsewhere, so the doors ask before they call.
#ifndef FORESHOCK_LIBMONITOR_GLIBC_COMPAT_H_
#define FORESHOCK_LIBMONITOR_GLIBC_COMPAT_H_

#include <dlfcn.h>  // clang asks for a declaration before #pragma weak
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
#pragma weak dlvsym
#pragma weak dlclose
#pragma weak dladdr
__asm__(".symver dlopen, dlopen@" FORESHOCK_OLDEST_GLIBC);
__asm__(".symver dlsym, dlsym@" FORESHOCK_OLDEST_GLIBC);
__asm__(".symver dlvsym, dlvsym@" FORESHOCK_OLDEST_GLIBC);
__asm__(".symver dlclose, dlclose@" FORESHOCK_OLDEST_GLIBC);
__asm__(".symver dladdr, dladdr@" FORESHOCK_OLDEST_GLIBC);
#endif

#endif  // FORESHOCK_LIBMONITOR_GLIBC_COMPAT_H_
