// Symbols that a newer C++ runtime or C library has and an older one lacks, defined here so that an adapter
// loads with both. Only adapter.cpp includes this file.
#pragma once

#include <new>
#include <sstream>
#include <string>

// What shared_ptr reads to spare atomics, new in glibc 2.32. With our own value ("there are threads", always
// right) an adapter that is built here also loads on older systems.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// What containers call that are asked for more than there can be, new in the C++ runtime of GCC 11. Where
// torch brings no container of its own (2.6 with strings of the old kind), ours is built here and would want
// it.
extern "C" [[noreturn]] __attribute__((visibility("hidden"))) void _ZSt28__throw_bad_array_new_lengthv() {
  throw std::bad_array_new_length();
}

// What std::ostringstream::str() is since C++20, of the same runtime; headers of torch 2.10 and 2.11 call it.
// Every runtime has the older symbol, which this one calls.
#if defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
#define FORESHOCK_STRINGBUF "St7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv"
std::string old_string_of(const std::stringbuf& buffer) __asm__("_ZNK" FORESHOCK_STRINGBUF);
__attribute__((visibility("hidden"), used)) std::string string_of(const std::stringbuf& buffer) __asm__(
    "_ZNKR" FORESHOCK_STRINGBUF);
std::string string_of(const std::stringbuf& buffer) { return old_string_of(buffer); }
#endif
