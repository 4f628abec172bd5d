// A bad link costs time once: what waits for KV over it goes another way, and it is left alone
// until a probe was good.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/router/link_metrics.h"
#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kBytesPerToken = 23'040;

// decode-0, and as many prefill workers as asked for, joined by tcp for a while.
class BadLinkTest : public testing::Test {
 protected:
  void Start(int num_prefill) {
    JoinOne("decode-0", WorkerRole::kDecode);
    for (int i = 0; i < num_prefill; ++i) {
      JoinOne("prefill-" + std::to_string(i), WorkerRole::kPrefill);
    }
    Advance(4 * kSecond);
  }
  void JoinOne(const std::string& id, WorkerRole role) {
    WorkerDescription worker = FakeCluster::Describe(id, role);
    worker.kv_bytes_per_token = kBytesPerToken;
    worker.num_blocks = num_blocks;
    worker.max_running = 256;
    worker.fingerprint.varies_with_batch = varies;
    cluster.Join(std::move(worker));
    ids.push_back(id);
  }
  void Report() {
    for (const std::string& id : ids) {
      WorkerLoadReport load;
      load.ready = true;
      load.num_blocks = num_blocks;
      load.blocks[0] = std::min(free_blocks, num_blocks);
      load.blocks[3] = num_blocks - load.blocks[0];
      load.prefill_tokens_per_s = 500;
      if (id != "decode-0") {
        load.links.push_back({"decode-0", cluster.lives["decode-0"], LinkKind::kTcp, 0,
                              up.empty() || up.contains(id)});
      }
      cluster.core.OnWorkerLoad(cluster.leases[id], load, cluster.now_us);
    }
  }
  void Advance(int64_t us) {
    for (const int64_t end_us = cluster.now_us + us; cluster.now_us < end_us;) {
      cluster.now_us = std::min(end_us, cluster.now_us + 50'000);
      Report();
      cluster.core.Tick(cluster.now_us);
    }
  }
  // A prompt of 160 tokens, computed, whose KV is on its way.
  RequestUid Ask() {
    const RequestUid uid = cluster.Submit(cluster.Request(std::string(160, 'p')));
    Compute(uid, 1);
    return uid;
  }
  void Compute(RequestUid uid, uint32_t attempt) {
    const Order order = LastDecode();
    ASSERT_EQ(order.attempt, attempt);
    const auto say = [&](const std::string& id, WorkerRequestState state) {
      cluster.State(id, uid, state, StatusCode::kOk, attempt);
    };
    say("decode-0", WorkerRequestState::kReserved);
    if (order.peer.empty()) return;
    say(order.peer, WorkerRequestState::kPrefillStarted);
    cluster.text_attempt = attempt;
    cluster.Text(order.peer, uid, 0, "a");
    say(order.peer, WorkerRequestState::kPrefillDone);
    say(order.peer, WorkerRequestState::kGranted);
  }
  void Receive(RequestUid uid, uint64_t num_bytes, uint32_t attempt = 1) {
    WorkerRequestStatus status;
    status.uid = uid;
    status.attempt = attempt;
    status.state = WorkerRequestState::kReserved;
    status.kv_bytes = num_bytes;
    cluster.core.OnSessionStatus(cluster.Session("decode-0"), status, cluster.now_us);
  }
  // The orders to decode-0, of probes or of clients.
  std::vector<Order> Decodes(bool of_probes) {
    std::vector<Order> orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
    std::erase_if(
        orders, [&](const Order& order) { return cluster.sinks.contains(order.uid) == of_probes; });
    return orders;
  }
  Order LastDecode() { return Decodes(/*of_probes=*/false).back(); }
  size_t NumDecodes() { return Decodes(/*of_probes=*/false).size(); }
  std::vector<Order> Probes() { return Decodes(/*of_probes=*/true); }
  // Waits for a probe after the first `num_before`; both workers take it, and its KV is due.
  Order NextProbe(size_t num_before) {
    for (int i = 0; i < 400 && Probes().size() <= num_before; ++i) Advance(50'000);
    if (Probes().size() <= num_before) {
      ADD_FAILURE() << "no probe within 20 s";
      return {};
    }
    const Order probe = Probes().back();
    const auto say = [&](const std::string& id, WorkerRequestState state) {
      cluster.State(id, probe.uid, state, StatusCode::kOk, 1);
    };
    say("decode-0", WorkerRequestState::kReserved);
    say(probe.peer, WorkerRequestState::kPrefillStarted);
    say(probe.peer, WorkerRequestState::kPrefillDone);
    say(probe.peer, WorkerRequestState::kGranted);
    return probe;
  }
  // The KV of a probe comes, and both tokens.
  void Answer(const Order& probe) {
    cluster.State("decode-0", probe.uid, WorkerRequestState::kVerified, StatusCode::kOk, 1);
    cluster.text_attempt = 1;
    cluster.Text("decode-0", probe.uid, 0, "ab", FinishReason::kLength);
  }
  std::string Finish(RequestUid uid, uint32_t attempt) {
    cluster.State("decode-0", uid, WorkerRequestState::kVerified, StatusCode::kOk, attempt);
    cluster.text_attempt = attempt;
    cluster.Text("decode-0", uid, 0, "abcd", FinishReason::kLength);
    return cluster.sinks[uid]->Text();
  }

  FakeCluster cluster;
  std::vector<std::string> ids;
  bool varies = false;  // of workers that join: their bits depend on the batch
  uint32_t num_blocks = 256;
  uint32_t free_blocks = UINT32_MAX;  // at most so many are free
  std::set<std::string> up;           // prefill workers whose links are up; empty = all
};

TEST_F(BadLinkTest, KvThatWouldComeTooLateIsNotWaitedFor) {
  Start(1);
  const RequestUid uid = Ask();
  // 250,000 bytes a second: 3.7 MB take 15 s, computing them again 0.3 s.
  for (int i = 1; i <= 4 && NumDecodes() == 1; ++i) {
    Advance(100'000);
    Receive(uid, static_cast<uint64_t>(i) * 25'000);
  }
  Advance(200'000);
  ASSERT_EQ(NumDecodes(), 2u);
  EXPECT_EQ(LastDecode().peer, "") << "the decode worker computes the prompt";
  EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kCancel).size(), 1u) << "its queue is emptied";
  EXPECT_EQ(Finish(uid, 2), "abcd");
  ExpectClean(cluster);
  // The next request does not try it.
  const RequestUid next = Ask();
  EXPECT_EQ(LastDecode().peer, "");
  EXPECT_EQ(Finish(next, 1), "abcd");
}

TEST_F(BadLinkTest, KvOfWhichNothingComesIsNotWaitedForEither) {
  Start(2);
  const RequestUid uid = Ask();
  const std::string first = LastDecode().peer;
  Advance(1'500'000);
  ASSERT_EQ(NumDecodes(), 2u);
  EXPECT_NE(LastDecode().peer, first);
  EXPECT_NE(LastDecode().peer, "") << "the other pair";
  Compute(uid, 2);
  EXPECT_EQ(Finish(uid, 2), "abcd");
  ExpectClean(cluster);
}

TEST_F(BadLinkTest, KvThatComesInTimeIsWaitedFor) {
  Start(2);
  const RequestUid uid = Ask();
  // All of it takes 0.64 s, computing it again 0.32 s: less than half a second is gained.
  for (int i = 1; i <= 6; ++i) {
    Advance(100'000);
    Receive(uid, static_cast<uint64_t>(i) * 25 * kBytesPerToken);
  }
  EXPECT_EQ(NumDecodes(), 1u);
  EXPECT_EQ(Finish(uid, 1), "abcd");
}

// The router guessed that all of the prompt crosses; the decode worker holds most of it.
TEST_F(BadLinkTest, TheDecodeWorkerSaysHowMuchIsToCome) {
  Start(1);
  const RequestUid uid = cluster.Submit(cluster.Request(std::string(160, 'p')));
  WorkerRequestStatus status{.uid = uid, .attempt = 1, .state = WorkerRequestState::kReserved};
  status.kv_total_bytes = 150'000;
  cluster.core.OnSessionStatus(cluster.Session("decode-0"), status, cluster.now_us);
  Compute(uid, 1);
  for (uint64_t i = 1; i <= 5; ++i) {
    Advance(100'000);
    Receive(uid, i * 25'000);
  }
  EXPECT_EQ(NumDecodes(), 1u) << "at 250,000 bytes a second the rest needs 0.1 s";
  EXPECT_EQ(Finish(uid, 1), "abcd");
  ExpectClean(cluster);
}

TEST_F(BadLinkTest, WithinAHostNothingIsPredicted) {
  JoinOldPair(cluster);  // over shm
  const RequestUid uid = PlayTo(cluster, Phase::kGranted);
  cluster.Advance(5 * kSecond, {"decode-0", "prefill-0"});
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
  cluster.core.Cancel(uid);
}

// While the link is bad no client's request tries it, however long that is.
TEST_F(BadLinkTest, ProbesTryABadLinkAndClientsDoNot) {
  Start(1);
  const RequestUid first = Ask();
  Advance(1'500'000);
  ASSERT_EQ(LastDecode().attempt, 2u);
  Finish(first, 2);
  const int64_t begin_us = cluster.now_us;
  std::vector<int64_t> probed_s;
  for (size_t i = 0; i < 5; ++i) {
    const Order probe = NextProbe(i);
    EXPECT_EQ(probe.peer, "prefill-0");
    probed_s.push_back((cluster.now_us - begin_us) / kSecond);
    EXPECT_EQ(cluster.core.num_live(), 1u) << "one probe at a time";
    Advance(1'500'000);  // nothing comes: it is given up
    EXPECT_EQ(cluster.core.num_live(), 0u);
    const RequestUid uid = Ask();
    EXPECT_EQ(LastDecode().peer, "");
    Finish(uid, 1);
  }
  // After rests of 1, 2, 4, 8 and 8 s, each probe takes about half a second.
  EXPECT_GE(probed_s[4], 20);
  EXPECT_LE(probed_s[4], 27);
  ExpectClean(cluster);
}

TEST_F(BadLinkTest, AHealedLinkCarriesKvWithinTenSecondsWithoutAnyClient) {
  Start(1);
  const RequestUid first = Ask();
  Advance(1'500'000);
  Finish(first, LastDecode().attempt);
  for (size_t i = 0; i < 4; ++i) {  // it stays bad for a while
    NextProbe(i);
    Advance(1'000'000);
  }
  const int64_t healed_us = cluster.now_us;
  Answer(NextProbe(4));
  EXPECT_LT(cluster.now_us - healed_us, 10 * kSecond);
  for (int i = 0; i < 5; ++i) {
    const RequestUid uid = Ask();
    EXPECT_EQ(LastDecode().peer, "prefill-0") << "good again: used at once";
    Finish(uid, 1);
  }
  ExpectClean(cluster);
}

// A probe is nobody's request: not in the metrics, not in the table of requests.
TEST_F(BadLinkTest, AProbeCountsInNothingThatClientsNotice) {
  Start(1);
  const RequestUid uid = Ask();
  Advance(1'500'000);
  Finish(uid, LastDecode().attempt);
  const Order probe = NextProbe(0);
  EXPECT_EQ(cluster.core.num_queued(), 0u);
  EXPECT_EQ(cluster.core.Traces(cluster.now_us).size(), 1u);
  EXPECT_EQ(probe.attempt, 1u);
  // Its hand-off fails: it is not placed again.
  cluster.State("decode-0", probe.uid, WorkerRequestState::kFailed, StatusCode::kDataLoss);
  EXPECT_EQ(cluster.core.num_live(), 0u);
  EXPECT_EQ(cluster.core.LinkRows().at(0).num_stalls, 2u);
  Advance(50'000);
  EXPECT_EQ(Probes().size(), 1u) << "the link rests again";
  ExpectClean(cluster);
}

// Within a host nothing is predicted of a transfer, and it ends by its time.
TEST_F(BadLinkTest, AProbeThatIsTooLateIsAFaultOfItsLink) {
  Start(1);
  const RequestUid uid = Ask();
  Advance(1'500'000);
  Finish(uid, LastDecode().attempt);
  const Order probe = NextProbe(0);
  cluster.now_us += 2'995'000;
  cluster.State("decode-0", probe.uid, WorkerRequestState::kFailed, StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cluster.core.num_live(), 0u);
  EXPECT_EQ(cluster.core.LinkRows().at(0).num_stalls, 2u);
  Advance(50'000);
  EXPECT_EQ(Probes().size(), 1u) << "the link rests again";
  ExpectClean(cluster);
}

TEST_F(BadLinkTest, AProbeThatWasNotComputedSaysNothingOfItsLink) {
  Start(1);
  const RequestUid uid = Ask();
  Advance(1'500'000);
  Finish(uid, LastDecode().attempt);
  for (int i = 0; i < 100 && Probes().empty(); ++i) Advance(50'000);
  ASSERT_EQ(Probes().size(), 1u);
  cluster.now_us += 2'995'000;
  cluster.State("prefill-0", Probes().back().uid, WorkerRequestState::kFailed,
                StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cluster.core.num_live(), 0u);
  EXPECT_EQ(cluster.core.LinkRows().at(0).num_stalls, 1u);
  const int64_t ended_us = cluster.now_us;
  for (int i = 0; i < 100 && Probes().size() < 2; ++i) Advance(50'000);
  EXPECT_EQ(Probes().size(), 2u);
  EXPECT_GE(cluster.now_us - ended_us, 3 * kSecond) << "the prefill worker has time for others";
}

// Two decode workers: the link to the one that was not slow waits for a probe, and is used then.
class TwoDecodeWorkersTest : public BadLinkTest {
 protected:
  void StartBoth() {
    Start(1);
    WorkerDescription other = FakeCluster::Describe("decode-1", WorkerRole::kDecode);
    other.kv_bytes_per_token = kBytesPerToken;
    other.num_blocks = num_blocks;
    cluster.Join(std::move(other));
  }
  // Only the decode workers of `ready` take requests.
  void AdvanceBoth(int num_ticks, const std::set<std::string>& ready) {
    for (int i = 0; i < num_ticks; ++i) {
      cluster.now_us += 50'000;
      WorkerLoadReport load;
      load.num_blocks = num_blocks;
      load.blocks[0] = num_blocks;
      load.prefill_tokens_per_s = 500;
      for (const std::string id : {"decode-0", "decode-1"}) {
        load.ready = ready.contains(id);
        cluster.core.OnWorkerLoad(cluster.leases[id], load, cluster.now_us);
      }
      load.ready = true;
      for (const std::string id : {"decode-0", "decode-1"}) {
        load.links.push_back({id, cluster.lives[id], LinkKind::kTcp, 0, true});
      }
      cluster.core.OnWorkerLoad(cluster.leases["prefill-0"], load, cluster.now_us);
      cluster.core.Tick(cluster.now_us);
    }
  }
  std::vector<Order> ProbesAt(const std::string& id) {
    std::vector<Order> orders = cluster.Log(id).Of(Order::Kind::kDecode);
    std::erase_if(orders, [this](const Order& o) { return cluster.sinks.contains(o.uid); });
    return orders;
  }
};

TEST_F(TwoDecodeWorkersTest, TheOtherLinkOfAWorkerWithASlowLinkIsProbedAtOnce) {
  StartBoth();
  AdvanceBoth(1, {"decode-0"});
  const RequestUid uid = Ask();
  ASSERT_EQ(LastDecode().peer, "prefill-0");
  for (int i = 0; i < 40 && cluster.core.LinkRows().at(0).num_stalls == 0; ++i) {
    AdvanceBoth(1, {"decode-0", "decode-1"});
  }
  AdvanceBoth(1, {"decode-0", "decode-1"});
  ASSERT_EQ(ProbesAt("decode-1").size(), 1u);
  cluster.core.Cancel(uid);
  const Order probe = ProbesAt("decode-1").back();
  EXPECT_EQ(probe.peer, "prefill-0");
  const auto say = [&](const std::string& id, WorkerRequestState state) {
    cluster.State(id, probe.uid, state, StatusCode::kOk, 1);
  };
  const auto ask = [&] {
    const RequestUid next = cluster.Submit(cluster.Request(std::string(160, 'q')));
    const Order order = cluster.Log("decode-1").Of(Order::Kind::kDecode).back();
    EXPECT_EQ(order.uid, next);
    cluster.core.Cancel(next);
    return order.peer;
  };
  AdvanceBoth(1, {"decode-1"});
  EXPECT_EQ(ask(), "") << "not before the probe was good";
  say("decode-1", WorkerRequestState::kReserved);
  say("prefill-0", WorkerRequestState::kPrefillStarted);
  say("prefill-0", WorkerRequestState::kPrefillDone);
  say("decode-1", WorkerRequestState::kVerified);
  EXPECT_EQ(ask(), "prefill-0");
  for (const LinkRow& row : cluster.core.LinkRows()) {
    EXPECT_EQ(row.num_stalls, row.to == "decode-0" ? 1u : 0u);
  }
}

// A probe that fails on a link that is known to be bad makes no other link suspect.
TEST_F(TwoDecodeWorkersTest, ALinkThatStaysBadDoesNotKeepTheOthersFromTheirRequests) {
  StartBoth();
  AdvanceBoth(1, {"decode-0"});
  const RequestUid uid = Ask();
  AdvanceBoth(30, {"decode-0"});  // too slow; there is no probe of a worker that is not ready
  ASSERT_EQ(cluster.core.LinkRows().at(0).num_stalls, 1u);
  cluster.core.Cancel(uid);
  AdvanceBoth(1, {"decode-0", "decode-1"});
  const auto take = [&](const std::string& id, const Order& probe) {
    cluster.State(id, probe.uid, WorkerRequestState::kReserved, StatusCode::kOk, 1);
    cluster.State("prefill-0", probe.uid, WorkerRequestState::kPrefillDone, StatusCode::kOk, 1);
  };
  ASSERT_EQ(ProbesAt("decode-1").size(), 1u);
  take("decode-1", ProbesAt("decode-1").back());
  cluster.State("decode-1", ProbesAt("decode-1").back().uid, WorkerRequestState::kVerified,
                StatusCode::kOk, 1);
  for (size_t i = 0; i < 3; ++i) {
    for (int k = 0; k < 200 && ProbesAt("decode-0").size() == i; ++k) {
      AdvanceBoth(1, {"decode-0", "decode-1"});
    }
    ASSERT_EQ(ProbesAt("decode-0").size(), i + 1);
    take("decode-0", ProbesAt("decode-0").back());
    AdvanceBoth(20, {"decode-0", "decode-1"});  // given up
    EXPECT_EQ(ProbesAt("decode-1").size(), 1u) << i;
  }
  EXPECT_GE(cluster.core.LinkRows().at(0).num_stalls, 4u);
}

// Clients wait for room, and a probe takes its few blocks all the same: else the link would be left
// alone for as long as they wait.
TEST_F(BadLinkTest, AQueueOfClientsDoesNotHoldUpAProbe) {
  Start(1);
  const RequestUid first = Ask();
  Advance(1'500'000);
  Finish(first, LastDecode().attempt);
  free_blocks = 8;  // too few for a prompt of 160 tokens
  Report();
  const RequestUid waits = cluster.Submit(cluster.Request(std::string(160, 'q')));
  ASSERT_EQ(cluster.core.num_queued(), 1u);
  const Order probe = NextProbe(0);
  EXPECT_EQ(probe.peer, "prefill-0");
  EXPECT_EQ(cluster.core.num_queued(), 1u);
  Answer(probe);
  free_blocks = UINT32_MAX;
  Advance(50'000);
  EXPECT_EQ(LastDecode().uid, waits);
  EXPECT_EQ(LastDecode().peer, "prefill-0");
  cluster.core.Cancel(waits);
}

// No hand-off failed on it, and none would take it while another link is faster.
TEST_F(BadLinkTest, ALinkThatWasSlowAWhileAgoIsProbed) {
  Start(2);
  const RequestUid first = Ask();
  const std::string slow = LastDecode().peer;
  Advance(700'000);
  WorkerRequestStatus status{.uid = first, .attempt = 1, .state = WorkerRequestState::kVerified};
  status.kv_bytes = 160 * kBytesPerToken;
  status.transport = LinkKind::kTcp;
  status.transfer_seconds = 0.7f;
  cluster.core.OnSessionStatus(cluster.Session("decode-0"), status, cluster.now_us);
  cluster.Text("decode-0", first, 0, "abcd", FinishReason::kLength);
  ASSERT_TRUE(cluster.sinks[first]->ended());
  const int64_t found_us = cluster.now_us;
  while (Probes().empty()) {
    ASSERT_LT(cluster.now_us - found_us, 11 * kSecond) << "8 s and a tick";
    const RequestUid uid = Ask();
    EXPECT_NE(LastDecode().peer, slow) << "the other is faster";
    Finish(uid, 1);
    Advance(250'000);
  }
  EXPECT_EQ(Probes().front().peer, slow);
}

// Links that fail at once, whatever is placed on them: after two the prompt needs none.
TEST_F(BadLinkTest, RequestThatLinksFailedIsComputedWithoutOne) {
  Start(3);
  const RequestUid uid = Ask();
  for (uint32_t attempt = 1; attempt <= 2; ++attempt) {
    const std::string peer = LastDecode().peer;
    ASSERT_NE(peer, "");
    cluster.State("decode-0", uid, WorkerRequestState::kFailed, StatusCode::kDataLoss, attempt);
    Advance(50'000);
    if (attempt == 1) Compute(uid, 2);
  }
  EXPECT_EQ(LastDecode().peer, "");
  EXPECT_EQ(LastDecode().attempt, 3u);
  EXPECT_EQ(Finish(uid, 3), "abcd");
  EXPECT_FALSE(cluster.sinks[uid]->error.has_value());
  ExpectClean(cluster);
}

// The links failed it and no decode worker has room: it waits for one until its deadline.
TEST_F(BadLinkTest, RequestThatLinksFailedWaitsForRoomUntilItsDeadline) {
  Start(1);
  GenerateRequest request = cluster.Request(std::string(160, 'p'));
  request.timeout_us = 60 * kSecond;
  const RequestUid uid = cluster.Submit(std::move(request));
  Compute(uid, 1);
  cluster.State("decode-0", uid, WorkerRequestState::kFailed, StatusCode::kDataLoss);
  const auto fill = [&] { cluster.Report("decode-0", {}, 0); };
  for (int i = 0; i < 40 * 20; ++i) {
    cluster.now_us += 50'000;
    fill();
    cluster.Report("prefill-0", {});
    cluster.core.Tick(cluster.now_us);
  }
  EXPECT_FALSE(cluster.sinks[uid]->ended()) << "40 s";
  for (int i = 0; i < 25 * 20; ++i) {
    cluster.now_us += 50'000;
    fill();
    cluster.core.Tick(cluster.now_us);
  }
  ASSERT_TRUE(cluster.sinks[uid]->error.has_value());
  EXPECT_EQ(cluster.sinks[uid]->error->code, ErrorCode::kDeadlineExceeded);
}

// Faults of links are waited out, and not a decode worker that no router reaches.
TEST_F(BadLinkTest, RequestThatLinksFailedDoesNotWaitForAWorkerThatCannotBeCalled) {
  Start(1);
  const RequestUid uid = Ask();
  cluster.State("decode-0", uid, WorkerRequestState::kFailed, StatusCode::kDataLoss);
  cluster.core.OnSessionDown(cluster.Session("decode-0"), "refused", cluster.now_us);
  Advance(RouterCoreConfig().resume_wait_us - kSecond);
  EXPECT_FALSE(cluster.sinks[uid]->ended()) << "the next session may come in time";
  Advance(2 * kSecond);
  ASSERT_TRUE(cluster.sinks[uid]->error.has_value());
  EXPECT_EQ(cluster.sinks[uid]->error->code, ErrorCode::kWorkerLost);
}

// The client has seen the first tokens of both choices, and other ones could come for them: their
// KV is waited for, however late.
TEST_F(BadLinkTest, ChoicesThatNoWorkerComputesAgainWaitForTheirKv) {
  varies = true;
  Start(1);
  GenerateRequest request = cluster.Request(std::string(160, 'p'));
  request.num_choices = 2;
  const RequestUid uid = cluster.Submit(std::move(request));
  Compute(uid, 1);
  cluster.Tokens("prefill-0", {FakeCluster::Token(uid, 0, 'b', FinishReason::kNone, 1)});
  for (uint64_t i = 1; i <= 50; ++i) {
    Advance(100'000);
    Receive(uid, i * 25'000);
    ASSERT_FALSE(cluster.sinks[uid]->ended()) << i;
  }
  EXPECT_EQ(cluster.core.LinkRows().at(0).num_stalls, 1u) << "others leave the link alone";
  EXPECT_EQ(NumDecodes(), 1u);
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.Text("decode-0", uid, 0, "ab", FinishReason::kLength);
  cluster.Tokens("decode-0", {FakeCluster::Token(uid, 1, 'c', FinishReason::kLength, 1)});
  EXPECT_TRUE(cluster.sinks[uid]->result.has_value());
  ExpectClean(cluster);
}

// With one choice all that was seen is replayed, and what was not is computed anew.
TEST_F(BadLinkTest, OneChoiceOfAFastWorkerMoves) {
  varies = true;
  Start(1);
  const RequestUid uid = Ask();
  Advance(1'500'000);
  ASSERT_EQ(NumDecodes(), 2u);
  cluster.text_attempt = 2;
  cluster.Text("decode-0", uid, 1, "bcd", FinishReason::kLength);
  EXPECT_EQ(cluster.sinks[uid]->Text(), "abcd");
  ExpectClean(cluster);
}

TEST_F(BadLinkTest, AFailedComputationIsNoFaultOfAHealthyLink) {
  Start(1);
  const RequestUid uid = Ask();
  WorkerRequestStatus status;
  status.uid = uid;
  status.attempt = 1;
  status.state = WorkerRequestState::kFailed;
  status.code = StatusCode::kDataLoss;
  status.failed_part = FailedPart::kComputation;
  cluster.core.OnSessionStatus(cluster.Session("prefill-0"), status, cluster.now_us);
  Advance(50'000);
  ASSERT_EQ(NumDecodes(), 2u);
  EXPECT_EQ(LastDecode().peer, "prefill-0") << "the link is as good as before";
  EXPECT_EQ(cluster.core.LinkRows().at(0).num_stalls, 0u);
  Compute(uid, 2);
  status.attempt = 2;
  status.failed_part = FailedPart::kHandOff;
  cluster.core.OnSessionStatus(cluster.Session("prefill-0"), status, cluster.now_us);
  Advance(50'000);
  EXPECT_EQ(LastDecode().peer, "") << "the link rests";
  EXPECT_EQ(cluster.core.LinkRows().at(0).num_stalls, 1u);
  EXPECT_EQ(Finish(uid, 3), "abcd");
}

// The decode worker hears of it from its peer, and the router from the decode worker first.
TEST_F(BadLinkTest, AComputationThatFailedAtThePeerIsNoFaultOfTheLink) {
  Start(1);
  const RequestUid uid = Ask();
  WorkerRequestStatus status{.uid = uid, .state = WorkerRequestState::kFailed};
  status.code = StatusCode::kUnavailable;
  status.failed_part = FailedPart::kPeer;
  for (uint32_t attempt = 1; attempt <= 2; ++attempt) {
    ASSERT_FALSE(cluster.sinks[uid]->ended());
    EXPECT_EQ(LastDecode().peer, "prefill-0") << attempt;
    status.attempt = attempt;
    cluster.core.OnSessionStatus(cluster.Session("decode-0"), status, cluster.now_us);
    Advance(50'000);
    EXPECT_EQ(cluster.core.LinkRows().at(0).num_stalls, 0u);
  }
  status.attempt = 3;
  cluster.core.OnSessionStatus(cluster.Session("decode-0"), status, cluster.now_us);
  EXPECT_TRUE(cluster.sinks[uid]->ended()) << "a worker that fails thrice counts";
  ExpectClean(cluster);
}

TEST_F(BadLinkTest, ADecodeWorkerThatGaveUpIsNoFaultOfTheLink) {
  Start(1);
  const RequestUid uid = Ask();
  WorkerRequestStatus status{.uid = uid, .attempt = 1, .state = WorkerRequestState::kStranded};
  status.code = StatusCode::kUnavailable;
  status.failed_part = FailedPart::kPeer;
  cluster.core.OnSessionStatus(cluster.Session("prefill-0"), status, cluster.now_us);
  Advance(50'000);
  ASSERT_EQ(NumDecodes(), 2u);
  EXPECT_EQ(LastDecode().peer, "prefill-0") << "its blocks are still there";
  EXPECT_EQ(cluster.core.LinkRows().at(0).num_stalls, 0u);
  EXPECT_EQ(Finish(uid, 2), "abcd");
}

// More late requests than one look takes find no room elsewhere; they do not hide a later link's.
TEST_F(BadLinkTest, LateRequestsOfALaterLinkAreLookedAtToo) {
  num_blocks = 1'000;
  Start(2);
  up = {"prefill-0"};
  Report();
  std::vector<RequestUid> stuck;
  for (int i = 0; i < 33; ++i) {
    stuck.push_back(Ask());
    ASSERT_EQ(LastDecode().peer, "prefill-0");
  }
  up = {"prefill-1"};
  Report();
  const RequestUid uid = cluster.Submit(cluster.Request(std::string(16, 'q')));
  Compute(uid, 1);
  ASSERT_EQ(LastDecode().peer, "prefill-1");
  free_blocks = 6;  // for the short one alone
  Advance(1'500'000);
  ASSERT_EQ(NumDecodes(), 35u);
  EXPECT_EQ(LastDecode().uid, uid);
  EXPECT_EQ(LastDecode().attempt, 2u);
  for (const RequestUid one : stuck) cluster.core.Cancel(one);
  EXPECT_EQ(Finish(uid, 2), "abcd");
  ExpectClean(cluster);
}

// A worker whose one link was slow is used again once that is some time ago.
TEST_F(BadLinkTest, ASlowLinkBarsTheOthersOfItsWorkerForAWhile) {
  SlowSource slow{LeaseId(7), 10 * kSecond};
  EXPECT_TRUE(slow.Is(LeaseId(7), 10 * kSecond - 1));
  EXPECT_FALSE(slow.Is(LeaseId(8), 1));
  EXPECT_FALSE(slow.Is(LeaseId(7), 10 * kSecond));
}

TEST_F(BadLinkTest, APairHasOneRowAlsoWhileAFormerConnectionIsUp) {
  Start(1);
  const Incarnation before = cluster.lives["decode-0"];
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  JoinOne("decode-0", WorkerRole::kDecode);
  WorkerLoadReport load;
  load.ready = true;
  load.links.push_back({"decode-0", before, LinkKind::kTcp, 0, true});
  load.links.push_back({"decode-0", cluster.lives["decode-0"], LinkKind::kTcp, 0, true});
  cluster.core.OnWorkerLoad(cluster.leases["prefill-0"], load, cluster.now_us);
  EXPECT_EQ(cluster.core.LinkRows().size(), 1u);
}

TEST_F(BadLinkTest, TheTopologyAndTheMetricsNameBothEnds) {
  Start(1);
  const RequestUid uid = Ask();
  Advance(1'500'000);
  Finish(uid, 2);
  const Topology topology = cluster.core.TopologyView(cluster.now_us);
  EXPECT_EQ(topology.processes.back().links.at(0).why,
            "left alone for a while: 1 hand-offs over it failed or came too slowly");
  const std::string text = LinkMetricsText(cluster.core.LinkRows(), "router-0");
  EXPECT_NE(text.find("baton_link_stalls_total{role=\"router\",worker=\"router-0\",model=\"toy\","
                      "from=\"prefill-0\",to=\"decode-0\","
                      "transport=\"tcp\"} 1\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("# TYPE baton_link_bytes_per_second gauge"), std::string::npos);
}

}  // namespace
}  // namespace baton::router
