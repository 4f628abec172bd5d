// A pool whose blocks get their memory while requests run, or never.
#include "src/engine/block_supply.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "tests/engine/hand_rig.h"

namespace baton::engine {

using kv::BlockState;
using kv::ReadyBlocks;

namespace {

constexpr uint32_t kBlocks = 256;
constexpr uint32_t kReady = 60;  // a sequence of the rig's longest context has 50

// The rig's worker with few blocks ready. `available`: what the system has.
HandWorkerOptions LateOptions(const uint64_t* available) {
  HandWorkerOptions options;
  options.num_blocks = kBlocks;
  options.arena.num_ready = kReady;
  options.arena.available_bytes = [available] { return StatusOr<uint64_t>(*available); };
  options.max_running = 64;
  return options;
}

// Together they need three times kReady.
std::vector<RequestSpec> ManyRequests() {
  std::vector<RequestSpec> specs;
  for (const uint32_t length : {150u, 120u, 3u, 64u, 33u, 99u, 150u, 65u}) {
    specs.push_back(ToyRequest(specs.size() + 1, length, 12));
  }
  return specs;
}

// A prompt of 38 blocks and one for each choice.
RequestSpec RequestOfManyChoices(uint64_t number) {
  RequestSpec spec = ToyRequest(number, 150, 4);
  spec.num_choices = 40;
  return spec;
}

TEST(BlockSupplyTest, RequestsNeedNotWaitForTheBackground) {
  const uint64_t available = uint64_t{1} << 40;
  HandRig rig;
  HandWorker* worker = rig.Add(LateOptions(&available));
  EXPECT_EQ(worker->core().pool().num_free(), kBlocks) << "capacity is told from the start on";
  EXPECT_EQ(worker->core().pool().num_available(), kReady);
  const std::vector<RequestSpec> specs = ManyRequests();
  for (const RequestSpec& spec : specs) worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) {
    EXPECT_EQ(IdsOf(worker->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0));
  }
  EXPECT_GT(worker->kv().ready().num_ready, kReady);
  EXPECT_TRUE(worker->AllFree());
}

TEST(BlockSupplyTest, TakesOverWhatTheBackgroundMadeReady) {
  const uint64_t available = uint64_t{1} << 40;
  HandRig rig;
  HandWorker* worker = rig.Add(LateOptions(&available));
  const RequestSpec early = RequestOfManyChoices(1);
  worker->Start(early);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(worker->recorder().Of(early.key).status.code(), StatusCode::kResourceExhausted)
      << "the router asks again";
  EXPECT_EQ(worker->kv().ready(), (ReadyBlocks{kReady, kBlocks})) << "an idle engine takes none";

  (void)worker->kv().Extend(kBlocks);
  const RequestSpec late = RequestOfManyChoices(2);
  worker->Start(late);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(worker->recorder().Of(late.key).last(), RequestState::kFinished);
  EXPECT_EQ(worker->core().pool().num_available(), kBlocks);
}

TEST(BlockSupplyTest, APoolThatGetsNoMoreMemoryIsSmallerAndServes) {
  uint64_t available = uint64_t{1} << 40;
  HandRig rig;
  HandWorker* worker = rig.Add(LateOptions(&available));
  available = 0;
  const std::vector<RequestSpec> specs = ManyRequests();
  for (const RequestSpec& spec : specs) worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) {
    EXPECT_EQ(IdsOf(worker->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0));
  }
  const EngineSnapshot snapshot = worker->core().Snapshot();
  EXPECT_EQ(snapshot.blocks.total, kBlocks);
  EXPECT_EQ(snapshot.blocks.of(BlockState::kQuarantined), kBlocks - kReady);
  EXPECT_EQ(snapshot.blocks.num_unheld(), kReady);

  const RequestSpec large = RequestOfManyChoices(99);
  worker->Start(large);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Status refusal = worker->recorder().Of(large.key).status;
  EXPECT_EQ(refusal.code(), StatusCode::kOutOfRange) << refusal;
  EXPECT_NE(refusal.message().find("the pool has 60"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace baton::engine
