#include "lab/tensor_counter.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "kernels/histogram.h"

namespace foreshock::lab {
namespace {

template <class Pointer>
void ensure(size_t words, Pointer* pointer) {
  using Word = typename Pointer::element_type;
  if (!*pointer) pointer->reset(static_cast<Word*>(std::calloc(words, sizeof(Word))));
  if (!*pointer) throw std::bad_alloc();
}

}  // namespace

void TensorCounter::count(const char* data, DType type, size_t count) {
  if (type == DType::kBf16 || type == DType::kFp16) {
    ensure(kPatternWords, &patterns_);
    count_patterns(data, count, patterns_.get());
    return;
  }
  ensure(kBinWords, &bins_);
  if (type == DType::kFp32)
    count_bins(data, count, bins_.get());
  else
    count_narrowed(data, count);
}

void TensorCounter::count_narrowed(const char* data, size_t count) {
  constexpr size_t kBlock = 1024;
  float narrow[kBlock];
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t n = std::min(kBlock, count - first);
    for (size_t i = 0; i < n; ++i) {
      const double x = load_as_double(data, DType::kFp64, first + i);
      narrow[i] = static_cast<float>(x);
      if (std::isfinite(x)) rounding_ += std::fabs(x - static_cast<double>(narrow[i]));
    }
    count_bins(narrow, n, bins_.get());
  }
}

Histogram TensorCounter::take(DType type) {
  Histogram histogram;
  const bool patterns = type == DType::kBf16 || type == DType::kFp16;
  if (patterns && patterns_) take_patterns(patterns_.get(), type, &histogram);
  if (!patterns && bins_) take_bins(bins_.get(), &histogram);
  return histogram;
}

double TensorCounter::take_rounding() { return std::exchange(rounding_, 0); }

}  // namespace foreshock::lab
