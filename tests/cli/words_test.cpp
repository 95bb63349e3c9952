#include "cli/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshock::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr WordOption kOptions[] = {
    {"-o", "OUT", "write it there"},
    {"--json", nullptr, "print JSON"},
    {"--pair", "NAME A B", "compare these", 3},
};

std::string problem_of(const std::vector<std::string>& words) {
  return Words().parse(words, "merge", kOptions);
}

TEST(Words, OptionsAndFilesMayBeMixed) {
  Words words;
  EXPECT_EQ(words.parse({"a", "-o", "x", "b", "--json", "--pair", "n", "p", "q", "-"}, "merge", kOptions),
            "");
  EXPECT_THAT(words.files(), ElementsAre("a", "b", "-"));
  EXPECT_EQ(words.value("-o"), "x");
  EXPECT_TRUE(words.has("--json"));
  EXPECT_THAT(words.given()[2].values, ElementsAre("n", "p", "q"));
  EXPECT_FALSE(words.wants_help());
}

TEST(Words, ValueMayFollowAnEqualsSignAndTheLastOneHolds) {
  Words words;
  EXPECT_EQ(words.parse({"-o=x=y", "-o", "-"}, "merge", kOptions), "");
  EXPECT_EQ(words.given()[0].values[0], "x=y");
  EXPECT_EQ(words.value("-o"), "-");
  EXPECT_EQ(words.value("--json"), "");
}

TEST(Words, DoubleDashEndsTheOptions) {
  Words words;
  EXPECT_EQ(words.parse({"--", "--json", "--help"}, "merge", kOptions), "");
  EXPECT_THAT(words.files(), ElementsAre("--json", "--help"));
  EXPECT_FALSE(words.has("--json"));
}

TEST(Words, HelpIsAnsweredWhateverElseIsWrong) {
  Words words;
  EXPECT_EQ(words.parse({"a", "-h", "--unknown"}, "merge", kOptions), "");
  EXPECT_TRUE(words.wants_help());
}

TEST(Words, WrongWordsAreNamedWithWhatToDo) {
  EXPECT_EQ(problem_of({"-o"}), "give -o a value: -o OUT");
  EXPECT_EQ(problem_of({"-o", ""}), "give -o a value: -o OUT");
  EXPECT_EQ(problem_of({"--pair", "n", "a"}), "give --pair a value: --pair NAME A B");
  EXPECT_EQ(problem_of({"--json=1"}), "--json takes no value");
  EXPECT_EQ(problem_of({"--jsno"}),
            "unknown option '--jsno', did you mean --json?; see foreshock merge --help");
  EXPECT_EQ(problem_of({"--all"}), "unknown option '--all'; see foreshock merge --help");
}

TEST(Words, HelpHasAlignedColumnsThatEndAtTheWidth) {
  constexpr WordOption kLong[] = {
      {"-o", "OUT", "write it there"},
      {"--json", nullptr, "print JSON, which is not broken in the middle of a word"},
      {"--a-long-option", "WITH A VALUE", "below"},
  };
  EXPECT_EQ(words_help(kLong, 60),
            "  -o OUT                write it there\n"
            "  --json                print JSON, which is not broken in\n"
            "                        the middle of a word\n"
            "  --a-long-option WITH A VALUE\n"
            "                        below\n");
}

}  // namespace
}  // namespace foreshock::cli
