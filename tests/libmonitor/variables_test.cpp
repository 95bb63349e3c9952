#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "libmonitor/options.h"

namespace foreshock {
namespace {

// Another environment while it lives. No setenv() meanwhile: that would free the one put back.
class Instead {
 public:
  explicit Instead(char** other) { environ = other; }
  ~Instead() { environ = before_; }

 private:
  char** const before_ = environ;
};

TEST(SafeEnvironment, FindsWhatIsSetAsItIsSet) {
  char rank[] = "RANK=5", longer[] = "RANKS=6", empty[] = "LOCAL_RANK=", second[] = "RANK=7",
       odd[] = "NOTHING", equals[] = "PATH=a=b", nothing[] = "";
  char* mine[] = {longer, nothing, rank, empty, second, odd, equals, nullptr};
  const Instead there(mine);
  const SafeEnvironment variables;
  ASSERT_TRUE(variables.is_copy());
  EXPECT_STREQ(variables.find("RANK"), "5");  // the first, as getenv() has it
  EXPECT_STREQ(variables.find("RANKS"), "6");
  EXPECT_STREQ(variables.find("LOCAL_RANK"), "");
  EXPECT_STREQ(variables.find("PATH"), "a=b");
  EXPECT_EQ(variables.find("NOTHING"), nullptr);
  EXPECT_EQ(variables.find("RAN"), nullptr);
  EXPECT_EQ(variables.find(""), nullptr);
}

TEST(SafeEnvironment, KeepsWhatItFoundWhenTheEnvironmentChanges) {
  setenv("FORESHOCK_TEST_VARIABLE", "then", 1);
  const SafeEnvironment variables;
  setenv("FORESHOCK_TEST_VARIABLE", "later", 1);
  EXPECT_STREQ(variables.find("FORESHOCK_TEST_VARIABLE"), "then");
  unsetenv("FORESHOCK_TEST_VARIABLE");
  EXPECT_STREQ(variables.find("FORESHOCK_TEST_VARIABLE"), "then");
  EXPECT_EQ(SafeEnvironment().find("FORESHOCK_TEST_VARIABLE"), nullptr);
}

TEST(SafeEnvironment, ACopyTakesAllOfALargeEnvironmentAndLeavesOutWhatIsTooLong) {
  std::vector<std::string> texts;
  for (int n = 0; n < 3000; ++n)
    texts.push_back(std::string("V").append(std::to_string(n)).append("=").append(100, 'x'));
  texts[1500] = "LONG=" + std::string(5000, 'y');
  texts[1501] = "JUST=" + std::string(4096 - 6, 'z');  // with the NUL 4096 bytes
  std::vector<char*> mine;
  for (std::string& text : texts) mine.push_back(text.data());
  mine.push_back(nullptr);
  const Instead there(mine.data());
  const SafeEnvironment variables;
  EXPECT_EQ(variables.find("LONG"), nullptr);
  ASSERT_NE(variables.find("JUST"), nullptr);
  EXPECT_EQ(std::string(variables.find("JUST")), std::string(4090, 'z'));
  EXPECT_STREQ(variables.find("V2999"), std::string(100, 'x').c_str());
}

// As a pod of a cluster with thousands of services has it. What we are told comes last.
TEST(SafeEnvironment, ACopyReachesToTheEndOfWhatTheKernelTakes) {
  std::vector<std::string> texts;
  for (size_t bytes = 0; bytes < 6 << 20; bytes += texts.back().size() + 1 + sizeof(char*))
    texts.push_back("SERVICE_" + std::to_string(texts.size()) + "_PORT=tcp://10.0.0.1:80");
  texts.push_back("FORESHOCK_RUN_ID=r");
  std::vector<char*> mine;
  for (std::string& text : texts) mine.push_back(text.data());
  mine.push_back(nullptr);
  const Instead there(mine.data());
  const SafeEnvironment variables;
  ASSERT_TRUE(variables.is_copy());
  EXPECT_STREQ(variables.find("FORESHOCK_RUN_ID"), "r");
  // Without end: entries and bytes are bounded.
  std::vector<char*> endless(1 << 20, texts[0].data());
  endless.back() = nullptr;
  const Instead then(endless.data());
  EXPECT_STREQ(SafeEnvironment().find("SERVICE_0_PORT"), "tcp://10.0.0.1:80");
}

// Where getenv() would end the process.
TEST(SafeEnvironment, WhatIsNotThereIsLeftOut) {
  const size_t page = static_cast<size_t>(getpagesize());
  char* two =
      static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(two, MAP_FAILED);
  ASSERT_EQ(munmap(two + page, page), 0);
  char rank[] = "RANK=5", last[] = "WORLD_SIZE=8";
  std::memcpy(two + page - 4, "CUT=", 4);          // its end is on the page that is gone
  std::memcpy(two + page - 16, "EDGE=whole", 11);  // ends before it
  char* mine[] = {rank, two + page - 4, two + page - 16, two + page, reinterpret_cast<char*>(8),
                  last, nullptr};
  {
    const Instead there(mine);
    const SafeEnvironment variables;
    ASSERT_TRUE(variables.is_copy());
    EXPECT_STREQ(variables.find("RANK"), "5");
    EXPECT_EQ(variables.find("CUT"), nullptr);
    EXPECT_STREQ(variables.find("EDGE"), "whole");
    EXPECT_STREQ(variables.find("WORLD_SIZE"), "8");
  }
  // The array itself: gone, cut off before its end, none. Asked of getenv() only after it is back.
  const auto is_copied = [](char** array) {
    const Instead there(array);
    return SafeEnvironment().is_copy();
  };
  auto** const array = reinterpret_cast<char**>(two + page) - 2;
  array[0] = rank;
  array[1] = last;
  EXPECT_FALSE(is_copied(reinterpret_cast<char**>(two + page)));
  EXPECT_FALSE(is_copied(array));
  const Instead there(nullptr);
  const SafeEnvironment none;
  EXPECT_TRUE(none.is_copy());
  EXPECT_EQ(none.find("RANK"), nullptr);
  munmap(two, page);
}

TEST(SafeEnvironment, WithoutProcItIsGetenv) {
  setenv("FORESHOCK_TEST_VARIABLE", "then", 1);
  const SafeEnvironment variables("/proc/nothing");
  EXPECT_FALSE(variables.is_copy());
  EXPECT_STREQ(variables.find("FORESHOCK_TEST_VARIABLE"), "then");
  unsetenv("FORESHOCK_TEST_VARIABLE");
  EXPECT_EQ(variables.find("FORESHOCK_TEST_VARIABLE"), nullptr);
}

TEST(SafeEnvironment, LeavesNothingOpenOrMapped) {
  const auto next_descriptor = [] {
    const int fd = dup(0);
    close(fd);
    return fd;
  };
  const int before = next_descriptor();
  for (int n = 0; n < 10; ++n) SafeEnvironment();
  EXPECT_EQ(next_descriptor(), before);
}

// os.environ of a trainer in one thread, our set-up in another.
TEST(SafeEnvironment, OtherThreadsMayChangeTheEnvironmentMeanwhile) {
  setenv("FORESHOCK_TEST_STAYS", "5", 1);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    // Every new name moves the array to a larger place and frees the old one; then it is emptied again.
    while (!stop) {
      for (int n = 0; n < 300 && !stop; ++n) {
        setenv(std::string("FORESHOCK_TEST_").append(std::to_string(n)).c_str(),
               std::string(size_t(n), 'x').c_str(), 1);
        setenv("FORESHOCK_TEST_VALUE", n % 2 == 0 ? "even" : "odd", 1);
      }
      for (int n = 0; n < 300; ++n)
        unsetenv(std::string("FORESHOCK_TEST_").append(std::to_string(n)).c_str());
    }
  });
  int found = 0;
  for (int n = 0; n < 500; ++n) {
    const SafeEnvironment variables;
    ASSERT_TRUE(variables.is_copy());
    const char* stays = variables.find("FORESHOCK_TEST_STAYS");
    if (stays == nullptr) continue;  // where the array has not stood still for a microsecond in all tries
    EXPECT_STREQ(stays, "5");
    ++found;
  }
  stop = true;
  other.join();
  EXPECT_GT(found, 250);
  EXPECT_STREQ(SafeEnvironment().find("FORESHOCK_TEST_STAYS"), "5");
  // Under a sanitizer the tests of the launcher run in this process; it reports variables that it does not
  // know.
  for (const char* name : {"FORESHOCK_TEST_STAYS", "FORESHOCK_TEST_VALUE"}) unsetenv(name);
}

}  // namespace
}  // namespace foreshock
