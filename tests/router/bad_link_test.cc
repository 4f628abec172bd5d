// A bad link costs time once: what waits for KV over it goes another way, and it is left alone
// until a hand-off tries it again.
#include <string>

#include "gtest/gtest.h"

#include "src/router/link_metrics.h"
#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kBytesPerToken = 23'040;

// decode-0, and as many prefill workers as asked for, joined by tcp for a while.
class BadLinkTest : public testing::Test {
 protected:
  void Start(int num_prefill) {
    JoinOne("decode-0", PoolRole::kDecode);
    for (int i = 0; i < num_prefill; ++i) {
      JoinOne("prefill-" + std::to_string(i), PoolRole::kPrefill);
    }
    Advance(4 * kSecond);
  }
  void JoinOne(const std::string& id, PoolRole role) {
    WorkerDescription worker = FakeCluster::Describe(id, role);
    worker.kv_bytes_per_token = kBytesPerToken;
    worker.num_blocks = 256;
    cluster.Join(std::move(worker));
    ids.push_back(id);
  }
  void Report() {
    for (const std::string& id : ids) {
      WorkerLoadReport load;
      load.ready = true;
      load.num_blocks = 256;
      load.blocks[0] = 256;
      load.prefill_tokens_per_s = 500;
      if (id != "decode-0") {
        load.links.push_back({"decode-0", cluster.lives["decode-0"], LinkKind::kTcp, 0, true});
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
  Order LastDecode() { return cluster.Log("decode-0").Of(Order::Kind::kDecode).back(); }
  size_t NumDecodes() { return cluster.Log("decode-0").Of(Order::Kind::kDecode).size(); }
  std::string Finish(RequestUid uid, uint32_t attempt) {
    cluster.State("decode-0", uid, WorkerRequestState::kVerified, StatusCode::kOk, attempt);
    cluster.text_attempt = attempt;
    cluster.Text("decode-0", uid, 0, "abcd", FinishReason::kLength);
    return cluster.sinks[uid]->Text();
  }

  FakeCluster cluster;
  std::vector<std::string> ids;
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

TEST_F(BadLinkTest, WithinAHostNothingIsPredicted) {
  JoinOldPair(cluster);  // over shm
  const RequestUid uid = PlayTo(cluster, Phase::kGranted);
  cluster.Advance(5 * kSecond, {"decode-0", "prefill-0"});
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
  cluster.core.Cancel(uid);
}

TEST_F(BadLinkTest, AHealedLinkIsTriedWithinTenSecondsAndTakesItsShare) {
  Start(1);
  const int64_t healed_us = [&] {
    for (int i = 0; i < 5; ++i) {  // it stays bad for a while
      const RequestUid uid = Ask();
      Advance(2 * kSecond);
      Finish(uid, LastDecode().attempt);
    }
    return cluster.now_us;
  }();
  while (true) {
    ASSERT_LT(cluster.now_us - healed_us, 10 * kSecond);
    const RequestUid uid = Ask();
    const bool over_link = !LastDecode().peer.empty();
    Advance(50'000);
    EXPECT_EQ(Finish(uid, 1), "abcd");
    if (over_link) break;
    Advance(250'000);
  }
  for (int i = 0; i < 5; ++i) {
    const RequestUid uid = Ask();
    EXPECT_EQ(LastDecode().peer, "prefill-0") << "good again: used at once";
    Finish(uid, 1);
  }
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

TEST_F(BadLinkTest, TheTopologyAndTheMetricsNameBothEnds) {
  Start(1);
  const RequestUid uid = Ask();
  Advance(1'500'000);
  Finish(uid, 2);
  const Topology topology = cluster.core.TopologyView(cluster.now_us);
  EXPECT_EQ(topology.processes.back().links.at(0).why,
            "left alone for a while: 1 hand-offs over it failed or came too slowly");
  const std::string text = LinkMetricsText(cluster.core.LinkRows());
  EXPECT_NE(text.find("baton_link_stalls_total{role=\"router\",from=\"prefill-0\",to=\"decode-0\","
                      "transport=\"tcp\"} 1\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("# TYPE baton_link_bytes_per_second gauge"), std::string::npos);
}

}  // namespace
}  // namespace baton
