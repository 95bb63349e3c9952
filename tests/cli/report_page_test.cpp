#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/report_text.h"

namespace foreshock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t times(const std::string& text, const std::string& of) {
  size_t found = 0;
  for (size_t at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++found;
  return found;
}

TEST(ReportPage, DataIsDataWhateverItHolds) {
  const std::string json =
      R"({"run": "</script><script>alert(1)</script><!--", "x": "/*SCRIPT*/ /*POLICY*/"})";
  const std::string page = report_page(json);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, HasSubstr(R"("x": "/*SCRIPT*/ /*POLICY*/")")) << "what is put in is not searched";
  EXPECT_EQ(times(page, "</script>"), 3u);
  EXPECT_EQ(times(page, "/*DATA*/"), 0u);
}

TEST(ReportPage, APolicyAllowsItsOwnScriptsAndNothingElse) {
  const std::string page = report_page("{}");
  const size_t at = page.find("content=\"default-src 'none';");
  ASSERT_NE(at, std::string::npos);
  const std::string policy = page.substr(at, page.find("\">", at) - at);
  EXPECT_EQ(times(policy, "'sha256-"), 3u);
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_LT(page.find(kReportMark), 1024u) << "by which `report` knows its own pages";
}

}  // namespace
}  // namespace foreshock::cli
