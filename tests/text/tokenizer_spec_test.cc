#include "src/text/tokenizer_spec.h"

#include <ctime>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/text/test_spec.h"

namespace baton::text {

using limits::kMaxSpecBytes;

namespace {

using ::testing::HasSubstr;

TokenizerSpec FullSpec() {
  TokenizerSpec spec = ByteSpec();
  spec.scores.assign(spec.tokens.size(), -1.5f);
  spec.scores[3] = 1e30f;
  spec.token_types[7] = 3;
  spec.token_types[8] = -77;
  // Unusable merges survive too: what is wrong with a spec is Create's to say.
  spec.merges = {"a b", "zz zz", "nospace", "", " ", "a b", "a  b"};
  spec.bos_id = 1;
  spec.eos_id = 0xffffffff;
  spec.eot_id = 3;
  spec.unk_id = 0;
  spec.add_bos = true;
  spec.add_space_prefix = false;
  spec.space_prefix_at_start_only = true;
  spec.space_prefix_unless_there = true;
  spec.user_defined_as_written = true;
  spec.ignore_merges = true;
  spec.marks_spaces_first = true;
  spec.adds_prefix_first = true;
  spec.token_traits.assign(spec.tokens.size(), 0);
  spec.token_traits[7] = kTakesBlanksAfter | kIsNormalized;
  spec.nfc = true;
  spec.chat_template = "{{ messages }}";
  spec.named_templates = {{"tool_use", "x"}, {"", ""}};
  return spec;
}

TEST(TokenizerSpecTest, ParseGivesBackWhatWasSerialized) {
  for (const TokenizerSpec& spec : {TokenizerSpec(), ByteSpec(), FullSpec(), DemoSpec()}) {
    const std::string bytes = spec.Serialize();
    const auto parsed = TokenizerSpec::Parse(bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, spec);
    EXPECT_EQ(parsed->Serialize(), bytes);
  }
}

TEST(TokenizerSpecTest, DemoModelIsSmallOnTheWire) {
  const size_t size = DemoSpec().Serialize().size();
  EXPECT_LT(size, size_t{1} << 20);
  EXPECT_GT(size, size_t{300} << 10);
}

TEST(TokenizerSpecTest, IdIsStableAndSeesEveryField) {
  // Pinned: the id is compared between builds of different machines.
  EXPECT_EQ(TokenizerSpecId(FullSpec().Serialize()), TokenizerSpecId(FullSpec().Serialize()));
  const uint64_t base = TokenizerSpecId(ByteSpec().Serialize());
  std::vector<TokenizerSpec> changed(8, ByteSpec());
  changed[0].tokens[5] += "x";
  changed[1].merges.clear();
  changed[2].token_types[0] = 3;
  changed[3].pre = "qwen2";
  changed[4].add_bos = false;
  changed[5].eos_id = 0;
  changed[6].chat_template = "x";
  changed[7].scores.assign(changed[7].tokens.size(), 0.0f);
  for (size_t i = 0; i < changed.size(); ++i) {
    EXPECT_NE(TokenizerSpecId(changed[i].Serialize()), base) << "change " << i;
  }
}

// Builds that knew no version 3 wrote and read these bytes and took their id. Routers and workers a
// version apart must speak, and pair: both compare ids.
TEST(TokenizerSpecTest, OldSpecsKeepTheirBytesAndTheirId) {
  using namespace std::string_view_literals;
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  spec.tokens = {"p", "q", "pq"};
  spec.token_types = {1, 1, 3};
  spec.merges = {"p q"};
  spec.bos_id = 1;
  spec.add_bos = true;
  spec.add_space_prefix = false;
  spec.space_prefix_at_start_only = true;
  spec.nfc = true;
  spec.chat_template = "x";
  spec.named_templates = {{"t", "y"}};
  const std::string old_bytes(
      "BTOK\x02\x04gpt2\x05gpt-2"
      "\x03\x01p\x01q\x02pq"
      "\0"                    // no scores
      "\x03\x01\x02\x03\x01"  // types: two of 1, one of 3
      "\x01\x01\x02"          // one merge: tokens 0 and 1
      "\x01\x01\0\0\0\0\0"    // bos 1; no other ids
      "\x02\0\x01\x01\x01"    // add_bos, add_eos, add_space_prefix, at start only, nfc
      "\x01x\x01\x01t\x01y"sv);
  EXPECT_EQ(testing::PrintToString(spec.Serialize()), testing::PrintToString(old_bytes));
  EXPECT_EQ(TokenizerSpecId(spec.Serialize()), 0x22a0593667ca915du);
  const auto parsed = TokenizerSpec::Parse(old_bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, spec);
  // Each field that version 2 has no place for makes it version 3.
  std::vector<TokenizerSpec> newer(3, spec);
  newer[0].space_prefix_unless_there = true;
  newer[1].user_defined_as_written = true;
  newer[2].ignore_merges = false;
  for (const TokenizerSpec& changed : newer) {
    const std::string bytes = changed.Serialize();
    EXPECT_EQ(bytes[4], 3);
    EXPECT_EQ(*TokenizerSpec::Parse(bytes), changed);
  }
  std::vector<TokenizerSpec> newest(3, spec);
  newest[0].marks_spaces_first = true;
  newest[1].adds_prefix_first = true;
  newest[2].token_traits = {0, 0, kTakesBlanksBefore};
  for (const TokenizerSpec& changed : newest) {
    const std::string bytes = changed.Serialize();
    EXPECT_EQ(bytes[4], 4);
    EXPECT_EQ(*TokenizerSpec::Parse(bytes), changed);
  }
}

TEST(TokenizerSpecTest, EveryTruncationIsRefused) {
  const std::string bytes = FullSpec().Serialize();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto parsed = TokenizerSpec::Parse(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(parsed.ok()) << size;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(TokenizerSpec::Parse(bytes + "x").status().message()),
              HasSubstr("goes on after its end"));
}

TEST(TokenizerSpecTest, OtherVersionsAreNamed) {
  std::string bytes = ByteSpec().Serialize();
  bytes[4] = 9;
  EXPECT_THAT(std::string(TokenizerSpec::Parse(bytes).status().message()),
              HasSubstr("version 9, this build reads 2 to 4"));
}

// A spec that parses after random damage must serialise back to what it is, and nothing may crash.
TEST(TokenizerSpecTest, DamagedBytesAreRefusedOrMeanWhatTheySay) {
  RandomText random(TestSeed());
  const std::string bytes = FullSpec().Serialize();
  size_t num_refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = bytes;
    for (size_t n = 1 + random.Below(4); n > 0; --n) {
      damaged[random.Below(damaged.size())] = static_cast<char>(random.Below(256));
    }
    const auto parsed = TokenizerSpec::Parse(damaged);
    if (!parsed.ok()) {
      ++num_refused;
      continue;
    }
    const std::string again = parsed->Serialize();
    EXPECT_EQ(TokenizerSpec::Parse(again)->Serialize(), again);
  }
  EXPECT_GT(num_refused, 1000u);
}

// A spec for which a worker would be refused is refused where the model is read.
TEST(TokenizerSpecTest, OfAHelloIsWhatARouterTakes) {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.tokens = {"a"};
  EXPECT_EQ(*spec.SerializeForHello(), spec.Serialize());
  spec.named_templates.assign(1024, {"name", "source"});
  EXPECT_TRUE(spec.SerializeForHello().ok());
  spec.named_templates.push_back({"name", "source"});
  EXPECT_THAT(std::string(spec.SerializeForHello().status().message()),
              HasSubstr("too many named templates"));
  EXPECT_EQ(*spec.SerializeUpToLimit(), spec.Serialize());
  spec.named_templates.clear();
  spec.chat_template = std::string(kMaxSpecBytes, 'x');
  EXPECT_THAT(std::string(spec.SerializeForHello().status().message()),
              HasSubstr("at most 16777216 are served"));
  EXPECT_EQ(spec.SerializeUpToLimit().status(), spec.SerializeForHello().status());
}

// A few bytes must not ask for much memory: counts, runs and merges of long tokens are bounded.
TEST(TokenizerSpecTest, AmplificationIsRefusedQuickly) {
  const auto varint = [](uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
    return out;
  };
  const std::string head = std::string("BTOK\x03") + '\0' + '\0';
  std::string long_merges = head + varint(1) + varint(1 << 20) + std::string(1 << 20, 'a') +
                            varint(0) + varint(0) + varint(1 << 20);
  for (int i = 0; i < (1 << 20); ++i) long_merges += "\x01\x01";
  const std::string cases[] = {
      head + varint(UINT64_MAX),
      head + varint(kMaxSpecTokens),
      head + varint(0) + varint(kMaxSpecTokens),
      head + varint(0) + varint(0) + varint(kMaxSpecTokens) + varint(1) + varint(UINT64_MAX),
      head + varint(1) + varint(UINT64_MAX),
      head + std::string(20, '\xff'),
      long_merges,
  };
  for (const std::string& bytes : cases) {
    // Processor time, which a busy machine does not stretch.
    const std::clock_t start = std::clock();
    EXPECT_FALSE(TokenizerSpec::Parse(bytes).ok());
    EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);
  }
  EXPECT_THAT(std::string(TokenizerSpec::Parse(long_merges).status().message()),
              HasSubstr("more text than allowed"));
}

}  // namespace
}  // namespace baton::text
