#include "lab/unpaired_counter.h"

#include <cmath>
#include <utility>

namespace foreshock::lab {

void UnpairedCounter::count(const char* data, DType type, const char* partners, DType partner_type,
                            size_t count) {
  alone_.clear();
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(load_as_double(partners, partner_type, i)) ||
        !std::isfinite(load_as_double(data, type, i)))
      continue;
    const char* value = data + i * size_of(type);
    alone_.insert(alone_.end(), value, value + size_of(type));
  }
  if (alone_.empty()) return;
  counter_.count(alone_.data(), type, alone_.size() / size_of(type));
  has_any_ = true;
}

Histogram UnpairedCounter::take(DType type) {
  return std::exchange(has_any_, false) ? counter_.take(type) : Histogram();
}

Histogram without(const Histogram& part, const Histogram& all) {
  Histogram rest = all;
  rest.finite -= part.finite;
  rest.minus_zero -= part.minus_zero;
  auto bin = rest.bins.begin();
  for (const HistogramBin& less : part.bins) {
    while (bin->index < less.index) ++bin;
    bin->count -= less.count;
    bin->residual -= less.residual;
  }
  std::erase_if(rest.bins, [](const HistogramBin& b) { return b.count == 0; });
  return rest;
}

}  // namespace foreshock::lab
