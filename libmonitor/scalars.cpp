#include "libmonitor/scalars.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "segment/layout.h"

namespace foreshock {

void Scalars::attach(segment::ScalarName* names) {
  names_ = names;
  known_ = given_ = 0;
}

bool Scalars::is_taken(const char* cut) const {
  for (uint32_t n = 0; n < known_; ++n)
    if (std::strcmp(names_[n].name, cut) == 0) return true;
  return false;
}

// The index of a name, which is added when it is new; -1 when there is no room.
int Scalars::index_of(const char* name) {
  const uint64_t hash = fnv1a(name);
  for (uint32_t n = 0; n < known_; ++n)
    if (hash_[n] == hash) return static_cast<int>(n);
  if (known_ == segment::kMaxScalars) return -1;
  char cut[sizeof(segment::ScalarName::name)] = {};
  std::strncpy(cut, name, sizeof cut - 1);
  for (uint32_t number = 2; is_taken(cut); ++number) {
    char end[8];
    const int length = std::snprintf(end, sizeof end, "~%u", number);
    const size_t at = std::min(std::strlen(name), sizeof cut - 1 - static_cast<size_t>(length));
    std::memcpy(cut + at, end, static_cast<size_t>(length) + 1);
  }
  hash_[known_] = hash;
  segment::ScalarName& added = names_[known_];
  std::memcpy(added.name, cut, sizeof cut);
  std::atomic_ref<uint32_t>(added.ready).store(1, std::memory_order_release);
  return static_cast<int>(known_++);
}

bool Scalars::observe(const char* name, double value, int64_t step) {
  if (names_ == nullptr || name == nullptr || *name == '\0') return false;
  const int index = index_of(name);
  if (index < 0) return false;
  value_[index] = value;
  step_[index] = std::max<int64_t>(step, -1);
  given_ |= 1u << index;
  return true;
}

void Scalars::take(segment::StepRecord* record) {
  record->scalars_given = given_;
  std::copy_n(value_, segment::kMaxScalars, record->scalars);
  std::copy_n(step_, segment::kMaxScalars, record->scalar_step);
  given_ = 0;
}

}  // namespace foreshock
