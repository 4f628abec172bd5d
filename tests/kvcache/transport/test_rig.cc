#include "tests/kvcache/transport/test_rig.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <thread>

#include "gtest/gtest.h"

#include "kvcache/kv_view.h"
#include "kvcache/transport/slice_copy.h"
#include "src/base/check.h"
#include "src/base/random.h"
#include "tests/nccl/loopback_library.h"

namespace baton::kv::test {
namespace {

// Far beyond what any condition needs on a loaded machine under a sanitizer.
constexpr std::chrono::seconds kPatience(20);

}  // namespace

KvLayout SmallLayout() {
  KvLayout layout;
  layout.num_layers = 3;
  layout.num_kv_heads = 4;
  layout.head_dim = 16;
  layout.block_size = 16;
  return layout;
}

KvLayout ModelLayout() {
  KvLayout layout;
  layout.num_layers = 30;
  layout.num_kv_heads = 3;
  layout.head_dim = 64;
  layout.block_size = 16;
  return layout;
}

std::unique_ptr<KvArena> MakeArena(const KvLayout& layout, uint32_t num_blocks) {
  StatusOr<std::unique_ptr<KvArena>> arena = KvArena::Create(layout, num_blocks);
  BATON_CHECK(arena.ok(), "{}", arena.status().ToString());
  return *std::move(arena);
}

namespace {

// The block in each rank's memory, its padding included.
std::vector<std::span<std::byte>> PartsOf(const KvMemory& memory, BlockIndex block) {
  std::vector<std::span<std::byte>> parts;
  for (uint32_t rank = 0; rank < memory.num_ranks(); ++rank) {
    std::byte* const base = memory.ranks.empty() ? memory.base : memory.ranks[rank];
    parts.emplace_back(base + memory.SliceOffset(block, 0), memory.rank_layout().BlockStride());
  }
  return parts;
}

// Calls `visit` with the piece of each head, of K and then of V, in the order of a whole slice.
template <typename Visit>
void ForEachPiece(const KvMemory& memory, BlockIndex block, uint32_t layer, const Visit& visit) {
  const KvLayout part = memory.rank_layout();
  for (const uint32_t which : {0u, 1u}) {
    for (uint32_t head = 0; head < memory.layout.num_kv_heads; ++head) {
      const uint32_t rank = head / part.num_kv_heads;
      const KvView own{memory.ranks.empty() ? memory.base : memory.ranks[rank], &part,
                       memory.num_blocks};
      visit(own.Piece(block.value(), layer, which, head % part.num_kv_heads));
    }
  }
}

}  // namespace

std::vector<std::byte> ReadSlice(const KvMemory& memory, BlockIndex block, uint32_t layer) {
  std::vector<std::byte> slice;
  ForEachPiece(memory, block, layer, [&](const std::byte* piece) {
    slice.insert(slice.end(), piece, piece + memory.layout.PieceBytes());
  });
  return slice;
}

void FillSlice(const KvMemory& memory, BlockIndex block, uint32_t layer, uint64_t seed) {
  std::mt19937_64 random(seed ^ (uint64_t{block.value()} << 32) ^ layer);
  ForEachPiece(memory, block, layer, [&](std::byte* piece) {
    for (size_t i = 0; i < memory.layout.PieceBytes(); i += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(piece + i, &word, sizeof(word));
    }
  });
}

bool SameSlice(const KvMemory& a, BlockIndex block_a, const KvMemory& b, BlockIndex block_b,
               uint32_t layer) {
  return ReadSlice(a, block_a, layer) == ReadSlice(b, block_b, layer);
}

bool BlockIs(const KvMemory& memory, BlockIndex block, std::byte value) {
  const auto parts = PartsOf(memory, block);
  return std::all_of(parts.begin(), parts.end(), [value](std::span<std::byte> part) {
    return std::all_of(part.begin(), part.end(), [value](std::byte byte) { return byte == value; });
  });
}

void SetBlock(const KvMemory& memory, BlockIndex block, std::byte value) {
  for (const std::span<std::byte> part : PartsOf(memory, block)) {
    std::fill(part.begin(), part.end(), value);
  }
}

void RecordingSink::Record(const std::function<void(Recorded*)>& change) {
  {
    std::lock_guard lock(mutex_);
    change(&recorded_);
  }
  changed_.notify_all();
}

void RecordingSink::OnPeerUp(const PeerUp& peer) {
  Record([&](Recorded* r) { r->ups.push_back(peer); });
}
void RecordingSink::OnPeerDown(Incarnation peer, const Status& status) {
  Record([&](Recorded* r) { r->downs.emplace_back(peer, status.ToString()); });
}
void RecordingSink::OnControl(Incarnation peer, std::string bytes) {
  Record([&](Recorded* r) { r->controls.emplace_back(peer, std::move(bytes)); });
}
void RecordingSink::OnReceiveProgress(TransferId transfer, uint32_t slices_done, bool complete) {
  Record([&](Recorded* r) {
    if (r->receives_closed.count(transfer.value()) > 0) ++r->events_after_close;
    uint32_t& done = r->slices_done[transfer.value()];
    EXPECT_GT(slices_done, done) << "progress went back";
    done = slices_done;
    ++r->num_progress[transfer.value()];
    if (complete) {
      EXPECT_TRUE(r->complete.insert(transfer.value()).second) << "complete twice";
    }
  });
}
void RecordingSink::OnBadSlice(const BadSlice& slice) {
  Record([&](Recorded* r) {
    if (r->receives_closed.count(slice.transfer.value()) > 0) ++r->events_after_close;
    r->bad_slices.push_back(slice);
  });
}
void RecordingSink::OnReceiveClosed(TransferId transfer) {
  Record([&](Recorded* r) { r->receives_closed.insert(transfer.value()); });
}
void RecordingSink::OnSendClosed(Incarnation peer, TransferId transfer) {
  Record([&](Recorded* r) { r->sends_closed.emplace(peer.value(), transfer.value()); });
}

bool RecordingSink::WaitFor(const std::function<bool(const Recorded&)>& condition) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return condition(recorded_); });
}

Recorded RecordingSink::Snapshot() {
  std::lock_guard lock(mutex_);
  return recorded_;
}

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool EndSend(const Worker& sender, Incarnation peer, TransferId transfer) {
  sender.transport->CloseSend(peer, transfer);
  return sender.sink->WaitSendClosed(peer, transfer);
}

KvEndpointTimers QuickTimers() {
  KvEndpointTimers timers;
  // Generous where nothing should expire: the machine may be busy.
  timers.connect_us = 20'000'000;
  timers.hello_us = 20'000'000;
  timers.frame_gap_us = 20'000'000;
  timers.write_stall_us = 60'000'000;
  timers.control_ttl_us = 60'000'000;
  timers.backoff_min_us = 2'000;
  timers.backoff_max_us = 50'000;
  return timers;
}

Rig::Rig(TransportKind kind, const KvLayout& layout, uint32_t num_blocks)
    : kind_(kind), layout_(layout), num_blocks_(num_blocks), next_incarnation_(RandomU64() | 1) {
  if (kind == TransportKind::kLocal) hub_ = std::make_unique<LocalHub>(true);
}

namespace {

// Generous where nothing should expire; buffers of some hundred slices.
NcclTransportOptions QuickNccl(const SliceDevice& device) {
  NcclTransportOptions options;
  options.table = &nccl_test::LoopbackTable();
  options.device = device;
  options.timers.build_us = 20'000'000;
  options.timers.credit_us = 20'000'000;
  options.timers.operation_us = 20'000'000;
  options.limits.num_slots = 3;
  options.limits.slot_bytes = uint64_t{4} << 20;
  return options;
}

IpcTransportOptions QuickIpc(const SliceDevice& device) {
  IpcTransportOptions options;
  options.device = device;
  options.timers.answer_us = 20'000'000;
  options.timers.max_answer_us = 20'000'000;
  options.limits.offer_bytes = uint64_t{4} << 20;
  return options;
}

std::unique_ptr<KvEndpoint> MakeEndpoint(const KvEndpointOptions& options, Worker* worker) {
  auto endpoint = KvEndpoint::Create(options, worker->arena.get());
  BATON_CHECK(endpoint.ok(), "{}", endpoint.status().ToString());
  worker->endpoint = endpoint->get();
  return *std::move(endpoint);
}

}  // namespace

Worker Rig::Make(const std::string& worker_id, Incarnation incarnation, bool listens) {
  Worker worker;
  worker.incarnation = incarnation.value() != 0 ? incarnation : Incarnation(next_incarnation_++);
  names_[worker.incarnation.value()] = worker_id;
  const bool is_on_device =
      kind_ == TransportKind::kNccl || kind_ == TransportKind::kCudaIpc || on_device;
  worker.arena = MakeArena(layout_, is_on_device ? 1 : num_blocks_);
  if (kind_ == TransportKind::kLocal) {
    MakeLocal(!listens, &worker);
  } else {
    MakeTransport(listens, &worker);
  }
  const Status started = worker.transport->Start(worker.sink.get());
  BATON_CHECK(started.ok(), "{}", started.ToString());
  return worker;
}

KvEndpointOptions Rig::EndpointOptions(const Worker& worker, bool listens) {
  KvEndpointOptions options;
  options.worker_id = names_[worker.incarnation.value()];
  options.incarnation = worker.incarnation;
  options.cluster_secret = "a secret";
  options.numerics_id = "numerics";
  options.kind = kind_ == TransportKind::kNccl      ? TransportKind::kTcp
                 : kind_ == TransportKind::kCudaIpc ? TransportKind::kShm
                                                    : kind_;
  if (listens) options.listen = "127.0.0.1:0";
  options.timers = QuickTimers();
  if (tweak) tweak(&options);
  return options;
}

void Rig::MakeTransport(bool listens, Worker* worker) {
  if (kind_ == TransportKind::kCudaIpc) return MakeIpc(listens, worker);
  auto endpoint = MakeEndpoint(EndpointOptions(*worker, listens), worker);
  if (kind_ == TransportKind::kNccl) return MakeNccl(std::move(endpoint), listens, worker);
  worker->transport = std::move(endpoint);
}

nccl_test::KvDevice Rig::MakeDevice(bool listens, bool is_shared) {
  return nccl_test::MakeKvDevice({.is_runner = on_runner,
                                  .is_shared = is_shared,
                                  .num_ranks = listens ? decode_ranks : prefill_ranks},
                                 layout_, num_blocks_);
}

void Rig::MakeNccl(std::unique_ptr<KvEndpoint> endpoint, bool listens, Worker* worker) {
  worker->device = MakeDevice(listens, false);
  NcclTransportOptions nccl = QuickNccl(worker->device.parts);
  if (on_runner) nccl.limits.slot_bytes /= 8;
  if (tweak_nccl) tweak_nccl(&nccl);
  auto transport = NcclTransport::Create(nccl, std::move(endpoint));
  BATON_CHECK(transport.ok(), "{}", transport.status().ToString());
  worker->transport = *std::move(transport);
}

void Rig::MakeIpc(bool listens, Worker* worker) {
  worker->device = MakeDevice(listens, true);
  IpcTransportOptions ipc = QuickIpc(worker->device.parts);
  if (on_runner) ipc.limits.offer_bytes /= 8;
  if (tweak_ipc) tweak_ipc(&ipc);
  auto pools = DevicePools::Create(worker->device.ranks(), worker->device.parts.memory);
  BATON_CHECK(pools.ok(), "{}", pools.status().ToString());
  KvEndpointOptions options = EndpointOptions(*worker, listens);
  options.pools = pools->get();
  auto transport = IpcTransport::Create(ipc, *std::move(pools), MakeEndpoint(options, worker));
  BATON_CHECK(transport.ok(), "{}", transport.status().ToString());
  worker->transport = *std::move(transport);
}

// All of one device, as in a process whose workers share it.
void Rig::MakeLocal(bool dials, Worker* worker) {
  LocalWorker local{.worker_id = names_[worker->incarnation.value()],
                    .incarnation = worker->incarnation,
                    .memory = worker->arena->memory(),
                    .puller = nullptr,
                    .dials = dials};
  if (on_device) {
    worker->device = nccl_test::MakeKvDevice(
        {.is_runner = on_runner, .beside = shared_device_.get()}, layout_, num_blocks_);
    if (shared_device_ == nullptr) shared_device_ = worker->device.device->Share().value();
    local.memory = worker->device.parts.memory;
    auto puller = SlicePuller::Create(worker->device.parts, 1, on_runner ? 16 : 100);
    BATON_CHECK(puller.ok(), "{}", puller.status().ToString());
    local.puller = *std::move(puller);
  }
  worker->transport = hub_->Attach(std::move(local));
}

Worker Rig::MakeDecode(const std::string& worker_id, Incarnation incarnation) {
  return Make(worker_id, incarnation, true);
}

Worker Rig::MakePrefill(const std::string& worker_id, const std::vector<const Worker*>& decodes) {
  Worker worker = Make(worker_id, Incarnation(0), false);
  SetDecodes(&worker, decodes);
  return worker;
}

void Rig::SetDecodes(Worker* prefill, const std::vector<const Worker*>& decodes) {
  if (prefill->endpoint == nullptr) return;
  std::vector<PeerAddress> peers;
  for (const Worker* const decode : decodes) {
    PeerAddress& peer = peers.emplace_back();
    peer.worker_id = names_[decode->incarnation.value()];
    peer.incarnation = decode->incarnation;
    peer.host_id = HostId();
    peer.tcp = decode->endpoint->tcp_address();
    peer.unix_name = decode->endpoint->unix_name();
  }
  const Status status = prefill->endpoint->SetPeers(peers);
  BATON_CHECK(status.ok(), "{}", status.ToString());
}

Transfer MakeTransfer(uint64_t id, uint32_t count, uint32_t first_source, uint32_t first_dest) {
  Transfer transfer;
  transfer.id = TransferId(id);
  for (uint32_t i = 0; i < count; ++i) {
    transfer.source.push_back(BlockIndex(first_source + i));
    transfer.dest.push_back({BlockIndex(first_dest + i), 7 + i});
  }
  return transfer;
}

ReceiveSpec SpecFor(const Transfer& transfer, Incarnation peer) {
  ReceiveSpec spec;
  spec.transfer = transfer.id;
  spec.attempt = transfer.attempt;
  spec.peer = peer;
  spec.blocks = transfer.dest;
  spec.layers_per_group = 1;
  return spec;
}

std::vector<SliceRef> SlicesOf(const Transfer& transfer, const KvMemory& source) {
  std::vector<SliceRef> slices;
  for (uint32_t layer = 0; layer < source.layout.num_layers; ++layer) {
    for (uint32_t ordinal = 0; ordinal < transfer.num_blocks(); ++ordinal) {
      SliceRef& slice = slices.emplace_back();
      slice.transfer = transfer.id;
      slice.attempt = transfer.attempt;
      slice.ordinal = ordinal;
      slice.layer = layer;
      slice.generation = transfer.dest[ordinal].generation;
      slice.source = transfer.source[ordinal];
      const std::vector<std::byte> bytes = ReadSlice(source, slice.source, layer);
      slice.checksum = SliceChecksum(bytes.data(), bytes.size());
    }
  }
  return slices;
}

void FillSource(const Transfer& transfer, const KvMemory& source, uint64_t seed) {
  for (const BlockIndex block : transfer.source) {
    for (uint32_t layer = 0; layer < source.layout.num_layers; ++layer) {
      FillSlice(source, block, layer, seed);
    }
  }
}

bool Arrived(const Transfer& transfer, const KvMemory& source, const KvMemory& dest) {
  for (uint32_t ordinal = 0; ordinal < transfer.num_blocks(); ++ordinal) {
    for (uint32_t layer = 0; layer < source.layout.num_layers; ++layer) {
      const bool same =
          SameSlice(source, transfer.source[ordinal], dest, transfer.dest[ordinal].index, layer);
      if (!same) return false;
    }
  }
  return true;
}

uint64_t Closes(const Worker& worker, CloseReason reason) {
  return worker.transport->Stats().closes[static_cast<size_t>(reason)];
}
uint64_t Refused(const Worker& worker, BadSliceReason reason) {
  return worker.transport->Stats().bad_slices[static_cast<size_t>(reason)];
}
bool WaitClose(const Worker& worker, CloseReason reason, uint64_t count) {
  return Eventually([&] { return Closes(worker, reason) >= count; });
}

void ExpectTransferWorks(Worker* p, Worker* d, uint64_t id) {
  const Transfer transfer = MakeTransfer(id, 4, 0, 20);
  FillSource(transfer, p->blocks(), id);
  ASSERT_TRUE(d->transport->OpenReceive(SpecFor(transfer, p->incarnation)).ok());
  const size_t controls = p->sink->Snapshot().controls.size();
  ASSERT_TRUE(d->transport->SendControl(p->incarnation, "grant").ok());
  ASSERT_TRUE(p->sink->WaitControls(controls + 1));
  ASSERT_TRUE(p->transport->SendSlices(d->incarnation, SlicesOf(transfer, p->blocks())).ok());
  ASSERT_TRUE(d->sink->WaitComplete(transfer.id));
  EXPECT_TRUE(Arrived(transfer, p->blocks(), d->blocks()));
  d->transport->CloseReceive(transfer.id);
  ASSERT_TRUE(d->sink->WaitReceiveClosed(transfer.id));
  // The next call writes to the same source blocks.
  ASSERT_TRUE(EndSend(*p, d->incarnation, transfer.id));
}

}  // namespace baton::kv::test
