#include "detect/limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace foreshock {
namespace {

TEST(Limit, IsTheSecondLargestOfTheLastValues) {
  for (DetectorId id : {DetectorId::kMaxLogit, DetectorId::kDeviationForward}) {
    const DetectorInfo& info = info_of(id);
    std::mt19937_64 engine(1);
    std::uniform_real_distribution<double> draw(0, 300);
    Limit limit;
    std::vector<double> values;
    for (int n = 0; n < 300; ++n) {
      values.push_back(draw(engine));
      const double score = limit.observe(info, values.back());
      std::vector<double> last(values.end() - std::min<int64_t>(n + 1, static_cast<int64_t>(info.learning)),
                               values.end());
      std::sort(last.rbegin(), last.rend());
      EXPECT_EQ(score, last.size() < 2 ? 0 : last[1] / info.warn);
    }
  }
}

TEST(Limit, OneSliceBeyondIsChance) {
  Limit limit;
  const DetectorInfo& info = info_of(DetectorId::kDeviationForward);
  double most = 0;
  for (int n = 0; n < 200; ++n) most = std::max(most, limit.observe(info, n == 100 ? 50 : 0.9));
  EXPECT_LT(most, 0.5);
}

}  // namespace
}  // namespace foreshock
