#include <gtest/gtest.h>

#include "cli/commands.h"

namespace foreshock::cli {
namespace {

std::string refusal(const std::vector<std::string>& words) {
  LabRequest request;
  return parse_lab_request(words, &request);
}

TEST(LabRequest, DefaultsToThePapersFigures) {
  LabRequest request;
  ASSERT_EQ(parse_lab_request({}, &request), "");
  ASSERT_EQ(request.sweeps.size(), 4u);
  EXPECT_EQ(request.sweeps[0].points[0].sweep, "fig3");
  EXPECT_EQ(request.sweeps[3].points[0].sweep, "fig6");
}

TEST(LabRequest, AxesMultiply) {
  LabRequest request;
  ASSERT_EQ(parse_lab_request({"--format", "bf16,fp16", "--n=256,512,1024", "--scale", "0.5", "--seeds", "3"},
                              &request),
            "");
  ASSERT_EQ(request.sweeps.size(), 1u);
  ASSERT_EQ(request.sweeps[0].points.size(), 6u);
  EXPECT_EQ(request.sweeps[0].points[5].format, "fp16");
  EXPECT_EQ(request.sweeps[0].points[5].n, 1024);
  EXPECT_EQ(request.sweeps[0].points[5].scale, 0.5);
  EXPECT_EQ(request.sweeps[0].points[5].seeds, 3);
}

TEST(LabRequest, NamedSweepsTakeSeedsButNoOtherAxes) {
  LabRequest request;
  ASSERT_EQ(parse_lab_request({"fig5", "--seeds", "16"}, &request), "");
  for (const lab::Point& point : request.sweeps[0].points) EXPECT_EQ(point.seeds, 16);
  EXPECT_NE(refusal({"fig5", "--n", "64"}), "");
}

TEST(LabRequest, RefusesInvalidRequestsInOneLine) {
  const std::vector<std::vector<std::string>> asks = {{"--block-k", "0"},
                                                      {"--d", "0"},
                                                      {"--format", "fp17"},
                                                      {"--n", "2000000000", "--rows", "2000000000"},
                                                      {"--n", "12x"},
                                                      {"--n"},
                                                      {"fig7"},
                                                      {"--colour", "red"},
                                                      {"--seeds", "0"},
                                                      {"--format", "bf16,"},
                                                      {"--scale", "nan"},
                                                      {"--report", "/nonexistent/page.html"},
                                                      {"--threads", "0"},
                                                      {"--json", "/tmp/"},
                                                      {"--n", "99999999999999999999"}};
  for (const auto& ask : asks) {
    const std::string line = refusal(ask);
    EXPECT_FALSE(line.empty()) << ask[0];
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace foreshock::cli
