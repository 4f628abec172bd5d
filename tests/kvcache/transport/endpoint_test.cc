// KvEndpoint against peers that fail, lie, stall or attack. conformance_test.cc tests the promises
// of every transport.
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/memory_file.h"
#include "tests/kvcache/transport/fault_transport.h"
#include "tests/kvcache/transport/raw_peer.h"
#include "tests/kvcache/transport/test_rig.h"
#include "tests/test_seed.h"

namespace baton::kv::test {
namespace {

using testing::HasSubstr;

std::vector<std::byte> SliceBytes(const Worker& worker, BlockIndex block, uint32_t layer) {
  const std::byte* const data = worker.arena->Slice(block, layer);
  return {data, data + worker.arena->layout().SliceBytes()};
}

TEST(EndpointTest, HostileBytesCostOnlyTheirOwnConnection) {
  std::mt19937_64 random(TestSeed());
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  Worker p = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(p.sink->WaitUp(1));
  const Transfer transfer = MakeTransfer(1, 8, 0, 8);
  for (uint32_t i = 0; i < 60; ++i) {
    RawPeer raw(d);
    const Incarnation self(0x5000 + i);
    if (i % 3 != 0) {
      ASSERT_TRUE(raw.Introduce("evil-" + std::to_string(i), self));
    }
    std::vector<std::byte> bytes;
    for (int frame = 0; frame < 20; ++frame) {
      const SliceRef slice = SlicesOf(transfer, p.blocks())[random() % 24];
      const uint32_t size = random() % 2 == 0 ? 0 : SmallLayout().SliceBytes();
      const size_t at = bytes.size();
      bytes.resize(at + kFrameHeaderBytes + size);
      EncodeFrameHeader(SliceFrameHeader(slice, raw.epoch(), size),
                        std::span(bytes).subspan(at).first<kFrameHeaderBytes>());
    }
    const uint64_t num_damages = 1 + random() % 20;
    for (uint64_t k = 0; k < num_damages; ++k) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (i % 5 == 0) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    }
    raw.Send(bytes);
    raw.HalfClose();
    EXPECT_TRUE(raw.WaitEnd()) << "round " << i;
  }
  EXPECT_TRUE(WaitClose(d, CloseReason::kProtocol, 20));
  EXPECT_TRUE(p.sink->Snapshot().downs.empty());
  ExpectTransferWorks(&p, &d, 1000);
}

TEST(EndpointTest, RawFramesAreJudgedAndTheStreamGoesOn) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  auto source = MakeArena(SmallLayout(), 8);
  Worker helper;  // only its arena is used
  helper.arena = std::move(source);
  const Incarnation self(77);
  RawPeer raw(d);
  ASSERT_TRUE(raw.Introduce("raw", self));
  const Transfer transfer = MakeTransfer(1, 2, 0, 2);
  FillSource(transfer, helper.blocks(), 1);
  ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, self)).ok());
  ASSERT_TRUE(d.transport->SendControl(self, "sync").ok());
  std::vector<std::byte> control;
  ASSERT_TRUE(raw.Receive(&control).has_value());

  const SliceRef slice = SlicesOf(transfer, helper.blocks())[0];
  const std::vector<std::byte> good = SliceBytes(helper, slice.source, slice.layer);
  FrameHeader header = SliceFrameHeader(slice, raw.epoch(), 1);
  // Too short, and of another epoch: read to the end and dropped.
  raw.SendFrame(header, std::vector<std::byte>(good.begin(), good.end() - 64));
  header.epoch = raw.epoch() + 1;
  raw.SendFrame(header, good);
  header.epoch = raw.epoch();
  // The right header, a damaged byte.
  std::vector<std::byte> damaged = good;
  damaged[777] ^= std::byte{1};
  raw.SendFrame(header, damaged);
  raw.SendFrame(header, good);
  raw.SendFrame(header, good);
  raw.SendFrame({.kind = FrameKind::kControl, .epoch = raw.epoch()}, {std::byte{'x'}});
  ASSERT_TRUE(d.sink->WaitControls(1));
  EXPECT_EQ(Refused(d, BadSliceReason::kOutOfRange), 1u);
  EXPECT_EQ(Refused(d, BadSliceReason::kWrongEpoch), 1u);
  EXPECT_EQ(Refused(d, BadSliceReason::kBadChecksum), 1u);
  EXPECT_EQ(Refused(d, BadSliceReason::kDuplicate), 1u);
  EXPECT_EQ(d.transport->Stats().slices_received, 1u);
  EXPECT_TRUE(SameSlice(helper.blocks(), slice.source, d.blocks(), transfer.dest[0].index, 0));
  // A reference where no arena was passed ends the connection.
  raw.SendFrame(SliceFrameHeader(slice, raw.epoch(), 0));
  EXPECT_TRUE(raw.WaitEnd());
  EXPECT_TRUE(d.sink->WaitDown(1));
  EXPECT_TRUE(WaitClose(d, CloseReason::kProtocol));
}

TEST(EndpointTest, ATransferStaysWithItsFirstConnection) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  const Incarnation self(77);
  const Transfer transfer = MakeTransfer(1, 1, 0, 2);
  auto first = std::make_unique<RawPeer>(d);
  ASSERT_TRUE(first->Introduce("raw", self));
  ASSERT_TRUE(d.sink->WaitUp(1));
  ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, self)).ok());
  RawPeer second(d);
  ASSERT_TRUE(second.Introduce("raw", self));
  ASSERT_TRUE(d.sink->WaitUp(2));
  EXPECT_EQ(d.sink->Snapshot().downs.size(), 1u);  // the newer connection replaced the first
  EXPECT_TRUE(first->WaitEnd());
  EXPECT_EQ(first->told(), CloseReason::kReplaced);
  second.SendFrame(SliceFrameHeader(SlicesOf(transfer, d.blocks())[0], second.epoch(), 1),
                   std::vector<std::byte>(SmallLayout().SliceBytes()));
  EXPECT_TRUE(Eventually([&] { return Refused(d, BadSliceReason::kWrongEpoch) == 1; }));
}

TEST(EndpointTest, ADamagedControlMessageEndsTheConnection) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  RawPeer raw(d);
  ASSERT_TRUE(raw.Introduce("raw", Incarnation(77)));
  FrameHeader header{.kind = FrameKind::kControl, .epoch = raw.epoch()};
  header.checksum = 1;
  raw.SendFrame(header, {std::byte{'x'}});
  EXPECT_TRUE(raw.WaitEnd());
  EXPECT_EQ(raw.told(), CloseReason::kControlCorrupt);
  EXPECT_TRUE(d.sink->WaitDown(1));
  EXPECT_TRUE(d.sink->Snapshot().controls.empty());
}

TEST(EndpointTest, AnotherSecretIsRefusedOnBothSides) {
  for (const TransportKind kind : {TransportKind::kTcp, TransportKind::kShm}) {
    Rig rig(kind);
    Worker d = rig.MakeDecode("decode-0");
    for (const char* const secret : {"another secret", ""}) {
      rig.tweak = [&](KvEndpointOptions* options) { options->cluster_secret = secret; };
      Worker p = rig.MakePrefill("prefill-0", {&d});
      EXPECT_TRUE(WaitClose(p, CloseReason::kWrongSecret));
      EXPECT_TRUE(WaitClose(d, CloseReason::kWrongSecret));
      EXPECT_TRUE(Eventually([&] {
        const std::vector<LinkInfo> links = p.transport->Links();
        return links.size() == 1 && !links[0].up &&
               links[0].last_failure.find("secret") != std::string::npos;
      }));
      EXPECT_TRUE(p.sink->Snapshot().ups.empty());
    }
    EXPECT_TRUE(d.sink->Snapshot().ups.empty());
  }
}

TEST(EndpointTest, AnotherLayoutIsRefused) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  KvLayout other = SmallLayout();
  other.num_layers = 4;
  Rig other_rig(TransportKind::kTcp, other);
  Worker p = other_rig.MakePrefill("prefill-0", {&d});
  EXPECT_TRUE(WaitClose(d, CloseReason::kLayout));
  EXPECT_TRUE(WaitClose(p, CloseReason::kLayout));
}

TEST(EndpointTest, ARestartedPeerIsAnotherPeer) {
  Rig rig(TransportKind::kTcp);
  auto d = std::make_unique<Worker>(rig.MakeDecode("decode-0"));
  const std::string address = d->endpoint->tcp_address();
  Worker p = rig.MakePrefill("prefill-0", {d.get()});
  ASSERT_TRUE(p.sink->WaitUp(1));
  d->transport->Stop();
  d.reset();
  ASSERT_TRUE(p.sink->WaitDown(1));
  // Another life at the same port: not the decode worker that the prefill worker wants.
  rig.tweak = [&](KvEndpointOptions* options) { options->listen = address; };
  Worker reborn = rig.MakeDecode("decode-0");
  EXPECT_TRUE(WaitClose(p, CloseReason::kWrongPeer));
  EXPECT_EQ(p.sink->Snapshot().ups.size(), 1u);
  rig.SetDecodes(&p, {&reborn});
  ASSERT_TRUE(p.sink->WaitUp(2));
  EXPECT_EQ(p.sink->Snapshot().ups[1].peer, reborn.incarnation);
  ExpectTransferWorks(&p, &reborn, 5);
  // A list without it hangs up.
  rig.SetDecodes(&p, {});
  EXPECT_TRUE(p.sink->WaitDown(2));
  EXPECT_TRUE(reborn.sink->WaitDown(1));
  EXPECT_GE(Closes(p, CloseReason::kRemoved), 1u);
}

TEST(EndpointTest, ANewIncarnationReplacesTheOldConnection) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  RawPeer old_life(d);
  ASSERT_TRUE(old_life.Introduce("prefill-0", Incarnation(1)));
  RawPeer new_life(d);
  ASSERT_TRUE(new_life.Introduce("prefill-0", Incarnation(2)));
  ASSERT_TRUE(d.sink->WaitUp(2));
  const Recorded recorded = d.sink->Snapshot();
  ASSERT_EQ(recorded.downs.size(), 1u);
  EXPECT_EQ(recorded.downs[0].first, Incarnation(1));
  EXPECT_TRUE(old_life.WaitEnd());
}

TEST(EndpointTest, AnEndOfFileIsReportedWithin50Ms) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  double best_ms = 1e9;
  for (size_t i = 0; i < 8; ++i) {
    RawPeer raw(d);
    ASSERT_TRUE(raw.Introduce("raw-" + std::to_string(i), Incarnation(100 + i)));
    ASSERT_TRUE(d.sink->WaitUp(i + 1));
    const auto start = std::chrono::steady_clock::now();
    // Half closed is closed: nobody who wants an answer stops talking.
    if (i % 2 == 0) raw.HalfClose();
    if (i % 2 == 1) raw.Hangup();
    ASSERT_TRUE(d.sink->WaitDown(i + 1));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    best_ms = std::min(best_ms, took.count());
  }
  // The best of eight: other programs share the machine.
  EXPECT_LT(best_ms, 50.0);
}

TEST(EndpointTest, SilentStrangersAndHalfFramesAreHungUpOn) {
  Rig rig(TransportKind::kTcp);
  rig.tweak = [](KvEndpointOptions* options) {
    options->timers.hello_us = 300'000;
    options->timers.frame_gap_us = 300'000;
  };
  Worker d = rig.MakeDecode("decode-0");
  RawPeer silent(d);
  EXPECT_TRUE(silent.WaitEnd());
  EXPECT_TRUE(WaitClose(d, CloseReason::kHelloTimeout));
  RawPeer half(d);
  ASSERT_TRUE(half.Introduce("half", Incarnation(5)));
  half.Send(std::vector<std::byte>{std::byte{'B'}, std::byte{'T'}, std::byte{'K'}});
  EXPECT_TRUE(half.WaitEnd());
  EXPECT_TRUE(WaitClose(d, CloseReason::kFrameGap));
  // Half a slice: the block goes back without a trace in the counts.
  const Incarnation self(6);
  RawPeer slow(d);
  ASSERT_TRUE(slow.Introduce("slow", self));
  const Transfer transfer = MakeTransfer(1, 1, 0, 2);
  ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, self)).ok());
  std::vector<std::byte> frame(kFrameHeaderBytes + 100);
  EncodeFrameHeader(
      SliceFrameHeader(SlicesOf(transfer, d.blocks())[0], slow.epoch(), SmallLayout().SliceBytes()),
      std::span(frame).first<kFrameHeaderBytes>());
  slow.Send(frame);
  EXPECT_TRUE(slow.WaitEnd());
  EXPECT_TRUE(WaitClose(d, CloseReason::kFrameGap, 2));
  d.transport->CloseReceive(transfer.id);
  EXPECT_TRUE(d.sink->WaitReceiveClosed(transfer.id));
  EXPECT_EQ(d.transport->Stats().slices_received, 0u);
}

TEST(EndpointTest, APeerThatDoesNotReadStallsNobodyElse) {
  Rig rig(TransportKind::kTcp);
  rig.tweak = [](KvEndpointOptions* options) { options->timers.write_stall_us = 1'000'000; };
  Worker d = rig.MakeDecode("decode-0");
  Worker p = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(p.sink->WaitUp(1));
  RawPeer deaf(d);
  const Incarnation self(99);
  ASSERT_TRUE(deaf.Introduce("deaf", self));
  ASSERT_TRUE(d.sink->WaitUp(2));
  // More than its socket takes, until the limit of its queue says no.
  const std::string message(size_t{1} << 20, 'x');
  Status status;
  for (int i = 0; i < 200 && status.ok(); ++i) status = d.transport->SendControl(self, message);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  ExpectTransferWorks(&p, &d, 1);
  EXPECT_TRUE(WaitClose(d, CloseReason::kWriteStall));
  EXPECT_TRUE(d.sink->WaitDown(1));
  EXPECT_EQ(d.sink->Snapshot().downs[0].first, self);
  ExpectTransferWorks(&p, &d, 2);
}

TEST(EndpointTest, QueuesHaveLimits) {
  Rig rig(TransportKind::kTcp);
  rig.tweak = [](KvEndpointOptions* options) {
    options->limits.max_queued_slices = 10;
    options->limits.max_parked_peers = 2;
    options->limits.max_open_transfers = 3;
    options->limits.max_connections = 2;
    options->limits.max_strangers = 3;
    options->timers.control_ttl_us = 1'000;
  };
  Worker d = rig.MakeDecode("decode-0");
  RawPeer raw(d);
  ASSERT_TRUE(raw.Introduce("raw", Incarnation(5)));
  ASSERT_TRUE(d.sink->WaitUp(1));
  const std::vector<SliceRef> slices(11);
  EXPECT_EQ(d.transport->SendSlices(Incarnation(5), slices).code(), StatusCode::kResourceExhausted);
  // Messages for absent peers expire and make room again.
  EXPECT_TRUE(d.transport->SendControl(Incarnation(6), "a").ok());
  EXPECT_TRUE(Eventually([&] { return d.transport->Stats().controls_expired == 1; }));
  EXPECT_TRUE(d.transport->SendControl(Incarnation(7), "a").ok());
  EXPECT_TRUE(Eventually([&] { return d.transport->Stats().controls_expired == 2; }));
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_TRUE(d.transport->OpenReceive(SpecFor(MakeTransfer(id, 1, 0, 0), Incarnation(5))).ok());
  }
  const ReceiveSpec fourth = SpecFor(MakeTransfer(4, 1, 0, 0), Incarnation(5));
  EXPECT_EQ(d.transport->OpenReceive(fourth).code(), StatusCode::kResourceExhausted);
  d.transport->CloseReceive(TransferId(2));
  ASSERT_TRUE(d.sink->WaitReceiveClosed(TransferId(2)));
  EXPECT_TRUE(Eventually([&] { return d.transport->OpenReceive(fourth).ok(); }));
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (int i = 0; i < 6; ++i) crowd.push_back(std::make_unique<RawPeer>(d));
  EXPECT_TRUE(WaitClose(d, CloseReason::kTooMany, 3));
  // Peers that are introduced have a limit too, and are told.
  RawPeer second(d);
  ASSERT_TRUE(second.Introduce("second", Incarnation(8)));
  RawPeer third(d);
  EXPECT_FALSE(third.Introduce("third", Incarnation(9)));
  EXPECT_EQ(third.told(), CloseReason::kTooMany);
  // One that comes again needs no place of its own.
  RawPeer again(d);
  EXPECT_TRUE(again.Introduce("second", Incarnation(10)));
}

TEST(EndpointTest, AutoPrefersSharedMemoryAndFallsBack) {
  Rig rig(TransportKind::kAuto);
  Worker d = rig.MakeDecode("decode-0");
  Worker p = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(p.sink->WaitUp(1));
  EXPECT_EQ(p.sink->Snapshot().ups[0].kind, TransportKind::kShm);
  ExpectTransferWorks(&p, &d, 1);

  Worker far = rig.MakePrefill("prefill-1", {});
  PeerAddress peer{"decode-0", d.incarnation, "another host", d.endpoint->tcp_address(),
                   d.endpoint->unix_name()};
  ASSERT_TRUE(far.endpoint->SetPeers({&peer, 1}).ok());
  ASSERT_TRUE(far.sink->WaitUp(1));
  EXPECT_EQ(far.sink->Snapshot().ups[0].kind, TransportKind::kTcp);
  ExpectTransferWorks(&far, &d, 2);

  Worker unlucky = rig.MakePrefill("prefill-2", {});
  peer.host_id = HostId();
  peer.unix_name = "baton-nobody-listens-here";
  ASSERT_TRUE(unlucky.endpoint->SetPeers({&peer, 1}).ok());
  ASSERT_TRUE(unlucky.sink->WaitUp(1));
  EXPECT_EQ(unlucky.sink->Snapshot().ups[0].kind, TransportKind::kTcp);
  EXPECT_GE(Closes(unlucky, CloseReason::kUnreachable), 1u);
}

// Why there is no connection with a peer.
std::string FailureOf(const Worker& p, std::string_view worker_id) {
  for (const LinkInfo& link : p.transport->Links()) {
    if (link.worker_id == worker_id) return link.last_failure;
  }
  return "no such peer";
}

// And a name with two addresses is reached at the one where the peer listens.
TEST(EndpointTest, ANameThatIsLookedUpForLongKeepsNobodyElseWaiting) {
  Rig rig(TransportKind::kTcp);
  Worker named = rig.MakeDecode("decode-0");
  Worker literal = rig.MakeDecode("decode-1");
  const std::string port = named.endpoint->tcp_address().substr(sizeof("127.0.0.1:") - 1);
  absl::Notification answers;
  std::atomic<int> num_asked = 0;
  rig.tweak = [&](KvEndpointOptions* options) {
    options->resolve = [&](std::string_view text) {
      EXPECT_EQ(text, "decode.example:" + port);
      ++num_asked;
      answers.WaitForNotification();
      std::vector<SocketAddress> found = ResolveTcp("127.0.0.2:" + port).value();
      found.push_back(ResolveTcp("127.0.0.1:" + port)->front());
      return StatusOr<std::vector<SocketAddress>>(std::move(found));
    };
  };
  Worker p = rig.MakePrefill("prefill-0", {});
  const std::vector<PeerAddress> peers = {
      {"decode-0", named.incarnation, "another host", "decode.example:" + port, ""},
      {"decode-1", literal.incarnation, "another host", literal.endpoint->tcp_address(), ""}};
  std::thread resolver([&] { EXPECT_TRUE(p.endpoint->SetPeers(peers).ok()); });
  absl::Cleanup answer = [&] {
    answers.Notify();
    resolver.join();
  };
  ASSERT_TRUE(p.sink->WaitUp(1));
  EXPECT_EQ(p.sink->Snapshot().ups[0].peer, literal.incarnation);
  EXPECT_TRUE(
      Eventually([&] { return FailureOf(p, "decode-0") == "its name is being looked up"; }));
  std::move(answer).Invoke();
  ASSERT_TRUE(p.sink->WaitUp(2));
  ExpectTransferWorks(&p, &named, 1);
  EXPECT_TRUE(p.endpoint->SetPeers(peers, [] { return true; }).ok());
  EXPECT_EQ(num_asked, 1) << "an old list asks for no name";
}

TEST(EndpointTest, EachNameHasItsTurnHoweverSoonTheListIsOld) {
  Rig rig(TransportKind::kTcp);
  std::string asked;
  rig.tweak = [&](KvEndpointOptions* options) {
    options->resolve = [&](std::string_view text) -> StatusOr<std::vector<SocketAddress>> {
      asked += text.front();
      return Unavailable("nobody knows {}", text);
    };
  };
  Worker p = rig.MakePrefill("prefill-0", {});
  const std::vector<PeerAddress> peers = {{"decode-0", Incarnation(1), "far", "a.example:1", ""},
                                          {"decode-1", Incarnation(2), "far", "b.example:1", ""},
                                          {"decode-2", Incarnation(3), "far", "c.example:1", ""}};
  for (int call = 0; call < 5; ++call) {
    bool is_old = false;
    const Status status = p.endpoint->SetPeers(peers, [&] { return std::exchange(is_old, true); });
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  EXPECT_EQ(asked, "abcab");
  // The failure that is known of a name is told while the name is asked for again.
  EXPECT_TRUE(Eventually([&] { return FailureOf(p, "decode-2") == "nobody knows c.example:1"; }));
}

TEST(EndpointTest, APairWithNothingInCommonSaysSo) {
  Rig tcp_rig(TransportKind::kTcp);
  Worker d = tcp_rig.MakeDecode("decode-0");
  Rig shm_rig(TransportKind::kShm);
  Worker p = shm_rig.MakePrefill("prefill-0", {&d});
  EXPECT_TRUE(Eventually([&] {
    const std::vector<LinkInfo> links = p.transport->Links();
    return links.size() == 1 &&
           links[0].last_failure.find("no transport in common") != std::string::npos;
  }));
}

TEST(EndpointTest, AnArenaThatIsNotSealedIsRefused) {
  Rig rig(TransportKind::kShm);
  Worker d = rig.MakeDecode("decode-0");
  auto arena = MakeArena(SmallLayout(), 4);
  RawPeer without(d, true);
  EXPECT_FALSE(without.Introduce("a", Incarnation(1)));
  EXPECT_EQ(without.told(), CloseReason::kArena);
  RawPeer wrong_size(d, true);
  EXPECT_FALSE(wrong_size.Introduce("b", Incarnation(2), arena->fd(), 5));
  RawPeer no_memory_file(d, true);
  EXPECT_FALSE(no_memory_file.Introduce("c", Incarnation(3), 0, 4));
  // Counted after the peer is told.
  EXPECT_TRUE(WaitClose(d, CloseReason::kArena, 3));
  RawPeer right(d, true);
  EXPECT_TRUE(right.Introduce("d", Incarnation(4), arena->fd(), 4));
  ASSERT_TRUE(d.sink->WaitUp(1));
  // A source block beyond the arena is refused, its neighbours are taken.
  const Transfer transfer = MakeTransfer(1, 1, 3, 2);
  ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, Incarnation(4))).ok());
  ASSERT_TRUE(d.transport->SendControl(Incarnation(4), "sync").ok());
  std::vector<std::byte> control;
  ASSERT_TRUE(right.Receive(&control).has_value());
  for (SliceRef slice : SlicesOf(transfer, arena->memory())) {
    right.SendFrame(SliceFrameHeader(slice, right.epoch(), 0));
    slice.source = BlockIndex(4);
    right.SendFrame(SliceFrameHeader(slice, right.epoch(), 0));
  }
  ASSERT_TRUE(d.sink->WaitComplete(transfer.id));
  EXPECT_TRUE(Arrived(transfer, arena->memory(), d.blocks()));
  EXPECT_TRUE(Eventually([&] { return Refused(d, BadSliceReason::kOutOfRange) == 3; }));
}

TEST(EndpointTest, ASourceBlockWithoutMemoryIsRefusedUntilItHasSome) {
  Rig rig(TransportKind::kShm);
  Worker d = rig.MakeDecode("decode-0");
  KvArenaOptions options;
  options.num_ready = 1;
  const auto arena = KvArena::Create(SmallLayout(), 64, options);
  ASSERT_TRUE(arena.ok()) << arena.status();
  RawPeer peer(d, true);
  ASSERT_TRUE(peer.Introduce("a", Incarnation(4), (*arena)->fd(), 64));
  ASSERT_TRUE(d.sink->WaitUp(1));
  const Transfer transfer = MakeTransfer(1, 1, 63, 2);
  ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, Incarnation(4))).ok());
  ASSERT_TRUE(d.transport->SendControl(Incarnation(4), "sync").ok());
  std::vector<std::byte> control;
  ASSERT_TRUE(peer.Receive(&control).has_value());
  std::vector<SliceRef> slices = SlicesOf(transfer, MakeArena(SmallLayout(), 64)->memory());
  const auto num_slices = static_cast<uint64_t>(slices.size());
  for (const SliceRef& slice : slices) peer.SendFrame(SliceFrameHeader(slice, peer.epoch(), 0));
  ASSERT_TRUE(Eventually([&] { return Refused(d, BadSliceReason::kOutOfRange) == num_slices; }));
  EXPECT_LT(AllocatedBytes((*arena)->fd()), (*arena)->size_bytes() / 2) << "no hole was read";
  (void)(*arena)->Extend(64);
  FillSource(transfer, (*arena)->memory(), 1);
  slices = SlicesOf(transfer, (*arena)->memory());
  for (const SliceRef& slice : slices) peer.SendFrame(SliceFrameHeader(slice, peer.epoch(), 0));
  ASSERT_TRUE(d.sink->WaitComplete(transfer.id));
  EXPECT_TRUE(Arrived(transfer, (*arena)->memory(), d.blocks()));
}

TEST(EndpointTest, BadOptionsAndBusyPortsAreAnswered) {
  const auto arena = MakeArena(SmallLayout(), 1);
  KvEndpointOptions options;
  options.worker_id = "w";
  options.incarnation = Incarnation(1);
  options.listen = "127.0.0.1:0";
  const auto first = KvEndpoint::Create(options, arena.get());
  ASSERT_TRUE(first.ok());
  options.incarnation = Incarnation(2);
  options.listen = (*first)->tcp_address();
  const auto busy = KvEndpoint::Create(options, arena.get());
  EXPECT_EQ(busy.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(busy.status().message()), HasSubstr(options.listen));
  for (const char* const address : {"nonsense", ":1", "127.0.0.1:", "127.0.0.1:65536", "a:b"}) {
    options.listen = address;
    EXPECT_EQ(KvEndpoint::Create(options, arena.get()).status().code(),
              StatusCode::kInvalidArgument)
        << address;
  }
  options.listen = "";
  options.worker_id = "no spaces";
  EXPECT_EQ(KvEndpoint::Create(options, arena.get()).status().code(), StatusCode::kInvalidArgument);
}

TEST(FaultTransportTest, EveryTransferIsRepairedByResending) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  Worker p = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(p.sink->WaitUp(1));
  const FaultRatios ratios{
      .drop_slice = 0.1, .duplicate_slice = 0.1, .corrupt_slice = 0.1, .delay_slice = 0.1};
  FaultTransport faulty(p.transport.get(), ratios, TestSeed());
  const Transfer transfer = MakeTransfer(1, 32, 0, 32);
  FillSource(transfer, p.blocks(), 1);
  ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, p.incarnation)).ok());
  ASSERT_TRUE(d.transport->SendControl(p.incarnation, "grant").ok());
  ASSERT_TRUE(p.sink->WaitControls(1));
  // A sender that resends everything until it is complete gets there: 96 slices, each lost 2 in 10.
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(faulty.SendSlices(d.incarnation, SlicesOf(transfer, p.blocks())).ok());
    faulty.Release();
    return d.sink->Snapshot().complete.count(1) > 0;
  }));
  EXPECT_TRUE(Arrived(transfer, p.blocks(), d.blocks()));
  const FaultCounts counts = faulty.Counts();
  EXPECT_GT(counts.dropped, 0u);
  EXPECT_GT(counts.duplicated, 0u);
  EXPECT_GT(counts.corrupted, 0u);
  EXPECT_GT(counts.delayed, 0u);
}

TEST(FaultTransportTest, EqualSeedsGiveEqualFaults) {
  LocalHub hub(false);
  const auto arena = MakeArena(SmallLayout(), 4);
  FaultCounts counts[2];
  for (FaultCounts& count : counts) {
    const auto inner = hub.Attach("w", Incarnation(1), arena.get());
    FaultTransport faulty(inner.get(), {.drop_slice = 0.5}, 42);
    std::vector<SliceRef> slices(1000);
    // No peer is there: the faults are dealt before that is found out.
    EXPECT_FALSE(faulty.SendSlices(Incarnation(2), slices).ok());
    count = faulty.Counts();
  }
  EXPECT_EQ(counts[0].dropped, counts[1].dropped);
  EXPECT_NEAR(static_cast<double>(counts[0].dropped), 500, 100);
}

TEST(LocalTransportTest, BlocksOfTheHostAndOfADeviceAreNotPaired) {
  LocalHub hub(false);
  const auto arena = MakeArena(SmallLayout(), 4);
  const nccl_test::KvDevice device = nccl_test::MakeKvDevice({}, SmallLayout(), 4);
  auto puller = SlicePuller::Create(device.parts, 1, 4);
  ASSERT_TRUE(puller.ok());
  RecordingSink sinks[2];
  const auto p = hub.Attach("p", Incarnation(1), arena.get());
  const auto d = hub.Attach({.worker_id = "d",
                             .incarnation = Incarnation(2),
                             .memory = device.parts.memory,
                             .puller = *std::move(puller)});
  ASSERT_TRUE(p->Start(&sinks[0]).ok());
  ASSERT_TRUE(d->Start(&sinks[1]).ok());
  hub.Pump();
  EXPECT_TRUE(sinks[0].Snapshot().ups.empty());
  EXPECT_TRUE(p->Links().empty() && d->Links().empty());
  p->Stop();
  d->Stop();
}

TEST(LocalTransportTest, APumpedHubWorksOnTheCallersThreadAndClock) {
  FakeClock clock;
  LocalHub hub(false, &clock);
  const auto p_arena = MakeArena(SmallLayout(), 4);
  const auto d_arena = MakeArena(SmallLayout(), 4);
  RecordingSink p_sink;
  RecordingSink d_sink;
  const auto p = hub.Attach("p", Incarnation(1), p_arena.get());
  const auto d = hub.Attach("d", Incarnation(2), d_arena.get());
  ASSERT_TRUE(p->Start(&p_sink).ok());
  ASSERT_TRUE(d->Start(&d_sink).ok());
  EXPECT_TRUE(d_sink.Snapshot().ups.empty());
  ASSERT_TRUE(d->SendControl(Incarnation(9), "to nobody").ok());
  while (hub.Pump()) {
  }
  EXPECT_EQ(d_sink.Snapshot().ups.size(), 1u);
  const Transfer transfer = MakeTransfer(1, 4, 0, 0);
  FillSource(transfer, p_arena->memory(), 1);
  ASSERT_TRUE(d->OpenReceive(SpecFor(transfer, Incarnation(1))).ok());
  while (hub.Pump()) {
  }
  ASSERT_TRUE(p->SendSlices(Incarnation(2), SlicesOf(transfer, p_arena->memory())).ok());
  while (hub.Pump()) {
  }
  EXPECT_EQ(d_sink.Snapshot().complete.count(1), 1u);
  EXPECT_TRUE(Arrived(transfer, p_arena->memory(), d_arena->memory()));
  EXPECT_EQ(d->Stats().controls_expired, 0u);
  clock.AdvanceMs(2001);
  hub.Pump();
  EXPECT_EQ(d->Stats().controls_expired, 1u);
}

}  // namespace
}  // namespace baton::kv::test
