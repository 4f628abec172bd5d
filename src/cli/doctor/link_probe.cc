#include "src/cli/doctor/link_probe.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/slice_copy.h"
#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/base/random.h"

namespace baton::cli {

using kv::BadSlice;
using kv::HostId;
using kv::KvArena;
using kv::KvEndpoint;
using kv::KvEndpointOptions;
using kv::KvLayout;
using kv::KvTransportSink;
using kv::PeerAddress;
using kv::PeerUp;
using kv::ReceiveSpec;
using kv::SliceChecksum;
using kv::SliceRef;
using kv::TransportKind;
using kv::TransportKindName;

namespace {

// 32 blocks of 384 KiB in slices of 12 KiB, as of a small model: 12 MiB a transfer.
constexpr uint32_t kNumBlocks = 32;
constexpr int64_t kMeasureUs = 100'000;
constexpr auto kPatience = std::chrono::seconds(1);
constexpr int kNumRoundTrips = 50;

KvLayout ProbeLayout() {
  KvLayout layout;
  layout.num_layers = 32;
  layout.num_kv_heads = 3;
  layout.head_dim = 64;
  return layout;
}

// Counts what the transport tells, and lets another thread wait for it.
class CountingSink final : public KvTransportSink {
 public:
  void OnPeerUp(const PeerUp&) override { Add(&num_ups_); }
  void OnPeerDown(Incarnation, const Status&) override {}
  void OnControl(Incarnation, std::string) override { Add(&num_controls_); }
  void OnReceiveProgress(TransferId, uint32_t, bool complete) override {
    if (complete) Add(&num_complete_);
  }
  void OnBadSlice(const BadSlice&) override {}
  void OnReceiveClosed(TransferId) override {}
  void OnSendClosed(Incarnation, TransferId) override {}

  Status WaitUps(uint64_t count) { return Wait(&num_ups_, count, "the endpoints do not meet"); }
  Status WaitControls(uint64_t count) {
    return Wait(&num_controls_, count, "a message does not arrive");
  }
  Status WaitComplete(uint64_t count) {
    return Wait(&num_complete_, count, "KV does not arrive, or not as it was sent");
  }

 private:
  void Add(uint64_t* counter) {
    {
      MutexLock lock(mutex_);
      ++*counter;
    }
    changed_.NotifyAll();
  }
  Status Wait(const uint64_t* counter, uint64_t count, std::string_view what) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mutex_);
    while (*counter < count && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (*counter >= count) return OkStatus();
    return DeadlineExceeded("{} within a second", what);
  }

  Mutex mutex_;
  CondVar changed_;
  uint64_t num_ups_ BATON_GUARDED_BY(mutex_) = 0;
  uint64_t num_controls_ BATON_GUARDED_BY(mutex_) = 0;
  uint64_t num_complete_ BATON_GUARDED_BY(mutex_) = 0;
};

// A prefill and a decode endpoint in this process.
class LinkProbe {
 public:
  ~LinkProbe() {
    if (p_) p_->Stop();
    if (d_) d_->Stop();
  }

  Status Connect(TransportKind kind) {
    BATON_ASSIGN_OR_RETURN(p_arena_, KvArena::Create(ProbeLayout(), kNumBlocks));
    BATON_ASSIGN_OR_RETURN(d_arena_, KvArena::Create(ProbeLayout(), kNumBlocks));
    KvEndpointOptions options;
    options.kind = kind;
    options.worker_id = "doctor-d";
    options.incarnation = d_incarnation_;
    options.listen = "127.0.0.1:0";
    BATON_ASSIGN_OR_RETURN(d_, KvEndpoint::Create(options, d_arena_.get()));
    options.worker_id = "doctor-p";
    options.incarnation = p_incarnation_;
    options.listen = "";
    BATON_ASSIGN_OR_RETURN(p_, KvEndpoint::Create(options, p_arena_.get()));
    BATON_RETURN_IF_ERROR(d_->Start(&d_sink_));
    BATON_RETURN_IF_ERROR(p_->Start(&p_sink_));
    const PeerAddress peer{.worker_id = "doctor-d",
                           .incarnation = d_incarnation_,
                           .host_id = HostId(),
                           .tcp = d_->tcp_address(),
                           .unix_name = d_->unix_name()};
    BATON_RETURN_IF_ERROR(p_->SetPeers({&peer, 1}));
    BATON_RETURN_IF_ERROR(p_sink_.WaitUps(1));
    BATON_RETURN_IF_ERROR(d_sink_.WaitUps(1));
    PrepareSlices();
    return OkStatus();
  }

  // The median of some.
  StatusOr<double> RoundTripUs() {
    std::vector<int64_t> times;
    for (int i = 0; i < kNumRoundTrips; ++i) {
      const int64_t start_us = SystemClock().NowUs();
      BATON_RETURN_IF_ERROR(RoundTrip());
      times.push_back(SystemClock().NowUs() - start_us);
    }
    std::nth_element(times.begin(), times.begin() + kNumRoundTrips / 2, times.end());
    return static_cast<double>(times[kNumRoundTrips / 2]);
  }

  // The best transfer of 0.1 s: the first ones map pages.
  StatusOr<double> BytesPerS() {
    int64_t best_us = 0;
    const int64_t end_us = SystemClock().NowUs() + kMeasureUs;
    while (best_us == 0 || SystemClock().NowUs() < end_us) {
      BATON_ASSIGN_OR_RETURN(const int64_t took_us, MoveAll());
      if (best_us == 0 || took_us < best_us) best_us = std::max<int64_t>(1, took_us);
    }
    const double bytes = static_cast<double>(ProbeLayout().BlockBytes()) * kNumBlocks;
    return bytes / (static_cast<double>(best_us) * 1e-6);
  }

 private:
  void PrepareSlices() {
    const KvLayout layout = ProbeLayout();
    for (uint64_t i = 0; i < p_arena_->size_bytes(); ++i) {
      p_arena_->base()[i] = static_cast<std::byte>(i * 131 >> 7);
    }
    for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (uint32_t block = 0; block < kNumBlocks; ++block) {
        SliceRef& slice = slices_.emplace_back();
        slice.attempt = 1;
        slice.ordinal = block;
        slice.layer = layer;
        slice.generation = 1;
        slice.source = BlockIndex(block);
        slice.checksum = SliceChecksum(p_arena_->Slice(slice.source, layer), layout.SliceBytes());
      }
    }
  }

  Status RoundTrip() {
    ++num_controls_;
    BATON_RETURN_IF_ERROR(p_->SendControl(d_incarnation_, std::string(100, 'x')));
    BATON_RETURN_IF_ERROR(d_sink_.WaitControls(num_controls_));
    BATON_RETURN_IF_ERROR(d_->SendControl(p_incarnation_, std::string(100, 'y')));
    return p_sink_.WaitControls(num_controls_);
  }

  // One transfer of all blocks: microseconds from the first slice offered to the last one verified.
  StatusOr<int64_t> MoveAll() {
    ReceiveSpec spec;
    spec.transfer = TransferId(++num_transfers_);
    spec.peer = p_incarnation_;
    spec.attempt = 1;
    for (uint32_t i = 0; i < kNumBlocks; ++i) spec.blocks.push_back({BlockIndex(i), 1});
    BATON_RETURN_IF_ERROR(d_->OpenReceive(std::move(spec)));
    BATON_RETURN_IF_ERROR(RoundTrip());  // calls take effect in order: it is open now
    for (SliceRef& slice : slices_) slice.transfer = TransferId(num_transfers_);
    const int64_t start_us = SystemClock().NowUs();
    BATON_RETURN_IF_ERROR(p_->SendSlices(d_incarnation_, slices_));
    BATON_RETURN_IF_ERROR(d_sink_.WaitComplete(num_transfers_));
    const int64_t took_us = SystemClock().NowUs() - start_us;
    d_->CloseReceive(TransferId(num_transfers_));
    return took_us;
  }

  const Incarnation p_incarnation_ = RandomIncarnation();
  const Incarnation d_incarnation_ = RandomIncarnation();
  std::unique_ptr<KvArena> p_arena_;
  std::unique_ptr<KvArena> d_arena_;
  CountingSink p_sink_;
  CountingSink d_sink_;
  std::unique_ptr<KvEndpoint> p_;
  std::unique_ptr<KvEndpoint> d_;
  std::vector<SliceRef> slices_;
  uint64_t num_controls_ = 0;
  uint64_t num_transfers_ = 0;
};

Status Measure(TransportKind kind, LinkFact* link) {
  LinkProbe probe;
  BATON_RETURN_IF_ERROR(probe.Connect(kind));
  BATON_ASSIGN_OR_RETURN(link->round_trip_us, probe.RoundTripUs());
  BATON_ASSIGN_OR_RETURN(link->bytes_per_s, probe.BytesPerS());
  return OkStatus();
}

}  // namespace

LinkFact MeasureLink(TransportKind kind) {
  LinkFact link{.transport = std::string(TransportKindName(kind)), .error = ""};
  link.error = std::string(Measure(kind, &link).message());
  return link;
}

}  // namespace baton::cli
