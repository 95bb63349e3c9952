// Counter-based random numbers: a value is a pure function of (key, counter), so no result depends on the
// order in which threads ask, and a seed printed in a report is enough to get the same inputs again.
#ifndef FORESHOCK_LAB_RANDOM_H_
#define FORESHOCK_LAB_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <numbers>

namespace foreshock::lab {

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection whose output bits all depend on all input
// bits.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t random_bits(uint64_t key, uint64_t counter) { return mix(mix(key) ^ counter); }

// Uniform on [0, 1), 53 bits.
constexpr double uniform(uint64_t key, uint64_t counter) {
  return static_cast<double>(random_bits(key, counter) >> 11) * 0x1p-53;
}

// Standard normal, by Box and Muller; uses counters 2c and 2c + 1 of the key.
inline double normal(uint64_t key, uint64_t counter) {
  const double radius = std::sqrt(-2 * std::log1p(-uniform(key, 2 * counter)));
  return radius * std::cos(2 * std::numbers::pi * uniform(key, 2 * counter + 1));
}

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_RANDOM_H_
