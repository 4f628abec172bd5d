#include "src/text/utf8.h"

#include <string>

#include "gtest/gtest.h"

#include "src/text/byte_letters.h"
#include "tests/text/test_spec.h"

namespace baton::text {
namespace {

std::string DecodeWhole(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  stream.Push(bytes, &text);
  stream.Finish(&text);
  return text;
}

// Some bytes and what a lossy decoder makes of them.
struct LossyCase {
  std::string bytes;
  std::string text;
};

// Expected values: bytes.decode("utf-8", "replace") of CPython 3.11.
TEST(Utf8Test, BrokenSequencesBecomeOneReplacementEach) {
  const LossyCase cases[] = {
      {"", ""},
      {"aé中😀", "aé中😀"},
      {"\x80", "\uFFFD"},
      {"\xC3", "\uFFFD"},
      {"\xC3(", "\uFFFD("},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
      {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xE4\xB8", "\uFFFD"},
      {"\xE4\xB8x", "\uFFFDx"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD😀"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xF8\x88\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
       "A",
       "\uFFFD\uFFFD\uFFFD\uFFFD"
       "A"},
  };
  for (const LossyCase& c : cases) EXPECT_EQ(DecodeWhole(c.bytes), c.text);
}

TEST(Utf8Test, BytesThatAreNoTextAreNamedByTheirNumbers) {
  EXPECT_EQ(TextOrBytes(""), "");
  EXPECT_EQ(TextOrBytes("aé中😀"), "aé中😀");
  EXPECT_EQ(TextOrBytes("\xE3\x81"), "bytes:\\xe3\\x81");
  EXPECT_EQ(TextOrBytes(" \x81"), "bytes:\\x20\\x81");
}

TEST(Utf8Test, ValidPrefixIsWhereTheFirstErrorIs) {
  EXPECT_EQ(ValidUtf8Prefix(""), 0u);
  EXPECT_EQ(ValidUtf8Prefix("aé中😀"), 10u);
  EXPECT_EQ(ValidUtf8Prefix("a\xC3"), 1u);
  EXPECT_EQ(ValidUtf8Prefix("ab\xED\xA0\x80"), 2u);
  EXPECT_EQ(ValidUtf8Prefix("\xF4\x90\x80\x80"), 0u);
  EXPECT_EQ(ValidUtf8Prefix("\xF0\x80\x80\x80"), 0u);
  EXPECT_EQ(ValidUtf8Prefix("\xF4\x8F\xBF\xBF"), 4u);
}

TEST(Utf8Test, EveryCodePointIsWhole) {
  Utf8Stream stream;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string bytes;
    if (code < 0x80) {
      bytes = {static_cast<char>(code)};
    } else if (code < 0x800) {
      bytes = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      bytes = {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
               static_cast<char>(0x80 | (code & 63))};
    } else {
      bytes = {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
               static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
    ASSERT_EQ(ValidUtf8Prefix(bytes), bytes.size()) << code;
    std::string text;
    stream.Push(bytes, &text);
    ASSERT_EQ(text, bytes) << code;
  }
}

TEST(Utf8Test, PiecesDoNotMatter) {
  RandomText random(TestSeed());
  for (int round = 0; round < 5000; ++round) {
    const std::string bytes = random.NearlyUtf8(40);
    const std::string whole = DecodeWhole(bytes);
    EXPECT_EQ(ValidUtf8Prefix(whole), whole.size());
    Utf8Stream stream;
    std::string joined;
    for (size_t pos = 0; pos < bytes.size();) {
      const size_t size = 1 + random.Below(5);
      std::string piece;
      stream.Push(std::string_view(bytes).substr(pos, size), &piece);
      EXPECT_EQ(ValidUtf8Prefix(piece), piece.size());
      joined += piece;
      pos += size;
    }
    stream.Finish(&joined);
    EXPECT_EQ(joined, whole);
    // Valid text is unchanged; broken text is changed.
    EXPECT_EQ(whole == bytes, ValidUtf8Prefix(bytes) == bytes.size());
  }
}

TEST(ByteLettersTest, EveryByteHasALetterOfItsOwn) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string letter = ByteLetter(static_cast<uint8_t>(byte));
    EXPECT_EQ(BytesOfLetters(letter), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(ByteLetter(' '), "Ġ");
  EXPECT_EQ(ByteLetter('\n'), "Ċ");
  EXPECT_EQ(BytesOfLetters("ĠHelloâĢľ"), " Hello\xE2\x80\x9C");
  for (const char* other : {"日", "a b", "\xC2\xA0", "Ņ", "😀", "\xC4", "\xC4x", "\x80"}) {
    EXPECT_EQ(BytesOfLetters(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace baton::text
