// Defines symbols that older C++ runtimes and C libraries lack, so that an adapter loads with old and new
// ones. They are weak: a compiler that links its C++ runtime statically brings definitions of its own.
#pragma once

#include <new>
#include <sstream>
#include <string>

#define FORESHOCK_OWN_SYMBOL __attribute__((weak, visibility("hidden")))

// shared_ptr reads it to avoid atomics; new in glibc 2.32. 0: there may be threads, which is always correct.
extern "C" {
FORESHOCK_OWN_SYMBOL char __libc_single_threaded = 0;
}

// Called for a container with too many elements; new in the C++ runtime of GCC 11. The adapter needs it with
// torch versions that do not bring their own instantiation (2.6 with the old string ABI).
extern "C" [[noreturn]] FORESHOCK_OWN_SYMBOL void _ZSt28__throw_bad_array_new_lengthv() {
  throw std::bad_array_new_length();
}

// std::ostringstream::str() as of C++20, new in the same runtime; headers of torch 2.10 and 2.11 call it. It
// calls the older symbol, which every runtime has.
#if defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
#define FORESHOCK_STRINGBUF "St7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv"
std::string old_string_of(const std::stringbuf& buffer) __asm__("_ZNK" FORESHOCK_STRINGBUF);
FORESHOCK_OWN_SYMBOL __attribute__((used)) std::string string_of(const std::stringbuf& buffer) __asm__(
    "_ZNKR" FORESHOCK_STRINGBUF);
std::string string_of(const std::stringbuf& buffer) { return old_string_of(buffer); }
#endif
