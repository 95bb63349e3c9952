#include "text/printable.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace foreshock {
namespace {

TEST(Printable, KeepsLettersOfAnyLanguage) {
  for (const char* text :
       {"", "model.layers.0", "caf\xc3\xa9", "\xe5\xb1\x82", "\xf0\x9f\x98\x80", "\xd7\x90\xd7\x91"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, ReplacesControlAndInvisibleCharacters) {
  EXPECT_EQ(printable("a\x1b[2Jb\nc\x7f"), "a?[2Jb?c?");
  EXPECT_EQ(printable("a\x1b\nb", /*keeps_newlines=*/true), "a?\nb");
  for (const char* character : {"\xc2\x9b",             // U+009B, the control sequence introducer
                                "\xe2\x80\xae",         // U+202E, from right to left
                                "\xe2\x80\x8b",         // U+200B, zero width
                                "\xe2\x81\xa6",         // U+2066, isolate
                                "\xef\xbb\xbf",         // U+FEFF
                                "\xf3\xa0\x81\x81"}) {  // U+E0041, a tag
    EXPECT_EQ(printable("a" + std::string(character) + "b"), "a?b");
  }
}

TEST(Printable, ReplacesInvalidUtf8) {
  EXPECT_EQ(printable("\x9b"
                      "1m"),
            "?1m")
      << "a control character of terminals with 8 bits";
  EXPECT_EQ(printable("\xc3"), "?") << "cut off";
  EXPECT_EQ(printable("\xc3"
                      "A"),
            "?A");
  EXPECT_EQ(printable("\xc0\x8a"), "??") << "an overlong newline";
  EXPECT_EQ(printable("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(printable("\xf8\x88\x80\x80\x80"), "?????");
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "????") << "above U+10FFFF";
}

TEST(PrintableJson, EscapesAndKeepsTheValue) {
  const std::string name = "a\x1b\xc2\x9b\xe2\x80\xae\xf3\xa0\x81\x81 \xc3\xa9 \"q\"";
  const nlohmann::json document = {{"name", name}};
  const std::string text = printable_json(document.dump(1));
  EXPECT_EQ(text, "{\n \"name\": \"a\\u001b\\u009b\\u202e\\udb40\\udc41 \xc3\xa9 \\\"q\\\"\"\n}");
  EXPECT_EQ(nlohmann::json::parse(text), document);
}

}  // namespace
}  // namespace foreshock
