// Numbers that lay on devices and were asked for in vain, as a text: "device 2, late 1"; "": none.
#ifndef FORESHOCK_TESTS_LIBMONITOR_MISSED_NUMBERS_H_
#define FORESHOCK_TESTS_LIBMONITOR_MISSED_NUMBERS_H_

#include <string>

#include "segment/layout.h"

namespace foreshock {

inline std::string missed_numbers(const segment::Coverage& coverage) {
  std::string text;
  const auto add = [&text](const char* why, uint64_t count) {
    if (count > 0) text += (text.empty() ? "" : ", ") + std::string(why) + " " + std::to_string(count);
  };
  for (uint32_t reason = 0; reason < segment::kSkipReasons; ++reason)
    add(segment::kSkipReasonNames[reason], coverage.numbers_skipped[reason]);
  add("late", coverage.numbers_late);
  return text;
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_MISSED_NUMBERS_H_
