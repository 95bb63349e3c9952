#include "libmonitor/device_driver.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace foreshock {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

std::vector<std::string> symbols_of_the_table() {
#define SYMBOL(call, symbol, version, parameters) #symbol,
  return {FORESHOCK_DRIVER_CALLS(SYMBOL)};
#undef SYMBOL
}

TEST(DeviceDriver, FindsEveryEntryPointOfADriverThatIsOldEnough) {
  for (const int version : {cuda::kOldestDriver, 13000}) {
    fake_cuda::start(fake_cuda::Run::kByHand);
    fake_cuda::set_faults({.version = version});
    DeviceDriver driver;
    EXPECT_TRUE(driver.open(kLibrary));
    EXPECT_TRUE(driver.open(kLibrary)) << "again";
    EXPECT_EQ(driver.failure(), nullptr);
#define IS_THERE(call, symbol, version, parameters) EXPECT_NE(driver.call, nullptr) << #symbol;
    FORESHOCK_DRIVER_CALLS(IS_THERE)
#undef IS_THERE
    EXPECT_EQ(fake_cuda::symbols_asked_for(), symbols_of_the_table()) << "once each";
  }
}

// The rule that nothing waits for the device is easiest to keep when nothing that does is known.
TEST(DeviceDriver, KnowsNothingThatWaits) {
  for (const std::string& symbol : symbols_of_the_table())
    for (const char* word : {"Synchronize", "Query", "Callback", "HostFunc", "Free", "Destroy", "Unregister"})
      EXPECT_EQ(symbol.find(word), std::string::npos) << symbol;
}

TEST(DeviceDriver, WithoutAnyOneEntryPointItIsTooOld) {
  for (const std::string& symbol : symbols_of_the_table()) {
    fake_cuda::start(fake_cuda::Run::kByHand);
    fake_cuda::set_faults({.missing = symbol});
    DeviceDriver driver;
    EXPECT_FALSE(driver.open(kLibrary)) << symbol;
    EXPECT_STREQ(driver.failure(), "old_driver");
    fake_cuda::set_faults({});
    EXPECT_FALSE(driver.open(kLibrary)) << "asked once: what is loaded does not change";
  }
}

TEST(DeviceDriver, AnOldDriverIsAskedForNothing) {
  fake_cuda::start(fake_cuda::Run::kByHand);
  fake_cuda::set_faults({.version = 11080});
  DeviceDriver driver;
  EXPECT_FALSE(driver.open(kLibrary));
  EXPECT_STREQ(driver.failure(), "old_driver");
  EXPECT_TRUE(fake_cuda::symbols_asked_for().empty());
}

TEST(DeviceDriver, AMissingLibraryIsNone) {
  DeviceDriver driver;
  EXPECT_FALSE(driver.open("libforeshock_none.so.1"));
  EXPECT_STREQ(driver.failure(), "no_driver");
  DeviceDriver stranger;  // a library that is no driver
  EXPECT_FALSE(stranger.open("libm.so.6"));
  EXPECT_STREQ(stranger.failure(), "no_driver");
}

TEST(DeviceDriver, AChildMustNotUseWhatItsParentOpened) {
  fake_cuda::start(fake_cuda::Run::kByHand);
  DeviceDriver driver;
  ASSERT_TRUE(driver.open(kLibrary));
  const pid_t child = fork();
  if (child == 0) _exit(driver.open(kLibrary) ? 1 : 0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(driver.open(kLibrary));
}

}  // namespace
}  // namespace foreshock
