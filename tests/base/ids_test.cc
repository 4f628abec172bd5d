#include "src/base/ids.h"

#include <set>
#include <type_traits>
#include <unordered_set>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

#include "src/base/random.h"

namespace baton {
namespace {

static_assert(!std::is_convertible_v<uint64_t, SequenceId>);
static_assert(!std::is_convertible_v<SequenceId, uint64_t>);
static_assert(!std::is_convertible_v<SequenceId, TransferId>);
static_assert(!std::is_same_v<TransferId, Incarnation>);
static_assert(sizeof(BlockIndex) == 4 && std::is_trivially_copyable_v<BlockIndex>);

TEST(IdsTest, OrderHashAndFormatFollowTheNumber) {
  const SequenceId small(7);
  const SequenceId large(1ull << 40);
  EXPECT_LT(small, large);
  EXPECT_EQ(small, SequenceId(7));
  EXPECT_EQ(SequenceId().value(), 0u);
  const absl::flat_hash_set<SequenceId> absl_set = {small, large, small};
  const std::unordered_set<SequenceId> std_set = {small, large, small};
  EXPECT_EQ(absl_set.size(), 2u);
  EXPECT_EQ(std_set.size(), 2u);
  EXPECT_EQ(fmt::format("{} {:>4} {:x}", small, BlockIndex(5), Incarnation(255)), "7    5 ff");
}

TEST(RequestUidTest, HexRoundTrips) {
  const RequestUid uid{0x0123456789abcdefull, 0xfull};
  EXPECT_EQ(uid.ToHex(), "0123456789abcdef000000000000000f");
  EXPECT_EQ(RequestUid::FromHex(uid.ToHex()).value(), uid);
  EXPECT_EQ(RequestUid::FromHex("0123456789ABCDEF000000000000000F").value(), uid);
  EXPECT_EQ(fmt::format("<{}>", uid), "<0123456789abcdef000000000000000f>");
}

TEST(RequestUidTest, RefusesEverythingElse) {
  for (const std::string_view text :
       {"", "0", "0123456789abcdef000000000000000", "0123456789abcdef000000000000000ff",
        "0123456789abcdeg000000000000000f", "-123456789abcdef000000000000000f",
        "0x23456789abcdef000000000000000f", " 123456789abcdef000000000000000f"}) {
    EXPECT_EQ(RequestUid::FromHex(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(RandomTest, UidsAndIncarnationsDoNotRepeat) {
  absl::flat_hash_set<RequestUid> uids;
  std::set<Incarnation> incarnations;
  for (int i = 0; i < 1000; ++i) {
    uids.insert(RandomRequestUid());
    incarnations.insert(RandomIncarnation());
  }
  EXPECT_EQ(uids.size(), 1000u);
  EXPECT_EQ(incarnations.size(), 1000u);
}

}  // namespace
}  // namespace baton
