#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "exporters/http_routes.h"

namespace foreshock {
namespace {

using testing::HasSubstr;

class BearerTokenTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "token-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ + "/token";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_ + ".new") << text;
    chmod((path_ + ".new").c_str(), mode);
    std::filesystem::rename(path_ + ".new", path_);
  }
  std::string problem() {
    std::string error;
    EXPECT_EQ(BearerToken::open(path_, &error), nullptr);
    EXPECT_EQ(error.find('\n'), std::string::npos);
    return error;
  }
  std::string directory_, path_, error_;
};

TEST_F(BearerTokenTest, AdmitsTheTokenAndNothingElse) {
  write("0123456789abcdef\n");
  const auto token = BearerToken::open(path_, &error_);
  ASSERT_NE(token, nullptr) << error_;
  EXPECT_TRUE(token->admits("Bearer 0123456789abcdef"));
  EXPECT_TRUE(token->admits("bearer  0123456789abcdef"));
  EXPECT_TRUE(token->admits("Basic YW55Ym9keTowMTIzNDU2Nzg5YWJjZGVm")) << "anybody:0123456789abcdef";
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer 0123456789abcdeF", "Bearer 0123456789abcde",
                            "0123456789abcdef", "Bearer 0123456789abcdef0123456789abcdef", "Basic ",
                            "Basic !!!!", "Basic MDEyMzQ1Njc4OWFiY2RlZg==", "Digest 0123456789abcdef"})
    EXPECT_FALSE(token->admits(wrong)) << wrong;
}

TEST_F(BearerTokenTest, IsReadAgainWhenTheFileChanges) {
  write("the first of tokens");
  // A space is no token's.
  EXPECT_THAT(problem(), HasSubstr("visible characters"));
  write("the-first-of-tokens");
  const auto token = BearerToken::open(path_, &error_);
  ASSERT_NE(token, nullptr) << error_;
  write("the-second-of-token");  // of the same length
  EXPECT_FALSE(token->admits("Bearer the-first-of-tokens"));
  EXPECT_TRUE(token->admits("Bearer the-second-of-token"));
  write("the-second-of-token", 0644);
  EXPECT_FALSE(token->admits("Bearer the-second-of-token")) << "others can read it now";
  write("the-second-of-token");
  EXPECT_TRUE(token->admits("Bearer the-second-of-token"));
  unlink(path_.c_str());
  EXPECT_FALSE(token->admits("Bearer the-second-of-token"));
  EXPECT_FALSE(token->admits("Bearer "));
}

TEST_F(BearerTokenTest, RefusesAFileThatKeepsNoSecret) {
  EXPECT_THAT(problem(), HasSubstr("No such file"));
  write("0123456789abcdef", 0604);
  EXPECT_THAT(problem(), HasSubstr("chmod 600"));
  write("0123456789abcdef", 0660);
  EXPECT_THAT(problem(), HasSubstr("chmod 600"));
  write("short");
  EXPECT_THAT(problem(), HasSubstr("16 to 1024"));
  write("\n0123456789abcdef");
  EXPECT_THAT(problem(), HasSubstr("16 to 1024"));
  write(std::string(kMostTokenBytes + 1, 'x'));
  EXPECT_THAT(problem(), HasSubstr("16 to 1024"));
  unlink(path_.c_str());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(problem(), HasSubstr("not a regular file"));
}

TEST_F(BearerTokenTest, OfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  write("0123456789abcdef", 0440);  // as an orchestrator mounts a secret
  EXPECT_NE(BearerToken::open(path_, &error_), nullptr) << error_;
  ASSERT_EQ(chown(path_.c_str(), 4321, 4321), 0);
  EXPECT_THAT(problem(), HasSubstr("another user"));
}

TEST_F(BearerTokenTest, OnlyAChosenGroupMayReadIt) {
  constexpr uid_t kUser = 4321;
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  write("0123456789abcdef", 0640);
  ASSERT_EQ(chown(directory_.c_str(), kUser, kUser), 0);
  const auto problem_with = [&](uid_t owner, gid_t group) {
    EXPECT_EQ(chown(path_.c_str(), owner, group), 0);
    EXPECT_EQ(seteuid(kUser), 0);
    std::string error;
    BearerToken::open(path_, &error);
    EXPECT_EQ(seteuid(0), 0);
    return error;
  };
  EXPECT_EQ(problem_with(kUser, kUser), "") << "a group of one user";
  EXPECT_THAT(problem_with(kUser, 100), HasSubstr("chmod 600")) << "perhaps the group of all users";
  EXPECT_EQ(problem_with(0, 0), "") << "an administrator's choice";
}

TEST(EqualInConstantTime, ComparesAllOfBoth) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  for (const char* other : {"", "ab", "abd", "abcabc", "abcd", "Abc"})
    EXPECT_FALSE(equal_in_constant_time(other, "abc")) << other;
  EXPECT_FALSE(equal_in_constant_time("", ""));
}

}  // namespace
}  // namespace foreshock
