#include <gtest/gtest.h>

#include "exporters/tensorboard.h"

namespace foreshock {
namespace {

TEST(EventFile, TheChecksumIsCrc32c) {
  // RFC 3720, B.4: 32 bytes of zeroes give 0x8a9136aa, 32 of 0xff give 0x62a8ab43; then the mask of TFRecord.
  const auto masked = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; };
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), masked(0x8a9136aau));
  EXPECT_EQ(masked_crc32c(std::string(32, '\xff')), masked(0x62a8ab43u));
}

TEST(EventFile, ARecordIsLengthChecksumPayloadChecksum) {
  const std::string record = framed_record("abc");
  ASSERT_EQ(record.size(), 8u + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\3\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
}

TEST(EventFile, AScalarIsTheProtocolBufferOfTensorflow) {
  // wall_time 1.0, step 300, summary { value { tag: "a" simple_value: 2 } }
  EXPECT_EQ(scalar_event(1.0, 300, "a", 2.0f), std::string("\x09\0\0\0\0\0\0\xf0\x3f"
                                                           "\x10\xac\x02"
                                                           "\x2a\x0a\x0a\x08\x0a\x01"
                                                           "a\x15\0\0\0\x40",
                                                           24));
  // A negative step is ten bytes of varint.
  EXPECT_EQ(scalar_event(1.0, -1, "a", 2.0f).size(), 24u + 8);
}

}  // namespace
}  // namespace foreshock
