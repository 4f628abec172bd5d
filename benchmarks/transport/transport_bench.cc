// Measures the cost of moving KV blocks: the copy with its checksum against plain memcpy, whole
// transfers over each transport, and the round trip of a small control message. JSON:
// --benchmark_format=json.
//
// A transfer is that of SmolLM2-135M: 30 layers of 12 KiB a block; 512 tokens are 32 blocks, 11.8
// MB.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"

#include "kvcache/kv_arena.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/local_transport.h"
#include "kvcache/transport/slice_copy.h"
#include "src/base/check.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/base/random.h"

namespace baton::kv {

using tls::TlsFiles;

namespace {

KvLayout ModelLayout() {
  KvLayout layout;
  layout.num_layers = 30;
  layout.num_kv_heads = 3;
  layout.head_dim = 64;
  layout.block_size = 16;
  return layout;
}

// 256 blocks hold 4096 tokens, 94 MB: beyond every cache.
constexpr uint32_t kArenaBlocks = 256;

std::unique_ptr<KvArena> MakeArena() {
  auto arena = KvArena::Create(ModelLayout(), kArenaBlocks);
  BATON_CHECK(arena.ok(), "{}", arena.status().ToString());
  for (uint64_t i = 0; i < (*arena)->size_bytes(); i += 8) {
    const uint64_t word = i * 0x9e3779b97f4a7c15ull;
    std::memcpy((*arena)->base() + i, &word, sizeof(word));
  }
  return *std::move(arena);
}

// Plain memcpy of the same bytes in one call: the baseline of the shm target (1.3 times this).
void BM_Memcpy(benchmark::State& state) {
  const auto source = MakeArena();
  const auto dest = MakeArena();
  const size_t bytes = static_cast<size_t>(state.range(0)) * ModelLayout().BlockStride();
  for (auto _ : state) {
    std::memcpy(dest->base(), source->base(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}
BENCHMARK(BM_Memcpy)->Arg(32)->Arg(256)->UseRealTime();

// The receiver's one pass over the same bytes, slice by slice.
void BM_CopyAndChecksum(benchmark::State& state) {
  const auto source = MakeArena();
  const auto dest = MakeArena();
  const auto num_blocks = static_cast<uint32_t>(state.range(0));
  uint64_t sum = 0;
  for (auto _ : state) {
    for (uint32_t block = 0; block < num_blocks; ++block) {
      for (uint32_t layer = 0; layer < ModelLayout().num_layers; ++layer) {
        sum += CopyAndChecksum(dest->Slice(BlockIndex(block), layer),
                               source->Slice(BlockIndex(block), layer), ModelLayout().SliceBytes());
      }
    }
  }
  benchmark::DoNotOptimize(sum);
  state.SetBytesProcessed(state.iterations() * num_blocks *
                          static_cast<int64_t>(ModelLayout().BlockBytes()));
}
BENCHMARK(BM_CopyAndChecksum)->Arg(32)->Arg(256)->UseRealTime();

// The checksums that a prefill worker computes when it seals.
void BM_SliceChecksum(benchmark::State& state) {
  const auto source = MakeArena();
  uint64_t sum = 0;
  for (auto _ : state) {
    for (uint32_t block = 0; block < kArenaBlocks; ++block) {
      for (uint32_t layer = 0; layer < ModelLayout().num_layers; ++layer) {
        sum += SliceChecksum(source->Slice(BlockIndex(block), layer), ModelLayout().SliceBytes());
      }
    }
  }
  benchmark::DoNotOptimize(sum);
  state.SetBytesProcessed(state.iterations() * kArenaBlocks *
                          static_cast<int64_t>(ModelLayout().BlockBytes()));
}
BENCHMARK(BM_SliceChecksum)->UseRealTime();

// Counts what the transport tells.
class CountingSink final : public KvTransportSink {
 public:
  void OnPeerUp(const PeerUp&) override { Add(&ups_); }
  void OnPeerDown(Incarnation, const Status&) override {}
  void OnControl(Incarnation, std::string) override { Add(&controls_); }
  void OnReceiveProgress(TransferId, uint32_t, bool complete) override {
    if (complete) Add(&completes_);
  }
  void OnBadSlice(const BadSlice& slice) override {
    BATON_CHECK(false, "bad slice {} of layer {}", slice.ordinal, slice.layer);
  }
  void OnReceiveClosed(TransferId) override { Add(&closes_); }
  void OnSendClosed(Incarnation, TransferId) override {}

  void WaitUps(uint64_t count) { Wait(&ups_, count); }
  void WaitControls(uint64_t count) { Wait(&controls_, count); }
  void WaitCompletes(uint64_t count) { Wait(&completes_, count); }
  void WaitCloses(uint64_t count) { Wait(&closes_, count); }

 private:
  void Add(uint64_t* counter) {
    {
      MutexLock lock(mutex_);
      ++*counter;
    }
    changed_.NotifyAll();
  }
  void Wait(const uint64_t* counter, uint64_t count) {
    MutexLock lock(mutex_);
    while (*counter < count) changed_.Wait(mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  uint64_t ups_ BATON_GUARDED_BY(mutex_) = 0;
  uint64_t controls_ BATON_GUARDED_BY(mutex_) = 0;
  uint64_t completes_ BATON_GUARDED_BY(mutex_) = 0;
  uint64_t closes_ BATON_GUARDED_BY(mutex_) = 0;
};

// A prefill and a decode worker in this process, joined by one kind of transport.
class Pair {
 public:
  explicit Pair(TransportKind kind, const TlsFiles& tls = {})
      : p_arena_(MakeArena()), d_arena_(MakeArena()) {
    const Incarnation p_incarnation = RandomIncarnation();
    if (kind == TransportKind::kLocal) {
      hub_ = std::make_unique<LocalHub>(true);
      p_ = hub_->Attach("p", p_incarnation, p_arena_.get());
      d_ = hub_->Attach("d", d_incarnation_, d_arena_.get());
      StartBoth();
    } else {
      MakeEndpoints(kind, tls, p_incarnation);
    }
    p_incarnation_ = p_incarnation;
    p_sink_.WaitUps(1);
    d_sink_.WaitUps(1);
    PrepareSlices();
  }
  ~Pair() {
    p_->Stop();
    d_->Stop();
  }

  // One transfer of `num_blocks`, from the first slice offered to the last one verified; the
  // seconds.
  double MoveBlocks(uint32_t num_blocks) {
    ReceiveSpec spec;
    spec.transfer = TransferId(++next_transfer_);
    spec.peer = p_incarnation_;
    spec.attempt = 1;
    for (uint32_t i = 0; i < num_blocks; ++i) spec.blocks.push_back({BlockIndex(i), 1});
    BATON_CHECK(d_->OpenReceive(std::move(spec)).ok(), "open");
    RoundTrip();
    const std::vector<SliceRef> slices = SlicesOf(num_blocks);
    const auto start = std::chrono::steady_clock::now();
    // As the engine does: a group of five layers at a time.
    const size_t group = size_t{5} * num_blocks;
    for (size_t begin = 0; begin < slices.size(); begin += group) {
      const size_t count = std::min(group, slices.size() - begin);
      BATON_CHECK(p_->SendSlices(d_incarnation_, {&slices[begin], count}).ok(), "send");
    }
    d_sink_.WaitCompletes(++num_complete_);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    d_->CloseReceive(TransferId(next_transfer_));
    d_sink_.WaitCloses(next_transfer_);
    return took.count();
  }

  // Sends a small message to the decode worker and one back.
  void RoundTrip() {
    ++num_controls_;
    BATON_CHECK(p_->SendControl(d_incarnation_, std::string(100, 'x')).ok(), "control");
    d_sink_.WaitControls(num_controls_);
    BATON_CHECK(d_->SendControl(p_incarnation_, std::string(100, 'y')).ok(), "control");
    p_sink_.WaitControls(num_controls_);
  }

 private:
  void StartBoth() { BATON_CHECK(p_->Start(&p_sink_).ok() && d_->Start(&d_sink_).ok(), "start"); }

  void MakeEndpoints(TransportKind kind, const TlsFiles& tls, Incarnation p_incarnation) {
    KvEndpointOptions options;
    options.tls = tls;
    options.kind = kind;
    options.worker_id = "d";
    options.incarnation = d_incarnation_;
    options.listen = "127.0.0.1:0";
    auto d = KvEndpoint::Create(options, d_arena_.get());
    options.worker_id = "p";
    options.incarnation = p_incarnation;
    options.listen = "";
    auto p = KvEndpoint::Create(options, p_arena_.get());
    BATON_CHECK(d.ok() && p.ok(), "{} {}", d.status().ToString(), p.status().ToString());
    const PeerAddress peer{"d", d_incarnation_, HostId(), (*d)->tcp_address(), (*d)->unix_name()};
    KvEndpoint* const dialler = p->get();
    p_ = *std::move(p);
    d_ = *std::move(d);
    StartBoth();
    BATON_CHECK(dialler->SetPeers({&peer, 1}).ok(), "peers");
  }

  void PrepareSlices() {
    for (uint32_t layer = 0; layer < ModelLayout().num_layers; ++layer) {
      for (uint32_t block = 0; block < kArenaBlocks; ++block) {
        SliceRef& slice = slices_.emplace_back();
        slice.attempt = 1;
        slice.ordinal = block;
        slice.layer = layer;
        slice.generation = 1;
        slice.source = BlockIndex(block);
        slice.checksum =
            SliceChecksum(p_arena_->Slice(slice.source, layer), ModelLayout().SliceBytes());
      }
    }
  }

  std::vector<SliceRef> SlicesOf(uint32_t num_blocks) const {
    std::vector<SliceRef> result;
    for (const SliceRef& slice : slices_) {
      if (slice.ordinal >= num_blocks) continue;
      result.push_back(slice);
      result.back().transfer = TransferId(next_transfer_);
    }
    return result;
  }

  const std::unique_ptr<KvArena> p_arena_;
  const std::unique_ptr<KvArena> d_arena_;
  const Incarnation d_incarnation_ = RandomIncarnation();
  Incarnation p_incarnation_;
  CountingSink p_sink_;
  CountingSink d_sink_;
  std::unique_ptr<LocalHub> hub_;
  std::unique_ptr<KvTransport> p_;
  std::unique_ptr<KvTransport> d_;
  std::vector<SliceRef> slices_;
  uint64_t next_transfer_ = 0;
  uint64_t num_complete_ = 0;
  uint64_t num_controls_ = 0;
};

void RunTransfer(benchmark::State& state, TransportKind kind, const TlsFiles& tls = {}) {
  Pair pair(kind, tls);
  const auto num_blocks = static_cast<uint32_t>(state.range(0));
  pair.MoveBlocks(kArenaBlocks);  // page tables, buffers
  for (auto _ : state) state.SetIterationTime(pair.MoveBlocks(num_blocks));
  state.SetBytesProcessed(state.iterations() * num_blocks *
                          static_cast<int64_t>(ModelLayout().BlockBytes()));
}

void BM_Transfer(benchmark::State& state, TransportKind kind) { RunTransfer(state, kind); }
BENCHMARK_CAPTURE(BM_Transfer, local, TransportKind::kLocal)->Arg(32)->Arg(256)->UseManualTime();
BENCHMARK_CAPTURE(BM_Transfer, shm, TransportKind::kShm)->Arg(32)->Arg(256)->UseManualTime();
BENCHMARK_CAPTURE(BM_Transfer, tcp, TransportKind::kTcp)->Arg(32)->Arg(256)->UseManualTime();

// tcp with mutual TLS and without by turns, so that both see the same machine. 0 = without. The
// folder BATON_BENCH_TLS holds node.crt, node.key and ca.crt (deploy/operations.md makes them).
void BM_TransferTls(benchmark::State& state) {
  const char* const folder = std::getenv("BATON_BENCH_TLS");
  if (folder == nullptr) {
    state.SkipWithError("BATON_BENCH_TLS names no folder with node.crt, node.key and ca.crt");
    return;
  }
  const std::string stem = std::string(folder) + "/";
  TlsFiles files;
  if (state.range(1) == 1) files = {stem + "node.crt", stem + "node.key", stem + "ca.crt"};
  RunTransfer(state, TransportKind::kTcp, files);
}
BENCHMARK(BM_TransferTls)->ArgsProduct({{32, 256}, {0, 1}})->UseManualTime();

void BM_ControlRoundTrip(benchmark::State& state, TransportKind kind) {
  Pair pair(kind);
  for (auto _ : state) pair.RoundTrip();
}
BENCHMARK_CAPTURE(BM_ControlRoundTrip, local, TransportKind::kLocal)->UseRealTime();
BENCHMARK_CAPTURE(BM_ControlRoundTrip, shm, TransportKind::kShm)->UseRealTime();
BENCHMARK_CAPTURE(BM_ControlRoundTrip, tcp, TransportKind::kTcp)->UseRealTime();

}  // namespace
}  // namespace baton::kv

int main(int argc, char** argv) {
  baton::LogConfig log;
  log.level = baton::LogLevel::kWarn;
  (void)baton::InitLog(log);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
