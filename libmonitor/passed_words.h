// A function whose signature is not known here passes on what its caller put into registers and onto the
// stack, word for word: integers and pointers in registers first, doubles and floats in registers of their
// own, then the stack, one word each. Words beyond its arguments belong to the caller's frame and are copied
// to no effect.
#ifndef FORESHOCK_LIBMONITOR_PASSED_WORDS_H_
#define FORESHOCK_LIBMONITOR_PASSED_WORDS_H_

#include <cstdint>

namespace foreshock {

using Word = uint64_t;

#if defined(__x86_64__)
#define FORESHOCK_INTEGERS(X) X(w0), X(w1), X(w2), X(w3), X(w4), X(w5)
inline constexpr int kIntegerRegisters = 6;
#elif defined(__aarch64__)
#define FORESHOCK_INTEGERS(X) X(w0), X(w1), X(w2), X(w3), X(w4), X(w5), X(w6), X(w7)
inline constexpr int kIntegerRegisters = 8;
#else
#error "say here which integer arguments of a function this CPU keeps in registers"
#endif
#define FORESHOCK_DOUBLES(X) X(d0), X(d1), X(d2), X(d3), X(d4), X(d5), X(d6), X(d7)
#define FORESHOCK_WORD(name) foreshock::Word name
#define FORESHOCK_DOUBLE(name) double name
#define FORESHOCK_NAME(name) name
// FORESHOCK_STACK(X), the words of the stack, is what each function's file says it to be.
#define FORESHOCK_PARAMETERS \
  FORESHOCK_INTEGERS(FORESHOCK_WORD), FORESHOCK_DOUBLES(FORESHOCK_DOUBLE), FORESHOCK_STACK(FORESHOCK_WORD)
#define FORESHOCK_ARGUMENTS \
  FORESHOCK_INTEGERS(FORESHOCK_NAME), FORESHOCK_DOUBLES(FORESHOCK_NAME), FORESHOCK_STACK(FORESHOCK_NAME)

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_PASSED_WORDS_H_
