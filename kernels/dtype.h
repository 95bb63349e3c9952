// Storage formats: exact conversion to wider formats, rounding to a format (to nearest, ties to even;
// overflow gives infinity; subnormals are kept). Also TensorView, a strided view of a tensor. The values of
// DType are those of FORESHOCK_FP64 ... in hook.h, the trainer's C interface. kNone: no tensor.
#ifndef FORESHOCK_KERNELS_DTYPE_H_
#define FORESHOCK_KERNELS_DTYPE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace foreshock {

enum class DType : uint32_t { kNone = 0, kFp64 = 1, kFp32 = 2, kBf16 = 3, kFp16 = 4, kBool = 5 };

constexpr size_t size_of(DType type) {
  switch (type) {
    case DType::kFp64:
      return 8;
    case DType::kFp32:
      return 4;
    case DType::kBf16:
    case DType::kFp16:
      return 2;
    case DType::kBool:
      return 1;
    case DType::kNone:
      break;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::kFp64:
      return "fp64";
    case DType::kFp32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kBool:
      return "bool";
    case DType::kNone:
      break;
  }
  return "none";
}

constexpr bool is_floating(DType type) {
  return type == DType::kFp64 || type == DType::kFp32 || type == DType::kBf16 || type == DType::kFp16;
}

// A floating-point format. For fp64 and for types that are not floating, format_of() returns that of fp64.
struct Format {
  int precision;     // significand bits, including the hidden one
  int min_exponent;  // of the smallest normal number
};
constexpr Format format_of(DType type) {
  switch (type) {
    case DType::kFp32:
      return {24, -126};
    case DType::kBf16:
      return {8, -126};
    case DType::kFp16:
      return {11, -14};
    default:
      return {53, -1022};
  }
}

// Returns 2^exponent; -1022 <= exponent <= 1023.
constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Returns the power of two above all finite numbers of fp32, bf16 or fp16. Magnitudes that round to it become
// infinite.
inline double overflow_of(DType type) { return type == DType::kFp16 ? 0x1p16 : 0x1p128; }

// Returns the spacing of the format at |x|: 2^(e - p + 1) for |x| in [2^e, 2^(e + 1)), p being its number of
// significant bits; the smallest subnormal for 0 and subnormals; NaN if x is not finite.
inline double ulp_at(DType type, double x) {
  if (!std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  // The exponent bits alone are 2^e. For the subnormals of double they are 0, which the maximum below raises.
  const double power = std::bit_cast<double>(std::bit_cast<uint64_t>(x) & 0x7ff0000000000000);
  const Format format = format_of(type);
  return std::max(power, power_of_two(format.min_exponent)) * power_of_two(1 - format.precision);
}

// Returns the value of format `type` nearest to `x`, as a double, rounded once. `type` must be floating.
inline double round_to(DType type, double x) {
  if (type == DType::kFp64 || !std::isfinite(x)) return x;
  // Doubles near shift, 1.5 * 2^52 ulp, are one ulp apart. |x| < 2^24 ulp, since formats have at most 24
  // bits. So the sum x + shift is near shift and rounds x to a multiple of the ulp. The sum could overflow
  // only for huge x, for which this function returns infinity first.
  const double overflow = overflow_of(type);
  if (std::fabs(x) >= overflow) return std::copysign(std::numeric_limits<double>::infinity(), x);
  const double shift = 0x1.8p52 * ulp_at(type, x);
  const double rounded = std::copysign((x + shift) - shift, x);
  return std::fabs(rounded) >= overflow ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

constexpr float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Converts exactly, including subnormals, infinities and NaN payloads.
constexpr float fp16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t fraction = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  constexpr uint32_t kBiasDifference = 127 - 15;  // exponent biases of fp32 and fp16
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + kBiasDifference) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // 0, or subnormal: n * 2^-24
  return sign ? -magnitude : magnitude;
}

// A 16-bit value (kBf16 or kFp16) as the bits of the fp32 that equals it.
constexpr uint32_t fp32_bits(uint16_t bits, DType type) {
  return std::bit_cast<uint32_t>(type == DType::kBf16 ? bf16_to_float(bits) : fp16_to_float(bits));
}

template <class T>
T load_unaligned(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

// Element `index` of a dense array of `type`, converted exactly. `type` must be floating.
inline double load_as_double(const void* data, DType type, size_t index) {
  const char* element = static_cast<const char*>(data) + index * size_of(type);
  switch (type) {
    case DType::kFp64:
      return load_unaligned<double>(element);
    case DType::kFp32:
      return load_unaligned<float>(element);
    case DType::kBf16:
      return bf16_to_float(load_unaligned<uint16_t>(element));
    case DType::kFp16:
      return fp16_to_float(load_unaligned<uint16_t>(element));
    default:
      return 0;
  }
}

// Loops over rows call prefetch_row() for the row kRowsAhead rows further. Rows of one head often lie a page
// apart, where the hardware prefetcher does not follow. Any address is allowed: a prefetch never faults.
inline constexpr int64_t kRowsAhead = 16;
inline void prefetch_row(const char* row, int64_t bytes) {
  constexpr int64_t kCacheLine = 64;
  for (int64_t offset = 0; offset < bytes; offset += kCacheLine) __builtin_prefetch(row + offset);
}

// A strided view of at most four dimensions. Does not own the data.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t shape[4] = {1, 1, 1, 1};
  int64_t stride[4] = {0, 0, 0, 0};  // in elements, may be 0 (broadcast) or negative

  // Returns the address of element (i, j, k, 0).
  const char* row(int64_t i, int64_t j, int64_t k) const {
    return static_cast<const char*>(data) +
           (i * stride[0] + j * stride[1] + k * stride[2]) * static_cast<int64_t>(size_of(dtype));
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_DTYPE_H_
