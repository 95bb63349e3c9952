#include <gtest/gtest.h>

#include "cli/summary.h"

namespace foreshock::cli {
namespace {

using Lines = std::vector<std::string>;

TEST(SummaryFlagged, SaysWhereTheyAreAndHowToJudgeThem) {
  EXPECT_EQ(flagged_lines(R"({"flagged": {"directory": "/kept", "saved": {"bias": 3, "control": 1},
                              "dropped": {"alike": 9}, "problem": ""}})"),
            Lines{"4 flagged slices saved (3 bias, 1 control): foreshock judge /kept/*.slice.safetensors"});
}

TEST(SummaryFlagged, SaysWhatCouldNotBeKept) {
  EXPECT_EQ(flagged_lines(R"({"flagged": {"directory": "/kept", "saved": {},
                              "dropped": {"alike": 1, "error": 2}, "problem": "/kept: No space left"}})"),
            Lines{"not every flagged slice could be saved (1 alike, 2 error): /kept: No space left"});
}

TEST(SummaryFlagged, SaysNothingWhereThereIsNothing) {
  for (const char* json :
       {"", "{}", "[]", R"({"flagged": 1})", R"({"flagged": {}})",
        R"({"flagged": {"directory": 1, "saved": [], "dropped": {"error": "x"}}})",
        R"({"flagged": {"directory": "/kept", "saved": {}, "dropped": {}, "problem": ""}})"})
    EXPECT_EQ(flagged_lines(json), Lines{}) << json;
}

}  // namespace
}  // namespace foreshock::cli
