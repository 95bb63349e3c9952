// The judgement on a slice as text that says it to the bit: two judgements are the same when their texts are.
#ifndef FORESHOCK_SHADOW_FIGURES_H_
#define FORESHOCK_SHADOW_FIGURES_H_

#include <string>
#include <vector>

#include "shadow/deviation.h"

namespace foreshock {

// The shortest decimal that reads back as the same double; "inf", "-inf", "nan".
std::string exact_text(double value);

struct Figure {
  const char* name;  // as in the record, where it is there
  std::string text;  // empty: cannot be said
};

// Every number of the judgement, always in the same order.
std::vector<Figure> figures_of(const SliceDeviation& deviation);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_FIGURES_H_
