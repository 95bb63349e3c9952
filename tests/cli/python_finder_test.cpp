#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "cli/torch.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

class PythonFinder : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"python3", "python3.11", "sh", "numactl", "env", "trainer"}) {
      directory_.write(name,
                       "\x7f"
                       "ELF",
                       0700);
    }
    old_path_ = getenv("PATH");
    setenv("PATH", directory_.path().c_str(), 1);
  }
  void TearDown() override { setenv("PATH", old_path_.c_str(), 1); }

  std::string in_path(const std::string& name) const { return directory_.path() + "/" + name; }

  TemporaryDirectory directory_;
  std::string old_path_;
};

TEST_F(PythonFinder, TheInterpreterItself) {
  const FoundPython found = find_python({"python3.11", "-X", "dev", "-I", "train.py", "-E"});
  EXPECT_EQ(found.executable, in_path("python3.11"));
  EXPECT_TRUE(found.certain);
  EXPECT_THAT(found.options, ElementsAre("-X", "-I"));
  EXPECT_EQ(find_python({in_path("python3"), "train.py"}).executable, in_path("python3"));
}

TEST_F(PythonFinder, ThroughWrappers) {
  EXPECT_EQ(find_python({"env", "A=1", "-u", "B", "python3", "train.py"}).executable, in_path("python3"));
  const FoundPython found = find_python({"numactl", "--cpunodebind=0", "env", "python3.11", "train.py"});
  EXPECT_EQ(found.executable, in_path("python3.11"));
  EXPECT_TRUE(found.certain);
}

TEST_F(PythonFinder, ScriptsByTheirFirstLine) {
  directory_.write("torchrun", "#!" + in_path("python3") + "\nimport sys\n", 0700);
  EXPECT_EQ(find_python({"torchrun", "train.py"}).executable, in_path("python3"));
  directory_.write("launch", "#!/usr/bin/env -S python3.11 -u\n", 0700);
  EXPECT_EQ(find_python({in_path("launch")}).executable, in_path("python3.11"));
  EXPECT_THAT(find_python({in_path("launch")}).options, ElementsAre("-u"));
  directory_.write("isolated", "#!" + in_path("python3") + " -I\nimport sys\n", 0700);
  EXPECT_THAT(find_python({in_path("isolated")}).options, ElementsAre("-I"));
  directory_.write("long", "#!/bin/sh\n'''exec' \"" + in_path("python3") + "\" \"$0\" \"$@\"\n' '''\n", 0700);
  EXPECT_EQ(find_python({in_path("long")}).executable, in_path("python3"));
}

TEST_F(PythonFinder, ElseAGuess) {
  directory_.write("train.sh", "#!/bin/sh\npython3 train.py\n", 0700);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"trainer", "python3"},
                                                  {"sh", "-c", "python3 train.py"},
                                                  {in_path("train.sh")}}) {
    const FoundPython found = find_python(command);
    EXPECT_EQ(found.executable, in_path("python3"));
    EXPECT_FALSE(found.certain);
  }
}

TEST_F(PythonFinder, NoPythonAtAll) {
  setenv("PATH", "/nonexistent", 1);
  EXPECT_EQ(find_python({"trainer"}).executable, "");
}

TEST(HelperProblem, IsNamedWithItsReason) {
  unsetenv("TORCH_DEVICE_BACKEND_AUTOLOAD");
  for (const char* option : {"-u", "-Xdev", "-WError", "--check-hash-based-pycs", "-B"})
    EXPECT_EQ(helper_problem({"python3", true, {option}}), "") << option;
  EXPECT_THAT(helper_problem({"python3", true, {"-u", "-I"}}),
              StartsWith("python -I (isolated mode) ignores"));
  EXPECT_THAT(helper_problem({"python3", true, {"-uE"}}), StartsWith("python -E ignores PYTHONPATH"));
  setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0", 1);
  EXPECT_THAT(helper_problem({"python3", true, {}}), StartsWith("TORCH_DEVICE_BACKEND_AUTOLOAD=0"));
  unsetenv("TORCH_DEVICE_BACKEND_AUTOLOAD");
}

}  // namespace
}  // namespace foreshock::cli
