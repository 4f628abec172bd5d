// The parts of the loop that need no engine around them: leases of routers, taken events, batches.
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/sequence.h"
#include "src/engine/session_leases.h"
#include "src/engine/step_batch.h"
#include "src/engine/taken_events.h"

namespace baton::engine {
namespace {

TEST(SessionLeasesTest, AnOrderNeverShortensALease) {
  SessionLeases leases;
  leases.Begin(SessionId(1), 100);
  leases.Begin(SessionId(1), 40);
  EXPECT_EQ(leases.NextEndUs(), 100);
  leases.Begin(SessionId(1), 250);
  EXPECT_EQ(leases.NextEndUs(), 250);
  EXPECT_EQ(leases.size(), 1u);
}

TEST(SessionLeasesTest, ARenewalSetsALeaseAndBeginsNone) {
  SessionLeases leases;
  leases.Renew(SessionId(1), 100);
  EXPECT_EQ(leases.size(), 0u);
  EXPECT_EQ(leases.NextEndUs(), INT64_MAX);
  leases.Begin(SessionId(1), 100);
  leases.Renew(SessionId(1), 70);
  EXPECT_EQ(leases.NextEndUs(), 70);
}

TEST(SessionLeasesTest, ALeaseEndsAtItsTimeAndStaysUntilItIsErased) {
  SessionLeases leases;
  leases.Begin(SessionId(3), 100);
  leases.Begin(SessionId(1), 100);
  leases.Begin(SessionId(2), 101);
  EXPECT_TRUE(leases.Ended(99).empty());
  const std::vector<SessionId> ended = {SessionId(1), SessionId(3)};
  EXPECT_EQ(leases.Ended(100), ended) << "in the order of their ids";
  EXPECT_EQ(leases.Ended(100), ended);
  for (const SessionId session : ended) leases.Erase(session);
  EXPECT_TRUE(leases.Ended(100).empty());
  EXPECT_EQ(leases.NextEndUs(), 101);
}

PeerMessage MessageOf(uint64_t peer) {
  return {.peer = Incarnation(peer), .message = std::make_unique<kv::HandoffMessage>()};
}

TEST(TakenEventsTest, AScanShowsEachMessageOnceAndLeavesIt) {
  EngineInbox inbox(16);
  TakenEvents events(&inbox, 16);
  const auto scan = [&] {
    std::vector<Incarnation> peers;
    events.ScanMessages([&](PeerMessage& message) { peers.push_back(message.peer); });
    return peers;
  };
  inbox.Post(MessageOf(1));
  inbox.Post(BeginDrain{});
  EXPECT_TRUE(events.MoreWait());
  events.Take();
  EXPECT_FALSE(events.MoreWait());
  EXPECT_EQ(scan(), std::vector<Incarnation>{Incarnation(1)});
  inbox.Post(MessageOf(2));
  events.Take();
  EXPECT_EQ(scan(), std::vector<Incarnation>{Incarnation(2)});
  EXPECT_EQ(events.HandleAll([](EngineEvent) {}), 3u);
  EXPECT_TRUE(events.empty());
  inbox.Post(MessageOf(3));
  events.Take();
  EXPECT_EQ(scan(), std::vector<Incarnation>{Incarnation(3)}) << "a new turn scans from the start";
}

TEST(TakenEventsTest, EventsAreHandledInTheirOrder) {
  EngineInbox inbox(16);
  TakenEvents events(&inbox, 16);
  for (uint64_t i = 1; i <= 3; ++i) inbox.Post(CloseSession{SessionId(i)});
  events.Take();
  std::vector<SessionId> sessions;
  events.HandleAll(
      [&](EngineEvent event) { sessions.push_back(std::get<CloseSession>(event).session); });
  EXPECT_EQ(sessions, (std::vector<SessionId>{SessionId(1), SessionId(2), SessionId(3)}));
}

// A step that copies a state is computed as a whole: it says in the copies what it found.
TEST(StepBatchTest, AStepThatCopiesAStateIsNotChosenWhole) {
  scheduler::SequenceSpec spec;
  spec.tokens = {5};
  scheduler::Sequence sequence(spec, 16);
  scheduler::BatchPlan plan;
  plan.items.push_back({.sequence = &sequence, .num_tokens = 1, .wants_logits = true});
  StepBatch batch(
      {.max_tokens = 1, .max_items = 1, .vocab_size = 8, .state_blocks = 1, .samples = true});
  for (const bool copies : {false, true}) {
    if (copies) plan.checkpoints.push_back({.item = 0, .num_tokens = 1, .first_block = 0});
    batch.Lower(plan);
    batch.SetSampling(0, {.on_device = 1});
    EXPECT_EQ(batch.batch().state_copies.size(), copies ? 1u : 0u);
    EXPECT_EQ(batch.IsChosenWhole(), !copies);
  }
}

}  // namespace
}  // namespace baton::engine
