// The reader of --api-keys: forms of one list, and what each bad file is told.
#include "src/api/key_file.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/key_file_rig.h"

namespace baton::api {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(KeyFileTest, ADigestIsThatOfSha256sum) { EXPECT_EQ(HexFromBytes(DigestOfKey("abc")), kAbc); }

TEST(KeyFileTest, BlockFlowAndJsonAreOneList) {
  for (const std::string& text :
       {"# keys\n- tenant: team-a  # ours\n  sha256: \"" + kAbc +
            "\"\n  requests_per_minute: 60\n  tokens_per_minute: 100000\n  concurrency: 8\n",
        "- {tenant: team-a, sha256: " + kAbc +
            ", requests_per_minute: 60, tokens_per_minute: 100000, concurrency: 8}\n",
        R"([{"tenant":"team-a","sha256":")" + kAbc +
            R"(","requests_per_minute":60,"tokens_per_minute":100000,"concurrency":8}])"}) {
    const auto file = ParseKeyFile(text);
    ASSERT_TRUE(file.ok()) << file.status() << text;
    ASSERT_EQ(file->keys.size(), 1u);
    EXPECT_EQ(file->keys[0].digest, DigestOfKey("abc"));
    ASSERT_EQ(file->tenants.size(), 1u);
    EXPECT_EQ(file->tenants[0].name, "team-a");
    EXPECT_EQ(file->tenants[0].limits, (TenantLimits{60, 100000, 8}));
  }
}

TEST(KeyFileTest, KeysOfOneTenantShareItsLimits) {
  const auto file = ParseKeyFile(KeyEntry("a", "old") + KeyEntry("b", "b") +
                                 KeyEntry("a", "new", "concurrency: 2"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->keys.size(), 3u);
  ASSERT_EQ(file->tenants.size(), 2u);
  EXPECT_EQ(file->tenants[0].limits.concurrency, 2u);
  EXPECT_EQ(file->tenants[1].limits, TenantLimits());
  for (size_t i = 1; i < file->keys.size(); ++i) {
    EXPECT_LT(file->keys[i - 1].digest, file->keys[i].digest);
  }
}

TEST(KeyFileTest, AShareIsANumberUpToOne) {
  for (const auto& [text, wanted] : {std::pair("0.25", 0.25), {"1", 1.0}, {"1e-3", 1e-3}}) {
    const auto file = ParseKeyFile(KeyEntry("a", "a", std::string("kv_share: ") + text));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->tenants[0].limits.kv_share, wanted);
  }
  EXPECT_EQ(ParseKeyFile(KeyEntry("a", "a"))->tenants[0].limits.kv_share, 0) << "no limit";
}

TEST(KeyFileTest, EachBadFileIsToldItsLine) {
  const std::string good = KeyEntry("a", "a");
  struct Case {
    std::string text;
    std::string said;
  };
  const std::vector<Case> cases = {
      {"", "must be a list"},
      {"tenant: a\n", "must be a list"},
      {"[]", "must be a list"},
      {"- tenant: [\n", "this is no YAML"},
      {good + "- plain\n", "line 3: an entry must be"},
      {good + "- tenant: b\n", "line 3: the entry has no sha256"},
      {"- sha256: " + kAbc + "\n", "the entry has no tenant"},
      {KeyEntry("a b", "a"), "line 1: tenant must be"},
      {KeyEntry("", "a"), ": tenant must be"},
      {KeyEntry(std::string(65, 'x'), "a"), "line 1: tenant must be"},
      {"- tenant: a\n  sha256: sk-secret\n", "line 2: sha256 must be the 64 hexadecimal digits"},
      {"- tenant: a\n  sha256: " + kAbc + "0\n", "line 2: sha256 must be"},
      {KeyEntry("a", "a", "requests_per_minute: 0"), "line 3: requests_per_minute must be a whole"},
      {KeyEntry("a", "a", "tokens_per_minute: -1"), "line 3: tokens_per_minute must be a whole"},
      {KeyEntry("a", "a", "concurrency: 1.5"), "line 3: concurrency must be a whole"},
      {KeyEntry("a", "a", "concurrency: 99999999999999999999"), "from 1 to 1000000000"},
      {KeyEntry("a", "a", "concurrency: [1]"), "line 3: concurrency must be a whole"},
      {KeyEntry("a", "a", "kv_share: 0"), "line 3: kv_share must be a number above 0"},
      {KeyEntry("a", "a", "kv_share: -0.1"), "line 3: kv_share must be a number above 0"},
      {KeyEntry("a", "a", "kv_share: 1.01"), "at most 1; leave it out for none"},
      {KeyEntry("a", "a", "kv_share: nan"), "line 3: kv_share must be a number above 0"},
      {KeyEntry("a", "a", "kv_share: half"), "line 3: kv_share must be a number above 0"},
      {KeyEntry("a", "a", "kv_share: 0.5x"), "line 3: kv_share must be a number above 0"},
      {KeyEntry("a", "a", "rpm: 5"), "is not known; an entry has"},
      {KeyEntry("a", "a", "tenant: b"), "stands twice"},
      {good + KeyEntry("b", "a"), "line 3: the key of line 1 again"},
      {KeyEntry("a", "a", "concurrency: 1") + KeyEntry("a", "b", "concurrency: 2"),
       "line 4: tenant a has other limits in line 1"},
  };
  for (const Case& c : cases) {
    const auto file = ParseKeyFile(c.text);
    ASSERT_FALSE(file.ok()) << c.text;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.said)) << c.text;
    EXPECT_THAT(std::string(file.status().message()), Not(HasSubstr("sk-secret")));
  }
}

TEST(KeyFileTest, AFileThatIsNotThereIsNamed) {
  const auto file = ReadKeyFile("/nowhere/keys.yaml");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("--api-keys /nowhere/keys.yaml"));
}

TEST(KeyFileTest, TenThousandKeysAreRead) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) {
    text += KeyEntry("t" + std::to_string(i % 100), std::to_string(i));
  }
  const auto file = ParseKeyFile(text);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->keys.size(), 10'000u);
  EXPECT_EQ(file->tenants.size(), 100u);
}

}  // namespace
}  // namespace baton::api
