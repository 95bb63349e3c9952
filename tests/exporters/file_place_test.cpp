#include "exporters/file_place.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uid_t kOther = 12345;

class FilePlaceTest : public testing::Test {
 protected:
  FilePlaceTest() {
    fs::create_directories(at("folder/inner"));
    folder_.write("folder/file", "");
  }
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  static bool opens(const std::string& path, int flags = O_RDONLY) {
    const int file = FilePlace(path).open(flags);
    if (file >= 0) close(file);
    return file >= 0;
  }

  const TemporaryDirectory folder_;
};

TEST_F(FilePlaceTest, ResolvesLinksOfThisUser) {
  fs::create_symlink("folder", at("relative"));
  fs::create_symlink(at("relative/inner/../file"), at("absolute"));
  const FilePlace place(at("absolute"));
  EXPECT_EQ(place.refusal(), "");
  EXPECT_EQ(place.name(), "file");
  EXPECT_EQ(place.path(), at("folder/file"));
  EXPECT_TRUE(opens(at("absolute")));
  EXPECT_EQ(FilePlace(at("relative/missing")).path(), at("folder/missing"));
  EXPECT_FALSE(opens(at("relative/missing")));
  EXPECT_TRUE(opens(at("relative/missing"), O_WRONLY | O_CREAT));
  EXPECT_TRUE(fs::exists(at("folder/missing")));
}

TEST_F(FilePlaceTest, PrintsThePath) {
  EXPECT_EQ(FilePlace(at("folder/./inner//../file")).path(), at("folder/file"));
  EXPECT_EQ(FilePlace(at("no/such/../file")).path(), at("no/file"));
  EXPECT_EQ(FilePlace(at("folder/")).path(), at("folder/"));
  EXPECT_EQ(FilePlace(at("folder/")).name(), ".");
  EXPECT_EQ(FilePlace(at("folder/inner/..")).path(), at("folder/"));
  EXPECT_EQ(FilePlace("/../usr/../etc").path(), "/etc");
  EXPECT_EQ(FilePlace("name").path(), "name");
  EXPECT_EQ(FilePlace("../../name").path(), "../../name");
  EXPECT_EQ(FilePlace("./x/../name").path(), "name");
  EXPECT_TRUE(opens("/"));
  EXPECT_TRUE(opens("."));
  EXPECT_FALSE(opens(""));
}

TEST_F(FilePlaceTest, FailsWithTheErrorOfOpen) {
  for (const auto& [name, error] : {std::pair("no/such/file", ENOENT), std::pair("folder/file/x", ENOTDIR)}) {
    EXPECT_FALSE(opens(at(name), O_WRONLY | O_CREAT));
    EXPECT_EQ(errno, error) << name;
    EXPECT_EQ(FilePlace(at(name)).path(), at(name));
  }
}

TEST_F(FilePlaceTest, RefusesALoopOfLinks) {
  fs::create_symlink("b", at("a"));
  fs::create_symlink("a", at("b"));
  EXPECT_THAT(FilePlace(at("a")).refusal(), HasSubstr(at("a") + " is a link that leads nowhere"));
  EXPECT_FALSE(opens(at("a")));
  EXPECT_EQ(errno, ELOOP);
}

// The links of procfs have no path as target.
TEST_F(FilePlaceTest, OpensStandardStreams) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_TRUE(opens("/dev/fd/" + std::to_string(ends[1]), O_WRONLY));
  const int folder = open(at("folder").c_str(), O_RDONLY | O_DIRECTORY);
  EXPECT_TRUE(opens("/proc/self/fd/" + std::to_string(folder) + "/file"));
  for (const int file : {ends[0], ends[1], folder}) close(file);
}

TEST_F(FilePlaceTest, FollowsLinksOfAnotherUserOnlyInOwnFolders) {
  fs::create_symlink("inner", at("folder/link"));
  if (lchown(at("folder/link").c_str(), kOther, kOther) != 0) GTEST_SKIP() << "needs root";
  for (const char* name : {"folder/link", "folder/link/file"}) {
    for (const auto& [mode, owner, is_followed] :
         {std::tuple(0755, 0u, true), std::tuple(0700, 0u, true), std::tuple(01777, 0u, false),
          std::tuple(0775, 0u, false), std::tuple(0757, 0u, false), std::tuple(0755, kOther, false)}) {
      ASSERT_EQ(chown(at("folder").c_str(), owner, 0), 0);
      ASSERT_EQ(chmod(at("folder").c_str(), static_cast<mode_t>(mode)), 0);
      const std::string refusal = FilePlace(at(name)).refusal();
      EXPECT_EQ(refusal.empty(), is_followed) << std::oct << mode << " " << owner;
      if (is_followed) continue;
      EXPECT_EQ(refusal, at("folder/link") +
                             " is a link of another user in a folder that others may write; name its target");
      EXPECT_FALSE(opens(at(name), O_WRONLY | O_CREAT));
      EXPECT_EQ(errno, ELOOP);
    }
  }
  ASSERT_EQ(lchown(at("folder/link").c_str(), 0, 0), 0);
  EXPECT_EQ(FilePlace(at("folder/link")).refusal(), "") << "a link of root";
}

TEST_F(FilePlaceTest, DoesNotFollowALinkThatIsSetLater) {
  const FilePlace place(at("folder/later"));
  fs::create_symlink("file", at("folder/later"));
  EXPECT_EQ(place.open(O_WRONLY | O_CREAT), -1);
  EXPECT_EQ(errno, ELOOP);
  const FilePlace other(at("folder/new"));
  fs::rename(at("folder"), at("moved"));
  fs::create_directory_symlink("moved/inner", at("folder"));
  const int file = other.open(O_WRONLY | O_CREAT);
  EXPECT_GE(file, 0);
  close(file);
  EXPECT_TRUE(fs::exists(at("moved/new"))) << "in the folder that was examined";
}

}  // namespace
}  // namespace foreshock
