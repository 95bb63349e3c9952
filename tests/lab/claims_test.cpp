// Every statement of every sweep holds: the paper's findings, where they do not generalise, and what else the
// sweeps are for. The ranges are in lab/claims_*.cpp, beside the statements.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "lab/study.h"

namespace foreshock::lab {
namespace {

class ClaimsOf : public testing::TestWithParam<const Sweep*> {};

TEST_P(ClaimsOf, Hold) {
  const Sweep& sweep = *GetParam();
  const std::vector<Point> points = sweep.points();
  for (const Point& point : points) {
    ASSERT_EQ(why_not(point), "");
    ASSERT_GE(point.seeds, 8);
  }
  const auto claims = sweep.claims(measure(points, static_cast<int>(std::thread::hardware_concurrency())));
  EXPECT_FALSE(claims.empty());
  for (const Claim& claim : claims)
    EXPECT_TRUE(claim.holds) << claim.source << ": " << claim.statement << "\n  " << claim.measured;
}

std::vector<const Sweep*> all_sweeps() {
  std::vector<const Sweep*> all;
  for (const Sweep& sweep : sweeps()) all.push_back(&sweep);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sweeps, ClaimsOf, testing::ValuesIn(all_sweeps()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(Sweeps, HaveUniqueNames) {
  std::set<std::string_view> names{"custom"};
  for (const Sweep& sweep : sweeps()) EXPECT_TRUE(names.insert(sweep.name).second) << sweep.name;
  for (std::string_view name : default_sweeps()) EXPECT_NE(find_sweep(name), nullptr);
}

}  // namespace
}  // namespace foreshock::lab
