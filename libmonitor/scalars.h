// The named numbers that the training itself logs, until the record of a step takes them along.
#ifndef FORESHOCK_LIBMONITOR_SCALARS_H_
#define FORESHOCK_LIBMONITOR_SCALARS_H_

#include <cstdint>

#include "segment/layout.h"

namespace foreshock {

// One caller at a time. Names stay for the life of the segment, values until take().
class Scalars {
 public:
  // Forgets everything and stores names into `names` (kMaxScalars of them) from now on.
  void attach(segment::ScalarName* names);

  // Keeps the value for the step that ends next. False: no name, or no room for another one. Of a name too
  // long for the segment the beginning is kept; where that is another's already, with a number at its end.
  bool observe(const char* name, double value, int64_t step);

  // Moves what was observed since the last call into the record.
  void take(segment::StepRecord* record);

 private:
  int index_of(const char* name);
  bool is_taken(const char* cut) const;

  segment::ScalarName* names_ = nullptr;
  uint64_t hash_[segment::kMaxScalars] = {};  // of the whole names
  uint32_t known_ = 0;
  uint32_t given_ = 0;
  double value_[segment::kMaxScalars] = {};
  int64_t step_[segment::kMaxScalars] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_SCALARS_H_
