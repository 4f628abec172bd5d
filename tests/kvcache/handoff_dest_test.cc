#include "kvcache/handoff_dest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/kvcache/action_kinds.h"

namespace baton::kv {
namespace {

using Kind = HandoffActionKind;
using testing::ElementsAre;

constexpr int64_t kNow = 50'000'000;
constexpr uint32_t kBlocks = 3;
constexpr uint32_t kLayers = 4;
constexpr uint32_t kSlices = kBlocks * kLayers;

std::vector<ChainLink> Chain(TokenId token) {
  return ChainLinks({}, 4, std::vector<TokenId>(10, token));
}

TransferKey Key() { return {{1, 2}, 3, TransferId(7)}; }

DestSpec Spec() {
  DestSpec spec;
  spec.key = Key();
  spec.decode_incarnation = Incarnation(9);
  spec.generations = {4, 5, 6};
  spec.layout_id = 5;
  spec.slice_bytes = 128;
  spec.num_layers = kLayers;
  spec.num_tokens = 10;
  spec.num_choices = 2;
  spec.vocab_size = 100;
  spec.chain = Chain(1);
  return spec;
}

Seal GoodSeal() {
  Seal seal;
  seal.key = Key();
  seal.first_tokens = {{0, 11}, {1, 99}};
  seal.next_output_index = 1;
  seal.chain = Chain(1);
  seal.num_slices = kSlices;
  seal.num_tokens = 10;
  return seal;
}

// A started destination and the actions of its last event.
class DestTest : public testing::Test {
 protected:
  DestTest() { Restart(); }

  void Restart() {
    dest_ = HandoffDest(Spec());
    On([&](auto* out) { dest_.OnStart(kNow, out); });
  }
  template <typename Event>
  const HandoffActions& On(Event&& event) {
    actions_.clear();
    event(&actions_);
    return actions_;
  }
  const HandoffActions& SealNow(const Seal& seal, int64_t now_us = kNow) {
    return On([&](auto* out) { dest_.OnSeal(seal, now_us, out); });
  }
  const HandoffActions& Progress(uint32_t num_slices, int64_t now_us = kNow) {
    return On([&](auto* out) {
      dest_.OnReceiveProgress(num_slices, num_slices == kSlices, now_us, out);
    });
  }
  const HandoffActions& TickAt(int64_t now_us) {
    return On([&](auto* out) { dest_.OnTick(now_us, out); });
  }
  const HandoffActions& ClosedNow() {
    return On([&](auto* out) { dest_.OnReceiveClosed(kNow, out); });
  }
  const HandoffActions& CancelNow() {
    return On([&](auto* out) { dest_.OnCancel("gone", kNow, out); });
  }
  const HandoffActions& RevokeNow(const TransferKey& key, bool from_decode = false) {
    return On([&](auto* out) { dest_.OnRevoke({key, "why", from_decode}, kNow, out); });
  }
  void BindIt() {
    Progress(kSlices);
    SealNow(GoodSeal());
    ClosedNow();
    ASSERT_EQ(dest_.state(), DestState::kBound);
  }

  HandoffDest dest_{Spec()};
  HandoffActions actions_;
};

TEST_F(DestTest, StartOpensTheReceiveBeforeTheGrantLeaves) {
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kOpenReceive, Kind::kSendMessage));
  const Grant& grant = std::get<Grant>(actions_[1].message);
  EXPECT_EQ(grant.key, Key());
  EXPECT_EQ(grant.decode_incarnation, Incarnation(9));
  EXPECT_EQ(grant.generations, (std::vector<uint32_t>{4, 5, 6}));
  EXPECT_EQ(grant.layout_id, 5u);
  EXPECT_EQ(grant.expected_bytes, kSlices * 128u);
  EXPECT_EQ(grant.ttl_ms, 10'000u);
}

TEST_F(DestTest, BindsAfterAllSlicesTheSealAndTheTransportsConfirmation) {
  EXPECT_THAT(Kinds(Progress(5)), ElementsAre(Kind::kLabelReceiving));
  EXPECT_EQ(dest_.state(), DestState::kReceiving);
  EXPECT_TRUE(Progress(kSlices).empty());
  SealNow(GoodSeal());
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage, Kind::kCloseReceive));
  EXPECT_TRUE(std::holds_alternative<Applied>(actions_[0].message));
  EXPECT_EQ(dest_.state(), DestState::kVerified);
  EXPECT_THAT(Kinds(ClosedNow()), ElementsAre(Kind::kUnpinBlocks, Kind::kBindBlocks));
  EXPECT_EQ(dest_.seal(), GoodSeal());
}

TEST_F(DestTest, TheSealMayComeFirst) {
  EXPECT_TRUE(SealNow(GoodSeal()).empty());
  EXPECT_TRUE(SealNow(GoodSeal()).empty()) << "twice";
  EXPECT_THAT(Kinds(Progress(kSlices)),
              ElementsAre(Kind::kLabelReceiving, Kind::kSendMessage, Kind::kCloseReceive));
}

TEST_F(DestTest, WhatStandsBeforeItInTheQueueIsNoSilence) {
  EXPECT_EQ(dest_.num_outstanding(), kSlices);
  dest_.OnQueueProgress(kNow);
  EXPECT_EQ(dest_.gap_at_us(), INT64_MAX) << "not sealed";
  SealNow(GoodSeal());
  Progress(1);
  EXPECT_EQ(dest_.num_outstanding(), kSlices - 1);
  EXPECT_EQ(dest_.gap_at_us(), kNow + 2'000'000);
  dest_.OnQueueProgress(kNow - 1);
  EXPECT_EQ(dest_.gap_at_us(), kNow + 2'000'000) << "never earlier";
  dest_.OnQueueProgress(kNow + 400'000);
  EXPECT_TRUE(TickAt(kNow + 2'399'999).empty());
  ASSERT_THAT(Kinds(TickAt(kNow + 2'400'000)), ElementsAre(Kind::kSendMessage));
  EXPECT_TRUE(std::holds_alternative<Nack>(actions_[0].message));
  Progress(kSlices);
  dest_.OnQueueProgress(kNow + 9'000'000);
  EXPECT_EQ(dest_.gap_at_us(), INT64_MAX) << "complete";
}

TEST_F(DestTest, ASealThatContradictsTheRequestEndsIt) {
  struct Case {
    const char* part;
    HandoffOutcome outcome;
    Seal seal;
  };
  std::vector<Case> cases;
  const auto add = [&](const char* part, HandoffOutcome outcome, auto&& change) {
    Seal seal = GoodSeal();
    change(seal);
    cases.push_back({part, outcome, seal});
  };
  const auto bad = HandoffOutcome::kBadMessage;
  add("num_tokens 9", bad, [](Seal& s) { s.num_tokens = 9; });
  add("num_slices 11", bad, [](Seal& s) { s.num_slices = 11; });
  add("next_output_index 2", bad, [](Seal& s) { s.next_output_index = 2; });
  add("choices 1", bad, [](Seal& s) { s.first_tokens.pop_back(); });
  add("choice 5", bad, [](Seal& s) { s.first_tokens[1].choice = 5; });
  add("token 100", bad, [](Seal& s) { s.first_tokens[1].token = 100; });
  add("token -1", bad, [](Seal& s) { s.first_tokens[0].token = -1; });
  add("differ at block 0", HandoffOutcome::kChainMismatch, [](Seal& s) { s.chain = Chain(2); });
  add("differ at block 2", HandoffOutcome::kChainMismatch, [](Seal& s) { s.chain.pop_back(); });
  for (const Case& c : cases) {
    Restart();
    Progress(kSlices);
    SealNow(c.seal);
    ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage, Kind::kCloseReceive,
                                             Kind::kReleaseBlocks, Kind::kFailRequest))
        << c.part;
    EXPECT_TRUE(std::get<Revoke>(actions_[0].message).from_decode);
    EXPECT_THAT(std::string(actions_[3].status.message()), testing::HasSubstr(c.part));
    EXPECT_EQ(actions_[3].outcome, c.outcome);
    EXPECT_EQ(dest_.outcome(), c.outcome);
    EXPECT_THAT(Kinds(ClosedNow()), ElementsAre(Kind::kUnpinBlocks));
    EXPECT_TRUE(dest_.finished());
  }
}

TEST_F(DestTest, LeaseEndsAMarginAfterTheTtlAndEverySignOfPRenewsIt) {
  const int64_t lease = 10'000'000 + 500'000;
  TickAt(kNow + lease - 1);
  EXPECT_EQ(dest_.state(), DestState::kReserved);
  On([&](auto* out) { dest_.OnRenew({Key()}, kNow + lease - 1, out); });
  TickAt(kNow + 2 * lease - 2);
  EXPECT_EQ(dest_.state(), DestState::kReserved);
  Progress(1, kNow + 2 * lease - 2);
  TickAt(kNow + 3 * lease - 3);
  EXPECT_EQ(dest_.state(), DestState::kReceiving);
  Progress(1, kNow + 3 * lease - 3);
  TickAt(kNow + 3 * lease - 2);
  EXPECT_EQ(dest_.outcome(), HandoffOutcome::kLeaseExpired) << "no progress, no renewal";
  EXPECT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage, Kind::kCloseReceive,
                                           Kind::kReleaseBlocks, Kind::kFailRequest));
}

TEST_F(DestTest, TheGrantIsRepeatedFourTimesALease) {
  EXPECT_EQ(dest_.NextDeadlineUs(), kNow + 2'500'000);
  EXPECT_TRUE(TickAt(kNow + 2'499'999).empty());
  TickAt(kNow + 2'500'000);
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage));
  EXPECT_TRUE(std::holds_alternative<Grant>(actions_[0].message));
  EXPECT_EQ(dest_.NextDeadlineUs(), kNow + 5'000'000);
}

TEST_F(DestTest, AGapAfterTheSealAsksForEverythingUpToEightTimes) {
  Progress(3);
  EXPECT_TRUE(TickAt(kNow + 2'100'000).empty()) << "before the Seal P may still compute";
  SealNow(GoodSeal(), kNow + 2'100'000);
  int64_t now_us = kNow + 2'100'000;
  uint32_t nacks = 0;
  while (dest_.state() == DestState::kReceiving && nacks < 20) {
    now_us += 2'000'000;
    On([&](auto* out) { dest_.OnRenew({Key()}, now_us, out); });
    TickAt(now_us);
    for (const HandoffAction& action : actions_) {
      if (action.kind != Kind::kSendMessage) continue;
      if (const auto* nack = std::get_if<Nack>(&action.message)) {
        EXPECT_TRUE(nack->slices.empty());
        ++nacks;
      }
    }
  }
  EXPECT_EQ(nacks, 8u);
  EXPECT_EQ(dest_.outcome(), HandoffOutcome::kTransferFault);
}

TEST_F(DestTest, EachBadSliceIsRefusedEightTimesThenTheTransferFails) {
  for (int i = 0; i < 8; ++i) {
    On([&](auto* out) { dest_.OnBadSlice({2, 1}, "checksum", kNow, out); });
    ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage));
    EXPECT_THAT(std::get<Nack>(actions_[0].message).slices, ElementsAre(SliceId{2, 1}));
  }
  On([&](auto* out) { dest_.OnBadSlice({0, 1}, "checksum", kNow, out); });
  EXPECT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage)) << "another slice has its own";
  On([&](auto* out) { dest_.OnBadSlice({2, 1}, "checksum", kNow, out); });
  EXPECT_EQ(dest_.outcome(), HandoffOutcome::kTransferFault);
  EXPECT_EQ(actions_.back().status.code(), StatusCode::kDataLoss);
}

TEST_F(DestTest, AfterVerifiedNothingOfPMattersAndRepeatsAreAnswered) {
  Progress(kSlices);
  SealNow(GoodSeal());
  EXPECT_TRUE(RevokeNow(Key()).empty());
  On([&](auto* out) { dest_.OnPeerDown("reset", kNow, out); });
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(TickAt(kNow + 3'600'000'000).empty());
  ClosedNow();
  ASSERT_EQ(dest_.state(), DestState::kBound);
  SealNow(GoodSeal());
  ASSERT_THAT(Kinds(actions_), ElementsAre(Kind::kSendMessage));
  EXPECT_TRUE(std::holds_alternative<Applied>(actions_[0].message)) << "the first one was lost";
  On([&](auto* out) { dest_.OnRenew({Key()}, kNow, out); });
  EXPECT_TRUE(std::holds_alternative<Applied>(actions_.at(0).message));
  EXPECT_FALSE(dest_.finished());
  TickAt(dest_.NextDeadlineUs());
  EXPECT_TRUE(dest_.finished()) << "after one lease nobody asks any more";
  EXPECT_TRUE(actions_.empty());
}

TEST_F(DestTest, CancelInEveryStateReleasesOnceOrNotAtAll) {
  dest_ = HandoffDest(Spec());
  EXPECT_THAT(Kinds(CancelNow()), ElementsAre(Kind::kSendMessage, Kind::kReleaseBlocks))
      << "before the transport was asked";
  EXPECT_TRUE(dest_.finished());

  Restart();
  EXPECT_THAT(Kinds(CancelNow()),
              ElementsAre(Kind::kSendMessage, Kind::kCloseReceive, Kind::kReleaseBlocks));
  EXPECT_TRUE(CancelNow().empty()) << "twice";
  EXPECT_TRUE(Progress(kSlices).empty()) << "late slices";
  EXPECT_THAT(Kinds(SealNow(GoodSeal())), ElementsAre(Kind::kSendMessage)) << "P learns it again";
  EXPECT_THAT(Kinds(ClosedNow()), ElementsAre(Kind::kUnpinBlocks));
  EXPECT_TRUE(CancelNow().empty()) << "after the end";

  Restart();
  Progress(kSlices);
  SealNow(GoodSeal());
  EXPECT_THAT(Kinds(CancelNow()), ElementsAre(Kind::kReleaseBlocks)) << "verified, not bound";
  EXPECT_THAT(Kinds(ClosedNow()), ElementsAre(Kind::kUnpinBlocks));

  Restart();
  BindIt();
  EXPECT_TRUE(CancelNow().empty()) << "the blocks are the sequences'";
  EXPECT_TRUE(dest_.finished());
}

TEST_F(DestTest, OnlyThisPlacementsRevokeCounts) {
  TransferKey key = Key();
  key.attempt = 2;
  EXPECT_TRUE(RevokeNow(key).empty());
  key = Key();
  key.transfer = TransferId(8);
  EXPECT_TRUE(RevokeNow(key).empty());
  EXPECT_TRUE(RevokeNow(Key(), /*from_decode=*/true).empty());
  EXPECT_EQ(dest_.num_stale(), 3u);
  key = Key();
  key.transfer = TransferId();
  EXPECT_THAT(Kinds(RevokeNow(key)),
              ElementsAre(Kind::kCloseReceive, Kind::kReleaseBlocks, Kind::kFailRequest))
      << "P ended it before it saw the grant";
  EXPECT_EQ(actions_[2].status.code(), StatusCode::kUnavailable);
}

TEST_F(DestTest, StaleMessagesChangeNothing) {
  Seal seal = GoodSeal();
  seal.key.attempt = 4;
  EXPECT_TRUE(SealNow(seal).empty());
  EXPECT_FALSE(dest_.seal().has_value());
  On([&](auto* out) { dest_.OnMessage(Applied{Key()}, kNow, out); });
  On([&](auto* out) { dest_.OnMessage(Nack{Key(), {}}, kNow, out); });
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(dest_.num_stale(), 3u);
}

TEST_F(DestTest, ATransportThatGivesUpEndsTheRequest) {
  Progress(2);
  EXPECT_THAT(Kinds(ClosedNow()), ElementsAre(Kind::kSendMessage, Kind::kUnpinBlocks,
                                              Kind::kReleaseBlocks, Kind::kFailRequest));
  EXPECT_TRUE(dest_.finished());
}

TEST_F(DestTest, TimesOfTheTransferAreKept) {
  EXPECT_EQ(dest_.first_slice_us(), 0);
  Progress(1, kNow + 10);
  Progress(7, kNow + 20);
  Progress(kSlices, kNow + 30);
  EXPECT_EQ(dest_.first_slice_us(), kNow + 10);
  EXPECT_EQ(dest_.last_slice_us(), kNow + 30);
  EXPECT_EQ(dest_.expected_bytes(), kSlices * 128u);
}

}  // namespace
}  // namespace baton::kv
