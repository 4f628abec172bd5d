// How a worker comes to rest while a step of it runs. Time passes when the drain sleeps.
#include "src/worker/worker_drain.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/engine/toy_model.h"
#include "tests/patience.h"

namespace baton::worker {

using kv::KvArena;
using namespace engine;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

namespace {

constexpr std::chrono::seconds kPatience{20 * kPatienceFactor};

// A model whose steps last until Open.
class GatedModel final : public ToyModel {
 public:
  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override {
    {
      std::unique_lock lock(mutex_);
      is_in_step_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_open_; });
    }
    return ToyModel::Forward(batch, kv, hook, logits);
  }

  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  bool WaitForStep() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return is_in_step_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool is_in_step_ = false;
};

class WorkerDrainTest : public testing::Test {
 protected:
  void SetUp() override {
    sessions_ = std::make_unique<SessionService>(SessionLimits{.incarnation = Incarnation(1),
                                                               .prefill = false,
                                                               .vocab_size = kToyVocab,
                                                               .max_context = 200});
    arena_ = *KvArena::Create(ToyLayout(), 256);
    kv_ = KvStore::OnHost(arena_.get());
    EngineConfig config;
    config.scheduler.max_batch_tokens = 200;
    config.scheduler.max_running = 128;
    config.max_context = 200;
    auto engine =
        Engine::Create(config, {.model = &model_, .kv = kv_.get(), .listener = sessions_.get()});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    sessions_->set_engine(engine_.get());
    ASSERT_TRUE(engine_->Start().ok());
  }
  void TearDown() override {
    model_.Open();
    if (engine_) engine_->Stop();
  }

  // A request whose first step has begun.
  void BeginStep() {
    RequestSpec spec;
    spec.key = {{1, 2}, 1};
    spec.kind = RequestKind::kLocal;
    spec.tokens = {1, 7, 9};
    spec.num_prompt_tokens = 3;
    spec.sampling.max_tokens = 100;
    spec.deadline_us = 60'000'000;
    spec.tenant = "default";
    ASSERT_TRUE(engine_->TryStart(std::move(spec)).ok());
    ASSERT_TRUE(model_.WaitForStep());
  }

  // Drains at once, as after SIGINT. `at_us` after its begin `act` is called, once.
  Status DrainAtOnce(int64_t at_us, const std::function<void()>& act) {
    const int64_t begin_us = clock_.NowUs();
    bool has_acted = false;
    const auto sleep = [&](int64_t us) {
      clock_.AdvanceUs(us);
      if (has_acted || clock_.NowUs() - begin_us < at_us) return;
      has_acted = true;
      act();
    };
    const std::atomic<bool> stop_now{true};
    const DrainingParts parts{engine_.get(), sessions_.get()};
    return DrainEngines(std::span(&parts, 1), /*timeout_ms=*/60'000, &stop_now,
                        {.clock = &clock_, .sleep = sleep});
  }

  // Lets the step end and waits for what the engine does then.
  void EndStep() {
    model_.Open();
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!engine_->IsIdle() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(engine_->IsIdle());
  }

  FakeClock clock_;
  GatedModel model_;
  std::unique_ptr<SessionService> sessions_;
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(WorkerDrainTest, AnIdleWorkerIsCleanAtOnce) {
  const int64_t begin_us = clock_.NowUs();
  const Status status = DrainAtOnce(0, [this] { EndStep(); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_LT(clock_.NowUs() - begin_us, 4'100'000);
}

// The machine has too much to do: the step that ran takes 1.5 s. It leaves nothing behind.
TEST_F(WorkerDrainTest, AStepOfMoreThanASecondIsWaitedFor) {
  BeginStep();
  const Status status = DrainAtOnce(1'500'000, [this] { EndStep(); });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(WorkerDrainTest, AStepThatDoesNotEndIsNamedAndBounded) {
  BeginStep();
  const int64_t begin_us = clock_.NowUs();
  const Status status = DrainAtOnce(INT64_MAX, [] {});
  EXPECT_THAT(std::string(status.message()), HasSubstr("a step did not end within 2000 ms"));
  EXPECT_LE(clock_.NowUs() - begin_us, 4'100'000);
}

}  // namespace
}  // namespace baton::worker
