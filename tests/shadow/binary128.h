// Numbers of IEEE binary128 and their functions: those of libquadmath, or long double where it has this
// format (aarch64, which has no libquadmath).
#ifndef FORESHOCK_TESTS_SHADOW_BINARY128_H_
#define FORESHOCK_TESTS_SHADOW_BINARY128_H_

#if __LDBL_MANT_DIG__ == 113
#include <cmath>
#else
#include <quadmath.h>
#endif

namespace foreshock {

#if __LDBL_MANT_DIG__ == 113
using Binary128 = long double;
inline Binary128 coshq(Binary128 x) { return std::cosh(x); }
inline Binary128 expq(Binary128 x) { return std::exp(x); }
inline Binary128 fabsq(Binary128 x) { return std::fabs(x); }
inline bool isinfq(Binary128 x) { return std::isinf(x); }
inline Binary128 logq(Binary128 x) { return std::log(x); }
inline Binary128 sqrtq(Binary128 x) { return std::sqrt(x); }
inline Binary128 tanhq(Binary128 x) { return std::tanh(x); }
#else
using Binary128 = __float128;
#endif

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SHADOW_BINARY128_H_
