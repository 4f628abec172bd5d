// A rig of engines that are turned by hand under a fake clock, joined by the local transport: every
// run with the same seed is the same.
#ifndef BATON_TESTS_ENGINE_HAND_RIG_H_
#define BATON_TESTS_ENGINE_HAND_RIG_H_

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/kv_arena.h"
#include "kvcache/transport/local_transport.h"
#include "src/engine/engine_core.h"
#include "src/engine/transport_sink.h"
#include "tests/device/fake_accelerator.h"
#include "tests/engine/overlapping_model.h"
#include "tests/engine/recorder.h"
#include "tests/engine/streamed_model.h"
#include "tests/engine/toy_model.h"
#include "tests/kvcache/transport/fault_transport.h"

namespace baton::engine {

// How one worker of the rig is made.
struct HandWorkerOptions {
  WorkerRole role = WorkerRole::kDecode;
  uint32_t num_blocks = 256;
  kv::KvArenaOptions arena;
  kv::FaultRatios faults;
  uint64_t fault_seed = 1;
  uint32_t max_running = 16;
  uint32_t max_chunk = 32;
  bool prefix_cache = true;
  uint32_t state_blocks = 0;  // of each sequence
  uint32_t window = 0;        // of the model, and SchedulerConfig's
  int64_t strand_us = 0;
  uint64_t hash_bytes_per_turn = 1;  // one block
  bool has_device = false;           // kernels use a memory of their own
  bool overlaps_steps = false;       // the model chooses tokens, and its steps overlap
  device::StageSink* stages = nullptr;
  AnswerGuides* guides = nullptr;  // for requests with a grammar
  model::Pooling pooling = model::Pooling::kLast;
  SpeculateMode speculate = SpeculateMode::kOff;
  scheduler::Proposer* proposer = nullptr;  // in place of that
  device::ThreadPool* pool = nullptr;       // its threads share the rows of a step
};

// One engine without a thread.
class HandWorker {
 public:
  HandWorker(const HandWorkerOptions& options, kv::LocalHub* hub, TableWire* wire, FakeClock* clock,
             uint64_t incarnation)
      : incarnation_(incarnation),
        model_(options.window),
        inbox_(4096),
        sink_(&inbox_, wire, clock) {
    const kv::KvLayout layout = ToyLayout(options.state_blocks);
    arena_ = *kv::KvArena::Create(layout, options.num_blocks, options.arena);
    inner_ = hub->Attach("worker-" + std::to_string(incarnation), incarnation_, arena_.get());
    faulty_ =
        std::make_unique<kv::FaultTransport>(inner_.get(), options.faults, options.fault_seed);
    EngineConfig config;
    config.scheduler.role = options.role;
    config.scheduler.max_batch_tokens = 128;
    config.scheduler.max_chunk = options.max_chunk;
    config.scheduler.max_running = options.max_running;
    config.scheduler.window = options.window;
    config.max_context = 200;
    config.prefix_cache = options.prefix_cache;
    config.speculate = options.speculate;
    config.incarnation = incarnation_;
    config.cluster_secret = "secret";
    config.eog_tokens = {0};
    config.layers_per_group = 2;
    config.hash_bytes_per_turn = options.hash_bytes_per_turn;
    config.handoff.strand_us = options.strand_us;
    config.pooling = options.pooling;
    kv_ = options.has_device ? *KvStore::Mirrored(&device_, arena_.get())
                             : KvStore::OnHost(arena_.get());
    model::ForwardModel* model = &model_;
    if (options.overlaps_steps) model = &overlapping_;
    streamed_ = std::make_unique<StreamedModel>(model, &device_);
    if (options.has_device) model = streamed_.get();
    const EngineParts parts{.model = model,
                            .kv = kv_.get(),
                            .transport = faulty_.get(),
                            .wire = wire,
                            .listener = &recorder_,
                            .proposer = options.proposer,
                            .guides = options.guides,
                            .stages = options.stages,
                            .pool = options.pool,
                            .clock = clock};
    EXPECT_TRUE(EngineCore::CheckConfig(config, parts).ok());
    core_ = std::make_unique<EngineCore>(config, parts, &inbox_);
    EXPECT_TRUE(faulty_->Start(&sink_).ok());
  }
  ~HandWorker() { faulty_->Stop(); }

  void Start(RequestSpec spec) {
    EXPECT_TRUE(inbox_.TryPost(StartRequest{std::make_unique<RequestSpec>(std::move(spec))}));
  }
  void Cancel(const RequestKey& key) { inbox_.Post(CancelRequest{key}); }
  void Post(EngineEvent event) { inbox_.Post(std::move(event)); }
  bool Turn() {
    const bool more = core_->Turn();
    EXPECT_TRUE(core_->pool().Audit().ok()) << core_->pool().Audit();
    EXPECT_TRUE(core_->scheduler().Audit().ok()) << core_->scheduler().Audit();
    return more;
  }
  // Cuts the worker off from its peers, as when its process dies.
  void Disconnect() { faulty_->Stop(); }

  EngineCore& core() { return *core_; }
  KvStore& kv() { return *kv_; }
  Recorder& recorder() { return recorder_; }
  kv::FaultTransport& transport() { return *faulty_; }
  ToyModel& model() { return model_; }
  OverlappingModel& overlapping() { return overlapping_; }
  Incarnation incarnation() const { return incarnation_; }
  bool HasEvents() const { return inbox_.HasEvents(); }
  // A request waits for the mask of its grammar, which threads compute.
  bool AwaitsMasks() const { return core_->scheduler().Load().num_awaiting > 0; }
  bool AllFree() const { return core_->pool().num_available() == core_->pool().num_blocks(); }

 private:
  const Incarnation incarnation_;
  ToyModel model_;
  device::FakeAccelerator device_;
  OverlappingModel overlapping_;
  std::unique_ptr<StreamedModel> streamed_;
  Recorder recorder_;
  std::unique_ptr<kv::KvArena> arena_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<kv::KvTransport> inner_;
  std::unique_ptr<kv::FaultTransport> faulty_;
  EngineInbox inbox_;
  EngineTransportSink sink_;
  std::unique_ptr<EngineCore> core_;
};

// A hub, a clock and its workers.
class HandRig {
 public:
  HandRig() : hub_(/*own_thread=*/false, &clock_) {}

  HandWorker* Add(const HandWorkerOptions& options) {
    workers_.push_back(
        std::make_unique<HandWorker>(options, &hub_, &wire_, &clock_, 1000 + workers_.size()));
    while (hub_.Pump()) {
    }
    return workers_.back().get();
  }

  // Delivers what the workers sent; true when something arrived.
  bool Pump() { return hub_.Pump(); }
  // One turn of everything; true when something happened.
  bool Round() {
    bool busy = hub_.Pump();
    bool awaits = false;
    for (auto& worker : workers_) {
      busy = worker->HasEvents() || busy;
      busy = worker->Turn() || busy;
      awaits = worker->AwaitsMasks() || awaits;
    }
    clock_.AdvanceMs(1);
    // Other threads work on the masks: the rounds are not to be over before they are.
    if (awaits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return busy || awaits;
  }
  // Until nothing happens for some rounds; false when it does not end.
  bool RunUntilQuiet(uint32_t max_rounds = 20'000) {
    uint32_t num_quiet = 0;
    for (uint32_t i = 0; i < max_rounds && num_quiet < 4; ++i)
      num_quiet = Round() ? 0 : num_quiet + 1;
    return num_quiet >= 4;
  }
  // As many turns as needed for `ms` milliseconds in steps of 50 ms.
  void RunFor(int64_t ms) {
    for (int64_t done = 0; done < ms; done += 50) {
      clock_.AdvanceMs(49);
      Round();
    }
  }
  FakeClock& clock() { return clock_; }

 private:
  FakeClock clock_;
  TableWire wire_;
  kv::LocalHub hub_;
  std::vector<std::unique_ptr<HandWorker>> workers_;
};

// A request with a random prompt. Deterministic in `number`.
inline RequestSpec ToyRequest(uint64_t number, uint32_t num_tokens, uint32_t max_tokens) {
  std::mt19937_64 random(number * 7919 + num_tokens);
  RequestSpec spec;
  spec.key = {{number, SplitMix(number + 77)}, 1};
  spec.session = SessionId(1);
  for (uint32_t i = 0; i < num_tokens; ++i) {
    spec.tokens.push_back(static_cast<TokenId>(1 + random() % (kToyVocab - 1)));
  }
  spec.num_prompt_tokens = num_tokens;
  spec.sampling.max_tokens = max_tokens;
  spec.sampling.temperature = 0;
  spec.sampling.logprobs = true;
  spec.sampling.ignore_eos = true;
  spec.deadline_us = 600'000'000;
  return spec;
}

// The request as its prefill worker or its decode worker gets it.
inline RequestSpec ForPeer(RequestSpec spec, RequestKind kind, const HandWorker& peer) {
  spec.kind = kind;
  spec.peer = peer.incarnation();
  return spec;
}

// The tokens that the request must answer, by a model that needs no KV.
inline std::vector<TokenId> ExpectedTokens(const RequestSpec& spec, uint32_t choice,
                                           uint32_t window = 0) {
  model::Sampler sampler(kToyVocab, std::vector<TokenId>{0});
  model::SamplerState state(spec.sampling, std::span(spec.tokens).first(spec.num_prompt_tokens),
                            spec.sampling.max_tokens);
  std::vector<TokenId> prefix = spec.tokens;
  for (size_t i = spec.num_prompt_tokens; i < prefix.size(); ++i) state.Append(prefix[i]);
  while (state.num_output() < spec.sampling.max_tokens) {
    const std::vector<float> logits = ToyModel::LogitsAfter(prefix, window);
    model::SampledToken sampled;
    const model::SampleQuery query = {
        .params = &spec.sampling, .state = &state, .choice = choice, .logits = logits};
    EXPECT_TRUE(sampler.Sample(query, sampled).ok());
    state.Append(sampled.token);
    prefix.push_back(sampled.token);
    const bool eos = sampled.token == 0 && !spec.sampling.ignore_eos;
    const bool stop = std::ranges::count(spec.sampling.stop_token_ids, sampled.token) > 0;
    if (eos || stop) break;
  }
  return {prefix.begin() + static_cast<std::ptrdiff_t>(spec.tokens.size()), prefix.end()};
}

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_HAND_RIG_H_
