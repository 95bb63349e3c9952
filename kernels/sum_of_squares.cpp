#include "kernels/sum_of_squares.h"

namespace foreshock {
namespace {

// Eight independent chains, so that the compiler may keep them in vector registers without reordering a sum.
constexpr size_t kChains = 8;

template <class Load>
double sum(size_t count, Load load) {
  double chain[kChains] = {};
  size_t n = 0;
  for (; n + kChains <= count; n += kChains) {
    for (size_t c = 0; c < kChains; ++c) {
      const double x = load(n + c);
      chain[c] += x * x;
    }
  }
  for (; n < count; ++n) {
    const double x = load(n);
    chain[0] += x * x;
  }
  double total = 0;
  for (double part : chain) total += part;
  return total;
}

}  // namespace

double sum_of_squares(const void* data, DType type, size_t count) {
  switch (type) {
    case DType::kFp64: {
      const double* x = static_cast<const double*>(data);
      return sum(count, [x](size_t n) { return x[n]; });
    }
    case DType::kFp32: {
      const float* x = static_cast<const float*>(data);
      return sum(count, [x](size_t n) { return static_cast<double>(x[n]); });
    }
    case DType::kBf16: {
      const uint16_t* x = static_cast<const uint16_t*>(data);
      return sum(count, [x](size_t n) { return static_cast<double>(bf16_to_float(x[n])); });
    }
    case DType::kFp16: {
      const uint16_t* x = static_cast<const uint16_t*>(data);
      return sum(count, [x](size_t n) { return static_cast<double>(fp16_to_float(x[n])); });
    }
    default:
      return 0;
  }
}

}  // namespace foreshock
