// The engine's own thread: many posters, debug queries, stop while busy, sleep when idle.
#include <sys/resource.h>
#include <time.h>

#include <thread>

#include "gtest/gtest.h"

#include "kvcache/transport/local_transport.h"
#include "src/engine/engine.h"
#include "tests/engine/paced_model.h"
#include "tests/engine/recorder.h"

namespace baton::engine {

using kv::KvArena;
using kv::KvTransport;
using kv::LocalHub;

namespace {

RequestSpec Request(uint64_t number, uint32_t num_tokens, uint32_t max_tokens) {
  RequestSpec spec;
  spec.key = {{number, 7}, 1};
  spec.session = SessionId(number % 3);
  for (uint32_t i = 0; i < num_tokens; ++i) {
    spec.tokens.push_back(static_cast<TokenId>(1 + (number * 31 + i) % (kToyVocab - 1)));
  }
  spec.num_prompt_tokens = num_tokens;
  spec.sampling.max_tokens = max_tokens;
  spec.sampling.temperature = 0;
  spec.sampling.ignore_eos = true;
  spec.deadline_us = 60'000'000;
  return spec;
}

// An engine over the toy model, started.
class EngineLiveTest : public ::testing::Test {
 protected:
  EngineLiveTest() {
    arena_ = *KvArena::Create(ToyLayout(), 256);
    kv_ = KvStore::OnHost(arena_.get());
    EngineConfig config;
    config.scheduler.max_batch_tokens = 128;
    config.scheduler.max_running = 32;
    config.max_context = 200;
    engine_ = *Engine::Create(config, {.model = &model_, .kv = kv_.get(), .listener = &recorder_});
    EXPECT_TRUE(engine_->Start().ok());
  }
  bool WaitIdle() {
    for (int i = 0; i < 1000 && !engine_->IsIdle(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return engine_->IsIdle();
  }

  ToyModel model_;
  Recorder recorder_;
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineLiveTest, ManyThreadsPostAndEachRequestEndsOnce) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 25;
  std::vector<std::thread> posters;
  for (uint64_t t = 0; t < kThreads; ++t) {
    posters.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        const RequestSpec spec = Request(1 + t * kEach + i, 1 + i, 8);
        EXPECT_TRUE(engine_->TryStart(spec).ok());
        if (i % 5 == 4) engine_->Cancel(spec.key);
        if (i % 7 == 0) (void)engine_->Snapshot();
        engine_->Renew(SessionId(i % 3), 10'000'000);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    const auto rows = engine_->DebugRequests();
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_LE(rows->size(), kThreads * kEach);
  }
  for (std::thread& poster : posters) poster.join();
  ASSERT_TRUE(WaitIdle());
  for (uint64_t number = 1; number <= kThreads * kEach; ++number) {
    EXPECT_EQ(recorder_.Of({{number, 7}, 1}).num_terminal, 1u) << number;
  }
  const EngineSnapshot snapshot = engine_->Snapshot();
  EXPECT_EQ(snapshot.blocks.num_unheld(), snapshot.blocks.total);
}

TEST_F(EngineLiveTest, DebugPagesShowLiveRequestsAndEveryBlock) {
  const RequestSpec spec = Request(1, 20, 180);
  ASSERT_TRUE(engine_->TryStart(spec).ok());
  ASSERT_TRUE(recorder_.WaitFor(spec.key, [](const Record& r) { return !r.states.empty(); }));
  const auto blocks = engine_->DebugBlocks();
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(blocks->size(), 256u);
  ASSERT_TRUE(recorder_.WaitEnded(spec.key));
  ASSERT_TRUE(WaitIdle());
  const auto rows = engine_->DebugRequests();
  ASSERT_TRUE(rows.ok());
  EXPECT_TRUE(rows->empty());
}

TEST_F(EngineLiveTest, StopWhileBusyEndsTheThreadAndRefusesWhatFollows) {
  for (uint64_t i = 1; i <= 20; ++i) EXPECT_TRUE(engine_->TryStart(Request(i, 30, 150)).ok());
  engine_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(engine_->TryStart(Request(99, 3, 3))));
  engine_->Stop();
}

TEST_F(EngineLiveTest, ADrainRefusesAtOnceAndEndsIdle) {
  const RequestSpec spec = Request(1, 10, 100);
  ASSERT_TRUE(engine_->TryStart(spec).ok());
  engine_->BeginDrain();
  const RequestSpec late = Request(2, 3, 3);
  ASSERT_TRUE(engine_->TryStart(late).ok());
  ASSERT_TRUE(recorder_.WaitEnded(late.key));
  EXPECT_EQ(recorder_.Of(late.key).last(), RequestState::kRejected);
  EXPECT_TRUE(absl::IsUnavailable(recorder_.Of(late.key).status)) << recorder_.Of(late.key).status;
  ASSERT_TRUE(WaitIdle());
  EXPECT_EQ(recorder_.Of(spec.key).last(), RequestState::kFinished);
  EXPECT_TRUE(engine_->Snapshot().draining);
}

// One of two connected engines, at the pace of a real model.
struct DecodeEngine {
  DecodeEngine(LocalHub* hub, TableWire* wire, uint64_t number)
      : incarnation(number),
        arena(*KvArena::Create(ToyLayout(), 512)),
        kv(KvStore::OnHost(arena.get())) {
    transport = hub->Attach("decode-" + std::to_string(number), incarnation, arena.get());
    EngineConfig config;
    config.scheduler.role = WorkerRole::kDecode;
    config.scheduler.max_batch_tokens = 128;
    config.scheduler.max_running = 32;
    config.max_context = 200;
    config.incarnation = incarnation;
    config.eog_tokens = {0};
    config.handoff.strand_us = 3'000'000;
    engine = *Engine::Create(config, {.model = &model,
                                      .kv = kv.get(),
                                      .transport = transport.get(),
                                      .wire = wire,
                                      .listener = &recorder});
    EXPECT_TRUE(engine->Start().ok());
  }
  ~DecodeEngine() { engine->Stop(); }

  Incarnation incarnation;
  PacedModel model{1'000};
  Recorder recorder;
  std::unique_ptr<KvArena> arena;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<KvTransport> transport;
  std::unique_ptr<Engine> engine;
};

// The router moves a few streams at a time, so most orders come long after the drain began.
TEST(EngineDrainTest, StreamsMoveAwayAfterTheDrainHasBegun) {
  constexpr uint64_t kStreams = 8;
  LocalHub hub(/*own_thread=*/true);
  TableWire wire;
  DecodeEngine leaves(&hub, &wire, 1);
  DecodeEngine takes(&hub, &wire, 2);
  for (uint64_t number = 1; number <= kStreams; ++number) {
    ASSERT_TRUE(leaves.engine->TryStart(Request(number, 20, 180)).ok());
  }
  leaves.engine->BeginDrain();
  for (uint64_t number = 1; number <= kStreams; ++number) {
    RequestSpec spec = Request(number, 20, 180);
    ASSERT_TRUE(leaves.recorder.WaitFor(
        spec.key, [](const Record& record) { return record.Tokens(0).size() > 4; }));
    ASSERT_TRUE(leaves.engine->Snapshot().draining);
    spec.key.attempt = 2;
    spec.kind = RequestKind::kSource;
    spec.peer = takes.incarnation;
    EXPECT_TRUE(leaves.engine->TryStart(spec).ok());
    spec.kind = RequestKind::kDest;
    spec.peer = leaves.incarnation;
    ASSERT_TRUE(takes.engine->TryStart(spec).ok());
  }
  for (uint64_t number = 1; number <= kStreams; ++number) {
    const RequestKey moved{Request(number, 20, 180).key.uid, 2};
    ASSERT_TRUE(takes.recorder.WaitEnded(moved));
    EXPECT_EQ(takes.recorder.Of(moved).last(), RequestState::kFinished);
    EXPECT_EQ(leaves.recorder.Of(moved).last(), RequestState::kHandedOff);
  }
  EXPECT_EQ(takes.engine->Snapshot().computed_tokens, 0u) << "KV was copied";
  for (int i = 0; i < 2000 && !leaves.engine->IsIdle(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(leaves.engine->IsIdle());
}

TEST_F(EngineLiveTest, AnIdleEngineSleeps) {
  ASSERT_TRUE(WaitIdle());
  const uint64_t turns_before = engine_->Snapshot().updated_us;
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used_ms = static_cast<double>(after.tv_sec - before.tv_sec) * 1e3 +
                         static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-6;
  EXPECT_LT(used_ms, 12) << "above 1 % of a core";
  EXPECT_GT(engine_->Snapshot().updated_us, static_cast<int64_t>(turns_before)) << "it lives";
}

TEST(EngineCreateTest, NumbersOutsideTheirRangeAreRefusedByName) {
  ToyModel model;
  Recorder recorder;
  const auto arena = *KvArena::Create(ToyLayout(), 8);
  const auto kv = KvStore::OnHost(arena.get());
  const EngineParts parts{.model = &model, .kv = kv.get(), .listener = &recorder};
  EngineConfig config;
  config.scheduler.max_batch_tokens = 128;
  config.scheduler.max_running = 32;
  config.max_context = 200;
  ASSERT_TRUE(Engine::Create(config, parts).ok());
  EngineConfig context = config;
  context.max_context = 257;
  EXPECT_NE(Engine::Create(context, parts).status().message().find("max_context 257"),
            std::string::npos);
  EngineConfig rows = config;
  rows.scheduler.max_batch_tokens = 1000;
  EXPECT_NE(Engine::Create(rows, parts).status().message().find("max_batch_tokens 1000"),
            std::string::npos);
  EXPECT_FALSE(Engine::Create(config, {}).ok());
}

}  // namespace
}  // namespace baton::engine
