#include <xxhash.h>

#include <random>
#include <string>

#include "gtest/gtest.h"

#include "src/base/xxh3.h"

namespace baton {
namespace {

std::string RandomText(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// Published values of the specification's sanity test, and the packaged library as second opinion.
TEST(Xxh3Test, KnownValues) {
  EXPECT_EQ(Xxh3Hash64(""), 0x2D06800538D394C2ull);
  const Hash128 empty = Xxh3Hash128("");
  EXPECT_EQ(empty.hi, 0x99AA06D3014798D8ull);
  EXPECT_EQ(empty.lo, 0x6001C324468D497Full);
}

TEST(Xxh3Test, EveryLengthAgreesWithThePackagedLibrary) {
  const std::string text = RandomText(70'000, 1);
  for (size_t size = 0; size <= 2200; ++size) {
    ASSERT_EQ(Xxh3Hash64(text.data(), size, 7), XXH3_64bits_withSeed(text.data(), size, 7)) << size;
    const Hash128 ours = Xxh3Hash128(text.data(), size, 9);
    const XXH128_hash_t theirs = XXH3_128bits_withSeed(text.data(), size, 9);
    ASSERT_EQ(ours, (Hash128{theirs.high64, theirs.low64})) << size;
  }
  EXPECT_EQ(Xxh3Hash64(text), XXH3_64bits(text.data(), text.size()));
}

TEST(Xxh3Test, StreamEqualsOneShotHoweverCut) {
  const std::string text = RandomText(50'000, 2);
  std::mt19937 random(3);
  Xxh3Stream stream;
  for (int round = 0; round < 50; ++round) {
    stream.Reset(round);
    const size_t size = random() % (text.size() + 1);
    for (size_t done = 0; done < size;) {
      const size_t piece = std::min<size_t>(size - done, random() % 3000);
      stream.Update(text.data() + done, piece);
      done += piece;
    }
    ASSERT_EQ(stream.Digest64(), Xxh3Hash64(text.data(), size, round)) << size;
    ASSERT_EQ(stream.Digest128(), Xxh3Hash128(text.data(), size, round)) << size;
  }
}

TEST(Xxh3Test, DigestDoesNotEndTheStream) {
  Xxh3Stream stream;
  stream.Update("ab");
  EXPECT_EQ(stream.Digest64(), Xxh3Hash64("ab"));
  stream.Update("cd");
  EXPECT_EQ(stream.Digest64(), Xxh3Hash64("abcd"));
}

}  // namespace
}  // namespace baton
