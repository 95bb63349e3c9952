#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "cli/torch.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A shell script stands in for the interpreter: it answers as build_adapter.py does.
class AdapterTest : public testing::Test {
 protected:
  Adapter prepare_with(const std::string& script) {
    const std::string python = directory_.write("python3", "#!/bin/sh\n" + script + "\n", 0700);
    return prepare_adapter(installation(), python, directory_.path() + "/cache");
  }
  Installation installation() const { return {"", "", "", directory_.path(), ""}; }

  TemporaryDirectory directory_;
};

TEST_F(AdapterTest, ReadsTheAnswer) {
  const Adapter adapter = prepare_with(
      R"(echo '{"state": "built", "torch": "2.13.0", "path": "/x/adapter.so", "reason": "", "seconds": 41.5}')");
  EXPECT_TRUE(adapter.usable());
  EXPECT_EQ(adapter.torch, "2.13.0");
  EXPECT_EQ(adapter.path, "/x/adapter.so");
  EXPECT_EQ(adapter.seconds, 41.5);
}

TEST_F(AdapterTest, KeepsTheReason) {
  const Adapter adapter = prepare_with(
      R"(echo '{"state": "no_compiler", "torch": "2.13.0", "path": null, "reason": "install g++"}')");
  EXPECT_FALSE(adapter.usable());
  EXPECT_EQ(adapter.reason, "install g++");
}

TEST_F(AdapterTest, TheBuilderMakesNothingThatOthersMayWrite) {
  for (const auto& [mask, expected] : {std::pair{0, "0022"}, {002, "0022"}, {077, "0077"}}) {
    const mode_t before = umask(static_cast<mode_t>(mask));
    const Adapter adapter = prepare_with(R"(echo "{\"state\": \"failed\", \"reason\": \"$(umask)\"}")");
    EXPECT_EQ(umask(before), static_cast<mode_t>(mask));  // the launcher keeps its own for the command
    EXPECT_EQ(adapter.reason, expected);
  }
}

TEST_F(AdapterTest, ACacheOrAnAdapterThatOthersMayWriteIsRefused) {
  const std::string file = directory_.write("adapter.so", "code", 0666);
  const std::string answer = R"(echo '{"state": "ready", "path": ")" + file + R"("}')";
  EXPECT_EQ(prepare_with(answer).reason,
            file + " is writable by other users, who could put code into the training; chmod go-w " + file);
  EXPECT_FALSE(prepare_with(answer).usable());
  chmod(file.c_str(), 0600);
  EXPECT_TRUE(prepare_with(answer).usable());
  const std::string cache = directory_.path() + "/cache";
  mkdir(cache.c_str(), 0700);
  chmod(cache.c_str(), 0707);
  EXPECT_THAT(prepare_with("touch " + cache + "/ran").reason, StartsWith(cache + " is writable"));
  EXPECT_NE(access((cache + "/ran").c_str(), F_OK), 0);  // nothing was run for it
}

TEST_F(AdapterTest, ABrokenInterpreterIsAReason) {
  EXPECT_THAT(prepare_with("echo first >&2; echo 'cannot load' >&2; exit 1").reason,
              HasSubstr("cannot load"));
  EXPECT_THAT(prepare_with("echo '[1'").reason, HasSubstr("could not be prepared"));
  EXPECT_THAT(prepare_adapter({}, "/nonexistent/python", "/cache").reason, HasSubstr("No such file"));
  setenv("FORESHOCK_DIR", "relative", 1);  // no base directory either
  EXPECT_THAT(prepare_adapter({}, "/nonexistent/python", "").reason, HasSubstr("FORESHOCK_CACHE"));
  unsetenv("FORESHOCK_DIR");
}

TEST_F(AdapterTest, TheCacheChangesWithTheSources) {
  setenv("FORESHOCK_CACHE", "/cache", 1);
  directory_.write("adapter.cpp", "int one;");
  const std::string before = adapter_cache(installation());
  EXPECT_THAT(before, StartsWith("/cache/adapters-"));
  directory_.write("notes.txt", "not a source");
  EXPECT_EQ(adapter_cache(installation()), before);
  directory_.write("adapter.cpp", "int two;");
  EXPECT_NE(adapter_cache(installation()), before);
  unsetenv("FORESHOCK_CACHE");
}

}  // namespace
}  // namespace foreshock::cli
