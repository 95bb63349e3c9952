#include "libmonitor/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

namespace foreshock {
namespace {

TEST(Options, FlagsAndVariablesAreUniqueAndWellNamed) {
  std::set<std::string> seen;
  for (const Option& row : kOptions) {
    EXPECT_TRUE(row.flag != nullptr || row.variable != nullptr);
    if (row.flag != nullptr) {
      EXPECT_EQ(std::string(row.flag).substr(0, 2), "--");
      EXPECT_TRUE(seen.insert(row.flag).second) << row.flag;
    }
    if (row.variable != nullptr) {
      EXPECT_EQ(std::string(row.variable).substr(0, 9), "FORESHOCK");
      EXPECT_TRUE(seen.insert(row.variable).second) << row.variable;
    }
    EXPECT_NE(row.readers, 0u);
    EXPECT_EQ(std::string(row.help).find('\n'), std::string::npos);
  }
}

TEST(Options, VariableWinsOverDefaultUnlessEmpty) {
  unsetenv("FORESHOCK_MEMORY");
  EXPECT_STREQ(option_value(OptionId::kMemory), "64MiB");
  setenv("FORESHOCK_MEMORY", "", 1);
  EXPECT_STREQ(option_value(OptionId::kMemory), "64MiB");
  setenv("FORESHOCK_MEMORY", "1MiB", 1);
  EXPECT_STREQ(option_value(OptionId::kMemory), "1MiB");
  unsetenv("FORESHOCK_MEMORY");
  EXPECT_STREQ(option_value(OptionId::kPython), "python3");
}

TEST(Options, DefaultsParse) {
  double ratio = -1;
  uint64_t number = 1;
  bool on = false;
  EXPECT_TRUE(parse_ratio(option(OptionId::kMaxSlowdown).fallback, &ratio));
  EXPECT_DOUBLE_EQ(ratio, 0.01);
  EXPECT_TRUE(parse_bytes(option(OptionId::kMemory).fallback, &number));
  EXPECT_EQ(number, 64u << 20);
  EXPECT_TRUE(parse_count(option(OptionId::kEvery).fallback, &number));
  EXPECT_EQ(number, 0u);
  EXPECT_TRUE(parse_switch(option(OptionId::kSlices).fallback, &on));
  EXPECT_TRUE(on);
}

TEST(Options, Ratios) {
  double ratio = 7;
  EXPECT_TRUE(parse_ratio("1%", &ratio));
  EXPECT_DOUBLE_EQ(ratio, 0.01);
  EXPECT_TRUE(parse_ratio("0.25 %", &ratio));
  EXPECT_DOUBLE_EQ(ratio, 0.0025);
  EXPECT_TRUE(parse_ratio("0.01", &ratio));
  EXPECT_DOUBLE_EQ(ratio, 0.01);
  EXPECT_TRUE(parse_ratio("0", &ratio));
  EXPECT_EQ(ratio, 0);
  for (const char* bad :
       {"", "%", "-1%", "101%", "1.5", "1%%", "1 percent", "nan", "inf", "0,01", " 1%", ".5"}) {
    ratio = 7;
    EXPECT_FALSE(parse_ratio(bad, &ratio)) << bad;
    EXPECT_EQ(ratio, 7) << bad;
  }
}

TEST(Options, Bytes) {
  uint64_t bytes = 7;
  EXPECT_TRUE(parse_bytes("4096", &bytes));
  EXPECT_EQ(bytes, 4096u);
  EXPECT_TRUE(parse_bytes("64KiB", &bytes));
  EXPECT_EQ(bytes, 65536u);
  EXPECT_TRUE(parse_bytes("2 GiB", &bytes));
  EXPECT_EQ(bytes, 2ull << 30);
  EXPECT_TRUE(parse_bytes("3MB", &bytes));
  EXPECT_EQ(bytes, 3000000u);
  for (const char* bad :
       {"", "MiB", "-1", "1.5MiB", "1TiB", "64 mib", "99999999999999999999", "18446744073709551615KiB"}) {
    bytes = 7;
    EXPECT_FALSE(parse_bytes(bad, &bytes)) << bad;
    EXPECT_EQ(bytes, 7u) << bad;
  }
}

TEST(Options, CountsAndSwitches) {
  uint64_t count = 7;
  EXPECT_TRUE(parse_count("18446744073709551615", &count));
  EXPECT_EQ(count, UINT64_MAX);
  for (const char* bad : {"", "+1", "-1", "1 ", "0x10", "18446744073709551616"}) {
    EXPECT_FALSE(parse_count(bad, &count)) << bad;
  }
  bool on = false;
  EXPECT_TRUE(parse_switch("yes", &on));
  EXPECT_TRUE(on);
  EXPECT_TRUE(parse_switch("off", &on));
  EXPECT_FALSE(on);
  EXPECT_FALSE(parse_switch("ON", &on));
  EXPECT_FALSE(parse_switch("", &on));
}

}  // namespace
}  // namespace foreshock
