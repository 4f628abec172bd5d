#include "kvcache/handoff_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kvcache/grant_park.h"
#include "tests/kvcache/action_kinds.h"

namespace baton::kv {
namespace {

using Kind = HandoffActionKind;
using testing::ElementsAre;

constexpr int64_t kNow = 50'000'000;
constexpr uint32_t kBlocks = 3;
constexpr uint32_t kLayers = 4;
constexpr uint64_t kSliceBytes = 128;

SourceSpec Spec() {
  SourceSpec spec;
  spec.uid = {1, 2};
  spec.attempt = 3;
  spec.decode_incarnation = Incarnation(9);
  spec.layout_id = 5;
  spec.slice_bytes = kSliceBytes;
  spec.num_blocks = kBlocks;
  spec.num_layers = kLayers;
  return spec;
}

TransferKey Key() { return {{1, 2}, 3, TransferId(7)}; }

Grant GoodGrant() {
  return {Key(), Incarnation(9), {1, 1, 1}, 5, kBlocks * kLayers * kSliceBytes, 10'000};
}

// A source and the actions of its last event.
class SourceTest : public testing::Test {
 protected:
  // Runs one event on a cleared list of actions.
  template <typename Event>
  const HandoffActions& On(Event&& event) {
    actions_.clear();
    event(&actions_);
    return actions_;
  }
  const HandoffActions& GrantNow(const Grant& grant, int64_t now_us = kNow) {
    return On([&](auto* out) { source_.OnGrant(grant, now_us, out); });
  }
  const HandoffActions& SealSlices(SliceRange slices, int64_t now_us = kNow) {
    return On([&](auto* out) { source_.OnLayersSealed(slices, now_us, out); });
  }
  const HandoffActions& SealAll() { return SealSlices({0, kBlocks, 0, kLayers}); }
  const HandoffActions& Done(int64_t now_us = kNow) {
    return On([&](auto* out) { source_.OnPromptDone(Seal{}, now_us, out); });
  }
  const HandoffActions& NackSlices(std::vector<SliceId> slices) {
    return On([&](auto* out) { source_.OnNack({Key(), std::move(slices)}, kNow, out); });
  }
  const HandoffActions& TickAt(int64_t now_us) {
    return On([&](auto* out) { source_.OnTick(now_us, out); });
  }
  const HandoffActions& CloseNow() {
    return On([&](auto* out) { source_.OnSendClosed(Incarnation(9), TransferId(7), kNow, out); });
  }
  const HandoffActions& CancelNow() {
    return On([&](auto* out) { source_.OnCancel("gone", kNow, out); });
  }
  void ExportEverything() {
    GrantNow(GoodGrant());
    SealAll();
    Done();
    ASSERT_EQ(source_.state(), SourceState::kExported);
  }

  HandoffSource source_{Spec()};
  HandoffActions actions_;
};

TEST_F(SourceTest, SlicesSealedBeforeTheGrantLeaveWithIt) {
  EXPECT_TRUE(SealSlices({0, 2, 0, 4}).empty());
  EXPECT_TRUE(SealSlices({2, 1, 0, 2}).empty());
  GrantNow(GoodGrant());
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kPinBlocks, Kind::kExportSlices, Kind::kPinBlocks,
                                           Kind::kExportSlices));
  EXPECT_EQ(actions_[0].slices, (SliceRange{0, 2, 0, 0}));
  EXPECT_EQ(actions_[1].slices, (SliceRange{0, 2, 0, 4}));
  EXPECT_EQ(actions_[2].slices, (SliceRange{2, 1, 0, 0}));
  EXPECT_EQ(actions_[3].slices, (SliceRange{2, 1, 0, 2}));
  EXPECT_EQ(source_.state(), SourceState::kExporting);
  EXPECT_EQ(source_.generations(), (std::vector<uint32_t>{1, 1, 1}));
}

TEST_F(SourceTest, SlicesSealedAfterTheGrantLeaveAtOnceAndOnlyOnce) {
  GrantNow(GoodGrant());
  EXPECT_TRUE(actions_.empty());
  SealSlices({0, 2, 0, 2});
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kPinBlocks, Kind::kExportSlices));
  EXPECT_EQ(actions_[1].slices, (SliceRange{0, 2, 0, 2}));
  SealSlices({0, 2, 2, 2});
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kExportSlices));
  EXPECT_EQ(actions_[0].slices, (SliceRange{0, 2, 2, 2}));
  SealSlices({2, 1, 0, 4});
  Done();
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage));
  const Seal& seal = std::get<Seal>(actions_[0].message);
  EXPECT_EQ(seal.key, Key());
  EXPECT_EQ(seal.num_slices, kBlocks * kLayers);
}

TEST_F(SourceTest, AppliedReleasesAndClosesThenFrees) {
  ExportEverything();
  On([&](auto* out) { source_.OnApplied({Key()}, kNow, out); });
  EXPECT_THAT(Kinds(actions_),
              ElementsAre(Kind::kCloseSend, Kind::kReleaseBlocks, Kind::kCompleteRequest));
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kApplied);
  EXPECT_EQ(source_.state(), SourceState::kDraining);
  On([&](auto* out) { source_.OnApplied({Key()}, kNow, out); });
  EXPECT_TRUE(actions_.empty()) << "a duplicate changes nothing";
  CloseNow();
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_EQ(actions_[0].slices.num_ordinals, kBlocks);
  EXPECT_TRUE(source_.finished());
  EXPECT_EQ(source_.NextDeadlineUs(), INT64_MAX);
}

TEST_F(SourceTest, StaleGrantsAreCountedAndChangeNothing) {
  Grant grant = GoodGrant();
  grant.key.attempt = 2;
  EXPECT_TRUE(GrantNow(grant).empty());
  grant = GoodGrant();
  grant.decode_incarnation = Incarnation(8);
  EXPECT_TRUE(GrantNow(grant).empty());
  grant = GoodGrant();
  grant.key.transfer = TransferId();
  EXPECT_TRUE(GrantNow(grant).empty());
  EXPECT_FALSE(source_.granted());
  GrantNow(GoodGrant());
  grant = GoodGrant();
  grant.key.transfer = TransferId(8);
  EXPECT_TRUE(GrantNow(grant).empty());
  EXPECT_EQ(source_.key().transfer, TransferId(7));
  EXPECT_EQ(source_.num_stale(), 4u);
}

TEST_F(SourceTest, AGrantWithOtherNumbersEndsTheRequest) {
  struct Case {
    const char* part;
    Grant grant;
  };
  std::vector<Case> cases(3, {"", GoodGrant()});
  cases[0].part = "layout";
  cases[0].grant.layout_id = 6;
  cases[1].part = "granted 2 blocks";
  cases[1].grant.generations.pop_back();
  cases[2].part = "1 bytes";
  cases[2].grant.expected_bytes = 1;
  for (const Case& c : cases) {
    source_ = HandoffSource(Spec());
    SealAll();
    GrantNow(c.grant);
    ASSERT_THAT(Kinds(actions_),
                ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks, Kind::kFailRequest));
    EXPECT_EQ(std::get<Revoke>(actions_[0].message).key, Key());
    EXPECT_FALSE(std::get<Revoke>(actions_[0].message).from_decode);
    EXPECT_THAT(std::string(actions_[2].status.message()), testing::HasSubstr(c.part));
    EXPECT_TRUE(source_.finished()) << "nothing was exported";
  }
}

TEST_F(SourceTest, ARepeatedGrantRenewsTheLeaseAndRepeatsTheSeal) {
  GrantNow(GoodGrant());
  const int64_t first = source_.spec().timers.ttl_us() - source_.spec().timers.margin_us;
  EXPECT_TRUE(TickAt(kNow + first - 1).size() == 1) << "only the renewal that was due";
  GrantNow(GoodGrant(), kNow + first - 1);
  EXPECT_TRUE(actions_.empty());
  SealAll();
  Done(kNow + first);
  TickAt(kNow + first + 1);
  EXPECT_EQ(source_.state(), SourceState::kExported) << "the lease started over";
  GrantNow(GoodGrant(), kNow + first + 2);
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage));
  EXPECT_TRUE(std::holds_alternative<Seal>(actions_[0].message));
}

TEST_F(SourceTest, LeaseEndsAMarginBeforeTheTtl) {
  GrantNow(GoodGrant());
  SealAll();
  const int64_t end = kNow + 10'000'000 - 500'000;
  TickAt(end - 1);
  EXPECT_EQ(source_.state(), SourceState::kExporting);
  TickAt(end);
  EXPECT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage, Kind::kCloseSend,
                                           Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(actions_[3].status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kLeaseExpired);
}

TEST_F(SourceTest, AShortTtlIsKeptAndALongOneIsCapped) {
  Grant grant = GoodGrant();
  grant.ttl_ms = 100;
  GrantNow(grant);
  EXPECT_EQ(source_.NextDeadlineUs(), kNow + 50'000) << "half of it is the margin";
  source_ = HandoffSource(Spec());
  grant.ttl_ms = 0xffffffff;
  GrantNow(grant);
  TickAt(kNow + 9'500'000);
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kLeaseExpired);
  source_ = HandoffSource(Spec());
  grant.ttl_ms = 0;
  GrantNow(grant);
  TickAt(kNow);
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kLeaseExpired);
}

TEST_F(SourceTest, RenewIsSentFourTimesALease) {
  GrantNow(GoodGrant());
  EXPECT_EQ(source_.NextDeadlineUs(), kNow + 2'500'000);
  EXPECT_TRUE(TickAt(kNow + 2'499'999).empty());
  TickAt(kNow + 2'500'000);
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage));
  EXPECT_TRUE(std::holds_alternative<Renew>(actions_[0].message));
  EXPECT_TRUE(TickAt(kNow + 2'500'001).empty());
}

TEST_F(SourceTest, WithoutAGrantAFinishedPromptIsGivenUpAfterALease) {
  TickAt(kNow + 3'600'000'000);
  EXPECT_EQ(source_.state(), SourceState::kComputing) << "a queued prompt has the router's lease";
  SealAll();
  Done();
  TickAt(kNow + 9'999'999);
  EXPECT_EQ(source_.state(), SourceState::kSealed);
  TickAt(kNow + 10'000'000);
  EXPECT_THAT(Kinds(actions_),
              ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(std::get<Revoke>(actions_[0].message).key.transfer, TransferId());
  EXPECT_TRUE(source_.finished());
}

TEST_F(SourceTest, EachSliceIsResentEightTimesThenTheTransferFails) {
  ExportEverything();
  for (int i = 0; i < 8; ++i) {
    NackSlices({{1, 2}, {2, 3}});
    ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kExportSlices, Kind::kExportSlices));
    EXPECT_EQ(actions_[0].slices, (SliceRange{1, 1, 2, 1}));
    EXPECT_EQ(actions_[1].slices, (SliceRange{2, 1, 3, 1}));
  }
  NackSlices({{0, 0}});
  EXPECT_THAT(Kinds(actions_), ElementsAre(Kind::kExportSlices)) << "another slice has its own";
  NackSlices({{1, 2}});
  EXPECT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage, Kind::kCloseSend,
                                           Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(actions_[3].status.code(), StatusCode::kDataLoss);
}

TEST_F(SourceTest, ANackOfNothingResendsAllThatWasSentUpToEightTimes) {
  GrantNow(GoodGrant());
  SealSlices({0, 2, 0, 4});
  SealSlices({2, 1, 0, 1});
  for (int i = 0; i < 8; ++i) {
    NackSlices({});
    ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kExportSlices, Kind::kExportSlices));
    EXPECT_EQ(actions_[0].slices, (SliceRange{0, 2, 0, 4}));
    EXPECT_EQ(actions_[1].slices, (SliceRange{2, 1, 0, 1}));
  }
  NackSlices({});
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kTransferFault);
}

TEST_F(SourceTest, ANackOfWhatWasNotSentIsNotCounted) {
  GrantNow(GoodGrant());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(NackSlices({{1, 1}}).empty());
  EXPECT_EQ(source_.state(), SourceState::kExporting);
}

TEST_F(SourceTest, ANackOutsideTheTransferIsAFaultNotACrash) {
  ExportEverything();
  NackSlices({{kBlocks, 0}});
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kBadMessage);
  source_ = HandoffSource(Spec());
  ExportEverything();
  NackSlices({{0, 0xffffffff}});
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kBadMessage);
}

TEST_F(SourceTest, AppliedBeforeTheSealIsAFault) {
  GrantNow(GoodGrant());
  SealSlices({0, 1, 0, 4});
  On([&](auto* out) { source_.OnApplied({Key()}, kNow, out); });
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kBadMessage);
  EXPECT_EQ(source_.state(), SourceState::kDraining);
}

TEST_F(SourceTest, RevokeCountsFromItsAttemptOnAndOnlyFromD) {
  const auto revoke = [&](uint32_t attempt, uint64_t transfer, bool from_decode) {
    On([&](auto* out) {
      source_.OnRevoke({{{1, 2}, attempt, TransferId(transfer)}, "no room", from_decode}, kNow,
                       out);
    });
  };
  revoke(2, 7, true);
  EXPECT_FALSE(source_.finished()) << "an older attempt";
  revoke(3, 7, false);
  EXPECT_FALSE(source_.finished()) << "our own direction";
  revoke(3, 0, true);
  EXPECT_THAT(Kinds(actions_), ElementsAre(Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_THAT(std::string(actions_[1].status.message()), testing::HasSubstr("no room"));
  EXPECT_TRUE(source_.finished()) << "refused before there was a grant";

  source_ = HandoffSource(Spec());
  GrantNow(GoodGrant());
  revoke(3, 8, true);
  EXPECT_EQ(source_.state(), SourceState::kExporting) << "another transfer";
  revoke(4, 8, true);
  EXPECT_TRUE(source_.finished()) << "a newer attempt ends this one";
}

TEST_F(SourceTest, CancelInEveryStateReleasesOnce) {
  CancelNow();
  EXPECT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks))
      << "before any block was sealed";
  EXPECT_TRUE(CancelNow().empty()) << "twice";
  source_ = HandoffSource(Spec());
  SealAll();
  Done();
  EXPECT_THAT(Kinds(CancelNow()), ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks));
  source_ = HandoffSource(Spec());
  ExportEverything();
  EXPECT_THAT(Kinds(CancelNow()),
              ElementsAre(Kind::kSendMessage, Kind::kCloseSend, Kind::kReleaseBlocks));
  EXPECT_TRUE(CancelNow().empty());
  EXPECT_THAT(Kinds(CloseNow()), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_TRUE(CancelNow().empty()) << "after the end";
}

TEST_F(SourceTest, AGrantedSourceThatExportedNothingNeedsNoTransport) {
  GrantNow(GoodGrant());
  EXPECT_THAT(Kinds(CancelNow()), ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks));
  EXPECT_TRUE(source_.finished());
}

TEST_F(SourceTest, LateEventsOfAnEndedTransferAreHarmless) {
  GrantNow(GoodGrant());
  SealSlices({0, 1, 0, 4});
  On([&](auto* out) { source_.OnPeerDown("reset", kNow, out); });
  EXPECT_THAT(Kinds(actions_),
              ElementsAre(Kind::kCloseSend, Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_TRUE(SealSlices({1, 1, 0, 4}).empty()) << "the step that was running";
  EXPECT_TRUE(Done().empty());
  EXPECT_TRUE(NackSlices({}).empty());
  On([&](auto* out) { source_.OnApplied({Key()}, kNow, out); });
  EXPECT_TRUE(actions_.empty()) << "Applied for a revoked transfer";
  GrantNow(GoodGrant());
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage));
  EXPECT_TRUE(std::holds_alternative<Revoke>(actions_[0].message)) << "D learns that it is over";
}

TEST_F(SourceTest, ATransportThatGivesUpEndsTheRequest) {
  ExportEverything();
  EXPECT_THAT(Kinds(CloseNow()), ElementsAre(Kind::kSendMessage, Kind::kUnpinBlocks,
                                             Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_TRUE(source_.finished());
}

TEST_F(SourceTest, MessagesOfTheOtherDirectionAreStale) {
  On([&](auto* out) { source_.OnMessage(Seal{Key()}, kNow, out); });
  On([&](auto* out) { source_.OnMessage(Renew{Key()}, kNow, out); });
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(source_.num_stale(), 2u);
}

using SourceDeathTest = SourceTest;

TEST_F(SourceDeathTest, SealingTwiceOrTooEarlyIsOurOwnBug) {
  SealSlices({0, 1, 0, 1});
  EXPECT_DEATH(SealSlices({0, 1, 0, 1}), "sealed twice");
  EXPECT_DEATH(SealSlices({0, kBlocks + 1, 0, 1}), "of 3 blocks x 4 layers");
  EXPECT_DEATH(Done(), "1 of 12 slices are sealed");
}

TEST(GrantParkTest, HoldsAGrantUntilItsRequestComes) {
  GrantPark park;
  EXPECT_TRUE(park.Park(GoodGrant(), kNow));
  EXPECT_FALSE(park.Take({1, 2}, 2, Incarnation(9)).has_value());
  EXPECT_FALSE(park.Take({1, 3}, 3, Incarnation(9)).has_value());
  EXPECT_FALSE(park.Take({1, 2}, 3, Incarnation(8)).has_value()) << "of another decode worker";
  EXPECT_FALSE(park.Drop({1, 2}, 3, Incarnation(8)));
  EXPECT_EQ(park.Take({1, 2}, 3, Incarnation(9)), GoodGrant());
  EXPECT_FALSE(park.Take({1, 2}, 3, Incarnation(9)).has_value());
  EXPECT_EQ(park.NextDeadlineUs(), INT64_MAX);
}

TEST(GrantParkTest, IsBoundedInNumberAndTime) {
  GrantPark park;
  Grant grant = GoodGrant();
  for (uint32_t i = 0; i < GrantPark::kCapacity; ++i) {
    grant.key.uid.lo = i;
    EXPECT_TRUE(park.Park(grant, kNow + i));
  }
  EXPECT_TRUE(park.Park(grant, kNow + 999)) << "a repeated one needs no place";
  grant.key.uid.lo = 1000;
  EXPECT_FALSE(park.Park(grant, kNow + 1000));
  EXPECT_EQ(park.NextDeadlineUs(), kNow + GrantPark::kParkUs);
  std::vector<Grant> expired;
  park.Expire(kNow + GrantPark::kParkUs + 9, &expired);
  ASSERT_EQ(expired.size(), 10u);
  EXPECT_EQ(expired[9].key.uid.lo, 9u);
  EXPECT_TRUE(park.Park(grant, kNow + 1001));
  EXPECT_TRUE(park.Drop({1, 1000}, 3, Incarnation(9)));
  EXPECT_FALSE(park.Drop({1, 1000}, 3, Incarnation(9)));
  park.Expire(kNow + 2 * GrantPark::kParkUs, &expired);
  EXPECT_EQ(park.size(), 0u) << "a repeated grant did not stay longer";
}

}  // namespace
}  // namespace baton::kv
