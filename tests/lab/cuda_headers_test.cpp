// The conversions of NVIDIA's own headers, which run on the host, as oracle for saturation and NaN rules.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include "lab/rounding.h"
#include "tests/lab/format_samples.h"
#include "tests/support/variations.h"

namespace foreshock::lab {
namespace {

constexpr int kSamples = 1'000'000 / test::kVariationStep;

using Convert = double (*)(float);

double from_fp8(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, kind)));
}

template <__nv_saturation_t saturation, __nv_fp8_interpretation_t kind>
double fp8(float x) {
  return from_fp8(__nv_cvt_float_to_fp8(x, saturation, kind), kind);
}

void expect_same(const char* name, Rounding rounding, Convert convert) {
  const NumberFormat format = *parse_format(name);
  const std::vector<double> x = format_samples(format, kSamples, true, 13);
  std::vector<double> own = x;
  round_to(format, rounding, own.data(), own.size());
  int64_t mismatches = 0;
  double first = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (same(own[i], convert(static_cast<float>(x[i])))) continue;
    if (mismatches++ == 0) first = x[i];
  }
  EXPECT_EQ(mismatches, 0) << name << ", first at " << first;
}

TEST(CudaHeaders, Bf16) {
  expect_same("bf16", Rounding::kNearestEven,
              [](float x) -> double { return __bfloat162float(__float2bfloat16_rn(x)); });
  expect_same("bf16", Rounding::kTowardZero,
              [](float x) -> double { return __bfloat162float(__float2bfloat16_rz(x)); });
}

TEST(CudaHeaders, Fp16) {
  expect_same("fp16", Rounding::kNearestEven,
              [](float x) -> double { return __half2float(__float2half_rn(x)); });
  expect_same("fp16", Rounding::kTowardZero,
              [](float x) -> double { return __half2float(__float2half_rz(x)); });
}

TEST(CudaHeaders, Fp8) {
  expect_same("e4m3", Rounding::kNearestEven, fp8<__NV_SATFINITE, __NV_E4M3>);
  expect_same("e4m3nosat", Rounding::kNearestEven, fp8<__NV_NOSAT, __NV_E4M3>);
  expect_same("e5m2", Rounding::kNearestEven, fp8<__NV_SATFINITE, __NV_E5M2>);
  expect_same("e5m2nosat", Rounding::kNearestEven, fp8<__NV_NOSAT, __NV_E5M2>);
}

}  // namespace
}  // namespace foreshock::lab
