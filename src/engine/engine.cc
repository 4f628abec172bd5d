#include "src/engine/engine.h"

#include <utility>

#include "src/engine/engine_core.h"

namespace baton::engine {

using kv::BlockInfo;

namespace {

constexpr int64_t kDebugTimeoutUs = 1'000'000;

}  // namespace

StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineConfig& config,
                                                 const EngineParts& parts) {
  BATON_RETURN_IF_ERROR(EngineCore::CheckConfig(config, parts));
  return std::unique_ptr<Engine>(new Engine(config, parts));
}

Engine::Engine(const EngineConfig& config, const EngineParts& parts)
    : parts_(parts),
      inbox_(config.inbox_capacity),
      sink_(&inbox_, parts.wire, parts.clock),
      core_(std::make_unique<EngineCore>(config, parts, &inbox_)) {}

Engine::~Engine() { Stop(); }

Status Engine::Start(std::function<void()> on_links) {
  if (started_) return FailedPrecondition("the engine was started before");
  sink_.set_on_links(std::move(on_links));
  if (parts_.transport != nullptr) BATON_RETURN_IF_ERROR(parts_.transport->Start(&sink_));
  started_ = true;
  thread_ = Thread("engine", [this] { Loop(); });
  return OkStatus();
}

void Engine::Loop() {
  while (!stop_.load(std::memory_order_acquire)) {
    if (!core_->Turn() && !stop_.load(std::memory_order_acquire)) core_->Wait();
  }
  if (parts_.cores != nullptr) parts_.cores->EndSteps();
}

void Engine::Stop() {
  stop_.store(true, std::memory_order_release);
  inbox_.Close();
  thread_.Join();
  if (started_ && parts_.transport != nullptr) parts_.transport->Stop();
}

Status Engine::TryStart(RequestSpec spec) {
  if (stop_.load(std::memory_order_acquire)) return Unavailable("this worker is stopping");
  if (!inbox_.TryPost(StartRequest{std::make_unique<RequestSpec>(std::move(spec))})) {
    return ResourceExhausted("the engine's inbox is full");
  }
  return OkStatus();
}

void Engine::Cancel(const RequestKey& key) { inbox_.Post(CancelRequest{key}); }
void Engine::CloseSession(SessionId session) { inbox_.Post(baton::engine::CloseSession{session}); }
void Engine::Renew(SessionId session, int64_t lease_us) {
  inbox_.TryPost(RenewSession{session, lease_us});
}

void Engine::BeginDrain() { inbox_.Post(baton::engine::BeginDrain{}); }

void Engine::FailAll(Status status) { inbox_.Post(baton::engine::FailAll{std::move(status)}); }

bool Engine::HasTakenAll() const {
  const uint64_t num_posted = inbox_.num_posted();  // before the snapshot
  return Snapshot().HasTaken(num_posted);
}

bool Engine::IsIdle() const {
  const uint64_t num_posted = inbox_.num_posted();  // before the snapshot
  return Snapshot().IsIdleAfter(num_posted);
}

EngineSnapshot Engine::Snapshot() const { return core_->Snapshot(); }

StatusOr<std::vector<RequestRow>> Engine::DebugRequests() {
  auto query = std::make_shared<DebugQuery>(DebugQuery::Kind::kRequests);
  if (!inbox_.TryPost(DebugRequest{query}) || !query->Wait(kDebugTimeoutUs)) {
    return DeadlineExceeded("the engine did not answer within {} ms", kDebugTimeoutUs / 1000);
  }
  return std::move(query->requests());
}

StatusOr<std::vector<BlockInfo>> Engine::DebugBlocks() {
  auto query = std::make_shared<DebugQuery>(DebugQuery::Kind::kBlocks);
  if (!inbox_.TryPost(DebugRequest{query}) || !query->Wait(kDebugTimeoutUs)) {
    return DeadlineExceeded("the engine did not answer within {} ms", kDebugTimeoutUs / 1000);
  }
  return std::move(query->blocks());
}

}  // namespace baton::engine
