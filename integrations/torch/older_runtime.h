// Defines symbols that older C++ runtimes and C libraries lack, so that one build of the adapter (which
// connects libforeshock.so with torch) loads with old and new ones. The symbols are weak, since a compiler
// that links its C++ runtime statically also defines them.
#pragma once

#include <new>
#include <sstream>
#include <string>

#define FORESHOCK_OWN_SYMBOL __attribute__((weak, visibility("hidden")))

// std::shared_ptr avoids atomics if this variable of glibc 2.32 is nonzero. 0 (there may be threads) is safe.
extern "C" {
FORESHOCK_OWN_SYMBOL char __libc_single_threaded = 0;
}

// std::__throw_bad_array_new_length(), which containers call if too many elements are requested. The C++
// runtime has it since GCC 11. Some torch versions do not define it themselves (2.6 with the old string ABI).
extern "C" [[noreturn]] FORESHOCK_OWN_SYMBOL void _ZSt28__throw_bad_array_new_lengthv() {
  throw std::bad_array_new_length();
}

// string_of() is, by its symbol, the stringbuf::str() const & of C++20, which is also new in GCC 11. The
// headers of torch 2.10 and 2.11 call string_of(), and string_of() calls old_string_of(), the older str().
#if defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
#define FORESHOCK_STRINGBUF "St7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv"
std::string old_string_of(const std::stringbuf& buffer) __asm__("_ZNK" FORESHOCK_STRINGBUF);
FORESHOCK_OWN_SYMBOL __attribute__((used)) std::string string_of(const std::stringbuf& buffer) __asm__(
    "_ZNKR" FORESHOCK_STRINGBUF);
std::string string_of(const std::stringbuf& buffer) { return old_string_of(buffer); }
#endif
