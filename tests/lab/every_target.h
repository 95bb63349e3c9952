// Runs a check once per instruction set this machine has and the lab was built for.
#ifndef FORESHOCK_TESTS_LAB_EVERY_TARGET_H_
#define FORESHOCK_TESTS_LAB_EVERY_TARGET_H_

// As in the lab's vectorised files.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace foreshock::lab {

template <class Check>
void on_every_target(const Check& check) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace foreshock::lab

#endif  // FORESHOCK_TESTS_LAB_EVERY_TARGET_H_
