#include "cli/off_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/temporary_directory.h"

namespace foreshock::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(OffFiles, OneLinePerReason) {
  const TemporaryDirectory directory;
  for (const char* name :
       {"off.12.no_space", "off.13.no_space", "off.14.adapter_missing", "agent.log", "off.15"}) {
    directory.write(name, "");
  }
  EXPECT_THAT(off_lines(directory.path(), std::filesystem::file_time_type::min(), 7),
              ElementsAre(HasSubstr("1 process (adapter_missing): "), HasSubstr("2 processes (no_space): ")));
}

TEST(OffFiles, FilesOfAnEarlierRunDoNotCount) {
  const TemporaryDirectory directory;
  directory.write("off.12.no_space", "");
  EXPECT_THAT(
      off_lines(directory.path(), std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5), 7),
      IsEmpty());
}

TEST(OffFiles, EachLauncherTellsItsOwn) {
  const TemporaryDirectory directory;
  directory.write("off.12.rank_taken", "7");
  directory.write("off.13.rank_taken", "8");
  directory.write("off.14.no_space", "");  // no room to say whose
  const auto begin = std::filesystem::file_time_type::min();
  EXPECT_THAT(off_lines(directory.path(), begin, 7),
              ElementsAre(HasSubstr("1 process (no_space): "), HasSubstr("1 process (rank_taken): ")));
  EXPECT_THAT(off_lines(directory.path(), begin, 9), ElementsAre(HasSubstr("1 process (no_space): ")));
}

TEST(OffFiles, AnUnknownReasonStillGetsAdvice) {
  EXPECT_THAT(advice_for("solar_flare"), HasSubstr("foreshock doctor"));
}

}  // namespace
}  // namespace foreshock::cli
