// A step as a trainer that counts for itself tells it.
#ifndef FORESHOCK_TESTS_SUPPORT_REPORTED_STEP_H_
#define FORESHOCK_TESTS_SUPPORT_REPORTED_STEP_H_

#include <cstdint>

#include "foreshock/hook.h"

namespace foreshock {

inline foreshock_step reported_step(int64_t number) {
  foreshock_step step = {};
  step.size = sizeof step;
  step.version = FORESHOCK_ABI_VERSION;
  step.step = number;
  step.step_source = FORESHOCK_STEP_REPORTED;
  return step;
}

inline void end_reported_step(int64_t number) {
  const foreshock_step step = reported_step(number);
  foreshock_step_end(&step);
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SUPPORT_REPORTED_STEP_H_
