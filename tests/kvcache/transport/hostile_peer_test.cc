// Attacks on a data connection by a stranger, an older or newer peer, or one that repeats what it
// overheard. Each is refused with a counted reason, and nobody else notices.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/socket_io.h"
#include "src/base/check.h"
#include "src/base/unique_fd.h"
#include "src/base/xxh3.h"
#include "tests/kvcache/transport/raw_peer.h"
#include "tests/kvcache/transport/test_rig.h"

namespace baton::kv::test {
namespace {

// A header as bytes, with fields of our choice and the right checksum.
std::vector<std::byte> RawHeader(FrameHeader header, size_t offset = 0, uint8_t value = 0) {
  std::vector<std::byte> bytes(kFrameHeaderBytes);
  EncodeFrameHeader(header, std::span<std::byte, kFrameHeaderBytes>(bytes));
  if (offset > 0) bytes[offset] = std::byte{value};
  const uint64_t checksum = Xxh3Hash64(bytes.data(), 56);
  for (size_t i = 0; i < 8; ++i) bytes[56 + i] = static_cast<std::byte>(checksum >> (8 * i));
  return bytes;
}

// More silent dials than there are places, again and again: a peer that knows the secret gets in.
TEST(HostilePeerTest, AFloodOfStrangersShutsNoPeerOut) {
  Rig rig(TransportKind::kTcp);
  rig.tweak = [](KvEndpointOptions* options) { options->timers.hello_us = 20'000'000; };
  Worker d = rig.MakeDecode("decode-0");
  Worker before = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(before.sink->WaitUp(1));
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(std::make_unique<RawPeer>(d));
  Worker after = rig.MakePrefill("prefill-1", {&d});
  EXPECT_TRUE(after.sink->WaitUp(1)) << "the strangers took every place";
  for (int i = 0; i < 100; ++i) crowd.push_back(std::make_unique<RawPeer>(d));
  ExpectTransferWorks(&before, &d, 1);
  ExpectTransferWorks(&after, &d, 2);
  // All but the last few were refused to make room, and counted.
  const KvEndpointLimits limits;
  EXPECT_TRUE(WaitClose(d, CloseReason::kTooMany, 400 - limits.max_strangers_per_address));
  EXPECT_TRUE(crowd.front()->WaitEnd());
  EXPECT_EQ(crowd.front()->told(), CloseReason::kTooMany);
  EXPECT_TRUE(before.sink->Snapshot().downs.empty());
  EXPECT_TRUE(after.sink->Snapshot().downs.empty());
}

// A peer in the middle of its introduction is a stranger, too: it is not refused while younger ones
// are few.
TEST(HostilePeerTest, FewStrangersDisturbNoIntroduction) {
  Rig rig(TransportKind::kTcp);
  rig.tweak = [](KvEndpointOptions* options) { options->timers.hello_us = 20'000'000; };
  Worker d = rig.MakeDecode("decode-0");
  RawPeer slow(d);
  std::vector<std::unique_ptr<RawPeer>> crowd;
  const KvEndpointLimits limits;
  for (uint32_t i = 0; i + 1 < limits.max_strangers_per_address; ++i) {
    crowd.push_back(std::make_unique<RawPeer>(d));
  }
  EXPECT_TRUE(slow.Introduce("slow", Incarnation(5)));
  EXPECT_EQ(Closes(d, CloseReason::kTooMany), 0u);
}

TEST(HostilePeerTest, OtherWireVersionsAreRefusedByName) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  Worker p = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(p.sink->WaitUp(1));
  struct Case {
    uint32_t min;
    uint32_t max;
    bool fits;
  };
  constexpr WireRange kOwn = kWireVersions;
  const Case cases[] = {{kOwn.max + 1, kOwn.max + 1, false},
                        {kOwn.max + 1, UINT32_MAX, false},
                        {kOwn.min, kOwn.max + 1, true},
                        {1, kOwn.max, true}};
  uint64_t num_refused = 0;
  uint64_t self = 0x100;
  for (const Case& c : cases) {
    RawPeer raw(d);
    raw.tweak = [&c](HandshakeOptions* options) { options->self.wire = {c.min, c.max}; };
    EXPECT_EQ(raw.Introduce("raw", Incarnation(++self)), c.fits) << c.min << ".." << c.max;
    if (c.fits) continue;
    EXPECT_EQ(raw.told(), CloseReason::kWireVersion);
    EXPECT_TRUE(raw.WaitEnd());
    EXPECT_TRUE(WaitClose(d, CloseReason::kWireVersion, ++num_refused));
  }
  // The headers of a later format, or versions that contradict each other, are no protocol at all.
  RawPeer newer(d);
  newer.Send(RawHeader({.kind = FrameKind::kHello}, 4, 2));
  EXPECT_TRUE(newer.WaitEnd());
  EXPECT_EQ(newer.told(), CloseReason::kProtocol);
  ExpectTransferWorks(&p, &d, 1);
}

// The introduction of a version that nobody here knows: longer than today's, and the rest is its
// own.
std::vector<std::byte> LaterIntroduction(size_t size) {
  Introduction intro;
  intro.wire = {.min = kWireVersions.max + 1, .max = kWireVersions.max + 2};
  intro.incarnation = Incarnation(1);
  intro.worker_id = "later";
  std::vector<std::byte> bytes(kIntroductionBytes);
  EncodeIntroduction(intro, std::span<std::byte, kIntroductionBytes>(bytes));
  bytes.resize(size, std::byte{0xff});
  return bytes;
}

TEST(HostilePeerTest, ALongerIntroductionIsRefusedForItsVersion) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  RawPeer dialler(d);
  dialler.SendFrame({.kind = FrameKind::kHello}, LaterIntroduction(500));
  EXPECT_TRUE(dialler.WaitEnd());
  EXPECT_EQ(dialler.told(), CloseReason::kWireVersion);
  EXPECT_TRUE(WaitClose(d, CloseReason::kWireVersion));
  // The other way round: it accepts, and answers our hello.
  Worker p = rig.MakePrefill("prefill-0", {});
  const StatusOr<UniqueFd> listener = ListenOn(ResolveTcp("127.0.0.1:0")->front(), "a free port");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const PeerAddress later = {"decode-9", Incarnation(9), "", BoundTcpAddress(listener->get()), ""};
  ASSERT_TRUE(p.endpoint->SetPeers({&later, 1}).ok());
  RawPeer acceptor(listener->get());
  acceptor.SendFrame({.kind = FrameKind::kHelloAck}, LaterIntroduction(600));
  EXPECT_TRUE(WaitClose(p, CloseReason::kWireVersion));
  EXPECT_TRUE(acceptor.WaitEnd());
  EXPECT_EQ(acceptor.told(), CloseReason::kWireVersion);
}

TEST(HostilePeerTest, FramesOutOfTurnOrTooLargeEndTheirConnection) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  Worker p = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(p.sink->WaitUp(1));
  FrameHeader slice = SliceFrameHeader({.transfer = TransferId(1)}, 0, 0);
  FrameHeader control{.kind = FrameKind::kControl};
  FrameHeader hello{.kind = FrameKind::kHello};
  struct Case {
    const char* name;
    bool introduced;
    std::vector<std::byte> bytes;
  };
  const Case cases[] = {
      {"a slice before the introduction", false, RawHeader(slice)},
      {"a control message before it", false, RawHeader(control)},
      {"a proof first", false, RawHeader({.kind = FrameKind::kHelloProof})},
      {"a hello of 160 MiB", false, RawHeader(hello, 47, 10)},
      {"another hello", true, RawHeader(hello)},
      {"a welcome", true, RawHeader({.kind = FrameKind::kWelcome})},
      {"a control message of 4 GiB", true, RawHeader(control, 47, 0xff)},
      {"a slice of 128 MiB", true,
       RawHeader(SliceFrameHeader({.transfer = TransferId(1)}, 0, 1), 47, 8)},
      {"an unknown kind", true, RawHeader(control, 6, 99)},
      {"a control message of another epoch", true, RawHeader(control)},
  };
  uint64_t num_closed = 0;
  uint64_t self = 0x200;
  for (const Case& c : cases) {
    RawPeer raw(d);
    if (c.introduced) {
      ASSERT_TRUE(raw.Introduce("raw-" + std::to_string(self), Incarnation(self)));
    }
    ++self;
    raw.Send(c.bytes);
    EXPECT_TRUE(raw.WaitEnd()) << c.name;
    EXPECT_EQ(raw.told(), CloseReason::kProtocol) << c.name;
    EXPECT_TRUE(WaitClose(d, CloseReason::kProtocol, ++num_closed)) << c.name;
  }
  EXPECT_EQ(Closes(d, CloseReason::kProtocol), num_closed);
  EXPECT_TRUE(p.sink->Snapshot().downs.empty());
  ExpectTransferWorks(&p, &d, 1);
}

TEST(HostilePeerTest, RangesBeyondTheTablesAreCountedAndReadToTheirEnd) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  const Incarnation self(77);
  RawPeer raw(d);
  ASSERT_TRUE(raw.Introduce("raw", self));
  const Transfer transfer = MakeTransfer(1, 2, 0, 2);
  ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, self)).ok());
  ASSERT_TRUE(d.transport->SendControl(self, "sync").ok());
  std::vector<std::byte> control;
  ASSERT_TRUE(raw.Receive(&control).has_value());
  const std::vector<std::byte> bytes(SmallLayout().SliceBytes(), std::byte{1});
  SliceRef good;
  good.transfer = transfer.id;
  good.attempt = transfer.attempt;
  good.generation = transfer.dest[0].generation;
  const std::function<void(SliceRef*)> changes[] = {
      [](SliceRef* s) { s->ordinal = 2; },
      [](SliceRef* s) { s->ordinal = UINT32_MAX; },
      [](SliceRef* s) { s->layer = 3; },
      [](SliceRef* s) { s->layer = UINT32_MAX; },
      [](SliceRef* s) { s->attempt = 2; },
      [](SliceRef* s) { s->attempt = 0; },
      [](SliceRef* s) { s->generation += 1; },
      [](SliceRef* s) { s->generation -= 1; },
      [](SliceRef* s) { s->transfer = TransferId(2); },
      [](SliceRef* s) { s->transfer = TransferId(UINT64_MAX); },
  };
  for (const auto& change : changes) {
    SliceRef slice = good;
    change(&slice);
    slice.checksum = 1;
    raw.SendFrame(SliceFrameHeader(slice, raw.epoch(), 1), bytes);
  }
  raw.SendFrame({.kind = FrameKind::kControl, .epoch = raw.epoch()}, {std::byte{'x'}});
  ASSERT_TRUE(d.sink->WaitControls(1)) << "the stream went out of step";
  EXPECT_EQ(Refused(d, BadSliceReason::kOutOfRange), 4u);
  EXPECT_EQ(Refused(d, BadSliceReason::kWrongAttempt), 2u);
  EXPECT_EQ(Refused(d, BadSliceReason::kStaleGeneration), 2u);
  EXPECT_EQ(Refused(d, BadSliceReason::kUnknownTransfer), 2u);
  EXPECT_EQ(d.transport->Stats().slices_received, 0u);
  // Only what is of an open transfer is reported to its owner.
  EXPECT_EQ(d.sink->Snapshot().bad_slices.size(), 2u);
}

// An arena of four thousand million blocks is claimed beside the descriptor of a small one.
TEST(HostilePeerTest, AHugeArenaThatIsNotThereIsRefused) {
  Rig rig(TransportKind::kShm);
  Worker d = rig.MakeDecode("decode-0");
  const auto arena = MakeArena(SmallLayout(), 4);
  RawPeer raw(d, true);
  EXPECT_FALSE(raw.Introduce("raw", Incarnation(1), arena->fd(), UINT32_MAX));
  EXPECT_EQ(raw.told(), CloseReason::kArena);
  EXPECT_TRUE(WaitClose(d, CloseReason::kArena));
}

TEST(HostilePeerTest, ADialThatIsClosedHalfwayIsOverAtOnce) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  RawPeer silent(d);
  silent.HalfClose();
  EXPECT_TRUE(silent.WaitEnd());
  RawPeer half(d);
  std::vector<std::byte> bytes = RawHeader({.kind = FrameKind::kHello});
  bytes.resize(30);
  half.Send(bytes);
  half.HalfClose();
  EXPECT_TRUE(half.WaitEnd());
  EXPECT_TRUE(WaitClose(d, CloseReason::kPeerClosed, 2));
  EXPECT_TRUE(d.sink->Snapshot().ups.empty());
}

// A whole session as it went over the wire, said again by somebody who only overheard it.
TEST(HostilePeerTest, ARecordedSessionOpensNothing) {
  Rig rig(TransportKind::kTcp);
  Worker d = rig.MakeDecode("decode-0");
  const Incarnation self(77);
  const Transfer transfer = MakeTransfer(1, 1, 0, 2);
  std::vector<std::byte> slices;
  std::vector<std::byte> recorded;
  {
    RawPeer raw(d);
    ASSERT_TRUE(raw.Introduce("raw", self));
    ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, self)).ok());
    ASSERT_TRUE(d.transport->SendControl(self, "sync").ok());
    std::vector<std::byte> control;
    ASSERT_TRUE(raw.Receive(&control).has_value());
    const size_t introduction_bytes = raw.sent().size();
    const std::vector<std::byte> bytes(SmallLayout().SliceBytes(), std::byte{3});
    for (uint32_t layer = 0; layer < SmallLayout().num_layers; ++layer) {
      const SliceRef slice{.transfer = transfer.id,
                           .attempt = transfer.attempt,
                           .layer = layer,
                           .generation = transfer.dest[0].generation};
      raw.SendFrame(SliceFrameHeader(slice, raw.epoch(), 1), bytes);
    }
    raw.SendFrame({.kind = FrameKind::kControl, .epoch = raw.epoch()}, {std::byte{'x'}});
    ASSERT_TRUE(d.sink->WaitComplete(transfer.id));
    recorded = raw.sent();
    slices.assign(recorded.begin() + static_cast<std::ptrdiff_t>(introduction_bytes),
                  recorded.end() - static_cast<std::ptrdiff_t>(kFrameHeaderBytes + 1));
  }
  ASSERT_TRUE(d.sink->WaitDown(1));
  // The proof answers another nonce.
  RawPeer thief(d);
  thief.Send(recorded);
  EXPECT_TRUE(thief.WaitEnd());
  EXPECT_TRUE(WaitClose(d, CloseReason::kWrongSecret));
  EXPECT_EQ(d.sink->Snapshot().ups.size(), 1u);
  EXPECT_EQ(d.sink->Snapshot().controls.size(), 1u);
  // A peer that is let in again may not go on with frames of its former connection.
  const uint64_t received = d.transport->Stats().slices_received;
  RawPeer again(d);
  ASSERT_TRUE(again.Introduce("raw", self));
  again.Send(slices);
  EXPECT_TRUE(Eventually(
      [&] { return Refused(d, BadSliceReason::kWrongEpoch) == SmallLayout().num_layers; }));
  EXPECT_EQ(d.transport->Stats().slices_received, received);
}

// Pipes, whose other ends know when nobody has a descriptor of this one any more.
struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    BATON_CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
    reads = UniqueFd(ends[0]);
    writes = UniqueFd(ends[1]);
  }
  // At the end of the file.
  bool IsClosed() const {
    char byte = 0;
    return read(reads.get(), &byte, 1) == 0;
  }

  UniqueFd reads;
  UniqueFd writes;
};

TEST(HostilePeerTest, DescriptorsBeyondWhatIsTakenAreClosed) {
  for (const size_t max : {size_t{1}, size_t{3}, kMaxPassedFds}) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd sender(ends[0]);
    const UniqueFd receiver(ends[1]);
    Pipe pipes[kMaxPassedFds];
    std::vector<int> numbers;
    for (const Pipe& passed : pipes) numbers.push_back(passed.writes.get());
    char byte = 'x';
    iovec part{&byte, 1};
    ASSERT_EQ(SendParts(sender.get(), {&part, 1}, numbers).bytes, 1u);
    for (Pipe& passed : pipes) passed.writes.reset();
    PassedFds taken{.max = max, .fds = {}};
    ASSERT_EQ(ReceiveParts(receiver.get(), {&part, 1}, &taken).bytes, 1u);
    ASSERT_EQ(taken.fds.size(), max);
    for (size_t i = 0; i < kMaxPassedFds; ++i) EXPECT_EQ(pipes[i].IsClosed(), i >= max) << i;
    // In their order.
    for (size_t i = 0; i < max; ++i) {
      taken.fds[i].reset();
      EXPECT_TRUE(pipes[i].IsClosed()) << i;
    }
  }
}

}  // namespace
}  // namespace baton::kv::test
