// Streams leave a decode worker that drains, and stay where they are until another has taken them.
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

TEST(MoveTest, StreamsLeaveADrainingDecodeWorkerForOneWithRoom) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.Report("decode-0", {}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us);
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kCancel).empty()) << "nobody else is there";
  WorkerDescription other = FakeCluster::Describe("decode-1", WorkerRole::kDecode);
  cluster.Join(std::move(other));
  cluster.Report("prefill-0", {"decode-0", "decode-1"});
  cluster.Report("decode-1", {}, 0);
  cluster.core.Tick(cluster.now_us += 20'000);
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kCancel).empty()) << "there is no room";
  cluster.Report("decode-1");
  cluster.core.Tick(cluster.now_us += 20'000);
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kCancel).empty())
      << "the connection that its KV could take may yet come up";
  EXPECT_EQ(cluster.Log("decode-0").peers, std::vector<std::string>{"decode-1"});
  for (int i = 0; i < 11; ++i) {
    cluster.now_us += 100'000;
    cluster.Report("decode-0", {}, std::nullopt, /*draining=*/true);
    cluster.Report("decode-1");
    cluster.Report("prefill-0", {"decode-0", "decode-1"});
    cluster.core.Tick(cluster.now_us);
  }
  const auto orders = cluster.Log("decode-1").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].replayed, BytesOf("ab"));
  cluster.State("decode-1", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), 1u);
  // Tokens that the old worker still sends are late; moves are no faults.
  cluster.Text("decode-0", uid, 3, "z");
  EXPECT_EQ(cluster.metrics.stale_events_total->value(), 1u);
  cluster.State("decode-1", uid, WorkerRequestState::kVerified, StatusCode::kOk, 2);
  cluster.text_attempt = 2;
  cluster.Text("decode-1", uid, 3, "d", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "abcd");
  EXPECT_EQ(cluster.sink->result->timings.decode_worker, "decode-1");
  ExpectClean(cluster);
}

// With a connection between the two decode workers the KV moves: nothing is computed again.
TEST(MoveTest, KvOfADrainingDecodeWorkerMovesToAnother) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("decode-1", {}, 0);
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  ASSERT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
  cluster.Report("decode-1");
  cluster.Report("decode-0", {"decode-1"}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us += 20'000);
  const auto dests = cluster.Log("decode-1").Of(Order::Kind::kDecode);
  ASSERT_EQ(dests.size(), 1u);
  EXPECT_EQ(dests[0].peer, "decode-0");
  EXPECT_EQ(dests[0].replayed, BytesOf("ab")) << "the last token has no KV yet";
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kPrefill).empty()) << "it may yet refuse";
  cluster.State("decode-1", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  const auto sources = cluster.Log("decode-0").Of(Order::Kind::kPrefill);
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].attempt, 2u);
  EXPECT_EQ(sources[0].peer, "decode-1");
  EXPECT_EQ(sources[0].replayed, BytesOf("ab"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kCancel).empty());
  cluster.State("decode-1", uid, WorkerRequestState::kVerified, StatusCode::kOk, 2);
  cluster.State("decode-0", uid, WorkerRequestState::kHandedOff, StatusCode::kOk, 2);
  cluster.text_attempt = 2;
  cluster.Text("decode-1", uid, 2, "cd", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "abcd");
  EXPECT_EQ(cluster.sink->result->timings.prefill_worker, "prefill-0");
  EXPECT_EQ(cluster.sink->result->timings.decode_worker, "decode-1");
  ExpectClean(cluster);
}

// Its decode worker computed its prompt; then its KV crosses as of a pair.
TEST(MoveTest, AStreamThatWasMovedIsNotedAsAPair) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  FakeCluster cluster(config);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Text("decode-0", uid, 0, "abc");
  const auto note = [&cluster] {
    return std::string(cluster.core.Traces(cluster.now_us).at(0)->notes.RouteText());
  };
  EXPECT_EQ(note(), "aggregated_mode");
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("decode-0", {"decode-1"}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us += 20'000);
  const auto dests = cluster.Log("decode-1").Of(Order::Kind::kDecode);
  ASSERT_EQ(dests.size(), 1u);
  ASSERT_EQ(dests[0].peer, "decode-0");
  EXPECT_EQ(note(), "aggregated_mode") << "it may yet refuse";
  cluster.State("decode-1", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  EXPECT_EQ(note(), "pair");
}

TEST(MoveTest, KvTakesNoLinkThatFailedAMomentAgo) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  for (const char* id : {"decode-1", "decode-2"}) {
    cluster.Join(FakeCluster::Describe(id, WorkerRole::kDecode));
    cluster.Report(id, {}, 0);
  }
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.Report("decode-1");
  cluster.Report("decode-2", {}, 32);  // fuller than the other
  cluster.Report("decode-0", {"decode-1", "decode-2"}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us += 20'000);
  ASSERT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), 1u);
  cluster.State("decode-1", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  cluster.State("decode-1", uid, WorkerRequestState::kFailed, StatusCode::kDataLoss, 2);
  cluster.core.Tick(cluster.now_us += 20'000);
  const auto again = cluster.Log("decode-2").Of(Order::Kind::kDecode);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].peer, "decode-0") << "its KV still moves, over the other link";
  EXPECT_EQ(again[0].replayed, BytesOf("ab"));
}

// decode-1 is of an older release: it asks for all blocks of a stream, and some are released.
TEST(MoveTest, KvOfAWindowGoesToNoWorkerThatAsksForAllBlocks) {
  for (const bool has_newer : {true, false}) {
    SCOPED_TRACE(has_newer);
    FakeCluster cluster;
    const auto join = [&cluster](const char* id, uint32_t window_blocks) {
      WorkerDescription worker = FakeCluster::Describe(id, WorkerRole::kDecode);
      worker.window_blocks = window_blocks;
      cluster.Join(std::move(worker));
    };
    join("decode-0", 3);
    cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill));
    cluster.Report("prefill-0", {"decode-0"});
    cluster.Advance(4'000'000, {"decode-0", "prefill-0"});
    join("decode-1", 0);
    cluster.Report("decode-1", {}, 0);
    std::vector<std::string> others = {"decode-1"};
    if (has_newer) {
      join("decode-2", 3);
      cluster.Report("decode-2", {}, 0);
      others.emplace_back("decode-2");
    }
    (void)PlayTo(cluster, Phase::kDecoding);
    cluster.Report("decode-1");
    if (has_newer) cluster.Report("decode-2", {}, 32);  // fuller than the other
    cluster.Report("decode-0", others, std::nullopt, /*draining=*/true);
    cluster.core.Tick(cluster.now_us += 20'000);
    EXPECT_TRUE(cluster.Log("decode-1").Of(Order::Kind::kDecode).empty());
    if (has_newer) {
      const auto dests = cluster.Log("decode-2").Of(Order::Kind::kDecode);
      ASSERT_EQ(dests.size(), 1u);
      EXPECT_EQ(dests[0].peer, "decode-0");
      continue;
    }
    for (int i = 0; i < 11; ++i) {
      cluster.now_us += 100'000;
      cluster.Report("decode-0", others, std::nullopt, /*draining=*/true);
      cluster.Report("decode-1");
      cluster.Report("prefill-0", {"decode-0", "decode-1"});
      cluster.core.Tick(cluster.now_us);
    }
    const auto orders = cluster.Log("decode-1").Of(Order::Kind::kDecode);
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].peer, "prefill-0") << "it is computed again";
    EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kPrefill).empty());
  }
}

// Nothing is replayed while only the first token is known, and yet no prompt is computed again.
TEST(MoveTest, AStreamThatMovesAfterItsFirstTokenKeepsItsCachedTokens) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("decode-1", {}, 0);
  cluster.cached_tokens = 4;
  const RequestUid uid = PlayTo(cluster, Phase::kHandedOff);
  cluster.Report("decode-1");
  cluster.Report("decode-0", {"decode-1"}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us += 20'000);
  ASSERT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), 1u);
  cluster.State("decode-1", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  const auto sources = cluster.Log("decode-0").Of(Order::Kind::kPrefill);
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_TRUE(sources[0].replayed.empty());
  for (const uint32_t told : {0u, 3u}) {  // its own hits, if it had to compute the stream again
    cluster.cached_tokens = told;
    cluster.State("decode-0", uid, WorkerRequestState::kPrefillStarted, StatusCode::kOk, 2);
  }
  cluster.State("decode-1", uid, WorkerRequestState::kVerified, StatusCode::kOk, 2);
  cluster.text_attempt = 2;
  cluster.Text("decode-1", uid, 0, "abcd", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "abcd");
  EXPECT_EQ(cluster.sink->result->timings.cached_tokens, 4u);
}

// Its first token there may be sampled already, and is not to cross without its log-probability.
TEST(MoveTest, AResumedStreamMovesOnlyAfterItsNextToken) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0"});
  cluster.Advance(100'000, {"decode-0", "prefill-0"});
  cluster.State("decode-0", uid, WorkerRequestState::kVerified, StatusCode::kOk, 2);
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("decode-1");
  cluster.Report("decode-0", {"decode-1"}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us += 20'000);
  EXPECT_TRUE(cluster.Log("decode-1").Of(Order::Kind::kDecode).empty());

  cluster.text_attempt = 2;
  cluster.Text("decode-0", uid, 3, "d");
  cluster.core.Tick(cluster.now_us += 20'000);
  const auto dests = cluster.Log("decode-1").Of(Order::Kind::kDecode);
  ASSERT_EQ(dests.size(), 1u);
  EXPECT_EQ(dests[0].replayed, BytesOf("abc"));
}

// Streams whose prompts have `prompts` bytes run on decode-0, which drains; decode-1 has 8 free
// blocks. How many ticks until the one of a single byte has moved, 0 = it has not within ten.
int TicksUntilTheSmallOneMoves(const std::vector<size_t>& prompts) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  FakeCluster cluster(config);
  WorkerDescription leaver = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  leaver.num_blocks = 2048;
  leaver.max_running = 256;
  cluster.Join(leaver);
  RequestUid small;
  for (const size_t length : prompts) {
    const RequestUid uid = cluster.Submit(cluster.Request(std::string(length, 'p')));
    cluster.Text("decode-0", uid, 0, "a");
    if (length == 1) small = uid;
  }
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("decode-1", {}, 8);
  cluster.Report("decode-0", {"decode-1"}, std::nullopt, /*draining=*/true);
  for (int tick = 1; tick <= 10; ++tick) {
    cluster.core.Tick(cluster.now_us += 20'000);
    const auto moved = cluster.Log("decode-1").Of(Order::Kind::kDecode);
    if (moved.empty()) continue;
    EXPECT_EQ(moved.size(), 1u);
    EXPECT_EQ(moved[0].uid, small);
    return tick;
  }
  return 0;
}

TEST(MoveTest, AStreamThatFitsNowhereKeepsNoOtherOnADrainingWorker) {
  EXPECT_EQ(TicksUntilTheSmallOneMoves({400, 1}), 1);
  EXPECT_EQ(TicksUntilTheSmallOneMoves({1, 400}), 1);
  std::vector<size_t> many(70, 400);
  many.push_back(1);
  const int ticks = TicksUntilTheSmallOneMoves(many);
  EXPECT_GE(ticks, 2) << "a tick tries a bounded number";
  EXPECT_LE(ticks, 3) << "and the next one goes on behind them";
}

// It had ended the sequence, or lost its blocks, meanwhile.
TEST(MoveTest, DrainingWorkerWithoutTheKvIsNoObstacle) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("decode-1", {}, 0);
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.Report("decode-1");
  cluster.Report("prefill-0", {"decode-0", "decode-1"});
  cluster.Report("decode-0", {"decode-1"}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us += 20'000);
  cluster.State("decode-1", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  cluster.State("decode-0", uid, WorkerRequestState::kRejected, StatusCode::kAborted, 2);
  EXPECT_FALSE(cluster.sink->ended());
  const auto cancels = cluster.Log("decode-0").Of(Order::Kind::kCancel);
  ASSERT_EQ(cancels.size(), 1u) << "the attempt that was to move may run there still";
  EXPECT_GE(cancels[0].attempt, 1u);
  cluster.Advance(100'000, {"decode-1", "prefill-0"});
  const auto dests = cluster.Log("decode-1").Of(Order::Kind::kDecode);
  ASSERT_EQ(dests.size(), 2u);
  EXPECT_EQ(dests[1].peer, "prefill-0");
  EXPECT_EQ(dests[1].attempt, 3u);
}

// A stream of "abc" so far on decode-0, which drains and is connected to decode-1; that one was
// asked to take it.
struct AskedStream {
  AskedStream() {
    JoinOldPair(cluster);
    cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
    cluster.Report("decode-1", {}, 0);
    uid = PlayTo(cluster, Phase::kDecoding);
    cluster.Report("decode-1");
    cluster.Report("prefill-0", {"decode-0", "decode-1"});
    EXPECT_TRUE(cluster.core.DrainWorker("decode-0", 0).ok());
    cluster.Report("decode-0", {"decode-1"});
    cluster.core.Tick(cluster.now_us += 20'000);
    EXPECT_EQ(Asked().size(), 1u);
  }
  std::vector<Order> Asked() { return cluster.Log("decode-1").Of(Order::Kind::kDecode); }
  std::vector<Order> Cancels(const std::string& id) {
    return cluster.Log(id).Of(Order::Kind::kCancel);
  }
  void Answer(WorkerRequestState state, StatusCode code = StatusCode::kOk) {
    cluster.State("decode-1", uid, state, code, Asked().back().attempt);
  }
  // The first placement goes on as if nothing had been.
  void ExpectEndsWhereItIs() {
    EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kPrefill).empty());
    EXPECT_TRUE(Cancels("decode-0").empty());
    cluster.Text("decode-0", uid, 3, "d", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.sink->Text(), "abcd");
    EXPECT_EQ(cluster.sink->result->timings.resumes, 0u);
    EXPECT_EQ(cluster.sink->result->timings.decode_worker, "decode-0");
    ExpectClean(cluster);
  }
  FakeCluster cluster;
  RequestUid uid;
};

TEST(MoveTest, AMoveThatIsRefusedLeavesTheStreamWhereItIs) {
  AskedStream move;
  move.Answer(WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
  // Longer than a request without a worker would wait.
  size_t num_refused = 1;
  for (int i = 0; i < 400; ++i) {
    if (i % 50 == 0) move.cluster.Text("decode-0", move.uid, 2, "c");  // a sign of life
    move.cluster.Advance(100'000, {"decode-0", "decode-1", "prefill-0"});
    ASSERT_FALSE(move.cluster.sink->ended()) << "after " << i << " tenths of a second";
    if (move.Asked().size() == num_refused) continue;
    ASSERT_EQ(move.Asked().size(), ++num_refused);
    move.Answer(WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
  }
  EXPECT_GE(num_refused, 40u) << "there might be room again";
  EXPECT_LE(num_refused, 100u);
  move.ExpectEndsWhereItIs();
}

TEST(MoveTest, AStreamMovesOnceARefusalIsOver) {
  AskedStream move;
  move.Answer(WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
  move.cluster.Text("decode-0", move.uid, 3, "d");
  move.cluster.Advance(100'000, {"decode-0", "decode-1", "prefill-0"});
  ASSERT_EQ(move.Asked().size(), 2u);
  EXPECT_EQ(move.Asked()[1].attempt, 3u) << "what is still said of the refused one is void";
  EXPECT_EQ(move.Asked()[1].replayed, BytesOf("abc"));
  move.cluster.Text("decode-0", move.uid, 4, "e");
  move.Answer(WorkerRequestState::kReserved);
  const auto sources = move.cluster.Log("decode-0").Of(Order::Kind::kPrefill);
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].attempt, 3u);
  EXPECT_EQ(sources[0].replayed, BytesOf("abc")) << "as the other was told";
  EXPECT_TRUE(move.Cancels("decode-0").empty());
  move.cluster.text_attempt = 3;
  move.Answer(WorkerRequestState::kVerified);
  move.cluster.Text("decode-1", move.uid, 3, "def", FinishReason::kLength);
  ASSERT_TRUE(move.cluster.sink->result.has_value());
  EXPECT_EQ(move.cluster.sink->Text(), "abcdef") << "no token twice";
  EXPECT_EQ(move.cluster.sink->result->timings.resumes, 1u);
  ExpectClean(move.cluster);
}

TEST(MoveTest, AMoveThatIsNotAnsweredIsGivenUp) {
  AskedStream move;
  for (int i = 0; i < 19; ++i) {
    move.cluster.Advance(100'000, {"decode-0", "decode-1", "prefill-0"});
  }
  EXPECT_TRUE(move.Cancels("decode-1").empty());
  move.cluster.Advance(100'000, {"decode-0", "decode-1", "prefill-0"});
  ASSERT_EQ(move.Cancels("decode-1").size(), 1u);
  EXPECT_EQ(move.Cancels("decode-1")[0].attempt, 2u);
  move.ExpectEndsWhereItIs();
}

TEST(MoveTest, AfterAMoveThatIsNotAnsweredAnotherWorkerIsAsked) {
  AskedStream move;
  FakeCluster& cluster = move.cluster;
  cluster.Join(FakeCluster::Describe("decode-2", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0", "decode-1", "decode-2"});
  cluster.Report("decode-0", {"decode-1", "decode-2"});
  for (int i = 0; i < 21; ++i) {
    cluster.now_us += 100'000;
    for (const std::string id : {"decode-0", "prefill-0"}) {
      cluster.Report(id, cluster.last_links[id]);
    }
    cluster.Report("decode-1");
    cluster.Report("decode-2", {}, 32);
    cluster.core.Tick(cluster.now_us);
  }
  EXPECT_EQ(move.Asked().size(), 1u) << "it has more room, and says nothing";
  EXPECT_EQ(cluster.Log("decode-2").Of(Order::Kind::kDecode).size(), 1u);
  move.ExpectEndsWhereItIs();
}

TEST(MoveTest, ALostDestinationIsNoFaultOfTheStream) {
  AskedStream move;
  move.cluster.core.OnLeaseClosed(move.cluster.leases["decode-1"]);
  move.ExpectEndsWhereItIs();
}

TEST(MoveTest, AStreamThatEndsWhileItsMoveIsAskedForIsCancelledThere) {
  {
    AskedStream move;
    move.ExpectEndsWhereItIs();
    ASSERT_EQ(move.Cancels("decode-1").size(), 1u);
    EXPECT_EQ(move.Cancels("decode-1")[0].attempt, 2u);
  }
  AskedStream move;
  move.cluster.core.Cancel(move.uid);
  ASSERT_EQ(move.Cancels("decode-1").size(), 1u);
  EXPECT_EQ(move.Cancels("decode-1")[0].attempt, 2u);
  ASSERT_EQ(move.Cancels("decode-0").size(), 1u);
  EXPECT_EQ(move.Cancels("decode-0")[0].attempt, 1u);
  ExpectClean(move.cluster);
}

TEST(MoveTest, ASourceThatIsLostBeforeTheDestinationAnswersIsAnOrdinaryFault) {
  AskedStream move;
  move.cluster.core.OnLeaseClosed(move.cluster.leases["decode-0"]);
  ASSERT_EQ(move.Cancels("decode-1").size(), 1u);
  EXPECT_EQ(move.Cancels("decode-1")[0].attempt, 2u);
  move.cluster.Advance(100'000, {"decode-1", "prefill-0"});
  ASSERT_EQ(move.Asked().size(), 2u);
  EXPECT_EQ(move.Asked()[1].attempt, 3u) << "the second was used";
  EXPECT_EQ(move.Asked()[1].peer, "prefill-0");
  EXPECT_EQ(move.Asked()[1].replayed, BytesOf("abc"));
}

}  // namespace
}  // namespace baton::router
