// A histogram as bytes: a few per bin that holds something, so a snapshot of a tensor's distribution is tens
// of kilobytes whatever the tensor's size.
#ifndef FORESHOCK_SHADOW_STORED_HISTOGRAM_H_
#define FORESHOCK_SHADOW_STORED_HISTOGRAM_H_

#include <string>
#include <string_view>

#include "shadow/histogram.h"

namespace foreshock {

// Every number as a variable-length integer, seven bits a byte, lowest first: the version (1), the five
// counts of Histogram, the number of bins, and for each bin its distance from the one before, count and
// residual.
std::string store(const Histogram& histogram);

// False for anything that store() cannot have written; nothing in `bytes` is trusted, and no more memory is
// taken than they warrant.
bool restore(std::string_view bytes, Histogram* histogram);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_STORED_HISTOGRAM_H_
