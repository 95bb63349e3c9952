// Our declarations of CUPTI against NVIDIA's.
#include <cupti.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "libmonitor/coverage.h"

namespace foreshock {
namespace {

TEST(CuptiAbi, NumbersAndStructsAreTheirs) {
  EXPECT_EQ(cupti::kSuccess, CUPTI_SUCCESS);
  EXPECT_EQ(cupti::kSubscribedByAnother, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  EXPECT_EQ(cupti::kDriverApi, CUPTI_CB_DOMAIN_DRIVER_API);
  const uint32_t launches[] = {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
                               CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
                               CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
                               CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
                               CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
                               CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz};
  EXPECT_TRUE(std::equal(std::begin(launches), std::end(launches), cupti::kLaunches));
  EXPECT_EQ(offsetof(cupti::CallbackData, site), offsetof(CUpti_CallbackData, callbackSite));
  EXPECT_EQ(offsetof(cupti::CallbackData, symbol), offsetof(CUpti_CallbackData, symbolName));
  EXPECT_EQ(CUPTI_API_ENTER, 0);
#ifdef CUpti_SubscriberParams_STRUCT_SIZE
  EXPECT_EQ(sizeof(cupti::SubscriberParams), CUpti_SubscriberParams_STRUCT_SIZE);
  EXPECT_EQ(offsetof(cupti::SubscriberParams, holder), offsetof(CUpti_SubscriberParams, oldSubscriberName));
  EXPECT_GE(cupti::kHolderSize, static_cast<size_t>(CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN));
#endif
}

}  // namespace
}  // namespace foreshock
