// What instructions of PTX compute where C++ leaves the result open, or computes something else. Compiled
// with -ffp-contract=off: every operation is rounded.
#ifndef FORESHOCK_TESTS_SUPPORT_PTX_OPERATIONS_H_
#define FORESHOCK_TESTS_SUPPORT_PTX_OPERATIONS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

namespace ptx {

// The value of a register, which holds bits and may be wider than an integer type.
template <class T, class Register>
T get(Register bits) {
  if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<T>(bits);
  else
    return static_cast<T>(bits);
}
// A narrower integer is extended as its sign says.
template <class T, class Register>
void put(Register& to, T value) {
  if constexpr (std::is_floating_point_v<T>)
    to = std::bit_cast<Register>(value);
  else
    to = static_cast<Register>(value);
}

// A result. NaN in fp32 has one pattern only.
template <class T>
T rounded(T value) {
  if constexpr (std::is_same_v<T, float>)
    return value != value ? std::bit_cast<float>(0x7fffffffu) : value;
  else
    return value;
}

// Integers wrap. uint64_t: no operation on a narrow type overflows int, to which C++ promotes it.
template <class T>
T add(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <class T>
T sub(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
template <class T>
T mul(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class T>
auto mul_wide(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, int32_t, int64_t>,
                                  std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>>;
  return static_cast<Wide>(Wide{a} * Wide{b});
}

// A device returns something where C++ has no result; no kernel may depend on it.
template <class T>
T div(T a, T b) {
  if (b == 0) throw std::runtime_error("division by zero");
  return std::is_signed_v<T> && b == static_cast<T>(-1) ? sub<T>(0, a) : static_cast<T>(a / b);
}
template <class T>
T rem(T a, T b) {
  if (b == 0) throw std::runtime_error("remainder of a division by zero");
  return std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b);
}

template <class T>
T shl(T a, uint32_t by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(uint64_t{a} << by);
}
template <class T>
T shr(T a, uint32_t by) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  if (by >= kBits) return std::is_signed_v<T> ? static_cast<T>(a >> (kBits - 1)) : T{0};
  return static_cast<T>(a >> by);
}
inline uint32_t shf_l_wrap(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) << (by % 32) >> 32);
}
// Puts the lowest `bits` of `from` into `into`, at bit `at`.
template <class T>
T bfi(T from, T into, uint32_t at, uint32_t bits) {
  const T mask = shl<T>(bits >= 8 * sizeof(T) ? ~T{0} : static_cast<T>(shl<T>(1, bits) - 1), at);
  return static_cast<T>((into & ~mask) | (shl<T>(from, at) & mask));
}

}  // namespace ptx

#endif  // FORESHOCK_TESTS_SUPPORT_PTX_OPERATIONS_H_
