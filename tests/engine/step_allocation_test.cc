// A step of decode rows allocates nothing: not in the inbox, the plan, the batch, the sampler, the
// outbox or the snapshot, and not for copies of states. This binary counts every call of operator
// new.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "gtest/gtest.h"

#include "tests/engine/hand_rig.h"

namespace {
std::atomic<uint64_t> num_allocations{0};
}  // namespace

void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace baton::engine {
namespace {

constexpr uint32_t kNumRequests = 16;
constexpr uint32_t kWarmUpTurns = 30;
constexpr uint32_t kTurns = 100;

// Keeps numbers only.
class CountingListener final : public EngineListener {
 public:
  void OnStepEvents(std::span<const TokenEvent> events) override {
    ++num_calls;
    num_tokens += events.size();
  }
  void OnRequestStatus(const RequestStatus& /*status*/) override { ++num_statuses; }

  uint64_t num_calls = 0;
  uint64_t num_tokens = 0;
  uint64_t num_statuses = 0;
};

// SteadyCost counts the work of a run of steady turns.
struct SteadyCost {
  uint64_t num_allocations = 0;
  uint64_t num_tokens = 0;
  uint64_t num_calls = 0;
  uint64_t num_statuses = 0;
  uint64_t num_checkpoints = 0;  // since the start
};

// SteadyLoad says what decodes.
struct SteadyLoad {
  uint32_t num_prompt_tokens = 10;
  bool prefix_cache = false;
  uint32_t state_blocks = 0;
  uint32_t checkpoint_tokens = 0;
  uint32_t num_threads = 1;  // that share the rows
};

SteadyCost DecodeSteadily(const SteadyLoad& load) {
  FakeClock clock;
  ToyModel model;
  CountingListener listener;
  device::ThreadPool pool(load.num_threads);
  const std::unique_ptr<kv::KvArena> arena =
      *kv::KvArena::Create(ToyLayout(load.state_blocks), 1024);
  const std::unique_ptr<KvStore> store = KvStore::OnHost(arena.get());
  EngineConfig config;
  config.scheduler.max_batch_tokens = 128;
  config.scheduler.max_chunk = 32;
  config.scheduler.max_running = kNumRequests;
  config.max_context = 200;
  config.prefix_cache = load.prefix_cache;
  config.scheduler.checkpoint_tokens = load.checkpoint_tokens;
  config.incarnation = Incarnation(1);
  config.cluster_secret = "secret";
  const EngineParts parts{
      .model = &model, .kv = store.get(), .listener = &listener, .pool = &pool, .clock = &clock};
  EXPECT_TRUE(EngineCore::CheckConfig(config, parts).ok());
  EngineInbox inbox(4096);
  EngineCore core(config, parts, &inbox);
  for (uint64_t i = 1; i <= kNumRequests; ++i) {
    RequestSpec spec = ToyRequest(i, load.num_prompt_tokens, /*max_tokens=*/180);
    spec.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    spec.sampling.presence_penalty = i % 3 == 0 ? 0.5f : 0.0f;
    inbox.Post(StartRequest{std::make_unique<RequestSpec>(std::move(spec))});
  }
  const auto turn = [&] {
    core.Turn();
    clock.AdvanceMs(1);
  };
  for (uint32_t i = 0; i < kWarmUpTurns; ++i) turn();
  const CountingListener before = listener;
  const uint64_t allocations_before = num_allocations.load();
  for (uint32_t i = 0; i < kTurns; ++i) turn();
  return {.num_allocations = num_allocations.load() - allocations_before,
          .num_tokens = listener.num_tokens - before.num_tokens,
          .num_calls = listener.num_calls - before.num_calls,
          .num_statuses = listener.num_statuses - before.num_statuses,
          .num_checkpoints = core.Snapshot().prefix.checkpoints_kept};
}

TEST(StepAllocationTest, AStepOfDecodeRowsAllocatesNothing) {
  for (const bool prefix_cache : {false, true}) {
    const uint32_t num_threads = prefix_cache ? 3 : 1;
    const SteadyCost cost =
        DecodeSteadily({.prefix_cache = prefix_cache, .num_threads = num_threads});
    EXPECT_EQ(cost.num_tokens, kTurns * kNumRequests) << "every request decodes in every turn";
    EXPECT_EQ(cost.num_calls, kTurns) << "the tokens of a step leave as one batch";
    EXPECT_EQ(cost.num_statuses, 0u) << "no request starts or ends";
    EXPECT_EQ(cost.num_allocations, 0u)
        << "in " << kTurns << " steps, " << (prefix_cache ? "with" : "without") << " prefix cache, "
        << num_threads << " threads";
  }
}

// The prompts are shorter than a block, and the warm-up ends before the first multiple: every copy
// is made in a steady step, and those of all requests in one.
TEST(StepAllocationTest, AStepThatCopiesStatesAllocatesNothing) {
  static_assert(3 + kWarmUpTurns < 64 && 3 + kWarmUpTurns + kTurns > 2 * 64);
  const SteadyCost cost = DecodeSteadily(
      {.num_prompt_tokens = 3, .prefix_cache = true, .state_blocks = 2, .checkpoint_tokens = 64});
  EXPECT_EQ(cost.num_tokens, kTurns * kNumRequests);
  EXPECT_EQ(cost.num_checkpoints, 2 * kNumRequests) << "one at each multiple";
  EXPECT_EQ(cost.num_allocations, 0u);
}

}  // namespace
}  // namespace baton::engine
