// EngineRig: a worker's engine over a model, blocks and a device, without the worker around it; and
// what it reported, with the time. EnginePair: two of them on the parts of one device, which hand
// prompts over as the workers of --colocate do. Each is owned by one thread.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_ENGINE_RIG_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_ENGINE_RIG_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/transport/local_transport.h"
#include "src/base/status.h"
#include "src/engine/engine.h"
#include "src/engine/kv_store.h"
#include "tests/engine/recorder.h"
#include "tests/kernels/gpu_check/model_rig.h"

namespace baton::kernels::gpu_check {

// A recorder that also keeps when it heard what. Any thread.
class TimedRecorder final : public engine::Recorder {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void OnStepEvents(std::span<const engine::TokenEvent> events) override;
  void OnRequestStatus(const engine::RequestStatus& status) override;

  // Microseconds since the step before, for each step with so many tokens after two such steps.
  std::vector<double> StepsOf(size_t num_tokens) const;
  // NotFound when the request never got there.
  absl::StatusOr<TimePoint> TimeOf(const engine::RequestKey& key, engine::RequestState state) const;

 private:
  // The tokens of one step.
  struct Step {
    TimePoint time;
    size_t num_tokens;
  };

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Step> steps_;
  std::map<std::pair<engine::RequestKey, engine::RequestState>, TimePoint> states_;
};

// The parts that an engine is made of; all outlive it.
struct EngineSide {
  scheduler::SchedulerConfig scheduler;
  Incarnation incarnation;
  model::LoadedModel* model = nullptr;
  engine::KvStore* kv = nullptr;
  kv::KvTransport* transport = nullptr;  // null: it is alone
  const engine::HandoffWire* wire = nullptr;
};

// See the file comment.
class EngineRig {
 public:
  static absl::StatusOr<std::unique_ptr<EngineRig>> Start(const EngineSide& side);

  absl::Status Begin(const engine::RequestSpec& spec) { return engine_->TryStart(spec); }
  // The tokens that were generated here. Internal when the request does not end in that state
  // within a minute, or its multiple in a sanitizer build.
  absl::StatusOr<std::vector<TokenId>> End(const engine::RequestSpec& spec,
                                           engine::RequestState state);
  // Internal when blocks are held a while after the last request.
  absl::Status WaitIdle();
  engine::EngineSnapshot Snapshot() const { return engine_->Snapshot(); }
  const TimedRecorder& recorder() const { return recorder_; }

 private:
  EngineRig() = default;

  TimedRecorder recorder_;
  std::unique_ptr<engine::Engine> engine_;  // stops before the recorder goes
};

// See the file comment.
class EnginePair {
 public:
  // Prompts on the rig's model and blocks, decode on its second model and as many blocks of that
  // one's own. The rig outlives it.
  static absl::StatusOr<std::unique_ptr<EnginePair>> Start(
      ModelRig& rig, const scheduler::SchedulerConfig& scheduler);

  absl::Status Begin(const engine::RequestSpec& spec);
  absl::StatusOr<std::vector<TokenId>> End(const engine::RequestSpec& spec);
  EngineRig& prefill() { return *prefill_; }
  EngineRig& decode() { return *decode_; }

 private:
  EnginePair() : hub_(/*own_thread=*/true) {}
  // Joins the hub.
  absl::StatusOr<std::unique_ptr<kv::KvTransport>> Attach(const ModelRig& rig,
                                                          device::Accelerator* device,
                                                          const engine::KvStore& kv,
                                                          Incarnation incarnation);

  kv::LocalHub hub_;
  engine::TableWire wire_;
  std::unique_ptr<engine::KvStore> decode_kv_;
  std::vector<std::unique_ptr<device::Accelerator>> transport_devices_;
  std::unique_ptr<kv::KvTransport> prefill_transport_;
  std::unique_ptr<kv::KvTransport> decode_transport_;
  std::unique_ptr<EngineRig> prefill_;
  std::unique_ptr<EngineRig> decode_;
};

// A request with that number (>= 1): greedy, and run to its last token.
engine::RequestSpec GreedyRequest(uint64_t number, std::vector<TokenId> prompt,
                                  uint32_t max_tokens);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_ENGINE_RIG_H_
