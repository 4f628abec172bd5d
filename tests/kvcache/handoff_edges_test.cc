// Stray, repeated and late events must not harm either side of a hand-off. Each test is the witness
// of one guard that no exploration of good peers needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvcache/handoff.h"

namespace baton::kv {
namespace {

using Kind = HandoffActionKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kNow = 50'000'000;
constexpr uint32_t kBlocks = 3;
constexpr uint32_t kLayers = 4;
constexpr uint32_t kSlices = kBlocks * kLayers;
const TransferKey kKey{{1, 2}, 3, TransferId(7)};

std::vector<ChainLink> Chain() { return ChainLinks({}, 4, std::vector<TokenId>(10, 1)); }

// A machine and the actions of its last event.
template <typename Machine>
class EdgesTest : public testing::Test {
 protected:
  // Runs one event and says which kinds of action came of it.
  template <typename Event>
  std::vector<Kind> On(Event&& event) {
    actions_.clear();
    event(&actions_);
    std::vector<Kind> kinds;
    for (const HandoffAction& action : actions_) kinds.push_back(action.kind);
    return kinds;
  }
  std::vector<Kind> Tell(const HandoffMessage& message, int64_t now_us = kNow) {
    return On([&](auto* out) { machine_.OnMessage(message, now_us, out); });
  }
  std::vector<Kind> TickAt(int64_t now_us) {
    return On([&](auto* out) { machine_.OnTick(now_us, out); });
  }
  std::vector<Kind> Cancel() {
    return On([&](auto* out) { machine_.OnCancel("gone", kNow, out); });
  }

  static Machine Make();
  Machine machine_ = Make();
  HandoffActions actions_;
};

template <>
HandoffSource EdgesTest<HandoffSource>::Make() {
  SourceSpec spec;
  spec.uid = kKey.uid;
  spec.attempt = kKey.attempt;
  spec.decode_incarnation = Incarnation(9);
  spec.layout_id = 5;
  spec.slice_bytes = 128;
  spec.num_blocks = kBlocks;
  spec.num_layers = kLayers;
  return HandoffSource(spec);
}

template <>
HandoffDest EdgesTest<HandoffDest>::Make() {
  DestSpec spec;
  spec.key = kKey;
  spec.decode_incarnation = Incarnation(9);
  spec.generations = {4, 5, 6};
  spec.layout_id = 5;
  spec.slice_bytes = 128;
  spec.num_layers = kLayers;
  spec.num_tokens = 10;
  spec.vocab_size = 100;
  spec.chain = Chain();
  return HandoffDest(spec);
}

// ---- The prefill worker.

class SourceEdgesTest : public EdgesTest<HandoffSource> {
 protected:
  static Grant GoodGrant() { return {kKey, Incarnation(9), {1, 1, 1}, 5, kSlices * 128, 10'000}; }
  std::vector<Kind> SealSlices(SliceRange slices) {
    return On([&](auto* out) { machine_.OnLayersSealed(slices, kNow, out); });
  }
  std::vector<Kind> Done() {
    return On([&](auto* out) { machine_.OnPromptDone(Seal{}, kNow, out); });
  }
  std::vector<Kind> Closed(uint64_t transfer = 7) {
    return On(
        [&](auto* out) { machine_.OnSendClosed(Incarnation(9), TransferId(transfer), kNow, out); });
  }
  std::vector<SliceRange> Exported() const {
    std::vector<SliceRange> ranges;
    for (const HandoffAction& action : actions_) {
      if (action.kind == Kind::kExportSlices) ranges.push_back(action.slices);
    }
    return ranges;
  }
};

TEST_F(SourceEdgesTest, ARepeatedGrantChangesNoNumbers) {
  Tell(GoodGrant());
  Grant other = GoodGrant();
  other.generations = {9, 9, 9};
  other.layout_id = 6;
  EXPECT_THAT(Tell(other, kNow + 1'000'000), IsEmpty());
  EXPECT_EQ(machine_.state(), SourceState::kExporting);
  EXPECT_EQ(machine_.generations(), (std::vector<uint32_t>{1, 1, 1}));
  EXPECT_EQ(machine_.NextDeadlineUs(), kNow + 2'500'000) << "the renewal is not put off";
}

TEST_F(SourceEdgesTest, AGrantOfAnotherRequestIsVoid) {
  Grant other = GoodGrant();
  other.key.uid.lo = 3;
  EXPECT_THAT(Tell(other), IsEmpty());
  EXPECT_FALSE(machine_.granted());
}

TEST_F(SourceEdgesTest, AGrantForWhichNothingCrossesIsRefused) {
  Grant grant = GoodGrant();
  grant.num_held = kBlocks;
  grant.generations.clear();
  grant.expected_bytes = 0;
  EXPECT_THAT(Tell(grant),
              ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks, Kind::kFailRequest));
}

TEST_F(SourceEdgesTest, ARevokeMayNameNoTransferAndMustNameThisRequest) {
  const auto revoke = [](uint64_t lo, uint64_t transfer) {
    return Revoke{{{1, lo}, 3, TransferId(transfer)}, "full", true};
  };
  EXPECT_THAT(Tell(revoke(3, 7)), IsEmpty()) << "another request";
  EXPECT_THAT(Tell(revoke(2, 7)), ElementsAre(Kind::kReleaseBlocks, Kind::kFailRequest))
      << "of a grant that was lost";
  machine_ = Make();
  Tell(GoodGrant());
  EXPECT_THAT(Tell(revoke(2, 0)), ElementsAre(Kind::kReleaseBlocks, Kind::kFailRequest))
      << "of the placement";
}

TEST_F(SourceEdgesTest, WhatTheStepStillSealsAfterTheEndIsHarmless) {
  SealSlices({0, kBlocks, 0, kLayers});
  Done();
  Cancel();
  EXPECT_THAT(SealSlices({0, 1, 0, 1}), IsEmpty());
  EXPECT_THAT(Done(), IsEmpty());
}

TEST_F(SourceEdgesTest, ASendThatTheTransportGaveUpBeforeAnythingLeftUnpinsNothing) {
  Tell(GoodGrant());
  EXPECT_THAT(Closed(8), IsEmpty()) << "another transfer";
  EXPECT_EQ(machine_.state(), SourceState::kExporting);
  EXPECT_THAT(Closed(), ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_FALSE(machine_.IsSending(Incarnation(9), TransferId(7)));
}

TEST_F(SourceEdgesTest, ASendIsKnownByItsDecodeWorkerToo) {
  Tell(GoodGrant());
  SealSlices({0, 1, 0, kLayers});
  On([&](auto* out) { machine_.OnRetarget(4, Incarnation(10), kNow, out); });
  EXPECT_TRUE(machine_.IsSending(Incarnation(9), TransferId(7)));
  EXPECT_FALSE(machine_.IsSending(Incarnation(10), TransferId(7)));
}

TEST_F(SourceEdgesTest, RangesOfSlicesJoinOnlyWhenTheyAreOneRectangle) {
  SealSlices({0, 2, 0, 2});
  Tell(GoodGrant());
  EXPECT_THAT(Exported(), ElementsAre(SliceRange{0, 2, 0, 2}));
  machine_ = Make();
  SealSlices({0, 1, 0, 2});
  SealSlices({1, 1, 2, 2});
  Tell(GoodGrant());
  EXPECT_THAT(Exported(), ElementsAre(SliceRange{0, 1, 0, 2}, SliceRange{1, 1, 2, 2}));
  machine_ = Make();
  SealSlices({0, 1, 0, kLayers});
  SealSlices({2, 1, 0, kLayers});
  Tell(GoodGrant());
  EXPECT_THAT(Exported(), ElementsAre(SliceRange{0, 1, 0, kLayers}, SliceRange{2, 1, 0, kLayers}));
}

TEST_F(SourceEdgesTest, WhatWasSentAgainDoesNotHideWhatIsSealedNext) {
  Tell(GoodGrant());
  SealSlices({0, 1, 0, kLayers});
  Tell(Nack{kKey, {}});
  EXPECT_THAT(SealSlices({1, 1, 0, kLayers}), ElementsAre(Kind::kPinBlocks, Kind::kExportSlices));
}

TEST_F(SourceEdgesTest, AnEndSaysWhy) {
  SealSlices({0, kBlocks, 0, kLayers});
  Done();
  TickAt(kNow + 10'000'000);
  EXPECT_THAT(std::string(actions_.back().status.message()), HasSubstr("sent no grant"));
  machine_ = Make();
  Tell(GoodGrant());
  TickAt(kNow + 10'000'000);
  EXPECT_THAT(std::string(actions_.back().status.message()), HasSubstr("was silent"));
  machine_ = Make();
  Cancel();
  EXPECT_THAT(std::get<Revoke>(actions_[0].message).reason, HasSubstr("gone"));
}

// ---- The decode worker.

class DestEdgesTest : public EdgesTest<HandoffDest> {
 protected:
  DestEdgesTest() { Restart(); }
  void Restart() {
    machine_ = Make();
    On([&](auto* out) { machine_.OnStart(kNow, out); });
  }
  static Seal GoodSeal() {
    Seal seal;
    seal.key = kKey;
    seal.first_tokens = {{0, 11}};
    seal.next_output_index = 1;
    seal.chain = Chain();
    seal.num_slices = kSlices;
    seal.num_tokens = 10;
    return seal;
  }
  std::vector<Kind> Progress(uint32_t num_slices, bool complete, int64_t now_us = kNow) {
    return On([&](auto* out) { machine_.OnReceiveProgress(num_slices, complete, now_us, out); });
  }
  std::vector<Kind> Bad(SliceId slice) {
    return On([&](auto* out) { machine_.OnBadSlice(slice, "checksum", kNow, out); });
  }
  std::vector<Kind> Closed() {
    return On([&](auto* out) { machine_.OnReceiveClosed(kNow, out); });
  }
  void Verify() {
    Progress(kSlices, true);
    Tell(GoodSeal());
    ASSERT_EQ(machine_.state(), DestState::kVerified);
  }
};

TEST_F(DestEdgesTest, OnlyTheFirstSealCounts) {
  EXPECT_THAT(Tell(GoodSeal()), IsEmpty());
  Seal other = GoodSeal();
  other.num_tokens = 9;
  EXPECT_THAT(Tell(other), IsEmpty());
  EXPECT_EQ(machine_.state(), DestState::kReserved);
}

TEST_F(DestEdgesTest, OnlyThisTransfersRenewKeepsTheLease) {
  const int64_t end = machine_.NextDeadlineUs();
  TransferKey other = kKey;
  other.attempt = 4;
  Tell(Renew{other}, kNow + 9'000'000);
  EXPECT_EQ(machine_.num_stale(), 1u);
  EXPECT_EQ(machine_.NextDeadlineUs(), end);
  TickAt(kNow + 10'500'000);
  EXPECT_EQ(machine_.outcome(), HandoffOutcome::kLeaseExpired);
}

TEST_F(DestEdgesTest, ARevokeSaysWhatFailedAtItsSender) {
  Tell(Revoke{kKey, "no number", false, FailedPart::kComputation});
  EXPECT_EQ(machine_.outcome(), HandoffOutcome::kPeerGaveUp);
  EXPECT_EQ(FailedPartOf(HandoffOutcome::kCancelled), FailedPart::kComputation);
  EXPECT_EQ(FailedPartOf(HandoffOutcome::kLeaseExpired), FailedPart::kHandOff);
  EXPECT_EQ(FailedPartOf(HandoffOutcome::kNone), FailedPart::kNotTold) << "a Retarget";
  EXPECT_EQ(OutcomeOf(Revoke{kKey, "late", false, FailedPart::kHandOff}), HandoffOutcome::kRevoked);
}

TEST_F(DestEdgesTest, ARevokeOfPEndsTheTransfer) {
  EXPECT_THAT(Tell(Revoke{kKey, "full", false}),
              ElementsAre(Kind::kCloseReceive, Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(machine_.outcome(), HandoffOutcome::kRevoked);
}

TEST_F(DestEdgesTest, TheEndOfTheConnectionEndsTheTransfer) {
  Progress(1, false);
  EXPECT_THAT(On([&](auto* out) { machine_.OnPeerDown("reset", kNow, out); }),
              ElementsAre(Kind::kCloseReceive, Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(machine_.outcome(), HandoffOutcome::kPeerDown);
}

TEST_F(DestEdgesTest, CompleteIsRememberedAndMayComeWithNoMoreSlices) {
  Progress(kSlices, false);
  Progress(kSlices, true);
  Progress(kSlices + 1, false);
  EXPECT_THAT(Tell(GoodSeal()), ElementsAre(Kind::kSendMessage, Kind::kCloseReceive));
}

TEST_F(DestEdgesTest, SlicesAfterTheEndLeaveNoTrace) {
  Cancel();
  EXPECT_THAT(Progress(kSlices, true, kNow + 5), IsEmpty());
  EXPECT_EQ(machine_.last_slice_us(), 0);
  EXPECT_EQ(machine_.NextDeadlineUs(), INT64_MAX);
}

TEST_F(DestEdgesTest, ProgressAfterTheSealPutsTheGapOff) {
  Tell(GoodSeal());
  Progress(1, false, kNow + 1'900'000);
  EXPECT_THAT(TickAt(kNow + 2'000'000), IsEmpty());
}

TEST_F(DestEdgesTest, ABadSliceIsRefusedOnlyWhileItIsMissingAndExists) {
  EXPECT_THAT(Bad({kBlocks, 0}), IsEmpty());
  EXPECT_THAT(Bad({0, kLayers}), IsEmpty());
  EXPECT_EQ(machine_.num_stale(), 2u);
  Progress(kSlices, true);
  EXPECT_THAT(Bad({0, 0}), IsEmpty()) << "a late copy of what is here";
}

TEST_F(DestEdgesTest, WhatNeverOpenedIsNotUnpinned) {
  machine_ = Make();
  EXPECT_THAT(Closed(), ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_EQ(machine_.outcome(), HandoffOutcome::kTransferFault);
  EXPECT_EQ(actions_.back().status.code(), StatusCode::kUnavailable);
}

TEST_F(DestEdgesTest, AfterVerifiedThereIsNoLease) {
  Verify();
  Tell(Renew{kKey});
  EXPECT_EQ(machine_.NextDeadlineUs(), INT64_MAX);
}

TEST_F(DestEdgesTest, APThatRenewsWhatWasGivenUpIsToldSo) {
  Cancel();
  ASSERT_THAT(Tell(Renew{kKey}), ElementsAre(Kind::kSendMessage));
  EXPECT_TRUE(std::holds_alternative<Revoke>(actions_[0].message));
}

}  // namespace
}  // namespace baton::kv
