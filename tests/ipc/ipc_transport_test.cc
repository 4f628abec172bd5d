// IpcTransport beside the promises that all transports share: peers that die amid a copy, bytes
// that change under it, lost and hostile words.
#include "kvcache/transport/ipc/ipc_transport.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "tests/ipc/ipc_peers.h"

namespace baton::kv::test {

using device::FakeAccelerator;

namespace {

constexpr std::byte kCanary{0xA5};

// A pair whose copies at the decode worker can be held.
class IpcTransportTest : public testing::Test {
 protected:
  void MakePair() {
    d_ = rig_.MakeDecode("decode-0");
    p_ = std::make_unique<Worker>(rig_.MakePrefill("prefill-0", {&d_}));
    ASSERT_TRUE(p_->sink->WaitUp(1));
    ASSERT_TRUE(d_.sink->WaitUp(1));
  }
  // Opens the transfer at the decode worker, sends it, and waits until its copy is under way and
  // held.
  void BeginHeld(const Transfer& transfer) {
    FillSource(transfer, p_->blocks(), 5);
    ASSERT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, p_->incarnation)).ok());
    FakeOf(d_)->is_held = true;
    ASSERT_TRUE(p_->transport->SendSlices(d_.incarnation, SlicesOf(transfer, p_->blocks())).ok());
    ASSERT_TRUE(Eventually([&] { return FakeOf(d_)->IsBusy(); }));
  }
  // A plain endpoint that `p_` dials beside `d_`, or that dials `d_`.
  PlainPeer MakePlain(const std::string& worker_id) {
    const nccl_test::KvDevice pool = nccl_test::MakeKvDevice({.is_shared = true}, SmallLayout(), 4);
    std::vector<UniqueFd> fds;
    fds.push_back(*pool.device->ExportShared(pool.parts.memory.base));
    return MakePlainPeer(worker_id, std::move(fds), 4);
  }

  Rig rig_{TransportKind::kCudaIpc};
  Worker d_;
  std::unique_ptr<Worker> p_;
};

TEST_F(IpcTransportTest, APeerThatDiesAmidACopyLeavesItsPoolUntilTheCopyEnds) {
  MakePair();
  const Transfer transfer = MakeTransfer(1, 8, 0, 8);
  BeginHeld(transfer);
  p_.reset();  // its memory too, but for D's mapping
  ASSERT_TRUE(d_.sink->WaitDown(1));
  EXPECT_EQ(IpcOf(d_)->num_mapped(), 1u) << "a copy reads from it";
  d_.transport->CloseReceive(transfer.id);
  d_.transport->CloseReceive(TransferId(99));
  ASSERT_TRUE(d_.sink->WaitReceiveClosed(TransferId(99)));
  EXPECT_EQ(d_.sink->Snapshot().receives_closed.count(1), 0u) << "a copy writes to it";
  FakeOf(d_)->is_held = false;
  ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfer.id));
  EXPECT_TRUE(Eventually([&] { return IpcOf(d_)->num_mapped() == 0; }));
  const Recorded recorded = d_.sink->Snapshot();
  EXPECT_EQ(recorded.slices_done.count(1), 0u) << "nothing counts after the peer is down";
  EXPECT_EQ(recorded.events_after_close, 0u);
  // The worker goes on with the next one.
  Worker next = rig_.MakePrefill("prefill-1", {&d_});
  ASSERT_TRUE(next.sink->WaitUp(1));
  ExpectTransferWorks(&next, &d_, 2);
}

TEST_F(IpcTransportTest, AClosedTransferIsConfirmedBehindItsCopyAndGetsNothingMore) {
  MakePair();
  const Transfer transfer = MakeTransfer(1, 8, 0, 8);
  BeginHeld(transfer);
  d_.transport->CloseReceive(transfer.id);
  // More of it comes while it is being closed.
  ASSERT_TRUE(p_->transport->SendSlices(d_.incarnation, SlicesOf(transfer, p_->blocks())).ok());
  FakeOf(d_)->is_held = false;
  ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfer.id));
  for (const ReceiveBlock& block : transfer.dest) SetBlock(d_.blocks(), block.index, kCanary);
  ASSERT_TRUE(Eventually([&] { return p_->transport->Stats().slices_sent == 48; }));
  for (const ReceiveBlock& block : transfer.dest) {
    EXPECT_TRUE(BlockIs(d_.blocks(), block.index, kCanary));
  }
  EXPECT_EQ(Refused(d_, BadSliceReason::kUnknownTransfer), 48u);
  EXPECT_EQ(d_.sink->Snapshot().slices_done.count(1), 0u);
}

TEST_F(IpcTransportTest, BytesThatChangeUnderACopyAreRefusedAndSentAgain) {
  MakePair();
  const Transfer transfer = MakeTransfer(1, 4, 0, 8);
  BeginHeld(transfer);
  const std::vector<SliceRef> slices = SlicesOf(transfer, p_->blocks());
  // As if the block had been given to another request.
  FillSlice(p_->blocks(), transfer.source[2], 1, 77);
  FakeOf(d_)->is_held = false;
  ASSERT_TRUE(d_.sink->WaitFor([](const Recorded& r) { return !r.bad_slices.empty(); }));
  const BadSlice bad = d_.sink->Snapshot().bad_slices.at(0);
  EXPECT_EQ(bad.reason, BadSliceReason::kBadChecksum);
  EXPECT_EQ(bad.ordinal, 2u);
  EXPECT_EQ(bad.layer, 1u);
  ASSERT_TRUE(Eventually([&] { return p_->transport->Stats().slices_sent == slices.size(); }));
  EXPECT_EQ(d_.sink->Snapshot().complete.count(1), 0u);
  FillSource(transfer, p_->blocks(), 5);
  ASSERT_TRUE(p_->transport->SendSlices(d_.incarnation, {&slices[4 + 2], 1}).ok());
  ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
  EXPECT_TRUE(Arrived(transfer, p_->blocks(), d_.blocks()));
  EXPECT_EQ(Refused(d_, BadSliceReason::kBadChecksum), 1u);
}

TEST_F(IpcTransportTest, APeerThatAnswersNothingHoldsTwoOffersAndNobodyUp) {
  rig_.tweak_ipc = [](IpcTransportOptions* options) {
    options->limits.offer_bytes = 4 * SmallLayout().SliceBytes();
  };
  MakePair();
  PlainPeer silent = MakePlain("silent-0");
  Dial(*p_, {AddressOf(d_, "decode-0"), AddressOf(silent.worker, "silent-0")});
  ASSERT_TRUE(p_->sink->WaitUp(2));
  const Transfer transfer = MakeTransfer(900, 4, 0, 0);
  ASSERT_TRUE(
      p_->transport->SendSlices(silent.worker.incarnation, SlicesOf(transfer, p_->blocks())).ok());
  EXPECT_EQ(silent.MessageAt(1).slices.size(), 4u) << "what offer_bytes allows";
  for (uint64_t id = 1; id <= 5; ++id) ExpectTransferWorks(p_.get(), &d_, id);
  EXPECT_EQ(silent.Messages().size(), 2u);
  // An answer makes room for the next.
  IpcMessage done;
  done.batch = silent.MessageAt(0).batch;
  silent.Post(*p_, done);
  EXPECT_EQ(silent.MessageAt(2).slices.at(0).ordinal, 0u);
  EXPECT_EQ(silent.MessageAt(2).slices.at(0).layer, 2u);
  // A close ends what waits, and is confirmed without an answer.
  ASSERT_TRUE(EndSend(*p_, silent.worker.incarnation, transfer.id));
  EXPECT_EQ(silent.Messages().size(), 3u);
}

TEST_F(IpcTransportTest, AnOfferWithoutAnAnswerIsMadeAgainLessWhatWasClosed) {
  rig_.tweak_ipc = [](IpcTransportOptions* options) { options->timers.answer_us = 10'000; };
  MakePair();
  PlainPeer deaf = MakePlain("deaf-0");
  Dial(*p_, {AddressOf(d_, "decode-0"), AddressOf(deaf.worker, "deaf-0")});
  ASSERT_TRUE(p_->sink->WaitUp(2));
  const Transfer kept = MakeTransfer(900, 1, 0, 0);
  const Transfer closed = MakeTransfer(901, 2, 0, 0);
  std::vector<SliceRef> slices = SlicesOf(kept, p_->blocks());
  for (const SliceRef& slice : SlicesOf(closed, p_->blocks())) slices.push_back(slice);
  ASSERT_TRUE(p_->transport->SendSlices(deaf.worker.incarnation, slices).ok());
  EXPECT_EQ(deaf.MessageAt(0).slices.size(), 9u);
  ASSERT_TRUE(EndSend(*p_, deaf.worker.incarnation, closed.id));
  const size_t before = deaf.Messages().size();
  const IpcMessage again = deaf.MessageAt(before);
  EXPECT_EQ(again.batch, deaf.MessageAt(0).batch);
  EXPECT_EQ(again.slices.size(), 3u);
  EXPECT_GE(IpcOf(*p_)->OfferStats().late, 1u);
  ASSERT_TRUE(EndSend(*p_, deaf.worker.incarnation, kept.id));
}

// The first answer is lost with the whole offer: the decode worker still takes each slice once.
TEST_F(IpcTransportTest, AnOfferThatIsMadeTwiceIsAnsweredTwiceAndCopiedOnce) {
  MakePair();
  PlainPeer twice = MakePlain("twice-0");
  Dial(twice.worker, {AddressOf(d_, "decode-0")});
  ASSERT_TRUE(twice.worker.sink->WaitUp(1));
  ASSERT_TRUE(d_.sink->WaitUp(2));
  const Transfer transfer = MakeTransfer(1, 1, 0, 8);
  ASSERT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, twice.worker.incarnation)).ok());
  IpcMessage offer;
  offer.kind = IpcMessageKind::kOffer;
  offer.batch = 7;
  // Its pool is zeros.
  const std::vector<std::byte> zeroes(SmallLayout().BlockStride());
  offer.slices = SlicesOf(transfer, {const_cast<std::byte*>(zeroes.data()), SmallLayout(), 1});
  FakeOf(d_)->is_held = true;
  twice.Post(d_, offer);
  ASSERT_TRUE(Eventually([&] { return FakeOf(d_)->IsBusy(); }));
  twice.Post(d_, offer);  // while it is worked on: one answer
  ASSERT_TRUE(Eventually([&] { return IpcOf(d_)->OfferStats().late == 1; }));
  FakeOf(d_)->is_held = false;
  EXPECT_EQ(twice.MessageAt(0).batch, 7u);
  ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
  twice.Post(d_, offer);
  EXPECT_EQ(twice.MessageAt(1).batch, 7u);
  EXPECT_EQ(Refused(d_, BadSliceReason::kDuplicate), 3u);
  EXPECT_EQ(d_.transport->Stats().slices_received, 3u);
}

TEST_F(IpcTransportTest, HostileWordsAreCountedAndHarmNobody) {
  MakePair();
  PlainPeer hostile = MakePlain("hostile-0");
  Dial(hostile.worker, {AddressOf(d_, "decode-0")});
  ASSERT_TRUE(d_.sink->WaitUp(2));
  Dial(*p_, {AddressOf(d_, "decode-0"), AddressOf(hostile.worker, "hostile-0")});
  ASSERT_TRUE(p_->sink->WaitUp(2));
  ASSERT_TRUE(hostile.worker.sink->WaitUp(2));
  const auto protocol = [](const Worker& worker) { return IpcOf(worker)->OfferStats().protocol; };
  const Transfer transfer = MakeTransfer(1, 1, 0, 8);
  ASSERT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, hostile.worker.incarnation)).ok());
  SetBlock(d_.blocks(), BlockIndex(8), kCanary);
  IpcMessage offer;
  offer.kind = IpcMessageKind::kOffer;
  offer.slices.resize(3, SlicesOf(transfer, p_->blocks())[0]);
  offer.slices[0].source = BlockIndex(4);  // it has 4
  offer.slices[1].source = BlockIndex(~uint32_t{0});
  offer.slices[2].layer = SmallLayout().num_layers;
  hostile.Post(d_, offer);
  EXPECT_EQ(hostile.MessageAt(0).kind, IpcMessageKind::kDone);
  EXPECT_EQ(Refused(d_, BadSliceReason::kOutOfRange), 3u);
  EXPECT_TRUE(BlockIs(d_.blocks(), BlockIndex(8), kCanary));
  // To one that it did not dial, it has no pool.
  hostile.Post(*p_, offer);
  EXPECT_TRUE(Eventually([&] { return protocol(*p_) == 1; }));
  IpcMessage done;
  done.batch = 123456;  // nobody made that offer
  hostile.Post(*p_, done);
  hostile.Post(d_, done);
  EXPECT_TRUE(Eventually([&] { return protocol(*p_) == 2 && protocol(d_) == 1; }));
  std::string damaged = EncodeIpcMessage(offer);
  damaged.pop_back();
  ASSERT_TRUE(hostile.worker.transport->SendControl(d_.incarnation, damaged).ok());
  EXPECT_TRUE(Eventually([&] { return protocol(d_) == 2; }));
  for (uint64_t id = 2; id <= 4; ++id) ExpectTransferWorks(p_.get(), &d_, id);
}

TEST_F(IpcTransportTest, AFloodOfOffersIsCutOffAndHoldsNobodyUp) {
  MakePair();
  PlainPeer flood = MakePlain("flood-0");
  Dial(flood.worker, {AddressOf(d_, "decode-0")});
  ASSERT_TRUE(d_.sink->WaitUp(2));
  FakeOf(d_)->is_held = true;
  const Transfer transfer = MakeTransfer(1, 16, 0, 8);
  ASSERT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, flood.worker.incarnation)).ok());
  for (uint32_t i = 0; i < 16; ++i) {
    IpcMessage offer;
    offer.kind = IpcMessageKind::kOffer;
    offer.batch = i + 1;
    offer.slices.push_back({.transfer = transfer.id,
                            .attempt = 1,
                            .ordinal = i,
                            .generation = transfer.dest[i].generation});
    flood.Post(d_, offer);
  }
  ASSERT_TRUE(flood.worker.transport->SendControl(d_.incarnation, "end").ok());
  ASSERT_TRUE(d_.sink->WaitControls(1));
  // Eight wait; two more are under way if they came a little earlier.
  const uint64_t num_refused = IpcOf(d_)->OfferStats().protocol;
  EXPECT_GE(num_refused, 6u);
  EXPECT_LE(num_refused, 8u);
  FakeOf(d_)->is_held = false;
  ExpectTransferWorks(p_.get(), &d_, 2);
  EXPECT_EQ(flood.MessageAt(15 - num_refused).kind, IpcMessageKind::kDone);
}

// The owner's control messages are any bytes, those of this transport too.
TEST_F(IpcTransportTest, AControlMessageThatLooksLikeAnOfferArrivesAsItIs) {
  MakePair();
  IpcMessage done;
  for (const std::string& bytes : {EncodeIpcMessage(done), EncodeIpcMessage(done).substr(0, 20)}) {
    const size_t before = d_.sink->Snapshot().controls.size();
    ASSERT_TRUE(p_->transport->SendControl(d_.incarnation, bytes).ok());
    ASSERT_TRUE(d_.sink->WaitControls(before + 1));
    EXPECT_EQ(d_.sink->Snapshot().controls.back().second, bytes);
  }
}

// The thread that serves all peers never sleeps in a copy of some places or checksums.
TEST_F(IpcTransportTest, NoCopyWaits) {
  MakePair();
  const uint64_t waits_before = FakeAccelerator::num_waits();
  const uint64_t staged_before = FakeAccelerator::num_staged();
  for (uint64_t id = 1; id <= 3; ++id) ExpectTransferWorks(p_.get(), &d_, id);
  EXPECT_EQ(FakeAccelerator::num_waits(), waits_before);
  EXPECT_EQ(FakeAccelerator::num_staged(), staged_before);
}

TEST_F(IpcTransportTest, SlicesGoFromWhoDialledOnly) {
  MakePair();
  const Transfer transfer = MakeTransfer(1, 1, 0, 0);
  EXPECT_EQ(d_.transport->SendSlices(p_->incarnation, SlicesOf(transfer, d_.blocks())).code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::kv::test
