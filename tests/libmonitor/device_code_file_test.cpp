#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "libmonitor/cuda_driver.h"
#include "tests/libmonitor/device_code_of_tests.h"

namespace {
int g_interruptions = 0;                  // of reads to come
size_t g_most = static_cast<size_t>(-1);  // bytes that one of them gives
}  // namespace

// In place of the C library's.
extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t at) {
  if (g_interruptions > 0) {
    --g_interruptions;
    errno = EINTR;
    return -1;
  }
  return syscall(SYS_pread64, fd, to, std::min(bytes, g_most), at);
}

namespace foreshock {
namespace {

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

uint64_t mapped_pages() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

class DeviceCodeFileTest : public testing::Test {
 protected:
  void TearDown() override {
    write_code(code_of_tests());
    set_seal(seal_);
    EXPECT_EQ(open_descriptors(), before_) << "a descriptor stays open";
  }
  const char* failure() {
    Fatbin file;
    file.read(path_of_code().c_str(), device_code_seal());
    EXPECT_EQ(file.is_read(), file.failure() == nullptr);
    EXPECT_EQ(file.code().empty(), !file.is_read());
    return file.failure();
  }
  const int before_ = open_descriptors();
  const DeviceCodeSeal seal_ = device_code_seal();
};

TEST_F(DeviceCodeFileTest, HasTheBytesOfTheFileReadOnly) {
  Fatbin file;
  EXPECT_FALSE(file.is_read());
  file.read(path_of_code().c_str(), device_code_seal());
  ASSERT_EQ(file.failure(), nullptr);
  ASSERT_EQ(file.code().size(), code_of_tests().size());
  EXPECT_EQ(std::memcmp(file.code().data(), code_of_tests().data(), file.code().size()), 0);
  // Where a signal would end us, the kernel refuses: it cannot store what read() gets there.
  const int zero = open("/dev/zero", O_RDONLY);
  EXPECT_EQ(read(zero, const_cast<std::byte*>(file.code().data()), 1), -1);
  close(zero);
  // Replaced in place while we have it: no SIGBUS, nothing has changed.
  write_code("");
  EXPECT_EQ(std::memcmp(file.code().data(), code_of_tests().data(), file.code().size()), 0);
  const std::byte* at = file.code().data();
  file.read(path_of_code().c_str(), device_code_seal());
  EXPECT_EQ(file.code().data(), at) << "read once";
}

TEST_F(DeviceCodeFileTest, IsReadToItsEndThroughSignalsAndInPieces) {
  g_interruptions = 7;
  g_most = 100;
  EXPECT_EQ(failure(), nullptr);
  EXPECT_EQ(g_interruptions, 0);
  g_interruptions = 1 << 20;  // a signal at each try
  EXPECT_NE(failure(), nullptr);
  EXPECT_GT(g_interruptions, 0) << "given up";
  g_interruptions = 0;
  g_most = static_cast<size_t>(-1);
}

TEST_F(DeviceCodeFileTest, AMissingOneIsSaidAndNotLookedForAgain) {
  std::filesystem::remove(path_of_code());
  Fatbin file;
  file.read(path_of_code().c_str(), device_code_seal());
  EXPECT_STREQ(file.failure(), "no_file");
  write_code(code_of_tests());
  file.read(path_of_code().c_str(), device_code_seal());
  EXPECT_STREQ(file.failure(), "no_file");
}

TEST_F(DeviceCodeFileTest, AnyOtherBytesAreRefusedAndTakeNoRoom) {
  const std::string good = code_of_tests();
  std::string flipped = good, no_magic = good;
  flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 1);
  no_magic[0] = 0;
  const uint64_t before = mapped_pages();
  for (const std::string& other : {std::string(), good.substr(0, 3), good.substr(0, good.size() - 1),
                                   good + "x", flipped, no_magic, std::string(good.size(), '\0')}) {
    write_code(other);
    EXPECT_STREQ(failure(), "other_build") << other.size();
  }
  // The allocator of the test may have grown, by less than what is read.
  set_seal({.bytes = uint64_t{64} << 20, .checksum = 1, .oldest_driver = 13000});
  write_code("");
  std::filesystem::resize_file(path_of_code(), uint64_t{64} << 20);
  EXPECT_STREQ(failure(), "other_build");
  EXPECT_LT(mapped_pages() - before, (uint64_t{64} << 20) / static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  set_seal({.bytes = good.size() + 1, .checksum = 1, .oldest_driver = 13000});
  write_code(good);
  EXPECT_STREQ(failure(), "other_build");
}

TEST_F(DeviceCodeFileTest, WhatIsNoFileIsNotWaitedFor) {
  std::filesystem::remove(path_of_code());
  ASSERT_EQ(mkfifo(path_of_code().c_str(), 0600), 0);
  EXPECT_STREQ(failure(), "no_file");
  std::filesystem::remove(path_of_code());
  std::filesystem::create_directory(path_of_code());  // its length depends on the file system
  EXPECT_NE(failure(), nullptr);
}

TEST_F(DeviceCodeFileTest, ABuildWithoutThemLooksForNone) {
  set_seal({});
  std::filesystem::remove(path_of_code());
  EXPECT_STREQ(failure(), "not_built");
}

}  // namespace
}  // namespace foreshock
