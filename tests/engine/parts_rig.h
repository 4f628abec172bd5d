// PartsRig: the parts of an engine's loop over the toy model, for tests that call one of them
// alone. There is no loop: a test says when a step is planned, a layer stored, an event handled.
#ifndef BATON_TESTS_ENGINE_PARTS_RIG_H_
#define BATON_TESTS_ENGINE_PARTS_RIG_H_

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/kv_arena.h"
#include "src/engine/request_ends.h"
#include "src/engine/step_work.h"
#include "src/engine/transfer_news.h"
#include "tests/engine/hand_rig.h"
#include "tests/engine/recorder.h"
#include "tests/engine/toy_model.h"

namespace baton::engine {

// A transport that keeps what it is asked to send.
class KeepingTransport final : public kv::KvTransport {
 public:
  std::vector<kv::SliceRef> slices;

  Status Start(kv::KvTransportSink* /*sink*/) override { return OkStatus(); }
  void Stop() override {}
  Status SendControl(Incarnation /*peer*/, std::string /*bytes*/) override { return OkStatus(); }
  Status SendSlices(Incarnation /*peer*/, std::span<const kv::SliceRef> offered) override {
    slices.insert(slices.end(), offered.begin(), offered.end());
    return OkStatus();
  }
  void CloseSend(Incarnation /*peer*/, TransferId /*transfer*/) override {}
  Status OpenReceive(kv::ReceiveSpec /*spec*/) override { return OkStatus(); }
  void CloseReceive(TransferId /*transfer*/) override {}
  kv::TransportStats Stats() const override { return {}; }
  std::vector<kv::LinkInfo> Links() const override { return {}; }
};

// How a PartsRig is made.
struct PartsOptions {
  WorkerRole role = WorkerRole::kDecode;
  uint32_t max_chunk = 32;
  uint32_t state_blocks = 0;
  uint32_t layers_per_group = 2;
  AnswerGuides* guides = nullptr;
};

// See the file comment.
struct PartsRig {
  explicit PartsRig(const PartsOptions& options = {})
      : arena(*kv::KvArena::Create(ToyLayout(options.state_blocks), 64)),
        store(KvStore::OnHost(arena.get())),
        state(ConfigOf(options), PartsOf(options)) {}

  // A live request whose prompt waits to be computed.
  LiveRequest* Add(RequestSpec spec) {
    auto owned = std::make_unique<LiveRequest>(std::move(spec), state.now_us);
    owned->limits = {.max_tokens = owned->spec.sampling.max_tokens,
                     .max_context = state.config.max_context};
    const SequenceId id = state.NewSequenceId();
    EXPECT_TRUE(state.scheduler.AddWaiting(state.SequenceSpecOf(*owned, id), state.now_us).ok());
    owned->prompt_sequence = id;
    LiveRequest* const request = state.requests.Add(std::move(owned));
    state.requests.AddSequence(id, {request, 0, /*is_prompt=*/true});
    return request;
  }

  FakeClock clock;
  ToyModel model;
  Recorder recorder;
  TableWire wire;
  KeepingTransport transport;
  std::unique_ptr<kv::KvArena> arena;
  std::unique_ptr<KvStore> store;
  EngineInbox inbox{64};
  EngineState state;
  TakenEvents events{&inbox, 64};
  RequestLife life{&state};
  GuideWaits guides{&state, &inbox};
  ChoiceTokens tokens{&state};
  TransferNews news{&state, &life, &guides, &tokens};
  TransferHub hub{&state, &news};
  SessionLeases leases;
  RequestEnds ends{&state, &life, &hub, &leases};

 private:
  static EngineConfig ConfigOf(const PartsOptions& options) {
    EngineConfig config;
    config.scheduler.role = options.role;
    config.scheduler.max_batch_tokens = 128;
    config.scheduler.max_chunk = options.max_chunk;
    config.scheduler.max_running = 16;
    config.max_context = 200;
    config.incarnation = Incarnation(1);
    config.cluster_secret = "secret";
    config.layers_per_group = options.layers_per_group;
    return config;
  }
  EngineParts PartsOf(const PartsOptions& options) {
    return {.model = &model,
            .kv = store.get(),
            .transport = &transport,
            .wire = &wire,
            .listener = &recorder,
            .guides = options.guides,
            .clock = &clock};
  }
};

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_PARTS_RIG_H_
