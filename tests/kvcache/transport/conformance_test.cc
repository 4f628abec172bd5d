// Tests that every implementation keeps the promises of KvTransport. The implementations are local
// (in host memory and in the memory of a device), shm, tcp, and tcp with TLS. NCCL (the loopback)
// and CUDA IPC run between workers of one rank and of several. Transports of device memory run on
// fake accelerators and on runners of the CUDA kernels.

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/count_open_files.h"
#include "tests/kvcache/transport/test_rig.h"
#include "tests/test_seed.h"
#include "tests/tls/test_certs.h"

namespace baton::kv::test {

using limits::kMaxBlocksPerTransfer;
using limits::kMaxControlBytes;
using tls::TlsFiles;
using tls::test::TempFolder;
using tls::test::TestAuthority;

namespace {

constexpr std::byte kCanary{0xA5};

// An implementation.
struct Kind {
  TransportKind kind;
  bool tls = false;
  bool on_device = false;  // local; the others say it by their kind
  bool on_runner = false;
  uint32_t prefill_ranks = 1;
  uint32_t decode_ranks = 1;
};

class ConformanceTest : public testing::TestWithParam<Kind> {
 protected:
  static std::unique_ptr<Rig> MakeRig(const KvLayout& layout = SmallLayout(),
                                      uint32_t num_blocks = 64) {
    auto rig = std::make_unique<Rig>(GetParam().kind, layout, num_blocks);
    rig->on_device = GetParam().on_device;
    rig->on_runner = GetParam().on_runner;
    rig->prefill_ranks = GetParam().prefill_ranks;
    rig->decode_ranks = GetParam().decode_ranks;
    if (GetParam().tls) {
      static const TempFolder folder;
      static const TlsFiles files = TestAuthority().Issue(folder, "worker");
      rig->tweak = [](KvEndpointOptions* options) { options->tls = files; };
    }
    return rig;
  }
  void MakePair(const KvLayout& layout = SmallLayout(), uint32_t num_blocks = 64) {
    rig_ = MakeRig(layout, num_blocks);
    d_ = rig_->MakeDecode("decode-0");
    p_ = rig_->MakePrefill("prefill-0", {&d_});
    ASSERT_TRUE(p_.sink->WaitUp(1));
    ASSERT_TRUE(d_.sink->WaitUp(1));
  }

  // A slice takes the runner a millisecond, and its way is the fake's: fewer layers and rounds.
  static KvLayout LargeLayout() {
    KvLayout layout = ModelLayout();
    if (GetParam().on_runner) layout.num_layers = 3;
    if (std::max(GetParam().prefill_ranks, GetParam().decode_ranks) > 1) {
      layout.num_kv_heads = 4;
      layout.head_dim = 48;
    }
    return layout;
  }
  static uint64_t Rounds(uint64_t count) {
    return GetParam().on_runner ? std::max<uint64_t>(2, count / 50) : count;
  }

  // Opens `transfer` at the decode worker and waits until the transport has taken it: a control
  // message of the decode worker's that comes back was sent after it.
  void Open(const Transfer& transfer) {
    ASSERT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, p_.incarnation)).ok());
    SyncDecode();
  }
  void SyncDecode() {
    const size_t before = p_.sink->Snapshot().controls.size();
    ASSERT_TRUE(d_.transport->SendControl(p_.incarnation, "sync").ok());
    ASSERT_TRUE(p_.sink->WaitControls(before + 1));
  }
  // Waits until the decode worker has handled all that the prefill worker sent before: control
  // messages may overtake slices that wait at the prefill worker, so this asks for the counters
  // first.
  void SyncSent(uint64_t slices_sent) {
    ASSERT_TRUE(Eventually([&] { return p_.transport->Stats().slices_sent >= slices_sent; }));
    const size_t before = d_.sink->Snapshot().controls.size();
    ASSERT_TRUE(p_.transport->SendControl(d_.incarnation, "sync").ok());
    ASSERT_TRUE(d_.sink->WaitControls(before + 1));
  }

  uint64_t Refused(BadSliceReason reason) {
    return d_.transport->Stats().bad_slices[static_cast<size_t>(reason)];
  }

  std::unique_ptr<Rig> rig_;
  Worker d_;
  Worker p_;
};

TEST_P(ConformanceTest, PeersLearnOfEachOther) {
  MakePair();
  const PeerUp at_p = p_.sink->Snapshot().ups.front();
  const PeerUp at_d = d_.sink->Snapshot().ups.front();
  EXPECT_EQ(at_p.peer, d_.incarnation);
  EXPECT_EQ(at_p.worker_id, "decode-0");
  EXPECT_EQ(at_p.kind, GetParam().kind);
  EXPECT_EQ(at_p.tls, GetParam().tls);
  EXPECT_TRUE(at_p.dialled);
  EXPECT_FALSE(at_d.dialled);
  EXPECT_EQ(at_d.peer, p_.incarnation);
  EXPECT_EQ(at_d.worker_id, "prefill-0");
  EXPECT_EQ(at_d.kind, GetParam().kind);
  EXPECT_EQ(at_d.tls, GetParam().tls);
  const std::vector<LinkInfo> links = p_.transport->Links();
  ASSERT_EQ(links.size(), 1u);
  EXPECT_TRUE(links[0].up);
  EXPECT_TRUE(links[0].dialled);
  EXPECT_EQ(links[0].kind, GetParam().kind);
  EXPECT_EQ(links[0].tls, GetParam().tls);
}

TEST_P(ConformanceTest, AllSlicesArriveBitEqual) {
  MakePair(LargeLayout(), 40);
  const Transfer transfer = MakeTransfer(1, 32, 3, 5);
  FillSource(transfer, p_.blocks(), 11);
  Open(transfer);
  const std::vector<SliceRef> slices = SlicesOf(transfer, p_.blocks());
  ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, slices).ok());
  ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
  EXPECT_TRUE(Arrived(transfer, p_.blocks(), d_.blocks()));
  const Recorded recorded = d_.sink->Snapshot();
  EXPECT_EQ(recorded.slices_done.at(1), slices.size());
  // Batched: far fewer calls than slices.
  EXPECT_LE(recorded.num_progress.at(1), slices.size() / 8);
  const TransportStats stats = d_.transport->Stats();
  EXPECT_EQ(stats.slices_received, slices.size());
  EXPECT_EQ(stats.bytes_received, slices.size() * LargeLayout().SliceBytes());
  EXPECT_EQ(stats.tls_connections, GetParam().tls ? 1u : 0u);
  EXPECT_EQ(stats.tls_bytes_received, GetParam().tls ? stats.bytes_received : 0u);
  EXPECT_EQ(d_.transport->Links().at(0).bytes_received, stats.bytes_received);
  // A sender may count a batch after its arrival.
  EXPECT_TRUE(Eventually([&] {
    return p_.transport->Links().at(0).bytes_sent == stats.bytes_received;
  })) << p_.transport->Links().at(0).bytes_sent;
}

TEST_P(ConformanceTest, EveryLayerGroupIsReported) {
  MakePair();
  const Transfer transfer = MakeTransfer(1, 8, 0, 8);
  FillSource(transfer, p_.blocks(), 5);
  Open(transfer);
  const std::vector<SliceRef> slices = SlicesOf(transfer, p_.blocks());
  for (uint32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, {&slices[layer * 8], 8}).ok());
    ASSERT_TRUE(d_.sink->WaitFor([&](const Recorded& r) {
      return r.slices_done.count(1) && r.slices_done.at(1) == 8 * (layer + 1);
    }));
    EXPECT_EQ(d_.sink->Snapshot().complete.count(1), layer == 2 ? 1u : 0u);
  }
}

TEST_P(ConformanceTest, OrderAndDuplicatesDoNotMatter) {
  MakePair();
  std::mt19937_64 random(TestSeed());
  for (uint64_t id = 1; id <= 20; ++id) {
    const Transfer transfer = MakeTransfer(id, 1 + random() % 30, 0, 32);
    FillSource(transfer, p_.blocks(), random());
    for (const ReceiveBlock& block : transfer.dest) SetBlock(d_.blocks(), block.index, kCanary);
    Open(transfer);
    std::vector<SliceRef> slices = SlicesOf(transfer, p_.blocks());
    const size_t num_slices = slices.size();
    for (size_t i = 0; i < num_slices; i += 3) slices.push_back(slices[i]);
    std::shuffle(slices.begin(), slices.end(), random);
    for (size_t begin = 0; begin < slices.size();) {
      const size_t count = std::min<size_t>(1 + random() % 16, slices.size() - begin);
      ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, {&slices[begin], count}).ok());
      begin += count;
    }
    ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
    EXPECT_TRUE(Arrived(transfer, p_.blocks(), d_.blocks())) << "transfer " << id;
    d_.transport->CloseReceive(transfer.id);
    ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfer.id));
    ASSERT_TRUE(EndSend(p_, d_.incarnation, transfer.id));
  }
  EXPECT_EQ(d_.sink->Snapshot().events_after_close, 0u);
  EXPECT_TRUE(d_.sink->Snapshot().bad_slices.empty());
}

TEST_P(ConformanceTest, DuplicatesAreCountedAndDoNotTouchTheBlock) {
  MakePair();
  const Transfer transfer = MakeTransfer(1, 2, 0, 2);
  FillSource(transfer, p_.blocks(), 1);
  Open(transfer);
  const std::vector<SliceRef> slices = SlicesOf(transfer, p_.blocks());
  ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, {slices.data(), 5}).ok());
  ASSERT_TRUE(d_.sink->WaitFor(
      [](const Recorded& r) { return r.slices_done.count(1) && r.slices_done.at(1) == 5; }));
  // The slice that is there now must stay, also when the prefill worker's bytes change and are
  // offered again.
  ASSERT_TRUE(EndSend(p_, d_.incarnation, transfer.id));
  FillSlice(p_.blocks(), slices[0].source, slices[0].layer, 99);
  std::vector<SliceRef> again = SlicesOf(transfer, p_.blocks());
  ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, {again.data(), 1}).ok());
  ASSERT_TRUE(Eventually([&] { return Refused(BadSliceReason::kDuplicate) == 1; }));
  EXPECT_FALSE(SameSlice(p_.blocks(), transfer.source[0], d_.blocks(), transfer.dest[0].index, 0));
  EXPECT_TRUE(SameSlice(p_.blocks(), transfer.source[1], d_.blocks(), transfer.dest[1].index, 0));
}

TEST_P(ConformanceTest, ABadSliceIsReportedAndAResendRepairsIt) {
  MakePair();
  const Transfer transfer = MakeTransfer(1, 4, 0, 4);
  FillSource(transfer, p_.blocks(), 3);
  Open(transfer);
  std::vector<SliceRef> slices = SlicesOf(transfer, p_.blocks());
  const SliceRef good = slices[6];
  slices[6].checksum ^= 0x10;
  ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, slices).ok());
  ASSERT_TRUE(d_.sink->WaitFor([](const Recorded& r) { return !r.bad_slices.empty(); }));
  const BadSlice bad = d_.sink->Snapshot().bad_slices[0];
  EXPECT_EQ(bad.transfer, transfer.id);
  EXPECT_EQ(bad.ordinal, good.ordinal);
  EXPECT_EQ(bad.layer, good.layer);
  EXPECT_EQ(bad.reason, BadSliceReason::kBadChecksum);
  SyncSent(slices.size());
  EXPECT_EQ(d_.sink->Snapshot().complete.count(1), 0u);
  EXPECT_EQ(Refused(BadSliceReason::kBadChecksum), 1u);
  ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, {&good, 1}).ok());
  ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
  EXPECT_TRUE(Arrived(transfer, p_.blocks(), d_.blocks()));
}

TEST_P(ConformanceTest, FramesThatDoNotFitAreCountedByReasonAndWriteNothing) {
  MakePair();
  const Transfer transfer = MakeTransfer(1, 2, 0, 10);
  FillSource(transfer, p_.blocks(), 4);
  SetBlock(d_.blocks(), BlockIndex(10), kCanary);
  SetBlock(d_.blocks(), BlockIndex(11), kCanary);
  Open(transfer);
  const SliceRef good = SlicesOf(transfer, p_.blocks())[0];
  struct Case {
    BadSliceReason reason;
    void (*damage)(SliceRef*);
  };
  const Case cases[] = {
      {BadSliceReason::kUnknownTransfer, [](SliceRef* s) { s->transfer = TransferId(77); }},
      {BadSliceReason::kWrongAttempt, [](SliceRef* s) { s->attempt = 2; }},
      {BadSliceReason::kWrongAttempt, [](SliceRef* s) { s->attempt = 0; }},
      {BadSliceReason::kOutOfRange, [](SliceRef* s) { s->ordinal = 2; }},
      {BadSliceReason::kOutOfRange, [](SliceRef* s) { s->ordinal = 0xffffffff; }},
      {BadSliceReason::kStaleGeneration, [](SliceRef* s) { s->generation = 6; }},
  };
  uint64_t sent = 0;
  for (const Case& test_case : cases) {
    const uint64_t before = Refused(test_case.reason);
    SliceRef slice = good;
    test_case.damage(&slice);
    ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, {&slice, 1}).ok());
    SyncSent(++sent);
    ASSERT_TRUE(Eventually([&] { return Refused(test_case.reason) == before + 1; }))
        << BadSliceReasonName(test_case.reason);
  }
  EXPECT_TRUE(BlockIs(d_.blocks(), BlockIndex(10), kCanary));
  EXPECT_TRUE(BlockIs(d_.blocks(), BlockIndex(11), kCanary));
  // Only the stale generation is told: a resend cannot mend the others.
  const Recorded recorded = d_.sink->Snapshot();
  ASSERT_EQ(recorded.bad_slices.size(), 1u);
  EXPECT_EQ(recorded.bad_slices[0].reason, BadSliceReason::kStaleGeneration);
  EXPECT_EQ(recorded.slices_done.count(1), 0u);
  EXPECT_TRUE(p_.sink->Snapshot().downs.empty());
}

TEST_P(ConformanceTest, OwnMistakesAreRefusedAtTheCall) {
  MakePair();
  SliceRef slice;
  slice.source = BlockIndex(64);
  EXPECT_EQ(p_.transport->SendSlices(d_.incarnation, {&slice, 1}).code(),
            StatusCode::kInvalidArgument);
  slice.source = BlockIndex(0);
  slice.layer = 3;
  EXPECT_EQ(p_.transport->SendSlices(d_.incarnation, {&slice, 1}).code(),
            StatusCode::kInvalidArgument);
  slice.layer = 0;
  EXPECT_EQ(p_.transport->SendSlices(Incarnation(12345), {&slice, 1}).code(),
            StatusCode::kUnavailable);
  Transfer transfer = MakeTransfer(1, 1, 0, 64);
  EXPECT_EQ(d_.transport->OpenReceive(SpecFor(transfer, p_.incarnation)).code(),
            StatusCode::kInvalidArgument);
  // The longest prompt is no mistake.
  transfer.dest.assign(kMaxBlocksPerTransfer + 1, ReceiveBlock{.index = BlockIndex(1)});
  EXPECT_EQ(d_.transport->OpenReceive(SpecFor(transfer, p_.incarnation)).code(),
            StatusCode::kInvalidArgument);
  transfer.dest.pop_back();
  EXPECT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, p_.incarnation)).ok());
  transfer.dest.clear();
  EXPECT_EQ(d_.transport->OpenReceive(SpecFor(transfer, p_.incarnation)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      p_.transport->SendControl(d_.incarnation, std::string(kMaxControlBytes + 1, 'x')).code(),
      StatusCode::kInvalidArgument);
}

TEST_P(ConformanceTest, NoByteIsWrittenAfterACloseIsConfirmed) {
  MakePair(LargeLayout(), 64);
  std::mt19937_64 random(TestSeed());
  const uint32_t num_blocks = 30;
  for (uint64_t id = 1; id <= Rounds(30); ++id) {
    const Transfer transfer = MakeTransfer(id, num_blocks, 0, num_blocks);
    if (id == 1) FillSource(transfer, p_.blocks(), 1);
    Open(transfer);
    const std::vector<SliceRef> slices = SlicesOf(transfer, p_.blocks());
    // Somewhere between the first slice and the last.
    const uint64_t wanted =
        d_.transport->Stats().slices_received + random() % (slices.size() * 2 / 3);
    ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, slices).ok());
    ASSERT_TRUE(Eventually([&] { return d_.transport->Stats().slices_received >= wanted; }));
    d_.transport->CloseReceive(transfer.id);
    ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfer.id));
    for (const ReceiveBlock& block : transfer.dest) SetBlock(d_.blocks(), block.index, kCanary);
    p_.transport->CloseSend(d_.incarnation, transfer.id);
    ASSERT_TRUE(p_.sink->WaitFor([&](const Recorded& r) {
      return r.sends_closed.count({d_.incarnation.value(), id}) == 1;
    }));
    const size_t controls = d_.sink->Snapshot().controls.size();
    ASSERT_TRUE(p_.transport->SendControl(d_.incarnation, "end").ok());
    ASSERT_TRUE(d_.sink->WaitControls(controls + 1));
    for (const ReceiveBlock& block : transfer.dest) {
      ASSERT_TRUE(BlockIs(d_.blocks(), block.index, kCanary)) << "transfer " << id;
    }
  }
  EXPECT_EQ(d_.sink->Snapshot().events_after_close, 0u);
}

TEST_P(ConformanceTest, SourceBlocksMayBeReusedAfterSendClosed) {
  MakePair(LargeLayout(), 64);
  // The decode worker has no room for them, so most slices still wait at the prefill worker when
  // the sending is closed; what follows them must not be disturbed.
  const Transfer first = MakeTransfer(1, 30, 0, 0);
  FillSource(first, p_.blocks(), 1);
  for (uint64_t round = 0; round < Rounds(20); ++round) {
    const std::vector<SliceRef> slices = SlicesOf(first, p_.blocks());
    ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, slices).ok());
    p_.transport->CloseSend(d_.incarnation, first.id);
    ASSERT_TRUE(p_.sink->WaitFor([&](const Recorded& r) {
      return r.sends_closed.count({d_.incarnation.value(), 1}) == round + 1;
    }));
    FillSource(first, p_.blocks(), round);
    const Transfer second = MakeTransfer(100 + round, 4, 0, 32);
    FillSource(second, p_.blocks(), round);
    Open(second);
    ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, SlicesOf(second, p_.blocks())).ok());
    ASSERT_TRUE(d_.sink->WaitComplete(second.id));
    EXPECT_TRUE(Arrived(second, p_.blocks(), d_.blocks()));
    d_.transport->CloseReceive(second.id);
    ASSERT_TRUE(d_.sink->WaitReceiveClosed(second.id));
    ASSERT_TRUE(EndSend(p_, d_.incarnation, second.id));
  }
  EXPECT_TRUE(p_.sink->Snapshot().downs.empty());
}

TEST_P(ConformanceTest, ClosingWhatIsUnknownIsConfirmedToo) {
  MakePair();
  d_.transport->CloseReceive(TransferId(5));
  d_.transport->CloseReceive(TransferId(5));
  p_.transport->CloseSend(d_.incarnation, TransferId(5));
  p_.transport->CloseSend(Incarnation(404), TransferId(5));
  EXPECT_TRUE(d_.sink->WaitFor([](const Recorded& r) { return r.receives_closed.count(5) == 2; }));
  EXPECT_TRUE(p_.sink->WaitFor([](const Recorded& r) { return r.sends_closed.size() == 2; }));
}

TEST_P(ConformanceTest, ControlMessagesOfAllSizesArriveWholeAndInOrder) {
  MakePair();
  std::mt19937_64 random(TestSeed());
  std::vector<std::string> sent;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65536},
                            size_t{65537}, size_t{300000}, kMaxControlBytes}) {
    std::string& message = sent.emplace_back(size, '\0');
    for (char& c : message) c = static_cast<char>(random());
  }
  for (const std::string& message : sent) {
    ASSERT_TRUE(p_.transport->SendControl(d_.incarnation, message).ok());
    ASSERT_TRUE(d_.transport->SendControl(p_.incarnation, message).ok());
  }
  for (Worker* const worker : {&p_, &d_}) {
    ASSERT_TRUE(worker->sink->WaitControls(sent.size()));
    const Recorded recorded = worker->sink->Snapshot();
    for (size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(recorded.controls[i].second, sent[i]) << sent[i].size() << " bytes";
    }
  }
}

TEST_P(ConformanceTest, AControlMessageWaitsForItsPeer) {
  const std::unique_ptr<Rig> own_rig = MakeRig();
  Rig& rig = *own_rig;
  Worker d = rig.MakeDecode("decode-0");
  Worker other = rig.MakeDecode("decode-1");
  const Incarnation later(0x1234567890abcdef);
  ASSERT_TRUE(d.transport->SendControl(later, "grant").ok());
  Transfer transfer = MakeTransfer(1, 2, 0, 2);
  ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, later)).ok());
  // The prefill worker appears under that incarnation and finds the message and the open transfer.
  Worker p;
  {
    // A prefill worker of a chosen incarnation: made as a decode worker, which can dial as well.
    p = rig.MakeDecode("prefill-0", later);
    rig.SetDecodes(&p, {&d});
  }
  ASSERT_TRUE(p.sink->WaitControls(1));
  EXPECT_EQ(p.sink->Snapshot().controls[0].second, "grant");
  FillSource(transfer, p.blocks(), 8);
  ASSERT_TRUE(p.transport->SendSlices(d.incarnation, SlicesOf(transfer, p.blocks())).ok());
  ASSERT_TRUE(d.sink->WaitComplete(transfer.id));
  EXPECT_TRUE(Arrived(transfer, p.blocks(), d.blocks()));
}

TEST_P(ConformanceTest, APeerThatStopsIsReportedAtOnce) {
  MakePair(LargeLayout(), 64);
  const Transfer transfer = MakeTransfer(1, 30, 0, 30);
  FillSource(transfer, p_.blocks(), 1);
  Open(transfer);
  ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, SlicesOf(transfer, p_.blocks())).ok());
  ASSERT_TRUE(Eventually([&] { return d_.transport->Stats().slices_received > 0; }));
  p_.transport->Stop();
  ASSERT_TRUE(d_.sink->WaitDown(1));
  EXPECT_EQ(d_.sink->Snapshot().downs[0].first, p_.incarnation);
  // The transfer stays until it is closed, and then it is confirmed.
  const uint32_t done = d_.sink->Snapshot().slices_done[1];
  d_.transport->CloseReceive(transfer.id);
  ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfer.id));
  EXPECT_LE(done, 900u);
  EXPECT_EQ(d_.transport->SendSlices(p_.incarnation, SlicesOf(transfer, d_.blocks())).code(),
            StatusCode::kUnavailable);
}

TEST_P(ConformanceTest, ATransferOfAnotherPeerIsNotTouched) {
  MakePair();
  Worker intruder = rig_->MakePrefill("prefill-1", {&d_});
  ASSERT_TRUE(intruder.sink->WaitUp(1));
  const Transfer transfer = MakeTransfer(1, 2, 0, 2);
  FillSource(transfer, p_.blocks(), 1);
  FillSource(transfer, intruder.blocks(), 2);
  Open(transfer);
  ASSERT_TRUE(
      intruder.transport->SendSlices(d_.incarnation, SlicesOf(transfer, intruder.blocks())).ok());
  ASSERT_TRUE(Eventually([&] { return Refused(BadSliceReason::kWrongPeer) == 6; }));
  ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, SlicesOf(transfer, p_.blocks())).ok());
  ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
  EXPECT_TRUE(Arrived(transfer, p_.blocks(), d_.blocks()));
}

TEST_P(ConformanceTest, TwoPeersAtOnce) {
  MakePair(LargeLayout(), 130);
  Worker p1 = rig_->MakePrefill("prefill-1", {&d_});
  ASSERT_TRUE(p1.sink->WaitUp(1));
  Worker* const senders[] = {&p_, &p1};
  for (uint64_t round = 0; round < 3; ++round) {
    Transfer transfers[2];
    for (uint32_t i = 0; i < 2; ++i) {
      transfers[i] = MakeTransfer(round * 2 + i + 1, 60, 0, i * 60);
      FillSource(transfers[i], senders[i]->blocks(), round * 2 + i);
      ASSERT_TRUE(d_.transport->OpenReceive(SpecFor(transfers[i], senders[i]->incarnation)).ok());
    }
    SyncDecode();
    std::thread other([&] {
      EXPECT_TRUE(
          senders[1]
              ->transport->SendSlices(d_.incarnation, SlicesOf(transfers[1], senders[1]->blocks()))
              .ok());
    });
    EXPECT_TRUE(
        senders[0]
            ->transport->SendSlices(d_.incarnation, SlicesOf(transfers[0], senders[0]->blocks()))
            .ok());
    other.join();
    for (uint32_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(d_.sink->WaitComplete(transfers[i].id));
      EXPECT_TRUE(Arrived(transfers[i], senders[i]->blocks(), d_.blocks()));
      d_.transport->CloseReceive(transfers[i].id);
      ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfers[i].id));
      ASSERT_TRUE(EndSend(*senders[i], d_.incarnation, transfers[i].id));
    }
  }
}

// Heap and the like in pages; the arenas are shared memory and not in it.
size_t AnonymousKib() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    size_t kib = 0;
    if (key == "RssAnon:" && status >> kib) return kib;
  }
  return 0;
}

TEST_P(ConformanceTest, ThousandsOfTransfersLeaveNothingBehind) {
  MakePair();
  const auto run = [&](uint64_t first, uint64_t count) {
    for (uint64_t id = first; id < first + count; ++id) {
      const Transfer transfer = MakeTransfer(id, 4, 0, 4);
      ASSERT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, p_.incarnation)).ok());
      ASSERT_TRUE(d_.transport->SendControl(p_.incarnation, "grant").ok());
      ASSERT_TRUE(p_.sink->WaitControls(id));
      ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, SlicesOf(transfer, p_.blocks())).ok());
      ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
      d_.transport->CloseReceive(transfer.id);
      p_.transport->CloseSend(d_.incarnation, transfer.id);
      ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfer.id));
    }
  };
  // One that is lost for each transfer shows in a thousand too, where ranks make each one slower.
  const bool is_divided = GetParam().prefill_ranks > 1 || GetParam().decode_ranks > 1;
  const uint64_t num_before = Rounds(is_divided ? 200 : 500);
  run(1, num_before);
  const size_t files = CountOpenFiles();
  const size_t kib = AnonymousKib();
  const uint64_t num_transfers = Rounds(is_divided ? 1000 : 3000);
  run(num_before + 1, num_transfers);
  EXPECT_EQ(CountOpenFiles(), files);
  // The recording sink itself grows: some 400 bytes a transfer. Sanitizers keep freed memory apart.
  const size_t growth = 1024 + num_transfers * 7168 / 3000;
  EXPECT_LT(AnonymousKib(), kib + growth + (kib > 100000 ? kib : 0));
}

TEST_P(ConformanceTest, StopIsQuickAndSilent) {
  MakePair(LargeLayout(), 64);
  const Transfer transfer = MakeTransfer(1, 30, 0, 30);
  Open(transfer);
  ASSERT_TRUE(p_.transport->SendSlices(d_.incarnation, SlicesOf(transfer, p_.blocks())).ok());
  d_.transport->Stop();
  const Recorded before = d_.sink->Snapshot();
  for (const ReceiveBlock& block : transfer.dest) SetBlock(d_.blocks(), block.index, kCanary);
  ASSERT_TRUE(p_.sink->WaitDown(1));
  EXPECT_EQ(d_.sink->Snapshot().num_progress, before.num_progress);
  EXPECT_EQ(d_.sink->Snapshot().downs.size(), before.downs.size());
  for (const ReceiveBlock& block : transfer.dest) {
    EXPECT_TRUE(BlockIs(d_.blocks(), block.index, kCanary));
  }
  EXPECT_EQ(d_.transport->SendControl(p_.incarnation, "x").code(), StatusCode::kUnavailable);
  d_.transport->Stop();
}

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{TransportKind::kLocal}, {TransportKind::kShm},
                             {TransportKind::kTcp},   {TransportKind::kTcp, true},
                             {TransportKind::kNccl},  {TransportKind::kCudaIpc}};
  kinds.push_back({.kind = TransportKind::kLocal, .on_device = true});
  for (const TransportKind kind : {TransportKind::kNccl, TransportKind::kCudaIpc}) {
    for (const auto& [from, to] : {std::pair{1u, 2u}, {2u, 1u}, {2u, 2u}, {2u, 4u}, {4u, 2u}}) {
      kinds.push_back({.kind = kind, .prefill_ranks = from, .decode_ranks = to});
    }
  }
#ifdef BATON_HAVE_SIMT
  kinds.push_back(
      {.kind = TransportKind::kNccl, .on_runner = true, .prefill_ranks = 2, .decode_ranks = 4});
  kinds.push_back(
      {.kind = TransportKind::kCudaIpc, .on_runner = true, .prefill_ranks = 4, .decode_ranks = 2});
  kinds.push_back({.kind = TransportKind::kLocal, .on_device = true, .on_runner = true});
  kinds.push_back({.kind = TransportKind::kNccl, .on_runner = true});
  kinds.push_back({.kind = TransportKind::kCudaIpc, .on_runner = true});
#endif
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Transports, ConformanceTest, testing::ValuesIn(Kinds()),
                         [](const auto& param_info) {
                           const Kind& kind = param_info.param;
                           const bool is_divided = kind.prefill_ranks > 1 || kind.decode_ranks > 1;
                           return std::string(TransportKindName(kind.kind)) +
                                  (kind.tls ? "_tls" : "") + (kind.on_device ? "_device" : "") +
                                  (kind.on_runner ? "_runner" : "") +
                                  (is_divided ? "_ranks" + std::to_string(kind.prefill_ranks) +
                                                    "to" + std::to_string(kind.decode_ranks)
                                              : "");
                         });

}  // namespace
}  // namespace baton::kv::test
