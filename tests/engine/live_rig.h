// A rig of engines with threads and the real model, joined by any transport in one process.
#ifndef BATON_TESTS_ENGINE_LIVE_RIG_H_
#define BATON_TESTS_ENGINE_LIVE_RIG_H_

#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/local_transport.h"
#include "src/engine/engine.h"
#include "src/model/model.h"
#include "tests/engine/recorder.h"
#include "tests/model/test_model.h"
#include "tests/patience.h"

namespace baton::engine {

// How a live worker is made.
struct LiveOptions {
  WorkerRole role = WorkerRole::kDecode;
  uint32_t num_threads = 1;
  uint32_t num_blocks = 512;
  kernels::Isa isa = kernels::Isa::kAuto;
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  kv::TransportKind kind = kv::TransportKind::kAuto;  // kLocal: by the hub; kAuto: none
  uint32_t max_context = 2048;
  uint64_t incarnation = 1;   // told apart from other processes by the rig
  bool prefix_cache = false;  // most tests mean to compute what they ask for
  SpeculateMode speculate = SpeculateMode::kOff;
  device::CoreShare* cores = nullptr;  // then num_threads is that of all its members
  uint32_t checkpoint_tokens = 0;      // SchedulerConfig's
  bool releases_unseen = true;         // SchedulerConfig::window
  uint32_t max_chunk = 256;            // SchedulerConfig's
  // Makes the worker's transport of its endpoint, which is of `kind`; null: the endpoint is it.
  std::function<std::unique_ptr<kv::KvTransport>(std::unique_ptr<kv::KvEndpoint>, kv::KvArena*)>
      transport_over;
  // Puts a model of the test in front of the worker's own.
  std::function<std::unique_ptr<model::ForwardModel>(model::Model*)> wrap;
};

// One engine with its thread and model.
class LiveWorker {
 public:
  LiveWorker(const model::GgufFile& file, const LiveOptions& options, kv::LocalHub* hub,
             TableWire* wire)
      : options_(options), pool_({.num_threads = options.num_threads, .cores = options.cores}) {
    model_ = *model::Model::Load(file, {.pool = &pool_,
                                        .isa = options.isa,
                                        .kv_dtype = options.kv_dtype,
                                        .max_rows = 512,
                                        .max_context = options.max_context});
    arena_ = *kv::KvArena::Create(model_->layout(), options.num_blocks);
    kv_ = KvStore::OnHost(arena_.get());
    if (options.kind == kv::TransportKind::kLocal) {
      transport_ = hub->Attach(name(), incarnation(), arena_.get());
    } else if (options.kind != kv::TransportKind::kAuto) {
      kv::KvEndpointOptions endpoint;
      endpoint.worker_id = name();
      endpoint.incarnation = incarnation();
      endpoint.numerics_id = model_->numerics_id();
      endpoint.kind = options.kind;
      if (options.role == WorkerRole::kDecode) endpoint.listen = "127.0.0.1:0";
      auto made = kv::KvEndpoint::Create(endpoint, arena_.get());
      EXPECT_TRUE(made.ok()) << made.status();
      endpoint_ = made->get();
      if (options.transport_over) {
        transport_ = options.transport_over(*std::move(made), arena_.get());
      } else {
        transport_ = *std::move(made);
      }
    }
    EngineConfig config;
    config.scheduler.role = options.role;
    config.scheduler.max_batch_tokens = 512;
    config.scheduler.max_chunk = options.max_chunk;
    config.scheduler.max_running = 64;
    config.scheduler.checkpoint_tokens = options.checkpoint_tokens;
    if (options.releases_unseen) config.scheduler.window = model_->config().window_of_all();
    config.max_context = options.max_context;
    config.prefix_cache = options.prefix_cache;
    config.speculate = options.speculate;
    config.incarnation = incarnation();
    config.request_lease_us = 600'000'000 * int64_t{kPatienceFactor};
    config.handoff.ttl_ms *= kPatienceFactor;  // a worker is silent while it computes a step
    config.eog_tokens = {2};
    if (options.wrap) wrapped_ = options.wrap(model_.get());
    model::ForwardModel* computing = model_.get();
    if (wrapped_ != nullptr) computing = wrapped_.get();
    auto engine = Engine::Create(config, {.model = computing,
                                          .kv = kv_.get(),
                                          .transport = transport_.get(),
                                          .wire = transport_ ? wire : nullptr,
                                          .listener = &recorder_,
                                          .cores = options.cores,
                                          .pool = &pool_});
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    EXPECT_TRUE(engine_->Start().ok());
  }
  ~LiveWorker() { engine_->Stop(); }

  // Dials a decode worker and waits until the pair is up.
  void Connect(const LiveWorker& peer) {
    if (endpoint_ != nullptr) {
      const kv::PeerAddress address{.worker_id = peer.name(),
                                    .incarnation = peer.incarnation(),
                                    .host_id = kv::HostId(),
                                    .tcp = peer.endpoint_->tcp_address(),
                                    .unix_name = peer.endpoint_->unix_name()};
      ASSERT_TRUE(endpoint_->SetPeers(std::vector{address}).ok());
    }
    for (int i = 0; i < 3000 * kPatienceFactor && transport_->Links().empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_FALSE(transport_->Links().empty());
  }
  // False when the ledger is not clean within 20 s, or their multiple in a sanitizer build.
  bool WaitIdle() {
    for (int i = 0; i < 2000 * kPatienceFactor; ++i) {
      const EngineSnapshot snapshot = engine_->Snapshot();
      if (engine_->IsIdle() && snapshot.blocks.num_unheld() == snapshot.blocks.total) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  std::string name() const { return "worker-" + std::to_string(options_.incarnation); }
  // Socket names are made of it: with the process in it, two copies of a test may run at once.
  Incarnation incarnation() const {
    return Incarnation((static_cast<uint64_t>(getpid()) << 16) | options_.incarnation);
  }
  Engine& engine() { return *engine_; }
  Recorder& recorder() { return recorder_; }
  const model::Model& model() const { return *model_; }

 private:
  const LiveOptions options_;
  device::ThreadPool pool_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::ForwardModel> wrapped_;
  std::unique_ptr<kv::KvArena> arena_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<kv::KvTransport> transport_;
  kv::KvEndpoint* endpoint_ = nullptr;  // transport_, or what it is made of
  Recorder recorder_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_LIVE_RIG_H_
