// NcclTransport beside the promises that all transports share: silent and hostile peers, versions,
// limits. A peer that does not behave is a plain endpoint whose owner writes NCCL's messages
// itself.
#include "kvcache/transport/nccl/nccl_transport.h"

#include <atomic>
#include <chrono>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kvcache/transport/nccl/nccl_message.h"
#include "tests/kvcache/transport/test_rig.h"
#include "tests/nccl/loopback_pair.h"
#include "tests/patience.h"

namespace baton::kv::test {

using device::FakeAccelerator;

namespace {

NcclTransport* NcclOf(const Worker& worker) {
  return static_cast<NcclTransport*>(worker.transport.get());
}
// The loopback's.
constexpr uint32_t kVersion = 22809;

uint64_t Dropped(const Worker& worker, NcclDropReason reason) {
  return NcclOf(worker)->CommunicatorStats().dropped[static_cast<size_t>(reason)];
}

// One pair of real transports and a plain endpoint, which the sender dials too.
class NcclTransportTest : public testing::Test {
 protected:
  void MakeAll() {
    nccl_test::Configure("");
    d_ = rig_.MakeDecode("decode-0");
    plain_ = plain_rig_.MakeDecode("plain-0");
    // A decode worker can dial as well as listen.
    p_ = rig_.MakeDecode("prefill-0");
    std::vector<PeerAddress> peers;
    for (const Worker* const worker : {&d_, &plain_}) {
      peers.push_back({.worker_id = worker == &d_ ? "decode-0" : "plain-0",
                       .incarnation = worker->incarnation,
                       .host_id = HostId(),
                       .tcp = worker->endpoint->tcp_address()});
    }
    ASSERT_TRUE(p_.endpoint->SetPeers(peers).ok());
    ASSERT_TRUE(plain_.sink->WaitUp(1));
    Greet(p_, kVersion);
    ASSERT_TRUE(p_.sink->WaitUp(2));
    ASSERT_TRUE(d_.sink->WaitUp(1));
  }

  // Message i to the plain peer asks for a communicator; it answers that there is none.
  void DropConnect(size_t i, NcclDropReason reason) {
    const NcclMessage connect = MessageAt(i);
    ASSERT_EQ(connect.kind, NcclMessageKind::kConnect);
    DropLink(connect.link, reason);
  }
  void DropLink(uint64_t link, NcclDropReason reason) {
    NcclMessage drop;
    drop.kind = NcclMessageKind::kDrop;
    drop.reason = reason;
    drop.link = link;
    Answer(drop);
  }

  void Accept(uint64_t link) {
    NcclMessage accept;
    accept.kind = NcclMessageKind::kAccept;
    accept.link = link;
    accept.number = 100;
    Answer(accept);
  }

  // The plain peer has a place for the communicator that message i asks for, and joins the one that
  // the next message starts.
  nccl::Comm* AcceptConnect(size_t i) {
    Accept(MessageAt(i).link);
    const NcclMessage start = MessageAt(i + 1);
    EXPECT_EQ(start.kind, NcclMessageKind::kStart);
    EXPECT_EQ(start.link, MessageAt(i).link);
    nccl::Config config = nccl_test::NonBlocking();
    nccl::Comm* comm = nullptr;
    EXPECT_EQ(nccl_test::LoopbackTable().ncclCommInitRankConfig(&comm, 2, start.id, 1, &config),
              nccl::kInProgress);
    return comm;
  }

  // The messages of the plain peer, without greetings.
  std::vector<NcclMessage> Messages() {
    std::vector<NcclMessage> messages;
    for (const auto& [peer, bytes] : plain_.sink->Snapshot().controls) {
      StatusOr<NcclMessage> message = DecodeNcclMessage(bytes);
      EXPECT_TRUE(message.ok()) << message.status();
      if (!message.ok() || message->kind == NcclMessageKind::kGreeting) continue;
      messages.push_back(*std::move(message));
    }
    return messages;
  }
  // The one with this number.
  NcclMessage MessageAt(size_t index) {
    EXPECT_TRUE(Eventually([&] { return Messages().size() > index; }));
    return Messages().at(index);
  }
  // The plain peer is a sender to the decode worker.
  void DialD() {
    ASSERT_TRUE(plain_.endpoint
                    ->SetPeers(std::vector<PeerAddress>{{.worker_id = "decode-0",
                                                         .incarnation = d_.incarnation,
                                                         .host_id = HostId(),
                                                         .tcp = d_.endpoint->tcp_address()}})
                    .ok());
  }
  // The plain peer, up at the decode worker, asks it for a place as one with this version.
  void ConnectToD(uint64_t link, uint32_t version) {
    DialD();
    ASSERT_TRUE(plain_.sink->WaitUp(2));
    Greet(d_, kVersion);
    ASSERT_TRUE(d_.sink->WaitUp(2));
    NcclMessage connect;
    connect.kind = NcclMessageKind::kConnect;
    connect.link = link;
    connect.number = version;
    TellD(connect);
  }
  void TellD(const NcclMessage& message) {
    ASSERT_TRUE(plain_.transport->SendControl(d_.incarnation, EncodeNcclMessage(message)).ok());
  }
  // The plain peer says which NCCL it has.
  void Greet(const Worker& to, uint32_t version) {
    NcclMessage greeting;
    greeting.kind = NcclMessageKind::kGreeting;
    greeting.number = version;
    ASSERT_TRUE(plain_.transport->SendControl(to.incarnation, EncodeNcclMessage(greeting)).ok());
  }
  void Answer(const NcclMessage& message) {
    ASSERT_TRUE(plain_.transport->SendControl(p_.incarnation, EncodeNcclMessage(message)).ok());
  }
  // Slices for the plain peer, which nobody will ever take.
  void OfferToPlain(uint32_t count) {
    const Transfer transfer = MakeTransfer(900, count, 0, 0);
    ASSERT_TRUE(p_.transport->SendSlices(plain_.incarnation, SlicesOf(transfer, p_.blocks())).ok());
  }

  Rig rig_{TransportKind::kNccl};
  Rig plain_rig_{TransportKind::kTcp};
  Worker d_;
  Worker plain_;
  Worker p_;
};

TEST_F(NcclTransportTest, APeerThatSaysNothingHoldsNobodyUp) {
  MakeAll();
  OfferToPlain(40);
  EXPECT_EQ(MessageAt(0).kind, NcclMessageKind::kConnect);
  for (uint64_t id = 1; id <= 5; ++id) ExpectTransferWorks(&p_, &d_, id);
}

// A peer gets a second buffer only after something has moved.
TEST_F(NcclTransportTest, APeerThatGrantsNothingHoldsOneBufferAndNobodyUp) {
  rig_.tweak_nccl = [](NcclTransportOptions* options) {
    options->limits.slot_bytes = 4 * SmallLayout().SliceBytes();
  };
  MakeAll();
  OfferToPlain(40);
  nccl::Comm* const comm = AcceptConnect(0);
  EXPECT_EQ(MessageAt(2).kind, NcclMessageKind::kOffer);
  EXPECT_EQ(MessageAt(2).slices.size(), 4u) << "what its buffers hold";
  for (uint64_t id = 1; id <= 5; ++id) ExpectTransferWorks(&p_, &d_, id);
  EXPECT_EQ(Messages().size(), 3u) << "a second buffer is not its";
  nccl_test::LoopbackTable().ncclCommAbort(comm);
}

TEST_F(NcclTransportTest, CreditThatDoesNotComeEndsTheCommunicatorAndIsAskedForAgain) {
  rig_.tweak_nccl = [](NcclTransportOptions* options) {
    options->timers.build_us = 500'000 * kPatienceFactor;
    options->timers.credit_us = 10'000;
  };
  MakeAll();
  OfferToPlain(1);
  nccl::Comm* const comm = AcceptConnect(0);
  EXPECT_EQ(MessageAt(2).kind, NcclMessageKind::kOffer);
  const NcclMessage drop = MessageAt(3);
  EXPECT_EQ(drop.kind, NcclMessageKind::kDrop);
  EXPECT_EQ(drop.reason, NcclDropReason::kDeadline);
  EXPECT_TRUE(drop.by_sender);
  const NcclMessage again = MessageAt(4);
  EXPECT_EQ(again.kind, NcclMessageKind::kConnect);
  EXPECT_NE(again.link, MessageAt(0).link);
  EXPECT_TRUE(
      nccl_test::Eventually([&] { return nccl_test::PollOnce(comm) == nccl::kRemoteError; }));
  nccl_test::LoopbackTable().ncclCommAbort(comm);
}

// NCCL's abort waits for whatever it waits for.
std::atomic<bool> aborts_wait = false;
const nccl::NcclTable& TableWhoseAbortsWait() {
  static const nccl::NcclTable table = [] {
    nccl::NcclTable waiting = nccl_test::LoopbackTable();
    waiting.ncclCommAbort = [](nccl::Comm* comm) {
      aborts_wait.wait(true);
      return nccl_test::LoopbackTable().ncclCommAbort(comm);
    };
    return waiting;
  }();
  return table;
}

TEST_F(NcclTransportTest, AnAbortThatWaitsHoldsNobodyUp) {
  rig_.tweak_nccl = [](NcclTransportOptions* options) {
    options->table = &TableWhoseAbortsWait();
    options->timers.build_us = 500'000 * kPatienceFactor;
    options->timers.credit_us = 500'000 * kPatienceFactor;
  };
  MakeAll();
  aborts_wait = true;
  const auto go_on = [] {
    aborts_wait = false;
    aborts_wait.notify_all();
  };
  const absl::Cleanup always = go_on;
  OfferToPlain(40);
  nccl::Comm* const comm = AcceptConnect(0);
  ASSERT_TRUE(Eventually([&] { return Dropped(p_, NcclDropReason::kDeadline) >= 1; }));
  for (uint64_t id = 1; id <= 5; ++id) ExpectTransferWorks(&p_, &d_, id);
  EXPECT_EQ(nccl_test::Counts().aborts, 0u);
  EXPECT_EQ(Messages().back().kind, NcclMessageKind::kDrop) << "no other before it has ended";
  EXPECT_GE(NcclOf(p_)->CommunicatorStats().ending, 1u);
  go_on();
  EXPECT_TRUE(Eventually([&] { return nccl_test::Counts().aborts >= 1; }));
  EXPECT_TRUE(Eventually([&] { return NcclOf(p_)->CommunicatorStats().ending == 0; }));
  nccl_test::LoopbackTable().ncclCommAbort(comm);
}

// The first operation of a communicator connects the two sides, which takes NCCL a while.
TEST_F(NcclTransportTest, AFirstOperationMayTakeAsLongAsABuild) {
  rig_.tweak_nccl = [](NcclTransportOptions* options) { options->timers.operation_us = 1'000; };
  MakeAll();
  const nccl_test::ScopedFaults faults("delay=1,delay_us=100000");
  ExpectTransferWorks(&p_, &d_, 1);
  EXPECT_EQ(NcclOf(p_)->CommunicatorStats().built, 1u);
  EXPECT_EQ(Dropped(p_, NcclDropReason::kDeadline), 0u);
}

// Others' buffers and operations are not those of peers that are being connected.
TEST_F(NcclTransportTest, AFirstOperationThatTakesLongHoldsNobodyUp) {
  rig_.tweak_nccl = [](NcclTransportOptions* options) {
    options->limits.max_posted = 1;
    options->limits.slot_bytes = 4 * SmallLayout().SliceBytes();
  };
  MakeAll();
  ExpectTransferWorks(&p_, &d_, 1);
  OfferToPlain(40);
  nccl::Comm* const comm = AcceptConnect(0);
  NcclMessage grant;
  grant.kind = NcclMessageKind::kGrant;
  grant.link = MessageAt(2).link;
  grant.batch = MessageAt(2).batch;
  {
    const nccl_test::ScopedFaults faults("hang=1");
    Answer(grant);
    ASSERT_TRUE(Eventually([] { return nccl_test::Counts().hangs == 1; }));
  }
  for (uint64_t id = 2; id <= 6; ++id) ExpectTransferWorks(&p_, &d_, id);
  EXPECT_EQ(Messages().size(), 3u) << "the second offer comes when the first has moved";
  nccl_test::LoopbackTable().ncclCommAbort(comm);
}

// The prefill worker has asked for a place, or the decode worker has given one.
TEST_F(NcclTransportTest, ALinkThatIsNotStartedInTimeEnds) {
  rig_.tweak_nccl = [](NcclTransportOptions* options) {
    options->timers.build_us = 50'000 * kPatienceFactor;
  };
  MakeAll();
  OfferToPlain(1);
  EXPECT_EQ(MessageAt(0).kind, NcclMessageKind::kConnect);
  EXPECT_EQ(MessageAt(1).reason, NcclDropReason::kDeadline);
  EXPECT_EQ(MessageAt(1).link, MessageAt(0).link);
  EXPECT_EQ(MessageAt(2).kind, NcclMessageKind::kConnect) << "it is tried again";
  EXPECT_EQ(nccl_test::Counts().made_ids, 0u);
  ASSERT_NO_FATAL_FAILURE(ConnectToD(5, kVersion));
  EXPECT_TRUE(Eventually([&] { return Dropped(d_, NcclDropReason::kDeadline) == 1; }));
}

TEST_F(NcclTransportTest, ALinkIsAcceptedOnceAndStartedOnce) {
  MakeAll();
  OfferToPlain(1);
  nccl::Comm* const comm = AcceptConnect(0);
  EXPECT_EQ(MessageAt(2).kind, NcclMessageKind::kOffer);
  Accept(MessageAt(0).link);
  EXPECT_TRUE(Eventually([&] { return Dropped(p_, NcclDropReason::kProtocol) == 1; }));
  nccl_test::LoopbackTable().ncclCommAbort(comm);
  ASSERT_NO_FATAL_FAILURE(ConnectToD(5, kVersion));
  NcclMessage start;
  start.kind = NcclMessageKind::kStart;
  start.link = 5;
  ASSERT_EQ(nccl_test::LoopbackTable().ncclGetUniqueId(&start.id), nccl::kSuccess);
  TellD(start);
  TellD(start);
  EXPECT_TRUE(Eventually([&] { return Dropped(d_, NcclDropReason::kProtocol) == 1; }));
  ExpectTransferWorks(&p_, &d_, 1);
}

TEST_F(NcclTransportTest, APeerIsUpOnlyWithTheSameVersion) {
  MakeAll();
  DialD();
  const auto link = [&] {
    for (const LinkInfo& row : d_.transport->Links()) {
      if (row.peer == plain_.incarnation) return row;
    }
    return LinkInfo{};
  };
  ASSERT_TRUE(Eventually([&] { return link().worker_id == "plain-0"; }));
  EXPECT_FALSE(link().up) << "it has not said its version";
  // Words of a peer that is not up reach nobody.
  ASSERT_TRUE(plain_.transport->SendControl(d_.incarnation, "early").ok());
  Greet(d_, 22705);
  ASSERT_TRUE(Eventually([&] { return Dropped(d_, NcclDropReason::kVersion) == 1; }));
  EXPECT_FALSE(link().up);
  EXPECT_THAT(link().last_failure, testing::HasSubstr("it has NCCL 2.27.5, this worker 2.28.9"));
  ExpectTransferWorks(&p_, &d_, 1);
  EXPECT_EQ(d_.sink->Snapshot().ups.size(), 1u);
  EXPECT_TRUE(d_.sink->Snapshot().controls.empty());
  // A second word about it is out of turn.
  Greet(d_, kVersion);
  EXPECT_TRUE(Eventually([&] { return Dropped(d_, NcclDropReason::kProtocol) == 1; }));
  EXPECT_FALSE(link().up);
}

TEST_F(NcclTransportTest, WhatCameBeforeTheGreetingComesBehindThePeer) {
  MakeAll();
  DialD();
  ASSERT_TRUE(plain_.sink->WaitUp(2));
  ASSERT_TRUE(plain_.transport->SendControl(d_.incarnation, "grant").ok());
  Greet(d_, kVersion);
  ASSERT_TRUE(d_.sink->WaitControls(1));
  EXPECT_EQ(d_.sink->Snapshot().ups.size(), 2u);
  EXPECT_EQ(d_.sink->Snapshot().controls[0].second, "grant");
}

TEST_F(NcclTransportTest, ACommunicatorOfAnotherVersionIsRefusedByItsNumber) {
  MakeAll();
  // As D: the plain peer connects with another version than it has said.
  ASSERT_NO_FATAL_FAILURE(ConnectToD(5, 22705));
  const NcclMessage drop = MessageAt(0);
  EXPECT_EQ(drop.kind, NcclMessageKind::kDrop);
  EXPECT_EQ(drop.reason, NcclDropReason::kVersion);
  EXPECT_EQ(drop.number, 22809u);
  EXPECT_EQ(drop.link, 5u);
  // As P: the answer is counted, and the next communicator is tried later.
  OfferToPlain(1);
  NcclMessage refusal = drop;
  refusal.link = MessageAt(1).link;
  refusal.number = 23003;
  Answer(refusal);
  EXPECT_TRUE(Eventually([&] { return Dropped(p_, NcclDropReason::kVersion) == 1; }));
  EXPECT_EQ(MessageAt(2).kind, NcclMessageKind::kConnect);
  ExpectTransferWorks(&p_, &d_, 1);
}

TEST_F(NcclTransportTest, MessagesOutOfTurnEndNothingButTheirOwnLink) {
  MakeAll();
  ExpectTransferWorks(&p_, &d_, 1);
  NcclMessage offer;
  offer.kind = NcclMessageKind::kOffer;
  offer.link = 77;
  offer.batch = 1;
  offer.slices.resize(3);
  Answer(offer);  // of a link that is not
  const NcclMessage drop = MessageAt(0);
  EXPECT_EQ(drop.kind, NcclMessageKind::kDrop);
  EXPECT_EQ(drop.reason, NcclDropReason::kUnknown);
  EXPECT_EQ(drop.link, 77u);
  std::string damaged = EncodeNcclMessage(offer);
  damaged.pop_back();
  ASSERT_TRUE(plain_.transport->SendControl(p_.incarnation, damaged).ok());
  EXPECT_TRUE(Eventually([&] { return Dropped(p_, NcclDropReason::kProtocol) == 1; }));
  // As D: what starts a link that is not.
  NcclMessage start;
  start.kind = NcclMessageKind::kStart;
  start.link = 78;
  Answer(start);
  EXPECT_EQ(MessageAt(1).reason, NcclDropReason::kUnknown);
  EXPECT_EQ(MessageAt(1).link, 78u);
  // An answer that nobody waits for ends the link that it names.
  OfferToPlain(1);
  NcclMessage grant;
  grant.kind = NcclMessageKind::kGrant;
  grant.link = MessageAt(2).link;
  grant.batch = 123456;
  Answer(grant);
  EXPECT_EQ(MessageAt(3).reason, NcclDropReason::kProtocol);
  ExpectTransferWorks(&p_, &d_, 2);
  EXPECT_EQ(NcclOf(d_)->CommunicatorStats().built, 1u) << "the other link stayed";
}

// A pair that gives up after three failures.
class NcclLostPeerTest : public NcclTransportTest {
 protected:
  NcclLostPeerTest() {
    rig_.tweak_nccl = [](NcclTransportOptions* options) {
      options->limits.max_failures = 3;
      options->timers.backoff_min_us = 500;
      options->timers.backoff_max_us = 1000;
      options->timers.build_us = 100'000 * kPatienceFactor;
      options->timers.rest_min_us = kRestMs * 1000;
      options->timers.rest_max_us = kRestMs * 3000;
    };
    MakeAll();
  }
  // Sends slices that cannot arrive. Waits until the decode worker is down at the prefill worker
  // for the `count`th time, and checks that it is down for `rest_ms`.
  void Lose(size_t count, int64_t rest_ms) {
    const Transfer transfer = MakeTransfer(500 + count, 4, 0, 20);
    ASSERT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, p_.incarnation)).ok());
    ASSERT_TRUE(SendWhenUp(transfer));
    ASSERT_TRUE(p_.sink->WaitDown(count));
    EXPECT_EQ(p_.sink->Snapshot().downs.back().first, d_.incarnation);
    const std::string why = p_.sink->Snapshot().downs.back().second;
    EXPECT_THAT(why, testing::HasSubstr("3 communicators in a row delivered nothing, the last: "));
    EXPECT_THAT(why, testing::HasSubstr("; tried again in " + std::to_string(rest_ms) + " ms"));
    EXPECT_EQ(NcclOf(p_)->CommunicatorStats().lost, count);
    d_.transport->CloseReceive(transfer.id);
    ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfer.id));
    ASSERT_TRUE(EndSend(p_, d_.incarnation, transfer.id)) << "also when the peer is down";
  }
  bool SendWhenUp(const Transfer& transfer) {
    return Eventually([&] {
      return p_.transport->SendSlices(d_.incarnation, SlicesOf(transfer, p_.blocks())).ok();
    });
  }
  LinkInfo LinkToD() {
    for (const LinkInfo& row : p_.transport->Links()) {
      if (row.peer == d_.incarnation) return row;
    }
    return {};
  }

  static constexpr int64_t kRestMs = 500;
};

TEST_F(NcclLostPeerTest, APeerWhoseCommunicatorsAllFailIsDownForATimeAndThenWorks) {
  {
    const nccl_test::ScopedFaults faults("init_error=1");
    Lose(1, kRestMs);
    EXPECT_GE(nccl_test::Counts().init_errors, 3u);
    EXPECT_FALSE(LinkToD().up);
    EXPECT_THAT(LinkToD().last_failure, testing::HasSubstr("3 communicators in a row"));
    const Transfer transfer = MakeTransfer(600, 1, 0, 20);
    EXPECT_EQ(p_.transport->SendSlices(d_.incarnation, SlicesOf(transfer, p_.blocks())).code(),
              StatusCode::kUnavailable);
    // Words to it still cross; the connection is not at fault.
    ASSERT_TRUE(p_.transport->SendControl(d_.incarnation, "moved").ok());
    ASSERT_TRUE(d_.sink->WaitControls(1));
  }
  ASSERT_TRUE(p_.sink->WaitUp(3));
  EXPECT_TRUE(LinkToD().up);
  ExpectTransferWorks(&p_, &d_, 1);
  EXPECT_TRUE(d_.sink->Snapshot().downs.empty());
}

TEST_F(NcclLostPeerTest, BuildsThatHangAreCountedToo) {
  const nccl_test::ScopedFaults faults("init_hang=1");
  Lose(1, kRestMs);
}

TEST_F(NcclLostPeerTest, ItRestsTwiceAsLongUntilSomethingArrives) {
  {
    const nccl_test::ScopedFaults faults("init_error=1");
    Lose(1, kRestMs);
    Lose(2, 2 * kRestMs);
    Lose(3, 3 * kRestMs);
  }
  ASSERT_TRUE(p_.sink->WaitUp(5));
  ExpectTransferWorks(&p_, &d_, 1);
  // A communicator that is built and moves nothing.
  const nccl_test::ScopedFaults faults("error=1");
  Lose(4, kRestMs);
}

TEST_F(NcclLostPeerTest, APeerWithoutRoomIsNotGivenUp) {
  OfferToPlain(4);
  for (size_t i = 0; i < 6; ++i) {
    ASSERT_NO_FATAL_FAILURE(
        DropConnect(i, i % 2 == 0 ? NcclDropReason::kBusy : NcclDropReason::kEvicted));
  }
  EXPECT_EQ(MessageAt(6).kind, NcclMessageKind::kConnect);
  EXPECT_EQ(NcclOf(p_)->CommunicatorStats().lost, 0u);
  EXPECT_EQ(nccl_test::Counts().made_ids, 0u) << "NCCL was asked for nothing";
  EXPECT_EQ(nccl_test::Counts().aborts, 0u);
  EXPECT_TRUE(p_.sink->Snapshot().downs.empty());
}

// Work that was begun with NCCL counts as a failure when it is dropped: an honest decode worker
// says "busy" only before that.
TEST_F(NcclLostPeerTest, APeerThatAcceptsAndThenHasNoRoomIsGivenUp) {
  OfferToPlain(4);
  size_t next = 0;
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t link = MessageAt(next).link;
    Accept(link);
    EXPECT_EQ(MessageAt(next + 1).kind, NcclMessageKind::kStart);
    ASSERT_NO_FATAL_FAILURE(DropLink(link, NcclDropReason::kBusy));
    next += 2;
  }
  ASSERT_TRUE(p_.sink->WaitDown(1));
  EXPECT_EQ(nccl_test::Counts().made_ids, 3u);
}

// The test hears the peer's last act and its end in one turn, or one after the other.
TEST_F(NcclLostPeerTest, APeerThatEndsWithItsLastFailureIsGoneAndNoMore) {
  OfferToPlain(4);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(DropConnect(i, NcclDropReason::kFailed));
  }
  plain_.transport->Stop();
  ASSERT_TRUE(p_.sink->WaitDown(1));
  ExpectTransferWorks(&p_, &d_, 1);
}

// This holds however often the decode worker makes room for others.
TEST_F(NcclTransportTest, AnEvictedCommunicatorIsNotBuiltAgainAtOnce) {
  MakeAll();
  OfferToPlain(4);
  const auto begin = std::chrono::steady_clock::now();
  constexpr size_t kNumEvictions = 5;
  for (size_t i = 0; i < kNumEvictions; ++i) {
    ASSERT_NO_FATAL_FAILURE(DropConnect(i, NcclDropReason::kEvicted));
  }
  EXPECT_EQ(MessageAt(kNumEvictions).kind, NcclMessageKind::kConnect);
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(elapsed, kNumEvictions * std::chrono::microseconds(NcclTimers().backoff_min_us));
}

TEST_F(NcclTransportTest, TheLeastRecentlyUsedCommunicatorMakesRoom) {
  rig_.tweak_nccl = [](NcclTransportOptions* options) { options->limits.max_links = 1; };
  Worker first = rig_.MakeDecode("decode-1");
  Worker second = rig_.MakeDecode("decode-2");
  Worker p = rig_.MakePrefill("prefill-1", {&first, &second});
  ASSERT_TRUE(p.sink->WaitUp(2));
  for (uint64_t id = 1; id <= 6; ++id) ExpectTransferWorks(&p, id % 2 == 0 ? &first : &second, id);
  EXPECT_EQ(Dropped(p, NcclDropReason::kEvicted), 5u);
  EXPECT_EQ(NcclOf(p)->CommunicatorStats().built, 6u);
}

// The thread that serves all peers never sleeps in a copy of some places or checksums.
TEST_F(NcclTransportTest, NoCopyWaits) {
  MakeAll();
  const uint64_t waits_before = FakeAccelerator::num_waits();
  const uint64_t staged_before = FakeAccelerator::num_staged();
  for (uint64_t id = 1; id <= 3; ++id) ExpectTransferWorks(&p_, &d_, id);
  EXPECT_EQ(FakeAccelerator::num_waits(), waits_before);
  EXPECT_EQ(FakeAccelerator::num_staged(), staged_before);
}

// The owner's control messages are any bytes, those of an NCCL message too.
TEST_F(NcclTransportTest, AControlMessageThatLooksLikeNcclsArrivesAsItIs) {
  MakeAll();
  NcclMessage drop;
  drop.kind = NcclMessageKind::kDrop;
  for (const std::string& bytes :
       {EncodeNcclMessage(drop), EncodeNcclMessage(drop).substr(0, 20)}) {
    const size_t before = d_.sink->Snapshot().controls.size();
    ASSERT_TRUE(p_.transport->SendControl(d_.incarnation, bytes).ok());
    ASSERT_TRUE(d_.sink->WaitControls(before + 1));
    EXPECT_EQ(d_.sink->Snapshot().controls.back().second, bytes);
  }
}

TEST(NcclTransportOptionsTest, ShapesThatCannotWorkAreRefusedByNumber) {
  KvLayout small = SmallLayout();
  small.head_dim = 2;
  small.num_kv_heads = 1;
  const nccl_test::KvDevice narrow = nccl_test::MakeKvDevice({}, small, 4);
  NcclTransportOptions options;
  options.table = &nccl_test::LoopbackTable();
  options.device = narrow.parts;
  const auto message = [&] {
    return std::string(NcclTransport::Create(options, nullptr).status().message());
  };
  EXPECT_THAT(message(), testing::HasSubstr("slices of 128 bytes"));
  const nccl_test::KvDevice device = nccl_test::MakeKvDevice({}, SmallLayout(), 4);
  options.device = device.parts;
  options.limits.slot_bytes = 1000;
  EXPECT_THAT(message(), testing::HasSubstr("staging of 1000 bytes holds no slice of 4096"));
}

}  // namespace
}  // namespace baton::kv::test
