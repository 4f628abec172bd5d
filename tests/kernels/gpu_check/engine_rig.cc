#include "tests/kernels/gpu_check/engine_rig.h"

#include <thread>

#include "kvcache/transport/ipc/slice_puller.h"
#include "tests/kernels/gpu_check/step_timing.h"
#include "tests/patience.h"

namespace baton::kernels::gpu_check {

using device::Accelerator;
using namespace engine;  // NOLINT(google-build-using-namespace)
using namespace kv;      // NOLINT(google-build-using-namespace)
using scheduler::SchedulerConfig;

namespace {

constexpr Incarnation kPrefill(1);
constexpr Incarnation kDecode(2);
constexpr int64_t kPatienceUs = 600'000'000 * int64_t{kPatienceFactor};
constexpr int kNumIdleWaits = 1000 * kPatienceFactor;  // of 10 ms

}  // namespace

void TimedRecorder::OnStepEvents(std::span<const TokenEvent> events) {
  {
    std::lock_guard lock(mutex_);
    steps_.push_back({std::chrono::steady_clock::now(), events.size()});
  }
  Recorder::OnStepEvents(events);
}

void TimedRecorder::OnRequestStatus(const RequestStatus& status) {
  {
    std::lock_guard lock(mutex_);
    states_.try_emplace({status.key, status.state}, std::chrono::steady_clock::now());
  }
  Recorder::OnRequestStatus(status);
}

std::vector<double> TimedRecorder::StepsOf(size_t num_tokens) const {
  std::lock_guard lock(mutex_);
  std::vector<double> samples_us;
  size_t num_alike = 0;  // so far, one behind the other
  for (size_t i = 0; i < steps_.size(); ++i) {
    num_alike = steps_[i].num_tokens == num_tokens ? num_alike + 1 : 0;
    // The first may have ended prompts; the second was not begun before that had ended.
    if (num_alike < 3) continue;
    const Microseconds elapsed = steps_[i].time - steps_[i - 1].time;
    samples_us.push_back(elapsed.count());
  }
  return samples_us;
}

absl::StatusOr<TimedRecorder::TimePoint> TimedRecorder::TimeOf(const RequestKey& key,
                                                               RequestState state) const {
  std::lock_guard lock(mutex_);
  const auto it = states_.find({key, state});
  if (it == states_.end()) return NotFound("it was never {}", RequestStateName(state));
  return it->second;
}

absl::StatusOr<std::unique_ptr<EngineRig>> EngineRig::Start(const EngineSide& side) {
  EngineConfig config;
  config.scheduler = side.scheduler;
  config.prefix_cache = false;  // what is asked for is to be computed
  config.max_context = side.model->max_context();
  config.incarnation = side.incarnation;
  config.request_lease_us = kPatienceUs;     // no router says a word
  config.handoff.ttl_ms *= kPatienceFactor;  // an engine is silent while it computes a step
  std::unique_ptr<EngineRig> rig(new EngineRig());
  BATON_ASSIGN_OR_RETURN(rig->engine_, Engine::Create(config, {.model = side.model,
                                                               .kv = side.kv,
                                                               .transport = side.transport,
                                                               .wire = side.wire,
                                                               .listener = &rig->recorder_}));
  BATON_RETURN_IF_ERROR(rig->engine_->Start());
  return rig;
}

absl::StatusOr<std::vector<TokenId>> EngineRig::End(const RequestSpec& spec, RequestState state) {
  const bool has_ended = recorder_.WaitEnded(spec.key);
  const Record record = recorder_.Of(spec.key);
  if (!has_ended || record.last() != state) {
    return Internal("request {} is {} and not {}: {}", spec.key.uid.hi,
                    RequestStateName(record.last()), RequestStateName(state),
                    std::string(record.status.message()));
  }
  std::vector<TokenId> tokens;
  for (const SeenToken& seen : record.Tokens(0)) tokens.push_back(seen.token);
  return tokens;
}

absl::Status EngineRig::WaitIdle() {
  for (int i = 0; i < kNumIdleWaits; ++i) {
    const BlockCounts blocks = Snapshot().blocks;
    if (engine_->IsIdle() && blocks.num_unheld() == blocks.total) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const BlockCounts blocks = Snapshot().blocks;
  return Internal("{} of {} blocks are available when all is done", blocks.num_unheld(),
                  blocks.total);
}

absl::StatusOr<std::unique_ptr<KvTransport>> EnginePair::Attach(const ModelRig& rig,
                                                                Accelerator* device,
                                                                const KvStore& kv,
                                                                Incarnation incarnation) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Accelerator> own, device->Share());
  LocalWorker worker;
  worker.worker_id = fmt::format("engine-{}", incarnation.value());
  worker.incarnation = incarnation;
  worker.memory = kv.memory();
  worker.dials = incarnation == kPrefill;
  BATON_ASSIGN_OR_RETURN(
      worker.puller, SlicePuller::Create({own.get(), SliceKernelsOf(*rig.kernels()), kv.memory()},
                                         /*num_slots=*/1, SlicesOfPull(*own, kv.layout())));
  transport_devices_.push_back(std::move(own));
  return hub_.Attach(std::move(worker));
}

absl::StatusOr<std::unique_ptr<EnginePair>> EnginePair::Start(ModelRig& rig,
                                                              const SchedulerConfig& scheduler) {
  std::unique_ptr<EnginePair> pair(new EnginePair());
  Accelerator* const second = rig.second_device();
  second->MakeCurrent();
  BATON_ASSIGN_OR_RETURN(
      pair->decode_kv_,
      KvStore::OnDevice(second, rig.kernels(), rig.second_model()->layout(), rig.num_blocks()));
  BATON_RETURN_IF_ERROR(rig.PrepareSecond(pair->decode_kv_->view()));
  BATON_ASSIGN_OR_RETURN(pair->decode_transport_,
                         pair->Attach(rig, second, *pair->decode_kv_, kDecode));
  rig.engine_device()->MakeCurrent();
  BATON_ASSIGN_OR_RETURN(pair->prefill_transport_,
                         pair->Attach(rig, rig.engine_device(), *rig.kv(), kPrefill));
  EngineSide side = {.scheduler = scheduler, .wire = &pair->wire_};
  side.scheduler.role = WorkerRole::kPrefill;
  side.incarnation = kPrefill;
  side.model = rig.engine_model();
  side.kv = rig.kv();
  side.transport = pair->prefill_transport_.get();
  BATON_ASSIGN_OR_RETURN(pair->prefill_, EngineRig::Start(side));
  side.scheduler.role = WorkerRole::kDecode;
  side.incarnation = kDecode;
  side.model = rig.second_model();
  side.kv = pair->decode_kv_.get();
  side.transport = pair->decode_transport_.get();
  BATON_ASSIGN_OR_RETURN(pair->decode_, EngineRig::Start(side));
  if (pair->prefill_transport_->Links().empty()) return Internal("the engines are not connected");
  return pair;
}

absl::Status EnginePair::Begin(const RequestSpec& spec) {
  RequestSpec side = spec;
  side.kind = RequestKind::kDest;
  side.peer = kPrefill;
  BATON_RETURN_IF_ERROR(decode_->Begin(side));
  side.kind = RequestKind::kSource;
  side.peer = kDecode;
  return prefill_->Begin(side);
}

absl::StatusOr<std::vector<TokenId>> EnginePair::End(const RequestSpec& spec) {
  BATON_RETURN_IF_ERROR(prefill_->End(spec, RequestState::kHandedOff).status());
  return decode_->End(spec, RequestState::kFinished);
}

RequestSpec GreedyRequest(uint64_t number, std::vector<TokenId> prompt, uint32_t max_tokens) {
  RequestSpec spec;
  spec.key = {{number, 1}, 1};
  spec.session = SessionId(1);
  spec.num_prompt_tokens = static_cast<uint32_t>(prompt.size());
  spec.tokens = std::move(prompt);
  spec.sampling.max_tokens = max_tokens;
  spec.sampling.temperature = 0;
  spec.sampling.ignore_eos = true;
  spec.deadline_us = kPatienceUs;
  return spec;
}

}  // namespace baton::kernels::gpu_check
