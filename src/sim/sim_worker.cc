// The engine's side: lives, turns, orders.
#include "src/sim/sim_worker.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "src/base/check.h"
#include "src/base/limits.h"
#include "src/sim/sim_marks.h"
#include "src/sim/sim_router.h"

namespace baton::sim {

using engine::BeginDrain;
using engine::CancelRequest;
using engine::CloseSession;
using engine::EngineConfig;
using engine::EngineCore;
using engine::EngineInbox;
using engine::EngineParts;
using engine::EngineSnapshot;
using engine::EngineTransportSink;
using engine::FailAll;
using engine::IsTerminal;
using engine::KvStore;
using engine::PrefixJournal;
using engine::RenewSession;
using engine::RequestKey;
using engine::RequestSpec;
using engine::RequestState;
using engine::RequestStatus;
using engine::SessionId;
using engine::StartRequest;
using engine::TokenEvent;
using kv::BlockCounts;
using kv::BlockHandle;
using kv::BlockInfo;
using kv::BlockPool;
using kv::BlockState;
using kv::BlockStateName;
using kv::kNumBlockStates;
using kv::KvArena;
using model::ForwardModel;
using router::IsTerminal;
using worker::CheckSessionHello;
using worker::RequestKeyFromProto;
using worker::RequestSpecFromProto;
using worker::SessionLimits;
using worker::ToProto;

namespace {

// The time from an event's arrival to the turn that handles it.
constexpr int64_t kWakeUs = 3;
// At least so long between two turns that nothing but time causes.
constexpr int64_t kIdleUs = 200;
// As a worker process sets it.
constexpr int64_t kStrandUs = 3'000'000;
constexpr uint32_t kInboxEvents = 1024;
// Clocks of two lives have nothing in common.
constexpr uint64_t kMaxClockOffsetUs = 1'000'000'000;
// As WorkerProcess::Drain: two heartbeats until orders are refused, then at most so long until what
// is left fails.
constexpr int64_t kAnnounceUs = 500'000;
constexpr int64_t kDrainTimeoutUs = 20'000'000;
constexpr int64_t kDrainPollUs = 5'000;
// For the last words to leave.
constexpr int64_t kLastWordsUs = 50'000;
// The bytes that a token counts for on its way.
constexpr size_t kTokenBytes = 32;
// How often a turn is followed by a whole recount.
constexpr uint64_t kAuditEvery = 2048;

std::unique_ptr<KvArena> MakeArena(const SimWorkerOptions& options) {
  auto arena = KvArena::Create(options.layout, options.num_blocks);
  BATON_CHECK(arena.ok(), "no arena for a simulated worker: {}", arena.status().ToString());
  return *std::move(arena);
}

std::unique_ptr<ForwardModel> MakeModel(const SimWorkerOptions& options,
                                        std::function<void(int64_t us)> spend) {
  if (options.make_model) return options.make_model(std::move(spend));
  return std::make_unique<SimModel>(options.cost, std::move(spend), options.window);
}

}  // namespace

SimWorker::SimWorker(const SimWorkerOptions& options, SimFabric* fabric, SimProcess* process)
    : options_(options),
      fabric_(fabric),
      process_(process),
      draws_(options.seed),
      arena_(MakeArena(options)),
      kv_(KvStore::OnHost(arena_.get())),
      wire_(&fabric->mail),
      transport_(process, fabric->network, arena_.get(), [this] { WakeSoon(); }),
      model_(MakeModel(options, [this](int64_t us) { Spend(us); })) {
  if (options.slice_wire_bytes > 0) transport_.set_slice_wire_bytes(options.slice_wire_bytes);
}

SimWorker::~SimWorker() { core_.reset(); }

// ---- Lives.

EngineConfig SimWorker::MakeConfig() const {
  EngineConfig config;
  config.scheduler.role = options_.role;
  config.scheduler.max_batch_tokens = 128;
  config.scheduler.max_chunk = 64;
  config.scheduler.max_running = options_.max_running;
  config.scheduler.block_size = options_.layout.block_size;
  config.scheduler.window = options_.window;
  config.max_context = options_.max_context;
  config.incarnation = incarnation_;
  config.cluster_secret = std::string(kSimSecret);
  config.eog_tokens = {kSimEos};
  config.layers_per_group = 1;
  config.hash_bytes_per_turn = 1;  // a block a turn: hand-overs take several
  config.inbox_capacity = kInboxEvents;
  config.max_bound_transfers = 256;
  config.handoff.strand_us = kStrandUs;
  if (options_.tune) options_.tune(&config);
  return config;
}

void SimWorker::Boot() {
  incarnation_ = Incarnation(draws_.NextU64() | 1);
  process_->JumpClock(static_cast<int64_t>(draws_.Below(kMaxClockOffsetUs)));
  inbox_ = std::make_unique<EngineInbox>(kInboxEvents);
  sink_ = std::make_unique<EngineTransportSink>(inbox_.get(), &wire_, process_);
  journal_ = std::make_unique<PrefixJournal>(options_.num_blocks);
  held_ = {};
  asked_.emplace(options_.layout.block_size);
  transport_.set_incarnation(incarnation_);
  const Status started = transport_.Start(sink_.get());
  BATON_CHECK(started.ok(), "{}", started.ToString());
  const EngineParts parts{.model = model_.get(),
                          .kv = kv_.get(),
                          .transport = &transport_,
                          .wire = &wire_,
                          .listener = this,
                          .prefixes = journal_.get(),
                          .clock = process_};
  const EngineConfig config = MakeConfig();
  const Status checked = EngineCore::CheckConfig(config, parts);
  BATON_CHECK(checked.ok(), "{}", checked.ToString());
  core_ = std::make_unique<EngineCore>(config, parts, inbox_.get());
  next_session_ = 1;
  leaving_ = false;
  busy_until_us_ = 0;
  turn_at_us_ = INT64_MAX;
  WakeSoon();
  for (SimRouter* router : fabric_->routers) Register(router);
  KeepHouse();
}

void SimWorker::Kill() {
  // The kernel closes the connections of a dead process: the other ends read an end of file.
  for (const auto& lease : leases_) {
    if (std::exchange(lease->worker_open, false)) {
      fabric_->network->Send(*process_, lease->router->process(), 0,
                             [lease] { lease->router->OnLeaseLost(lease); });
    }
  }
  for (const auto& [id, stream] : sessions_) {
    stream->worker_open = false;
    fabric_->network->Send(*process_, stream->router->process(), 0,
                           [stream = stream] { stream->router->OnSessionLost(stream, "reset"); });
  }
  const auto close = [this](SimProcess& peer, SimTransport* transport) {
    fabric_->network->Send(*process_, peer, 0, [transport, gone = incarnation_] {
      transport->LinkDown(gone, 0, "connection reset");
    });
  };
  for (SimTransport* peer : transport_.Peers()) close(peer->process(), peer);
  for (const auto& [incarnation, peer] : dialling_) close(peer->process(), &peer->transport());
  process_->Kill();
  leases_.clear();
  sessions_.clear();
  dialling_.clear();
  taken_.clear();  // with the pool
  transport_.Stop();
  core_.reset();
  sink_.reset();
  inbox_.reset();
  journal_.reset();
}

void SimWorker::Leave(int64_t down_us) {
  if (core_ == nullptr || std::exchange(leaving_, true)) return;
  ReportLoad();
  const int64_t announced_us = fabric_->events->now_us() + kAnnounceUs;
  process_->Post(announced_us, [this, down_us] {
    inbox_->Post(BeginDrain{});
    WakeSoon();
    WaitUntilIdle(down_us);
  });
  process_->Post(announced_us + kDrainTimeoutUs, [this] {
    inbox_->Post(FailAll{Unavailable("the worker stops")});
    WakeSoon();
  });
}

void SimWorker::WaitUntilIdle(int64_t down_us) {
  const int64_t now_us = fabric_->events->now_us();
  const bool is_idle = core_->Snapshot().IsIdleAfter(inbox_->num_posted());
  if (!is_idle || now_us < busy_until_us_) {
    return process_->Post(now_us + kDrainPollUs, [this, down_us] { WaitUntilIdle(down_us); });
  }
  process_->Post(now_us + kLastWordsUs, [this, down_us] { End(down_us); });
}

// The end that was announced: what it held has come back.
void SimWorker::End(int64_t down_us) {
  const Status empty = taken_.empty() ? CheckEmpty() : OkStatus();
  if (!empty.ok()) fabric_->violate("leak", "at a planned end: " + empty.ToString());
  Kill();
  fabric_->events->At(fabric_->events->now_us() + down_us, [this] {
    process_->Revive();
    Boot();
  });
}

void SimWorker::TakeBlocks(double share, int64_t for_us) {
  if (core_ == nullptr || !taken_.empty()) return;
  BlockPool* const pool = core_->mutable_pool();
  const auto num_blocks = static_cast<uint32_t>(share * pool->num_available());
  const RequestUid nobody{~uint64_t{0}, ~uint64_t{0}};
  if (!pool->Allocate(num_blocks, BlockState::kComputing, nobody, &taken_)) return;
  process_->Post(fabric_->events->now_us() + for_us, [this, pool] {
    for (const BlockHandle block : taken_) pool->DropRequestRef(block);
    taken_.clear();
    WakeSoon();
  });
}

// ---- Turns.

void SimWorker::WakeSoon() { Wake(fabric_->events->now_us() + kWakeUs); }

void SimWorker::Wake(int64_t at_us) {
  at_us = std::max(at_us, busy_until_us_);
  if (turn_at_us_ <= at_us) return;
  turn_at_us_ = at_us;
  process_->Post(at_us, [this, at_us] {
    if (turn_at_us_ == at_us) RunTurn();
  });
}

void SimWorker::RunTurn() {
  turn_at_us_ = INT64_MAX;
  ++num_turns_;
  if (options_.damage_every > 0 && num_turns_ % options_.damage_every == 0) Damage();
  const bool more = core_->Turn();
  const int64_t spent_us = process_->TakeSpent();
  busy_until_us_ = fabric_->events->now_us() + spent_us;
  CheckTurn();
  if (more) return Wake(busy_until_us_ + 1);
  // A deadline that is due and cannot be met yet must not stop the world.
  Wake(std::max(process_->TrueUs(core_->NextDueUs()), busy_until_us_ + kIdleUs));
}

// The device computed one layer; the transport's thread went on meanwhile.
void SimWorker::Spend(int64_t us) {
  busy_us_ += us;
  process_->Spend(us);
  transport_.DeliverControls();
}

// Flips a bit of the first block that a sequence decodes from, where no checksum looks.
void SimWorker::Damage() {
  std::optional<BlockIndex> bound;
  core_->pool().ForEachBlock([&](const BlockInfo& block) {
    if (!bound && block.state == BlockState::kBound) bound = block.handle.index;
  });
  if (bound) *arena_->Slice(*bound, 0) ^= std::byte{1};
}

void SimWorker::CheckTurn() {
  const BlockCounts& counts = core_->pool().Counts();
  uint32_t sum = 0;
  for (const uint32_t count : counts.by_state) sum += count;
  if (sum != options_.num_blocks) {
    fabric_->violate("leak", fmt::format("{}: the labels of {} blocks sum to {}", name(),
                                         options_.num_blocks, sum));
  }
  if (num_turns_ % kAuditEvery != 0) return;
  if (const Status status = Audit(); !status.ok()) {
    fabric_->violate("leak", fmt::format("{}: {}", name(), status.ToString()));
  }
}

Status SimWorker::Audit() const {
  if (core_ == nullptr) return OkStatus();
  BATON_RETURN_IF_ERROR(core_->pool().Audit());
  return core_->scheduler().Audit();
}

Status SimWorker::CheckEmpty() const {
  if (core_ == nullptr) return Unavailable("{} is dead", name());
  const BlockCounts& counts = core_->pool().Counts();
  if (counts.num_unheld() != counts.total) {
    std::string in_use;
    for (size_t i = 0; i < kNumBlockStates; ++i) {
      const uint32_t count = counts.by_state[i];
      if (count == 0) continue;
      in_use += fmt::format(" {} {}", count, BlockStateName(static_cast<BlockState>(i)));
    }
    return Internal("{} holds blocks for nobody:{}", name(), in_use);
  }
  const EngineSnapshot snapshot = core_->Snapshot();
  if (snapshot.num_requests > 0 || snapshot.num_open_transfers > 0) {
    return Internal("{} has {} live requests and {} open transfers", name(), snapshot.num_requests,
                    snapshot.num_open_transfers);
  }
  return Audit();
}

// ---- Orders, and what comes of them.

SessionLimits SimWorker::Limits() const {
  return {.incarnation = incarnation_,
          .prefill = options_.role == WorkerRole::kPrefill,
          .vocab_size = options_.model->vocab_size,
          .max_context = options_.max_context};
}

// As SessionReactor (src/worker) does.
void SimWorker::OnMessage(const std::shared_ptr<SimSessionStream>& stream,
                          const SimLetter& letter) {
  SimMail& mail = fabric_->mail;
  const auto* const message = mail.Open<v1::RouterMessage>(letter);
  if (message == nullptr) return;
  if (message->has_hello()) return OnSessionHello(stream, letter, message->hello());
  if (!stream->worker_open) return;
  switch (message->kind_case()) {
    case v1::RouterMessage::kStartPrefill:
    case v1::RouterMessage::kStartDecode:
    case v1::RouterMessage::kStartEmbedding:
      return OnOrder(stream, letter, *message);
    case v1::RouterMessage::kCancel: {
      const RequestKey key = RequestKeyFromProto(message->cancel());
      mail.Check("CancelRequest", letter.mark, MarkOf(key));
      return OnCancel(stream, key);
    }
    case v1::RouterMessage::kRenew: {
      const uint32_t lease_ms = message->renew().lease_ms();
      mail.Check("Renew", letter.mark, MarkOfNumber(lease_ms));
      inbox_->Post(RenewSession{stream->id, int64_t{lease_ms} * 1000});
      return WakeSoon();
    }
    case v1::RouterMessage::kHello:
    case v1::RouterMessage::KIND_NOT_SET:
      break;
  }
  mail.Refuse("RouterMessage", InvalidArgument("it is of no kind"));
}

void SimWorker::OnSessionHello(const std::shared_ptr<SimSessionStream>& stream,
                               const SimLetter& letter, const v1::SessionHello& hello) {
  fabric_->mail.Check(
      "SessionHello", letter.mark,
      MarkOfSession(hello.router_incarnation(), hello.worker_incarnation(), hello.wire_version()));
  const Status status = CheckSessionHello(hello, Limits());
  if (!status.ok()) {
    fabric_->network->Send(*process_, stream->router->process(), 0, [stream] {
      stream->router->OnSessionLost(stream, "another incarnation answers");
    });
    return;
  }
  stream->id = SessionId(next_session_++);
  stream->worker_open = true;
  sessions_[stream->id] = stream;
  const v1::SessionHello echo = hello;
  auto* const answer = fabric_->mail.Blank<v1::WorkerMessage>();
  *answer->mutable_hello() = echo;
  Send(stream, kSmallBytes, *answer, letter.mark);
}

void SimWorker::Send(const std::shared_ptr<SimSessionStream>& stream, size_t num_bytes,
                     const v1::WorkerMessage& message, uint64_t mark) {
  fabric_->network->Send(*process_, stream->router->process(), num_bytes,
                         [stream, letter = fabric_->mail.Seal(message, mark)] {
                           stream->router->OnMessage(stream, letter);
                         });
}

void SimWorker::OnSessionClosed(const std::shared_ptr<SimSessionStream>& stream) {
  if (!std::exchange(stream->worker_open, false)) return;
  sessions_.erase(stream->id);
  inbox_->Post(CloseSession{stream->id});
  WakeSoon();
}

void SimWorker::OnOrder(const std::shared_ptr<SimSessionStream>& stream, const SimLetter& letter,
                        const v1::RouterMessage& message) {
  auto spec = std::make_unique<RequestSpec>();
  const Status status = RequestSpecFromProto(message, Limits(), spec.get());
  spec->session = stream->id;
  const RequestKey key = spec->key;
  if (!status.ok()) {
    fabric_->mail.Refuse("RequestSpec", status);
    return Reject(stream, key, status);
  }
  fabric_->mail.Check("RequestSpec", letter.mark, MarkOf(*spec));
  const bool is_new = stream->starts.Note(key);
  asked_->Note(*spec);
  if (inbox_->TryPost(StartRequest{std::move(spec)})) return WakeSoon();
  if (is_new) stream->starts.Forget(key);
  Reject(stream, key, ResourceExhausted("the engine's inbox is full"));
}

// Sends the answer of a session service whose inbox is full, or that refuses an order.
void SimWorker::Reject(const std::shared_ptr<SimSessionStream>& stream, const RequestKey& key,
                       const Status& why) {
  SendStatus(stream, {.session = stream->id,
                      .key = key,
                      .state = RequestState::kRejected,
                      .status = why,
                      .retry_after_ms = absl::IsResourceExhausted(why) ? limits::kRetryHintMs : 0});
}

void SimWorker::OnCancel(const std::shared_ptr<SimSessionStream>& stream, const RequestKey& key) {
  if (!stream->starts.TakeCancel(key)) return;
  inbox_->Post(CancelRequest{key});
  WakeSoon();
}

void SimWorker::OnStepEvents(std::span<const TokenEvent> events) {
  while (!events.empty()) {
    const SessionId session = events.front().session;
    size_t num_equal = 1;
    while (num_equal < events.size() && events[num_equal].session == session) ++num_equal;
    const std::span<const TokenEvent> own = events.first(num_equal);
    events = events.subspan(num_equal);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) continue;
    auto* const message = fabric_->mail.Blank<v1::WorkerMessage>();
    for (const TokenEvent& event : own) ToProto(event, message->mutable_step()->add_events());
    Send(found->second, own.size() * kTokenBytes, *message, MarkOf(own));
  }
}

// Also with faults: whatever befell a request, its KV is here by an order of its tenant.
void SimWorker::CheckCached(const RequestStatus& status) {
  const bool is_hit = status.state == RequestState::kPrefillStarted && status.cached_tokens > 0;
  if (is_hit && !asked_->MayBeHeld(status.key)) {
    fabric_->violate("foreign prefix",
                     fmt::format("{}: {} cached tokens of a prompt that its tenant asked once",
                                 name(), status.cached_tokens));
  }
  if (IsTerminal(status.state)) asked_->Forget(status.key);
}

void SimWorker::OnRequestStatus(const RequestStatus& status) {
  CheckCached(status);
  const auto found = sessions_.find(status.session);
  if (found == sessions_.end()) return;
  found->second->starts.OnState(status.key, status.state);
  SendStatus(found->second, status);
}

void SimWorker::SendStatus(const std::shared_ptr<SimSessionStream>& stream,
                           const RequestStatus& status) {
  auto* const message = fabric_->mail.Blank<v1::WorkerMessage>();
  ToProto(status, message->mutable_status());
  Send(stream, kSmallBytes, *message, MarkOf(status));
}

}  // namespace baton::sim
