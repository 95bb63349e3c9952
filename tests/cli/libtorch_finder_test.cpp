#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/torch.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

using testing::HasSubstr;

TEST(LibtorchFinder, TheDynamicLinkerOfAProgram) {
  EXPECT_THAT(program_interpreter("/proc/self/exe"), HasSubstr("/ld-"));
}

TEST(LibtorchFinder, NoDynamicLinkerInAnythingElse) {
  TemporaryDirectory directory;
  EXPECT_EQ(program_interpreter(directory.write("script", "#!/bin/sh\nexit\n", 0700)), "");
  EXPECT_EQ(program_interpreter(directory.write("empty", "", 0700)), "");
  EXPECT_EQ(program_interpreter(directory.path()), "");
  EXPECT_EQ(program_interpreter("/nonexistent"), "");
  // The magic number of a program, and rubbish or nothing behind it.
  EXPECT_EQ(program_interpreter(directory.write("short",
                                                "\x7f"
                                                "ELF",
                                                0700)),
            "");
  EXPECT_EQ(program_interpreter(directory.write("rubbish",
                                                std::string("\x7f"
                                                            "ELF\x02") +
                                                    std::string(4096, '\xff'),
                                                0700)),
            "");
}

TEST(LibtorchFinder, AStaticProgram) {
  EXPECT_FALSE(is_static_program("/proc/self/exe"));
  EXPECT_FALSE(is_static_program("/nonexistent"));
  TemporaryDirectory directory;
  EXPECT_FALSE(is_static_program(directory.write("script", "#!/bin/sh\nexit\n", 0700)));
}

TEST(LibtorchFinder, AProgramThatIsNotLinkedWithIt) {
  EXPECT_EQ(find_libtorch({"/proc/self/exe"}).program, "");
  EXPECT_EQ(find_libtorch({"env", "true"}).program, "");
  EXPECT_EQ(find_libtorch({"/nonexistent/trainer"}).program, "");
  EXPECT_EQ(find_libtorch({}).program, "");
}

}  // namespace
}  // namespace foreshock::cli
