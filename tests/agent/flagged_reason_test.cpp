#include <gtest/gtest.h>

#include <cmath>

#include "agent/detection.h"
#include "agent/flagged.h"
#include "detect/detector.h"
#include "tests/shadow/slice_data.h"

namespace foreshock {
namespace {

// A bf16 slice of layer "001" whose result is the rounded reference but for what a test does to it.
class Scene {
 public:
  explicit Scene(bool backward = false) : data_({DType::kBf16, 16, 100, 64, 64, backward}) {
    reference(data_.view(), &workspace_.reference);
    const size_t count = data_.out.size();
    for (size_t n = 0; n < count; ++n) data_.out.set(n, workspace_.reference.out[n]);
    reference(data_.view(), &workspace_.reference);  // delta comes from the output
    for (size_t n = 0; n < count; ++n)
      if (backward) data_.grad_query.set(n, workspace_.reference.grad_query[n]);
    rank.layers["001"].label = "001";
  }

  void scale_result(double factor) {
    PackedArray& result = data_.shape.backward ? data_.grad_query : data_.out;
    for (size_t n = 0; n < result.size(); ++n) result.set(n, result.get(n) * factor);
  }
  void set_out(size_t n, double x) { data_.out.set(n, x); }
  void set_query(size_t n, double x) { data_.query.set(n, x); }
  // Every fourth element one unit in the last place away from zero.
  void bias_out() {
    for (size_t n = 0; n < data_.out.size(); n += 4) {
      const double x = data_.out.get(n);
      data_.out.set(n, x + std::copysign(ulp_at(DType::kBf16, x), x));
    }
  }

  SliceDeviation deviation() { return judge(data_.view(), &workspace_); }

  std::string reason(const std::string& layer = "001") {
    const AttentionSlice slice = data_.view();
    const SliceDeviation deviation = judge(slice, &workspace_);
    const auto found = flag_reason({slice, deviation, workspace_.reference, layer}, rank);
    return found ? kFlagReasonNames[static_cast<int>(*found)] : "";
  }

  // The last 64 slices of the layer were so.
  void fill_window(double ratio) {
    for (int n = 0; n < 64; ++n)
      rank.layers["001"].pass[data_.shape.backward].add_fused_ratio(ratio, kDeviationRatioForward);
  }
  void fill_bias(double of_kernel, double of_rounded) {
    PassStatistics& pass = rank.layers["001"].pass[0];
    for (int n = 0; n < 64; ++n) {
      const BiasCluster cluster = {n, 0, n, 0};
      const double noise = 0.01 * (n % 2 == 0 ? 1 : -1);  // a spread, for the standard error
      pass.bias.add(cluster, {of_kernel + noise, 1});
      pass.excess_bias.add(cluster, {of_kernel - of_rounded + noise, 1});
      pass.rounded_bias.add(cluster, {of_rounded + noise, 1});
    }
  }

  void warn(DetectorId detector) {
    watch_ = std::make_unique<RankWatch>();
    std::vector<WatchEvent> events;
    // Largest logits of 200, or an error that begins to drift after its spread is known.
    for (int n = 0; n < 400; ++n) {
      const double noise = std::sin(12.9898 * n);
      const double value = detector == DetectorId::kMaxLogit ? 200 : noise + (n > 200 ? 5 : 0);
      watch_->observe(detector, "001", "001", n, value, 0, &events);
    }
    ASSERT_EQ(watch_->level_of(detector, "001"), Level::kWarn);
    rank.watch = watch_.get();
  }

  RankStatistics rank;

 private:
  SliceData data_;
  DeviationWorkspace workspace_;
  std::unique_ptr<RankWatch> watch_;
};

TEST(FlaggedReason, TheRoundedReferenceIsNeverFlagged) {
  for (bool backward : {false, true}) {
    Scene scene(backward);
    EXPECT_EQ(scene.reason(), "");
    scene.fill_window(100);
    EXPECT_EQ(scene.reason(), "");
    scene.fill_bias(0.3, 0);
    EXPECT_EQ(scene.reason(), "");
    scene.warn(DetectorId::kOutputErrorDrift);
    EXPECT_EQ(scene.reason(), "");
  }
}

TEST(FlaggedReason, NotFiniteWhereTheReferenceIs) {
  Scene scene;
  scene.set_out(70, NAN);
  EXPECT_EQ(scene.reason(), "nonfinite");
  EXPECT_EQ(scene.reason(""), "nonfinite");  // of no known layer
}

TEST(FlaggedReason, NotFiniteLikeTheReferenceIsOrdinary) {
  Scene scene;
  scene.set_query(64, NAN);
  for (size_t n = 64; n < 128; ++n) scene.set_out(n, NAN);
  EXPECT_GT(scene.deviation().nonfinite_out, 0u);
  EXPECT_EQ(scene.reason(), "");
}

TEST(FlaggedReason, FarBeyondTheLimitOneSliceIsEnough) {
  for (bool backward : {false, true}) {
    Scene scene(backward);
    scene.scale_result(1 + 0x1p-3);
    ASSERT_GT(*scene.deviation().fused_ratio, 12);
    EXPECT_EQ(scene.reason(), "deviation_ratio");
    EXPECT_EQ(scene.reason(""), "deviation_ratio");
  }
}

TEST(FlaggedReason, ALittleBeyondItTakesSeveralOfTheLayer) {
  Scene scene;
  scene.scale_result(1 + 0x1p-6);
  const double ratio = *scene.deviation().fused_ratio;
  ASSERT_GT(ratio, kDeviationRatioForward);
  ASSERT_LT(ratio, 4 * kDeviationRatioForward);
  EXPECT_EQ(scene.reason(), "");
  scene.rank.layers["001"].pass[0].add_fused_ratio(ratio, kDeviationRatioForward);
  EXPECT_EQ(scene.reason(), "");  // itself
  scene.rank.layers["001"].pass[0].add_fused_ratio(ratio, kDeviationRatioForward);
  EXPECT_EQ(scene.reason(), "deviation_ratio");
  EXPECT_EQ(scene.reason("002"), "");
  EXPECT_EQ(scene.reason(""), "");
}

TEST(FlaggedReason, OfABiasedLayerThoseThatErrThatWay) {
  Scene scene;
  scene.bias_out();
  EXPECT_EQ(scene.reason(), "");
  scene.fill_bias(0.3, 0);
  EXPECT_EQ(scene.reason(), "bias");
  scene.fill_bias(-0.3, 0);
  EXPECT_EQ(scene.reason(), "");
  scene.fill_bias(0.3, 0.3);  // the control has it too
  EXPECT_EQ(scene.reason(), "");
}

TEST(FlaggedReason, AWarningOfTheLargestLogitIsOfTheForwardPass) {
  Scene forward;
  forward.warn(DetectorId::kMaxLogit);
  EXPECT_EQ(forward.reason(), "logit");
  EXPECT_EQ(forward.reason("000"), "");
  Scene backward(true);
  backward.warn(DetectorId::kMaxLogit);
  EXPECT_EQ(backward.reason(), "");
}

TEST(FlaggedReason, AWarningOfTheDriftIsOfTheBackwardPass) {
  Scene backward(true);
  backward.set_out(5, 0.25);
  EXPECT_EQ(backward.reason(), "");
  backward.warn(DetectorId::kOutputErrorDrift);
  EXPECT_EQ(backward.reason(), "output_error_drift");
  Scene forward;
  forward.bias_out();
  forward.warn(DetectorId::kOutputErrorDrift);
  EXPECT_EQ(forward.reason(), "");
}

TEST(FlaggedReason, AControlIsWithinTheLimit) {
  Scene scene;
  EXPECT_TRUE(is_fit_as_control(scene.deviation()));
  scene.scale_result(1 + 0x1p-5);
  EXPECT_FALSE(is_fit_as_control(scene.deviation()));
  EXPECT_FALSE(is_fit_as_control(SliceDeviation()));  // nothing was compared
}

}  // namespace
}  // namespace foreshock
