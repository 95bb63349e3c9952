#include <gtest/gtest.h>
#include <sys/file.h>

#include "cli/files.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

TEST(FileLock, SharedHoldersKeepExclusiveOnesOut) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/lock";
  FileLock first, second, exclusive;
  EXPECT_TRUE(first.try_lock(path, LOCK_SH));
  EXPECT_TRUE(second.try_lock(path, LOCK_SH));
  EXPECT_FALSE(exclusive.try_lock(path, LOCK_EX));
  first.release();
  second.release();
  EXPECT_TRUE(exclusive.try_lock(path, LOCK_EX));
  EXPECT_FALSE(second.lock_within(path, LOCK_SH, 20));
}

TEST(FileLock, IsLockedSeesExclusiveOnly) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/lock";
  EXPECT_FALSE(is_locked(path));
  EXPECT_FALSE(std::filesystem::exists(path));
  FileLock lock;
  ASSERT_TRUE(lock.try_lock(path, LOCK_SH));
  EXPECT_FALSE(is_locked(path));
  lock.release();
  ASSERT_TRUE(lock.try_lock(path, LOCK_EX));
  EXPECT_TRUE(is_locked(path));
}

TEST(FileLock, MovesWithItsDescriptor) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/lock";
  FileLock first;
  ASSERT_TRUE(first.try_lock(path, LOCK_EX));
  FileLock second = std::move(first);
  EXPECT_FALSE(first.held());
  EXPECT_TRUE(is_locked(path));
  second.release();
  EXPECT_FALSE(is_locked(path));
}

}  // namespace
}  // namespace foreshock::cli
