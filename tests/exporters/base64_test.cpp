#include <gtest/gtest.h>

#include "exporters/record.h"

namespace foreshock {
namespace {

TEST(Base64, IsThatOfTheStandard) {  // RFC 4648, section 10
  const char* cases[][2] = {{"", ""},
                            {"f", "Zg=="},
                            {"fo", "Zm8="},
                            {"foo", "Zm9v"},
                            {"foob", "Zm9vYg=="},
                            {"fooba", "Zm9vYmE="},
                            {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
}

TEST(Base64, AllBytesComeBack) {
  std::string bytes;
  for (int n = 0; n < 1000; ++n) {
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
    bytes += static_cast<char>(n * 37);
  }
}

TEST(Base64, WhatIsNoneIsRefused) {
  for (const char* text :
       {"Z", "Zg", "Zg=", "Zg===", "Zh==", "Zm9=", "Z===", "====", "Zm 9", "Zm9v\n", "Zg==Zg=="})
    EXPECT_EQ(from_base64(text), std::nullopt) << text;
}

}  // namespace
}  // namespace foreshock
