#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libmonitor/cuda_driver.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace foreshock {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

#define SYMBOL(call, symbol, version, parameters) #symbol,
std::vector<std::string> symbols_of_the_table() { return {FORESHOCK_DRIVER_CALLS(SYMBOL)}; }
std::vector<std::string> all_symbols() {
  return {FORESHOCK_DRIVER_CALLS(SYMBOL) FORESHOCK_OPTIONAL_DRIVER_CALLS(SYMBOL)};
}
#undef SYMBOL

TEST(DriverApi, FindsEveryEntryPointOfADriverThatIsOldEnough) {
  for (const int version : {cuda::kOldestDriver, 13000}) {
    fake_cuda::start(fake_cuda::Run::kByHand);
    fake_cuda::set_faults({.version = version});
    DriverApi driver;
    EXPECT_TRUE(driver.open(kLibrary, cuda::kOldestDriver));
    EXPECT_TRUE(driver.open(kLibrary, cuda::kOldestDriver)) << "again";
    EXPECT_EQ(driver.failure(), nullptr);
#define IS_THERE(call, symbol, version, parameters) EXPECT_NE(driver.call, nullptr) << #symbol;
    FORESHOCK_DRIVER_CALLS(IS_THERE)
#undef IS_THERE
    EXPECT_EQ(driver.func_load != nullptr, version >= 12040);
    EXPECT_EQ(fake_cuda::symbols_asked_for(), all_symbols()) << "once each";
  }
}

// The rule that nothing waits for the device is easiest to keep when nothing that does is known.
TEST(DriverApi, KnowsNothingThatWaits) {
  for (const std::string& symbol : all_symbols())
    for (const char* word : {"Synchronize", "Query", "Callback", "HostFunc", "Free", "Destroy", "Unregister"})
      EXPECT_EQ(symbol.find(word), std::string::npos) << symbol;
}

TEST(DriverApi, WithoutAnyOneEntryPointItIsTooOld) {
  for (const std::string& symbol : symbols_of_the_table()) {
    fake_cuda::start(fake_cuda::Run::kByHand);
    fake_cuda::set_faults({.missing = symbol});
    DriverApi driver;
    EXPECT_FALSE(driver.open(kLibrary, cuda::kOldestDriver)) << symbol;
    EXPECT_STREQ(driver.failure(), "old_driver");
    fake_cuda::set_faults({});
    EXPECT_FALSE(driver.open(kLibrary, cuda::kOldestDriver)) << "asked once: what is loaded does not change";
  }
}

TEST(DriverApi, AnOldDriverIsAskedForNothing) {
  fake_cuda::start(fake_cuda::Run::kByHand);
  fake_cuda::set_faults({.version = 11080});
  DriverApi driver;
  EXPECT_FALSE(driver.open(kLibrary, cuda::kOldestDriver));
  EXPECT_STREQ(driver.failure(), "old_driver");
  EXPECT_TRUE(fake_cuda::symbols_asked_for().empty());
}

TEST(DriverApi, OpensADriverFromTheVersionOnThatTheKernelsNeed) {
  for (const int version : {12090, 13000, 14000}) {
    fake_cuda::start(fake_cuda::Run::kByHand);
    fake_cuda::set_faults({.version = version});
    DriverApi driver;
    EXPECT_EQ(driver.open(kLibrary, 13000), version >= 13000) << version;
    EXPECT_EQ(driver.version(), version) << "known if it is too old, too";
  }
}

TEST(DriverApi, AMissingLibraryIsNone) {
  DriverApi driver;
  EXPECT_FALSE(driver.open("libforeshock_none.so.1", cuda::kOldestDriver));
  EXPECT_STREQ(driver.failure(), "no_driver");
  DriverApi stranger;  // a library that is no driver
  EXPECT_FALSE(stranger.open("libm.so.6", cuda::kOldestDriver));
  EXPECT_STREQ(stranger.failure(), "no_driver");
}

TEST(DriverApi, AChildMustNotUseWhatItsParentOpened) {
  fake_cuda::start(fake_cuda::Run::kByHand);
  DriverApi driver;
  ASSERT_TRUE(driver.open(kLibrary, cuda::kOldestDriver));
  const pid_t child = fork();
  if (child == 0)
    _exit(driver.is_open() || driver.failure() == nullptr || driver.open(kLibrary, cuda::kOldestDriver) ? 1
                                                                                                        : 0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(driver.is_open());
  EXPECT_TRUE(driver.open(kLibrary, cuda::kOldestDriver));
}

}  // namespace
}  // namespace foreshock
