// The peers that an endpoint dials, over what, and when; with a clock made of numbers.
#include "kvcache/transport/peer_set.h"

#include "gtest/gtest.h"

namespace baton::kv {
namespace {

constexpr int64_t kMs = 1000;

ResolvedPeer Peer(uint64_t incarnation, bool has_tcp = true, bool has_unix = true) {
  ResolvedPeer peer;
  peer.address.worker_id = "decode-" + std::to_string(incarnation);
  peer.address.incarnation = Incarnation(incarnation);
  peer.address.host_id = "here";
  if (has_tcp) peer.tcp = {SocketAddress{}};
  if (has_unix) peer.unix_socket = SocketAddress{};
  return peer;
}

KvEndpointTimers Timers() {
  KvEndpointTimers timers;
  timers.backoff_min_us = 10 * kMs;
  timers.backoff_max_us = 35 * kMs;
  return timers;
}

TEST(PeerSetTest, DialsNewPeersAtOnceAndEachOnce) {
  PeerSet peers(TransportKind::kAuto, "here", Timers());
  EXPECT_TRUE(peers.Replace({Peer(1), Peer(2)}, 0).empty());
  ASSERT_TRUE(peers.NextAttempt(0).has_value());
  ASSERT_TRUE(peers.NextAttempt(0).has_value());
  EXPECT_FALSE(peers.NextAttempt(0).has_value());
  EXPECT_EQ(peers.NextDueUs(), 0);
  EXPECT_EQ(peers.AbsentPeers().size(), 2u);
  peers.OnUp(Incarnation(1));
  EXPECT_EQ(peers.AbsentPeers().size(), 1u);
}

TEST(PeerSetTest, FallsBackToTcpAndThenWaitsTwiceAsLongEachRound) {
  PeerSet peers(TransportKind::kAuto, "here", Timers());
  peers.Replace({Peer(1)}, 0);
  int64_t now_us = 0;
  for (const int64_t wait_ms : {10, 20, 35, 35}) {
    const auto shm = peers.NextAttempt(now_us);
    ASSERT_TRUE(shm.has_value());
    EXPECT_EQ(shm->kind, TransportKind::kShm);
    peers.OnFailed(Incarnation(1), "no", now_us);
    const auto tcp = peers.NextAttempt(now_us);
    ASSERT_TRUE(tcp.has_value());
    EXPECT_EQ(tcp->kind, TransportKind::kTcp);
    peers.OnFailed(Incarnation(1), "no", now_us);
    EXPECT_EQ(peers.NextDueUs(), now_us + wait_ms * kMs);
    EXPECT_FALSE(peers.NextAttempt(now_us + wait_ms * kMs - 1).has_value());
    now_us += wait_ms * kMs;
  }
  ASSERT_EQ(peers.AbsentPeers().size(), 1u);
  EXPECT_EQ(peers.AbsentPeers()[0].last_failure, "no");
  // A connection that was ready forgives.
  ASSERT_TRUE(peers.NextAttempt(now_us).has_value());
  peers.OnUp(Incarnation(1));
  peers.OnLost(Incarnation(1), "lost", now_us);
  EXPECT_EQ(peers.NextDueUs(), now_us + 10 * kMs);
  EXPECT_EQ(peers.NextAttempt(now_us + 10 * kMs)->kind, TransportKind::kShm);
}

// A name with an address of each family, of which the peer may listen at one.
TEST(PeerSetTest, AllAddressesOfANameAreTriedInTurn) {
  PeerSet peers(TransportKind::kTcp, "here", Timers());
  ResolvedPeer peer = Peer(1);
  peer.tcp = {SocketAddress{.size_bytes = 28}, SocketAddress{.size_bytes = 16}};
  peers.Replace({peer}, 0);
  EXPECT_EQ(peers.NextAttempt(0)->address.size_bytes, 28u);
  peers.OnFailed(Incarnation(1), "refused", 0);
  EXPECT_EQ(peers.NextAttempt(0)->address.size_bytes, 16u) << "at once";
  peers.OnFailed(Incarnation(1), "refused", 0);
  EXPECT_EQ(peers.NextDueUs(), 10 * kMs);
  EXPECT_EQ(peers.NextAttempt(10 * kMs)->address.size_bytes, 28u);
}

TEST(PeerSetTest, AFailureIsNewsOnceUntilThePeerIsUp) {
  PeerSet peers(TransportKind::kTcp, "here", Timers());
  const Incarnation id(1);
  peers.Replace({Peer(1)}, 0);
  for (int round = 0; round < 3; ++round) {
    for (const std::string failure : {"unreachable", "refused"}) {
      EXPECT_EQ(peers.IsNews(id, failure), round != 1) << round << failure;
      peers.OnFailed(id, failure, 0);
    }
    if (round == 1) peers.OnUp(id);
  }
  for (int i = 0; i < 1000; ++i) peers.OnFailed(id, std::to_string(i), 0);
  EXPECT_TRUE(peers.IsNews(id, "refused")) << "no more are kept than there is room for";
}

TEST(PeerSetTest, UsesOnlyWhatBothSidesHave) {
  struct Case {
    TransportKind own;
    const char* host;
    ResolvedPeer peer;
    TransportKind expected;  // kAuto = none
  };
  const Case cases[] = {
      {TransportKind::kAuto, "here", Peer(1), TransportKind::kShm},
      {TransportKind::kAuto, "there", Peer(1), TransportKind::kTcp},
      {TransportKind::kAuto, "", Peer(1), TransportKind::kTcp},
      {TransportKind::kAuto, "here", Peer(1, true, false), TransportKind::kTcp},
      {TransportKind::kTcp, "here", Peer(1), TransportKind::kTcp},
      {TransportKind::kShm, "here", Peer(1), TransportKind::kShm},
      {TransportKind::kShm, "there", Peer(1), TransportKind::kAuto},
      {TransportKind::kTcp, "here", Peer(1, false, true), TransportKind::kAuto},
  };
  for (const Case& test_case : cases) {
    PeerSet peers(test_case.own, test_case.host, Timers());
    peers.Replace({test_case.peer}, 0);
    const auto attempt = peers.NextAttempt(0);
    EXPECT_EQ(attempt.has_value() ? attempt->kind : TransportKind::kAuto, test_case.expected);
    ASSERT_EQ(peers.AbsentPeers().size(), 1u);
    EXPECT_EQ(peers.AbsentPeers()[0].last_failure.empty(), attempt.has_value());
  }
}

TEST(PeerSetTest, ANewListKeepsTheStateOfWhoStays) {
  PeerSet peers(TransportKind::kAuto, "here", Timers());
  peers.Replace({Peer(1), Peer(2)}, 0);
  while (peers.NextAttempt(0).has_value()) {
  }
  peers.OnUp(Incarnation(1));
  const std::vector<Incarnation> removed = peers.Replace({Peer(1), Peer(3)}, 5);
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0], Incarnation(2));
  // 1 is connected, 2 is gone whatever comes of its attempt, 3 is due.
  peers.OnFailed(Incarnation(2), "late", 5);
  EXPECT_EQ(peers.NextAttempt(5)->peer, Incarnation(3));
  EXPECT_FALSE(peers.NextAttempt(5).has_value());
  // Its addresses are taken away while it is connected: not dialled when it is lost.
  peers.Replace({Peer(1, false, false), Peer(3)}, 6);
  peers.OnLost(Incarnation(1), "lost", 6);
  EXPECT_FALSE(peers.NextAttempt(6 + 1000 * kMs).has_value());
}

}  // namespace
}  // namespace baton::kv
