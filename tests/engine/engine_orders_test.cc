// Orders that no honest router gives and messages that no honest decode worker sends: whatever
// comes, the worker goes on, what runs of others runs on, and in the end nothing is held.
#include <functional>
#include <utility>

#include "gtest/gtest.h"

#include "kvcache/grant_park.h"
#include "src/device/step_stage.h"
#include "tests/engine/hand_rig.h"

namespace baton::engine {

using device::StageSink;
using device::StepStage;
using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

// A prefill worker and two decode workers.
struct Cluster {
  explicit Cluster(int64_t strand_us = 2'000'000)
      : p(rig.Add({.role = WorkerRole::kPrefill, .strand_us = strand_us})),
        d(rig.Add({.role = WorkerRole::kDecode})),
        other(rig.Add({.role = WorkerRole::kDecode})) {}

  // Runs `spec` until the decode worker has sampled `num_tokens`.
  bool RunTo(const RequestSpec& spec, size_t num_tokens) {
    d->Start(ForPeer(spec, RequestKind::kDest, *p));
    p->Start(ForPeer(spec, RequestKind::kSource, *d));
    for (int i = 0; i < 500; ++i) {
      if (d->recorder().Of(spec.key).Tokens(0).size() >= num_tokens) return true;
      rig.Round();
    }
    return false;
  }
  void ExpectFree() {
    for (HandWorker* worker : {p, d, other}) {
      EXPECT_TRUE(worker->AllFree());
      EXPECT_EQ(worker->core().Snapshot().num_open_transfers, 0u);
      EXPECT_EQ(worker->core().Snapshot().num_requests, 0u);
    }
  }

  HandRig rig;
  HandWorker* p;
  HandWorker* d;
  HandWorker* other;
};

RequestSpec OfAttempt(RequestSpec spec, uint32_t attempt) {
  spec.key.attempt = attempt;
  return spec;
}

// Eight orders of one request; `number` in [0, 8).
void GiveOrder(Cluster* cluster, const RequestSpec& spec, uint32_t number) {
  const RequestSpec next = OfAttempt(spec, 1 + number / 2);
  if (number % 2 == 0) return cluster->p->Cancel(next.key);
  cluster->p->Start(ForPeer(next, RequestKind::kSource, *cluster->d));
}

// In one turn, so that the transport confirms nothing in between.
TEST(EngineOrdersTest, AnyThreeOrdersWhileBlocksArePinned) {
  for (uint32_t number = 0; number < 512; ++number) {
    SCOPED_TRACE(testing::Message()
                 << "orders " << number / 64 << " " << number / 8 % 8 << " " << number % 8);
    Cluster cluster;
    const RequestSpec spec = OfAttempt(ToyRequest(1, 90, 4), 3);
    cluster.d->Start(ForPeer(spec, RequestKind::kDest, *cluster.p));
    cluster.p->Start(ForPeer(spec, RequestKind::kSource, *cluster.d));
    for (int i = 0; i < 50 && !cluster.p->recorder().Of(spec.key).Reached(RequestState::kGranted);
         ++i) {
      cluster.rig.Round();
    }
    ASSERT_TRUE(cluster.p->recorder().Of(spec.key).Reached(RequestState::kGranted));
    ASSERT_FALSE(cluster.p->recorder().Of(spec.key).ended());
    for (const uint32_t order : {number / 64, number / 8 % 8, number % 8}) {
      GiveOrder(&cluster, spec, order);
    }
    ASSERT_TRUE(cluster.rig.RunUntilQuiet());
    for (HandWorker* worker : {cluster.p, cluster.d}) worker->Post(CloseSession{spec.session});
    ASSERT_TRUE(cluster.rig.RunUntilQuiet());
    cluster.ExpectFree();
  }
}

// A prompt under another tenant is another chain: nothing of it may be kept.
TEST(EngineOrdersTest, AnotherTenantsAttemptIsComputedAnew) {
  Cluster cluster;
  const RequestSpec spec = ToyRequest(1, 90, 4);
  cluster.d->Start(ForPeer(spec, RequestKind::kDest, *cluster.p));
  cluster.p->Start(ForPeer(spec, RequestKind::kSource, *cluster.d));
  for (int i = 0; i < 4; ++i) cluster.rig.Round();
  ASSERT_FALSE(cluster.p->recorder().Of(spec.key).ended());
  RequestSpec next = OfAttempt(spec, 2);
  next.tenant = "another";
  cluster.p->Start(ForPeer(next, RequestKind::kSource, *cluster.other));
  cluster.other->Start(ForPeer(next, RequestKind::kDest, *cluster.p));
  cluster.d->Cancel(spec.key);
  ASSERT_TRUE(cluster.rig.RunUntilQuiet());
  EXPECT_FALSE(cluster.p->recorder().Of(next.key).retargeted);
  EXPECT_EQ(IdsOf(cluster.other->recorder().Of(next.key), 0), ExpectedTokens(next, 0));
  cluster.ExpectFree();
}

TEST(EngineOrdersTest, AnOrderThatIsNoRequestChangesNothing) {
  struct Case {
    const char* name;
    void (*spoil)(RequestSpec*);
  };
  const Case cases[] = {
      {"fewer tokens than the prompt", [](RequestSpec* spec) { spec->tokens.resize(10); }},
      {"no tokens", [](RequestSpec* spec) { spec->tokens.clear(); }},
      {"no deadline", [](RequestSpec* spec) { spec->deadline_us = 0; }},
      {"no choice", [](RequestSpec* spec) { spec->num_choices = 0; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Cluster cluster;
    const RequestSpec spec = ToyRequest(1, 20, 30);
    ASSERT_TRUE(cluster.RunTo(spec, 3));
    RequestSpec next = ForPeer(OfAttempt(spec, 2), RequestKind::kSource, *cluster.other);
    c.spoil(&next);
    cluster.d->Start(next);
    ASSERT_TRUE(cluster.rig.RunUntilQuiet());
    const Record refused = cluster.d->recorder().Of(next.key);
    EXPECT_EQ(refused.last(), RequestState::kRejected);
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status)) << refused.status;
    EXPECT_EQ(IdsOf(cluster.d->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0));
    cluster.ExpectFree();
  }
}

// The grant came first, so that the hand-over offers its slices at once, to a worker that is gone;
// without time to wait for another one the request ends in the middle of the order.
TEST(EngineOrdersTest, AHandOverThatCannotBePostedEndsTheRequest) {
  Cluster cluster(/*strand_us=*/0);
  const RequestSpec spec = ToyRequest(1, 20, 100);
  ASSERT_TRUE(cluster.RunTo(spec, 3));
  const RequestSpec next = OfAttempt(spec, 2);
  cluster.other->Start(ForPeer(next, RequestKind::kDest, *cluster.d));
  for (int i = 0; i < 4; ++i) cluster.rig.Round();
  cluster.other->Disconnect();
  cluster.other->Cancel(next.key);
  cluster.d->Start(ForPeer(next, RequestKind::kSource, *cluster.other));
  ASSERT_TRUE(cluster.rig.RunUntilQuiet());
  EXPECT_EQ(cluster.d->recorder().Of(next.key).last(), RequestState::kFailed);
  EXPECT_TRUE(cluster.d->AllFree());
  EXPECT_EQ(cluster.d->core().Snapshot().num_open_transfers, 0u);
}

// ---- Messages of a decode worker that are no honest one's.

PeerMessage FromPeer(const HandWorker& peer, HandoffMessage message) {
  return {peer.incarnation(), std::make_unique<HandoffMessage>(std::move(message))};
}

Grant GrantOf(const HandWorker& peer, const RequestSpec& spec, uint64_t transfer) {
  const KvLayout layout = ToyLayout();
  const uint32_t num_blocks = layout.BlocksFor(static_cast<uint32_t>(spec.tokens.size()));
  Grant grant;
  grant.key = {spec.key.uid, spec.key.attempt, TransferId(transfer)};
  grant.decode_incarnation = peer.incarnation();
  grant.generations.assign(num_blocks, 1);
  grant.layout_id = layout.LayoutId();
  grant.expected_bytes = uint64_t{num_blocks} * layout.num_layers * layout.SliceBytes();
  grant.ttl_ms = 10'000;
  return grant;
}

// The transport knows a transfer by the peer and its id: the end of one would end both.
TEST(EngineOrdersTest, OneTransferIdServesOneRequest) {
  Cluster cluster;
  const RequestSpec a = ToyRequest(1, 40, 4);
  const RequestSpec b = ToyRequest(2, 40, 4);
  for (const RequestSpec& spec : {a, b}) {
    cluster.p->Start(ForPeer(spec, RequestKind::kSource, *cluster.d));
  }
  for (int i = 0; i < 6; ++i) cluster.rig.Round();
  cluster.p->Post(FromPeer(*cluster.d, GrantOf(*cluster.d, a, 77)));
  cluster.p->Post(FromPeer(*cluster.d, GrantOf(*cluster.d, b, 77)));
  cluster.p->Post(FromPeer(*cluster.d, Revoke{{a.key.uid, 1, TransferId(77)}, "no", true}));
  ASSERT_TRUE(cluster.rig.RunUntilQuiet());
  EXPECT_TRUE(cluster.p->recorder().Of(a.key).Reached(RequestState::kStranded));
  const Record other = cluster.p->recorder().Of(b.key);
  EXPECT_FALSE(other.Reached(RequestState::kGranted));
  EXPECT_FALSE(other.Reached(RequestState::kStranded)) << "by the end of another's transfer";
  const RequestSpec next = OfAttempt(b, 2);
  cluster.p->Start(ForPeer(next, RequestKind::kSource, *cluster.other));
  cluster.other->Start(ForPeer(next, RequestKind::kDest, *cluster.p));
  cluster.p->Cancel(a.key);
  ASSERT_TRUE(cluster.rig.RunUntilQuiet());
  EXPECT_EQ(IdsOf(cluster.other->recorder().Of(next.key), 0), ExpectedTokens(next, 0));
  cluster.ExpectFree();
}

TEST(EngineOrdersTest, AParkedGrantIsItsSendersAlone) {
  Cluster cluster;
  const RequestSpec spec = ToyRequest(1, 40, 4);
  const Revoke revoke{{spec.key.uid, 1, TransferId(77)}, "not mine", true};
  cluster.p->Post(FromPeer(*cluster.d, GrantOf(*cluster.d, spec, 77)));
  cluster.p->Post(FromPeer(*cluster.other, GrantOf(*cluster.other, spec, 78)));
  cluster.p->Post(FromPeer(*cluster.other, GrantOf(*cluster.d, spec, 79)));
  cluster.p->Post(FromPeer(*cluster.other, revoke));
  cluster.p->Start(ForPeer(spec, RequestKind::kSource, *cluster.d));
  for (int i = 0; i < 6; ++i) cluster.rig.Round();
  EXPECT_TRUE(cluster.p->recorder().Of(spec.key).Reached(RequestState::kGranted));
  cluster.p->Cancel(spec.key);
  ASSERT_TRUE(cluster.rig.RunUntilQuiet());
  cluster.ExpectFree();
}

// Does something once, in the middle of a forward pass.
class OnceInStep final : public StageSink {
 public:
  void Begin(StepStage stage) override {
    if (stage == StepStage::kForward && what) std::exchange(what, nullptr)();
  }
  void End() override {}
  std::function<void()> what;
};

// Several routers may cause more grants than may be parked. Each grant comes after its request, so
// none is a stranger's.
TEST(EngineOrdersTest, AllGrantsOfOneStepFindTheirRequests) {
  constexpr uint64_t kNumRequests = GrantPark::kCapacity + 36;
  OnceInStep in_step;
  HandRig rig;
  HandWorker* const p = rig.Add({.role = WorkerRole::kPrefill, .stages = &in_step});
  HandWorker* const d = rig.Add({.role = WorkerRole::kDecode});
  const RequestSpec first = ToyRequest(1, 40, 4);
  const auto number = [](uint64_t i) { return ToyRequest(100 + i, 4, 4); };
  in_step.what = [&] {
    for (uint64_t i = 0; i < kNumRequests; ++i) {
      p->Start(ForPeer(number(i), RequestKind::kSource, *d));
      p->Post(FromPeer(*d, GrantOf(*d, number(i), 100 + i)));
    }
  };
  p->Start(ForPeer(first, RequestKind::kSource, *d));
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (uint64_t i = 0; i < kNumRequests; ++i) {
    EXPECT_TRUE(p->recorder().Of(number(i).key).Reached(RequestState::kGranted)) << i;
  }
  p->Cancel(first.key);
  ASSERT_TRUE(rig.RunUntilQuiet());
}

// As many Retargets in one turn as there may be sends that close: the next attempt begins anew, and
// the grant that waits for it is not lost.
TEST(EngineOrdersTest, ARetargetBeyondTheLimitIsComputedAnew) {
  Cluster cluster;
  RequestSpec spec = ToyRequest(1, 40, 4);
  cluster.p->Start(ForPeer(spec, RequestKind::kSource, *cluster.d));
  for (int i = 0; i < 6; ++i) cluster.rig.Round();
  const auto last = static_cast<uint32_t>(HandoffSource::kMaxClosingSends) + 2;
  const RequestSpec next = OfAttempt(spec, last);
  cluster.other->Start(ForPeer(next, RequestKind::kDest, *cluster.p));
  for (int i = 0; i < 4; ++i) cluster.rig.Round();
  for (uint32_t attempt = 1; attempt < last; ++attempt) {
    spec.key.attempt = attempt;
    if (attempt > 1) cluster.p->Start(ForPeer(spec, RequestKind::kSource, *cluster.d));
    cluster.p->Post(FromPeer(*cluster.d, GrantOf(*cluster.d, spec, 100 + attempt)));
  }
  cluster.p->Start(ForPeer(next, RequestKind::kSource, *cluster.other));
  ASSERT_TRUE(cluster.rig.RunUntilQuiet());
  EXPECT_EQ(cluster.p->recorder().Of(next.key).last(), RequestState::kHandedOff)
      << cluster.p->recorder().Of(next.key).status;
  EXPECT_EQ(IdsOf(cluster.other->recorder().Of(next.key), 0), ExpectedTokens(next, 0));
  cluster.ExpectFree();
}

}  // namespace
}  // namespace baton::engine
