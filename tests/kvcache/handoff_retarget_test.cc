// A prompt whose decode worker is lost or changed: Retarget and the stranded state of
// HandoffSource.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kvcache/handoff_source.h"
#include "tests/kvcache/action_kinds.h"

namespace baton::kv {
namespace {

using Kind = HandoffActionKind;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kNow = 50'000'000;
constexpr int64_t kStrand = 2'000'000;
constexpr uint32_t kBlocks = 3;
constexpr uint32_t kLayers = 2;
const RequestUid kUid{1, 2};

// The decode workers 10 and 20; both happened to draw the same transfer id.
Incarnation Decode(uint32_t idx) { return Incarnation(10 * (idx + 1)); }

Grant GrantOf(uint32_t attempt, uint32_t decode, uint32_t num_held = 0) {
  Grant grant;
  grant.key = {kUid, attempt, TransferId(7)};
  grant.decode_incarnation = Decode(decode);
  grant.generations.assign(kBlocks - num_held, 1);
  grant.layout_id = 5;
  grant.expected_bytes = uint64_t{kBlocks - num_held} * kLayers * 64;
  grant.ttl_ms = 10'000;
  grant.num_held = num_held;
  return grant;
}

// A source of attempt 3 at decode worker 0, and the actions of its last event.
class RetargetTest : public testing::Test {
 protected:
  RetargetTest() { Restart(); }

  void Restart(int64_t strand_us = kStrand) {
    SourceSpec spec;
    spec.uid = kUid;
    spec.attempt = 3;
    spec.decode_incarnation = Decode(0);
    spec.layout_id = 5;
    spec.slice_bytes = 64;
    spec.num_blocks = kBlocks;
    spec.num_layers = kLayers;
    spec.timers.strand_us = strand_us;
    source_ = HandoffSource(spec);
  }
  template <typename Event>
  const HandoffActions& On(Event&& event) {
    actions_.clear();
    event(&actions_);
    return actions_;
  }
  const HandoffActions& GrantNow(const Grant& grant, int64_t now_us = kNow) {
    return On([&](auto* out) { source_.OnGrant(grant, now_us, out); });
  }
  const HandoffActions& SealBlocks(uint32_t first, uint32_t count) {
    return On([&](auto* out) { source_.OnLayersSealed({first, count, 0, kLayers}, kNow, out); });
  }
  const HandoffActions& Done(int64_t now_us = kNow) {
    return On([&](auto* out) { source_.OnPromptDone(Seal{}, now_us, out); });
  }
  const HandoffActions& Retarget(uint32_t attempt, uint32_t decode, int64_t now_us = kNow) {
    return On([&](auto* out) { source_.OnRetarget(attempt, Decode(decode), now_us, out); });
  }
  const HandoffActions& Closed(uint32_t decode, uint64_t transfer = 7) {
    return On(
        [&](auto* out) { source_.OnSendClosed(Decode(decode), TransferId(transfer), kNow, out); });
  }
  const HandoffActions& Tell(const HandoffMessage& message) {
    return On([&](auto* out) { source_.OnMessage(message, kNow, out); });
  }
  const HandoffActions& DownNow() {
    return On([&](auto* out) { source_.OnPeerDown("reset", kNow, out); });
  }
  const HandoffActions& CancelNow() {
    return On([&](auto* out) { source_.OnCancel("gone", kNow, out); });
  }
  const HandoffActions& TickAt(int64_t now_us) {
    return On([&](auto* out) { source_.OnTick(now_us, out); });
  }
  // Reaches a state of attempt 3 by the shortest way.
  void Reach(SourceState state) {
    Restart();
    if (state == SourceState::kExporting || state == SourceState::kExported) {
      GrantNow(GrantOf(3, 0));
    }
    SealBlocks(0, 2);
    if (state == SourceState::kSealed || state == SourceState::kExported) {
      SealBlocks(2, 1);
      Done();
    }
    ASSERT_EQ(source_.state(), state);
  }

  HandoffSource source_{SourceSpec{.num_blocks = 1, .num_layers = 1}};
  HandoffActions actions_;
};

TEST_F(RetargetTest, BeforeAGrantOnlyTheOldPlacementIsRevoked) {
  for (const SourceState state : {SourceState::kComputing, SourceState::kSealed}) {
    Reach(state);
    ASSERT_THAT(Kinds(Retarget(4, 1)), ElementsAre(Kind::kSendMessage));
    EXPECT_EQ(actions_[0].peer, Decode(0));
    const Revoke& revoke = std::get<Revoke>(actions_[0].message);
    EXPECT_EQ(revoke.key, (TransferKey{kUid, 3, TransferId()}));
    EXPECT_FALSE(revoke.from_decode);
    EXPECT_THAT(revoke.reason, HasSubstr("another decode worker"));
    EXPECT_EQ(source_.state(), state);
    EXPECT_EQ(source_.spec().attempt, 4u);
    EXPECT_EQ(source_.spec().decode_incarnation, Decode(1));
  }
}

TEST_F(RetargetTest, AGrantedOneVoidsItsGrantAndClosesItsSend) {
  Reach(SourceState::kExported);
  ASSERT_THAT(Kinds(Retarget(4, 1)), ElementsAre(Kind::kSendMessage, Kind::kCloseSend));
  EXPECT_EQ(std::get<Revoke>(actions_[0].message).key, (TransferKey{kUid, 3, TransferId(7)}));
  EXPECT_EQ(actions_[1].peer, Decode(0));
  EXPECT_EQ(actions_[1].transfer, TransferId(7));
  EXPECT_EQ(source_.state(), SourceState::kSealed);
  EXPECT_FALSE(source_.granted());
  EXPECT_TRUE(source_.generations().empty());

  Reach(SourceState::kExporting);
  ASSERT_THAT(Kinds(Retarget(4, 1)), ElementsAre(Kind::kSendMessage, Kind::kCloseSend));
  EXPECT_EQ(source_.state(), SourceState::kComputing);
}

// A sequence with a window: what it released is wanted by no decode worker that has the window too.
TEST_F(RetargetTest, ReleasedBlocksNeitherSealNorCross) {
  SourceSpec spec = source_.spec();
  spec.num_released = 1;
  source_ = HandoffSource(spec);
  SealBlocks(1, 2);
  Done();
  ASSERT_EQ(source_.state(), SourceState::kSealed);
  ASSERT_THAT(Kinds(GrantNow(GrantOf(3, 0, /*num_held=*/1))),
              ElementsAre(Kind::kPinBlocks, Kind::kExportSlices, Kind::kSendMessage));
  EXPECT_EQ(actions_[1].slices, (SliceRange{1, 2, 0, kLayers}));
  EXPECT_EQ(std::get<Seal>(actions_[2].message).num_slices, 2 * kLayers);
  Retarget(4, 1);
  ASSERT_THAT(Kinds(GrantNow(GrantOf(4, 1))),
              ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kBadMessage);
  EXPECT_THAT(std::get<Revoke>(actions_[0].message).reason, HasSubstr("behind the window"));
}

TEST_F(RetargetTest, SealedBlocksGoToTheNextDecodeWorkerWhileTheOldSendCloses) {
  Reach(SourceState::kExported);
  Retarget(4, 1);
  ASSERT_THAT(Kinds(GrantNow(GrantOf(4, 1, /*num_held=*/1))),
              ElementsAre(Kind::kPinBlocks, Kind::kExportSlices, Kind::kSendMessage));
  EXPECT_EQ(actions_[0].slices, (SliceRange{1, 2, 0, 0}));
  EXPECT_EQ(actions_[1].slices, (SliceRange{1, 2, 0, kLayers}));
  for (const HandoffAction& action : actions_) {
    EXPECT_EQ(action.peer, Decode(1));
    EXPECT_EQ(action.transfer, TransferId(7));
  }
  const Seal& seal = std::get<Seal>(actions_[2].message);
  EXPECT_EQ(seal.key.attempt, 4u);
  EXPECT_EQ(seal.num_slices, 2 * kLayers);

  ASSERT_THAT(Kinds(Closed(0)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_EQ(actions_[0].slices, (SliceRange{0, kBlocks, 0, 0})) << "what the old send pinned";
  EXPECT_EQ(actions_[0].peer, Decode(0));
  EXPECT_EQ(source_.state(), SourceState::kExported);
  EXPECT_TRUE(source_.IsSending(Decode(1), TransferId(7)));
  EXPECT_FALSE(source_.IsSending(Decode(0), TransferId(7)));

  EXPECT_THAT(Kinds(Tell(Applied{{kUid, 4, TransferId(7)}})),
              ElementsAre(Kind::kCloseSend, Kind::kReleaseBlocks, Kind::kCompleteRequest));
  ASSERT_THAT(Kinds(Closed(1)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_EQ(actions_[0].slices, (SliceRange{1, 2, 0, 0}));
  EXPECT_TRUE(source_.finished());
}

TEST_F(RetargetTest, TheRequestIsFreeOnlyWhenAllItsSendsAreClosed) {
  Reach(SourceState::kExported);
  Retarget(4, 1);
  GrantNow(GrantOf(4, 1));
  Tell(Applied{{kUid, 4, TransferId(7)}});
  EXPECT_EQ(source_.state(), SourceState::kDraining);
  EXPECT_THAT(Kinds(Closed(1)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_EQ(source_.state(), SourceState::kDraining) << "the old send is still closing";
  EXPECT_THAT(Kinds(Closed(0)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_TRUE(source_.finished());

  Reach(SourceState::kExported);
  Retarget(4, 1);
  EXPECT_THAT(Kinds(CancelNow()), ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks));
  EXPECT_EQ(source_.state(), SourceState::kDraining);
  EXPECT_THAT(Kinds(Closed(0)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_TRUE(source_.finished());
}

TEST_F(RetargetTest, NothingOfTheOldAttemptHasAnEffect) {
  Reach(SourceState::kExported);
  Retarget(4, 1);
  GrantNow(GrantOf(4, 1));
  const TransferKey old{kUid, 3, TransferId(7)};
  const HandoffSource before = source_;
  EXPECT_TRUE(GrantNow(GrantOf(3, 0)).empty());
  EXPECT_TRUE(Tell(Nack{old, {}}).empty());
  EXPECT_TRUE(Tell(Applied{old}).empty());
  EXPECT_TRUE(Tell(Revoke{old, "gone", true}).empty());
  EXPECT_TRUE(Retarget(4, 0).empty()) << "a repeated Retarget";
  EXPECT_TRUE(Retarget(3, 0).empty());
  EXPECT_TRUE(Closed(0, 8).empty()) << "a send that never was";
  EXPECT_EQ(source_.num_stale(), before.num_stale() + 7);
  EXPECT_EQ(source_.state(), SourceState::kExported);
  EXPECT_EQ(source_.key(), (TransferKey{kUid, 4, TransferId(7)}));
}

// Else two sends of one name would pin blocks, and the close of one would unpin the other's.
TEST_F(RetargetTest, AGrantWithTheNameOfAClosingSendIsVoid) {
  Reach(SourceState::kExported);
  Retarget(4, 0);
  const uint32_t num_stale = source_.num_stale();
  EXPECT_TRUE(GrantNow(GrantOf(4, 0)).empty());
  EXPECT_EQ(source_.num_stale(), num_stale + 1);
  EXPECT_FALSE(source_.granted());

  ASSERT_THAT(Kinds(Closed(0)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_EQ(actions_[0].slices.num_ordinals, kBlocks);
  EXPECT_FALSE(GrantNow(GrantOf(4, 0)).empty());
  EXPECT_TRUE(source_.granted());
}

TEST_F(RetargetTest, RefusalsStartAnewAtTheNextDecodeWorker) {
  Reach(SourceState::kExported);
  const auto nack = [&](uint32_t attempt, std::vector<SliceId> slices) {
    Tell(Nack{{kUid, attempt, TransferId(7)}, std::move(slices)});
  };
  for (int i = 0; i < 8; ++i) nack(3, {});
  for (int i = 0; i < 8; ++i) nack(3, {{0, 0}});
  Retarget(4, 1);
  GrantNow(GrantOf(4, 1));
  for (int i = 0; i < 8; ++i) nack(4, {});
  for (int i = 0; i < 8; ++i) nack(4, {{0, 0}});
  EXPECT_EQ(source_.state(), SourceState::kExported);
  nack(4, {{0, 0}});
  EXPECT_EQ(source_.state(), SourceState::kStranded);
}

TEST_F(RetargetTest, WhatIsSealedAfterTheRetargetLeavesWithTheNextGrant) {
  Reach(SourceState::kExporting);
  Retarget(4, 1);
  EXPECT_TRUE(SealBlocks(2, 1).empty());
  ASSERT_THAT(Kinds(GrantNow(GrantOf(4, 1))), ElementsAre(Kind::kPinBlocks, Kind::kExportSlices));
  EXPECT_EQ(actions_[1].slices, (SliceRange{0, kBlocks, 0, kLayers}));
  EXPECT_THAT(Kinds(Done()), ElementsAre(Kind::kSendMessage));
}

TEST_F(RetargetTest, OnlyASealedPromptHasADeadlineForTheNextGrant) {
  Reach(SourceState::kExporting);
  Retarget(4, 1, kNow + 5);
  EXPECT_EQ(source_.NextDeadlineUs(), INT64_MAX);
  Reach(SourceState::kExported);
  Retarget(4, 1, kNow + 5);
  EXPECT_EQ(source_.NextDeadlineUs(), kNow + 5 + 10'000'000);
  TickAt(kNow + 5 + 10'000'000);
  EXPECT_EQ(source_.state(), SourceState::kStranded);
}

TEST_F(RetargetTest, SendsThatNeverCloseAreBounded) {
  Reach(SourceState::kExported);
  const auto max = static_cast<uint32_t>(HandoffSource::kMaxClosingSends);
  uint32_t attempt = 3;
  for (uint32_t i = 0; i < max; ++i) {
    ++attempt;
    Retarget(attempt, attempt % 2);
    ASSERT_EQ(source_.state(), SourceState::kSealed);
    Grant grant = GrantOf(attempt, attempt % 2);
    grant.key.transfer = TransferId(100 + i);
    GrantNow(grant);
  }
  EXPECT_FALSE(source_.CanRetarget());
  EXPECT_TRUE(Retarget(attempt + 1, 0).empty());
  EXPECT_EQ(source_.state(), SourceState::kExported) << "it goes on for the D that it has";
  EXPECT_EQ(source_.spec().attempt, attempt);

  // The close of any of them makes room. The first was the send to the decode worker before all
  // Retargets.
  EXPECT_THAT(Kinds(Closed(0)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_TRUE(source_.CanRetarget());
  Retarget(attempt + 1, 0);
  EXPECT_EQ(source_.state(), SourceState::kSealed);
}

// ---- Stranded.

// One way to lose the decode worker from the state exported.
struct Loss {
  const char* name;
  HandoffOutcome outcome;
  bool tells_decode;  // a decode worker that may live gets a Revoke
  std::function<void()> happen;
};

class StrandedTest : public RetargetTest {
 public:
  std::vector<Loss> Losses() {
    const TransferKey key{kUid, 3, TransferId(7)};
    return {
        {"revoke", HandoffOutcome::kRevoked, false,
         [=, this] {
           Tell(Revoke{key, "no room", true});
         }},
        {"peer down", HandoffOutcome::kPeerDown, false, [this] { DownNow(); }},
        {"lease", HandoffOutcome::kLeaseExpired, true, [this] { TickAt(kNow + 9'500'000); }},
        {"nacks", HandoffOutcome::kTransferFault, true,
         [=, this] {
           for (int i = 0; i < 9; ++i) Tell(Nack{key, {}});
         }},
    };
  }
};

TEST_F(StrandedTest, EachLossOfDIsToldOnceAndKeepsTheBlocks) {
  for (const Loss& loss : Losses()) {
    SCOPED_TRACE(loss.name);
    Reach(SourceState::kExported);
    loss.happen();
    std::vector<Kind> wanted = {Kind::kCloseSend, Kind::kStranded};
    if (loss.tells_decode) wanted.insert(wanted.begin(), Kind::kSendMessage);
    EXPECT_EQ(Kinds(actions_), wanted);
    EXPECT_EQ(actions_.back().outcome, loss.outcome);
    EXPECT_FALSE(actions_.back().status.ok());
    if (loss.tells_decode) {
      const Revoke& revoke = std::get<Revoke>(actions_[0].message);
      EXPECT_EQ(revoke.key, (TransferKey{kUid, 3, TransferId(7)}));
      EXPECT_EQ(revoke.reason, std::string(actions_.back().status.message()));
    }
    EXPECT_EQ(source_.state(), SourceState::kStranded);
    EXPECT_EQ(source_.outcome(), HandoffOutcome::kNone);
    EXPECT_FALSE(source_.finished());
    EXPECT_TRUE(source_.CanRetarget());
  }
}

TEST_F(StrandedTest, WithoutAStrandTimeTheRequestFailsInTheSameCall) {
  for (const Loss& loss : Losses()) {
    SCOPED_TRACE(loss.name);
    Restart(/*strand_us=*/0);
    GrantNow(GrantOf(3, 0));
    SealBlocks(0, kBlocks);
    Done();
    loss.happen();
    std::vector<Kind> wanted = {Kind::kCloseSend, Kind::kReleaseBlocks, Kind::kFailRequest};
    if (loss.tells_decode) wanted.insert(wanted.begin(), Kind::kSendMessage);
    EXPECT_EQ(Kinds(actions_), wanted);
    EXPECT_EQ(source_.outcome(), loss.outcome);
  }
}

TEST_F(StrandedTest, ASendThatTheTransportGaveUpIsUnpinnedAtOnce) {
  Reach(SourceState::kExported);
  ASSERT_THAT(Kinds(Closed(0)),
              ElementsAre(Kind::kSendMessage, Kind::kUnpinBlocks, Kind::kStranded));
  EXPECT_EQ(actions_[1].slices, (SliceRange{0, kBlocks, 0, 0}));
  EXPECT_TRUE(Closed(0).empty()) << "once";
  Retarget(4, 1);
  EXPECT_THAT(Kinds(GrantNow(GrantOf(4, 1))),
              ElementsAre(Kind::kPinBlocks, Kind::kExportSlices, Kind::kSendMessage));
}

TEST_F(StrandedTest, ComputingGoesOnAndTheBlocksLeaveAfterTheRetarget) {
  Reach(SourceState::kExporting);
  DownNow();
  EXPECT_TRUE(SealBlocks(2, 1).empty());
  EXPECT_TRUE(Done(kNow + 1).empty());
  EXPECT_EQ(source_.state(), SourceState::kStranded);
  EXPECT_EQ(source_.NextDeadlineUs(), kNow + kStrand) << "the prompt's end changes nothing";
  EXPECT_TRUE(Retarget(4, 1, kNow + 2).empty()) << "the old D was told, or is gone";
  EXPECT_EQ(source_.state(), SourceState::kSealed);
  EXPECT_EQ(source_.NextDeadlineUs(), kNow + 2 + 10'000'000);
  GrantNow(GrantOf(4, 1));
  EXPECT_EQ(source_.state(), SourceState::kExported);
  EXPECT_THAT(Kinds(Closed(0)), ElementsAre(Kind::kUnpinBlocks));

  Reach(SourceState::kComputing);
  EXPECT_THAT(Kinds(DownNow()), ElementsAre(Kind::kStranded)) << "D died before its grant";
  Retarget(4, 1);
  EXPECT_EQ(source_.state(), SourceState::kComputing);
  EXPECT_EQ(source_.NextDeadlineUs(), INT64_MAX);
}

TEST_F(StrandedTest, WhenNoRetargetComesTheRequestFailsWithTheReasonOfTheLoss) {
  Reach(SourceState::kExported);
  DownNow();
  EXPECT_TRUE(TickAt(kNow + kStrand - 1).empty());
  ASSERT_THAT(Kinds(TickAt(kNow + kStrand)), ElementsAre(Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(actions_[1].outcome, HandoffOutcome::kPeerDown);
  EXPECT_THAT(std::string(actions_[1].status.message()), HasSubstr("reset"));
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kPeerDown);
  EXPECT_EQ(source_.state(), SourceState::kDraining);
  EXPECT_TRUE(Retarget(4, 1).empty()) << "too late";
  EXPECT_FALSE(source_.CanRetarget());
  EXPECT_THAT(Kinds(Closed(0)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_TRUE(source_.finished());
  EXPECT_EQ(source_.NextDeadlineUs(), INT64_MAX);
}

TEST_F(StrandedTest, TheLostDecodeWorkerChangesNothingAndIsToldSo) {
  Reach(SourceState::kExported);
  TickAt(kNow + 9'500'000);
  const TransferKey key{kUid, 3, TransferId(7)};
  EXPECT_TRUE(Tell(Nack{key, {}}).empty());
  EXPECT_TRUE(Tell(Applied{key}).empty());
  EXPECT_TRUE(Tell(Revoke{key, "late", true}).empty());
  EXPECT_TRUE(DownNow().empty());
  ASSERT_THAT(Kinds(GrantNow(GrantOf(3, 0))), ElementsAre(Kind::kSendMessage));
  EXPECT_TRUE(std::holds_alternative<Revoke>(actions_[0].message));
  EXPECT_EQ(source_.NextDeadlineUs(), kNow + 9'500'000 + kStrand);

  Reach(SourceState::kComputing);
  DownNow();
  ASSERT_THAT(Kinds(GrantNow(GrantOf(3, 0))), ElementsAre(Kind::kSendMessage));
  EXPECT_EQ(std::get<Revoke>(actions_[0].message).key, key) << "its first grant came too late";
}

TEST_F(StrandedTest, CancelReleasesAtOnce) {
  Reach(SourceState::kExported);
  DownNow();
  EXPECT_THAT(Kinds(CancelNow()), ElementsAre(Kind::kReleaseBlocks));
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kCancelled);
  EXPECT_TRUE(CancelNow().empty());
  EXPECT_TRUE(TickAt(kNow + 2 * kStrand).empty());
  EXPECT_THAT(Kinds(Closed(0)), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_TRUE(source_.finished());
}

TEST_F(StrandedTest, ItCanBeLostAgainAtTheNextDecodeWorker) {
  Reach(SourceState::kExported);
  DownNow();
  Retarget(4, 1);
  ASSERT_THAT(Kinds(Tell(Revoke{{kUid, 4, TransferId()}, "full", true})),
              ElementsAre(Kind::kStranded));
  EXPECT_EQ(actions_[0].outcome, HandoffOutcome::kRevoked);
  EXPECT_THAT(std::string(actions_[0].status.message()), HasSubstr("full"));
  Retarget(5, 0);
  Closed(0);
  GrantNow(GrantOf(5, 0));
  EXPECT_EQ(source_.state(), SourceState::kExported);
}

TEST_F(StrandedTest, AContradictionEndsTheRequestAtOnce) {
  Grant unfit = GrantOf(3, 0);
  unfit.layout_id = 6;
  const TransferKey key{kUid, 3, TransferId(7)};
  Reach(SourceState::kComputing);
  EXPECT_THAT(Kinds(GrantNow(unfit)),
              ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks, Kind::kFailRequest));
  Reach(SourceState::kExporting);
  EXPECT_THAT(Kinds(Tell(Applied{key})), ElementsAre(Kind::kSendMessage, Kind::kCloseSend,
                                                     Kind::kReleaseBlocks, Kind::kFailRequest));
  Reach(SourceState::kExported);
  EXPECT_THAT(
      Kinds(Tell(Nack{key, {{9, 9}}})),
      ElementsAre(Kind::kSendMessage, Kind::kCloseSend, Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(source_.outcome(), HandoffOutcome::kBadMessage);
}

}  // namespace
}  // namespace baton::kv
