// Random arrivals, hand-offs, cancels and steps on tiny pools: every sequence says exactly what it
// would say alone, nothing leaks, nothing waits for ever.
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "gtest/gtest.h"

#include "tests/scheduler/toy_worker.h"
#include "tests/test_seed.h"

namespace baton::scheduler {

using kv::BlockHandle;
using kv::BlockState;

namespace {

// A request as the test knows it.
struct Request {
  uint64_t uid = 0;
  std::vector<TokenId> prompt;
  SequenceLimits limits;
  uint32_t num_choices = 1;
  bool cancelled = false;
};

// A reservation whose KV is still on its way.
struct Reservation {
  SequenceSpec spec;
  std::vector<BlockHandle> blocks;
};

// One random run on one worker.
class RandomRun {
 public:
  RandomRun(WorkerRole role, uint64_t seed)
      : random_(seed),
        has_cache_(random_.OneIn(2)),
        worker_(MakeConfig(role), random_.Between(6, 60), has_cache_) {
    for (std::vector<TokenId>& beginning : beginnings_) {
      beginning.resize(random_.Between(1, 40));
      for (TokenId& token : beginning) token = static_cast<TokenId>(random_.Below(50));
    }
    worker_.is_bad = [](const BatchItem& item) { return item.first_pos % 7 == 3; };
    const uint32_t speed = random_.Between(1, 400);
    worker_.cost = [speed](const StepShape& shape) {
      return 50 + int64_t{speed} * (shape.prefill_tokens + 4 * shape.decode_rows);
    };
  }

  void Operate() {
    switch (random_.Below(12)) {
      case 0:
      case 1:
        return Arrive();
      case 2:
        return worker_.scheduler().config().role == WorkerRole::kPrefill ? Arrive() : Reserve();
      case 3:
        return EndReservation();
      case 4:
        if (random_.OneIn(3)) Cancel();
        return;
      case 5:
        return HandOff();
      default:
        return Step();
    }
  }

  // No more arrivals; everything must come to its end.
  void Drain() {
    int idle = 0;
    while (worker_.scheduler().HasWork() || !reservations_.empty() || !handed_off_.empty()) {
      EndReservation();
      HandOff();
      Step();
      idle = progressed_ ? 0 : idle + 1;
      ASSERT_LT(idle, 50) << "nothing moves";
    }
    for (const Request& request : requests_) Verify(request);
    EXPECT_EQ(worker_.pool().num_available(), worker_.pool().num_blocks());
  }

  uint64_t num_preemptions() { return worker_.scheduler().Load().num_preemptions; }
  size_t num_requests() const { return requests_.size(); }
  const ToyWorker& worker() const { return worker_; }

 private:
  SchedulerConfig MakeConfig(WorkerRole role) {
    SchedulerConfig config;
    config.role = role;
    config.block_size = random_.Between(1, 5);
    config.state_blocks = random_.OneIn(3) ? random_.Between(1, 3) : 0;
    config.checkpoint_tokens = random_.Below(6) * config.block_size;
    config.window = random_.OneIn(3) ? random_.Between(1, 40) : 0;
    config.max_running = random_.Between(1, 8);
    config.max_batch_tokens = config.max_running + config.block_size + random_.Below(40);
    config.max_chunk = config.block_size + random_.Below(20);
    config.max_prefilling = random_.Between(1, 4);
    config.max_waiting = random_.Between(1, 20);
    config.target_step_us = random_.Between(100, 20'000);
    config.target_mixed_step_us = random_.Between(100, 5'000);
    return config;
  }

  SequenceSpec RandomSpec() {
    Request request;
    request.uid = ++last_uid_;
    request.prompt.resize(random_.Between(1, 40));
    for (TokenId& token : request.prompt) token = static_cast<TokenId>(random_.Below(50));
    // A beginning that others have too, in part.
    const std::vector<TokenId>& beginning = beginnings_[random_.Below(3)];
    const size_t num_common = std::min<size_t>(
        {beginning.size(), request.prompt.size(), has_cache_ ? random_.Below(40) : 0});
    std::copy_n(beginning.begin(), num_common, request.prompt.begin());
    request.limits = {random_.Between(1, 30), random_.Between(5, 70)};
    request.num_choices = random_.OneIn(3) ? random_.Between(2, 4) : 1;
    requests_.push_back(request);
    return worker_.Spec(request.uid, request.prompt, request.limits, request.num_choices);
  }

  void Arrive() {
    if (!worker_.scheduler().AddWaiting(RandomSpec(), worker_.now_us()).ok()) requests_.pop_back();
  }

  void Reserve() {
    SequenceSpec spec = RandomSpec();
    if (!worker_.scheduler().CanReserve(spec).ok()) {
      requests_.pop_back();
      return;
    }
    Reservation reservation{spec, {}};
    const uint32_t need = worker_.scheduler().BlocksToReserve(
        static_cast<uint32_t>(spec.tokens.size()), spec.num_choices);
    ASSERT_TRUE(
        worker_.pool().Allocate(need, BlockState::kReserved, spec.uid, &reservation.blocks));
    reservations_.push_back(std::move(reservation));
  }

  void EndReservation() {
    if (reservations_.empty()) return;
    const uint32_t at = random_.Below(static_cast<uint32_t>(reservations_.size()));
    const Reservation reservation = std::move(reservations_[at]);
    reservations_.erase(reservations_.begin() + at);
    progressed_ = true;
    if (random_.OneIn(5)) {  // the hand-off failed
      for (const BlockHandle& handle : reservation.blocks) worker_.pool().DropRequestRef(handle);
      Find(reservation.spec.uid.lo)->cancelled = true;
    } else {
      worker_.Bind(reservation.spec, reservation.blocks);
    }
  }

  void Cancel() {
    std::vector<const Sequence*> all;
    worker_.scheduler().ForEachSequence([&](const Sequence& s) { all.push_back(&s); });
    if (all.empty()) return;
    // In id order, because the map's order differs between runs.
    std::sort(all.begin(), all.end(), [](auto* a, auto* b) { return a->id() < b->id(); });
    const Sequence* victim = all[random_.Below(static_cast<uint32_t>(all.size()))];
    Find(victim->spec.uid.lo)->cancelled = true;
    std::erase(handed_off_, victim->id());
    ASSERT_TRUE(worker_.scheduler().Remove(victim->id()));
  }

  void HandOff() {
    if (handed_off_.empty()) return;
    progressed_ = true;
    ASSERT_TRUE(worker_.scheduler().Remove(handed_off_.back()));
    handed_off_.pop_back();
  }

  void Step() {
    const BatchPlan plan = worker_.Step(random_.Below(5));
    handed_off_.insert(handed_off_.end(), worker_.done.begin(), worker_.done.end());
    progressed_ = !plan.empty();
    const bool others_hold = !reservations_.empty() || !handed_off_.empty();
    ASSERT_TRUE(!plan.empty() || others_hold || !worker_.scheduler().HasWork())
        << "work, free blocks, and an empty plan";
    ASSERT_FALSE(testing::Test::HasFailure());
  }

  Request* Find(uint64_t uid) {
    return &*std::find_if(requests_.begin(), requests_.end(),
                          [&](const Request& request) { return request.uid == uid; });
  }

  void Verify(const Request& request) {
    if (request.cancelled || worker_.scheduler().config().role == WorkerRole::kPrefill) return;
    for (uint32_t choice = 0; choice < request.num_choices; ++choice) {
      const std::pair key(request.uid, choice);
      ASSERT_TRUE(worker_.finished[key]) << "uid " << request.uid << " choice " << choice;
      ASSERT_EQ(worker_.outputs[key], ToyOutput(request.prompt, choice, request.limits));
    }
  }

  TestRandom random_;
  const bool has_cache_;
  ToyWorker worker_;
  std::array<std::vector<TokenId>, 3> beginnings_;
  std::vector<Request> requests_;
  std::vector<Reservation> reservations_;
  std::vector<SequenceId> handed_off_;
  uint64_t last_uid_ = 0;
  bool progressed_ = false;
};

class SchedulerPropertyTest : public testing::TestWithParam<WorkerRole> {};

TEST_P(SchedulerPropertyTest, EveryRequestSaysWhatItWouldSayAlone) {
  uint64_t preemptions = 0;
  size_t requests = 0;
  uint64_t ahead = 0;
  uint64_t wasted = 0;
  uint64_t hit_tokens = 0;
  uint64_t checkpoints = 0;
  for (const uint64_t seed : TestSeeds(2)) {
    for (uint64_t i = 0; i < 60; ++i) {
      SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed << " run " << i);
      RandomRun run(GetParam(), seed * 7'919 + i);
      for (int op = 0; op < 300; ++op) {
        run.Operate();
        if (testing::Test::HasFailure()) return;
      }
      run.Drain();
      if (testing::Test::HasFailure()) return;
      preemptions += run.num_preemptions();
      requests += run.num_requests();
      ahead += run.worker().num_ahead;
      wasted += run.worker().num_wasted;
      const bool has_state = run.worker().scheduler().config().state_blocks > 0;
      if (!has_state || run.worker().prefix_stats() == nullptr) continue;
      hit_tokens += run.worker().num_hit_tokens;
      checkpoints += run.worker().prefix_stats()->checkpoints_kept;
    }
  }
  std::printf("%zu requests, %llu preemptions, %llu steps ahead, %llu rows for nothing\n", requests,
              static_cast<unsigned long long>(preemptions), static_cast<unsigned long long>(ahead),
              static_cast<unsigned long long>(wasted));
  EXPECT_EQ(ahead > 500, GetParam() != WorkerRole::kPrefill);
  EXPECT_EQ(wasted > 50, GetParam() != WorkerRole::kPrefill);
  std::printf("with states: %llu checkpoints, %llu tokens found\n",
              static_cast<unsigned long long>(checkpoints),
              static_cast<unsigned long long>(hit_tokens));
  EXPECT_GT(checkpoints, 100u);
  EXPECT_GT(hit_tokens, 100u);
  EXPECT_GT(requests, 2'000u);
  EXPECT_EQ(preemptions > 100, GetParam() != WorkerRole::kPrefill);
}

INSTANTIATE_TEST_SUITE_P(Roles, SchedulerPropertyTest,
                         testing::Values(WorkerRole::kPrefill, WorkerRole::kDecode));

}  // namespace
}  // namespace baton::scheduler
