#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_dir.h"
#include "tests/support/temporary_directory.h"

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
  EXPECT_THAT(off_lines(directory.path(), {}, 7),
              ElementsAre(HasSubstr("1 process (adapter_missing): "), HasSubstr("2 processes (no_space): ")));
}

TEST(OffFiles, FilesOfAnEarlierRunDoNotCount) {
  const TemporaryDirectory directory;
  directory.write("off.12.no_space", "");
  const OffFiles earlier = off_files(directory.path());
  EXPECT_THAT(off_lines(directory.path(), earlier, 7), IsEmpty());
  directory.write("off.13.no_space", "");
  EXPECT_THAT(off_lines(directory.path(), earlier, 7), ElementsAre(HasSubstr("1 process (no_space): ")));
}

TEST(OffFiles, AClockThatJumpsHidesNone) {
  const TemporaryDirectory directory;
  directory.write("off.12.no_space", "");
  const OffFiles earlier = off_files(directory.path());
  // The same process number again, hours before.
  std::filesystem::last_write_time(directory.path() + "/off.12.no_space",
                                   earlier.begin()->second - std::chrono::hours(3));
  EXPECT_THAT(off_lines(directory.path(), earlier, 7), ElementsAre(HasSubstr("1 process (no_space): ")));
}

TEST(OffFiles, EachLauncherTellsItsOwn) {
  const TemporaryDirectory directory;
  directory.write("off.12.rank_taken", "7");
  directory.write("off.13.rank_taken", "8");
  directory.write("off.14.no_space", "");  // no room to say whose
  EXPECT_THAT(off_lines(directory.path(), {}, 7),
              ElementsAre(HasSubstr("1 process (no_space): "), HasSubstr("1 process (rank_taken): ")));
  EXPECT_THAT(off_lines(directory.path(), {}, 9), ElementsAre(HasSubstr("1 process (no_space): ")));
}

TEST(OffFiles, AnUnknownReasonStillGetsAdvice) {
  EXPECT_THAT(advice_for("solar_flare"), HasSubstr("foreshock doctor"));
}

}  // namespace
}  // namespace foreshock::cli
