#include <gtest/gtest.h>

#include "cli/terminal.h"

namespace foreshock::cli {
namespace {

TEST(Screen, ALineIsCutByCharactersNotByBytes) {
  EXPECT_EQ(fit_line("abcdef", 4), "abcd");
  EXPECT_EQ(fit_line("abcd", 4), "abcd");
  EXPECT_EQ(fit_line("\xc3\xa4\xc3\xb6\xc3\xbc", 2), "\xc3\xa4\xc3\xb6");
  EXPECT_EQ(fit_line("abc", 0), "");
}

TEST(Screen, ColoursTakeNoRoomAndEndWithTheLine) {
  EXPECT_EQ(fit_line("\033[1;31mabcdef\033[0m", 3), "\033[1;31mabc\033[0m");
  EXPECT_EQ(fit_line("ab\033[2m", 3), "ab\033[2m\033[0m");
}

std::string frame(const std::string& rows) { return "\033[?2026h\033[H" + rows + "\033[?2026l"; }

TEST(Screen, AFrameOverwritesTheOneBefore) {
  EXPECT_EQ(frame_of("ab\nc\n", 10, 5), frame("\033[Kab\r\n\033[Kc\r\n\033[J"));
  EXPECT_EQ(frame_of("", 10, 5), frame("\033[J"));
}

TEST(Screen, TheLastRowSaysWhatDidNotFit) {
  EXPECT_EQ(frame_of("a\nb\nc\n", 20, 3), frame("\033[Ka\r\n\033[Kb\r\n\033[Kc"));
  EXPECT_EQ(frame_of("a\nb\nc\nd\n", 20, 3), frame("\033[Ka\r\n\033[Kb\r\n\033[K... 2 more lines"));
  EXPECT_EQ(frame_of("a\nb\n", 20, 1), frame("\033[K... 2 more lines"));
  EXPECT_EQ(frame_of("a\nb\n", 5, 0), frame("\033[K... 2"));
}

}  // namespace
}  // namespace foreshock::cli
