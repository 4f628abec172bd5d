// Tests the stages of steps that an engine thread reports: nested, with the names that traces have.
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/device/step_stage.h"
#include "tests/engine/hand_rig.h"

namespace baton::engine {

using namespace device;  // NOLINT(google-build-using-namespace)

namespace {

// Paths of ranges, outermost first: "decode step/launch".
class RecordedStages final : public StageSink {
 public:
  void Begin(StepStage stage) override {
    const std::string outer = open_.empty() ? "" : open_.back() + "/";
    open_.push_back(outer + StepStageName(stage));
    seen_.insert(open_.back());
  }
  void End() override {
    ASSERT_FALSE(open_.empty());
    open_.pop_back();
  }
  const std::set<std::string>& seen() const { return seen_; }
  bool is_closed() const { return open_.empty(); }

 private:
  std::vector<std::string> open_;
  std::set<std::string> seen_;
};

TEST(EngineStagesTest, AStepIsPlannedComputedAndSampled) {
  RecordedStages stages;
  HandRig rig;
  HandWorkerOptions options;
  options.stages = &stages;
  rig.Add(options)->Start(ToyRequest(1, 10, 5));
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_TRUE(stages.is_closed());
  EXPECT_THAT(stages.seen(),
              testing::UnorderedElementsAre("plan", "prefill step", "prefill step/forward",
                                            "prefill step/sample", "decode step",
                                            "decode step/forward", "decode step/sample"));
}

TEST(EngineStagesTest, StepsThatOverlapAreLaunchedAndWaitedFor) {
  RecordedStages stages;
  HandRig rig;
  HandWorkerOptions options;
  options.stages = &stages;
  options.overlaps_steps = true;
  RequestSpec spec = ToyRequest(1, 10, 20);
  spec.sampling.logprobs = false;
  rig.Add(options)->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_TRUE(stages.is_closed());
  EXPECT_THAT(stages.seen(),
              testing::IsSupersetOf({"plan", "decode step/plan", "decode step/launch",
                                     "decode step/wait", "decode step/sample"}));
}

TEST(EngineStagesTest, AHandOffIsSealedOnOneSideAndAdoptedOnTheOther) {
  RecordedStages of_prefill;
  RecordedStages of_decode;
  HandRig rig;
  HandWorkerOptions options;
  options.role = WorkerRole::kPrefill;
  options.stages = &of_prefill;
  HandWorker* const prefill = rig.Add(options);
  options.role = WorkerRole::kDecode;
  options.stages = &of_decode;
  HandWorker* const decode = rig.Add(options);
  const RequestSpec spec = ToyRequest(1, 40, 5);
  decode->Start(ForPeer(spec, RequestKind::kDest, *prefill));
  prefill->Start(ForPeer(spec, RequestKind::kSource, *decode));
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_TRUE(of_prefill.is_closed() && of_decode.is_closed());
  EXPECT_THAT(of_prefill.seen(), testing::IsSupersetOf({"prefill step/forward/seal", "transfer"}));
  EXPECT_THAT(of_decode.seen(),
              testing::IsSupersetOf({"transfer", "decode step/forward", "decode step/sample"}));
  bool adopts = false;
  for (const std::string& path : of_decode.seen()) adopts = adopts || path.ends_with("adopt");
  EXPECT_TRUE(adopts);
}

TEST(StepStageTest, EveryStageHasANameOfItsOwn) {
  const std::set<std::string> names(kStepStageNames.begin(), kStepStageNames.end());
  EXPECT_EQ(names.size(), kStepStageNames.size());
  EXPECT_STREQ(StepStageName(StepStage::kTransfer), "transfer");
  EXPECT_STREQ(StepStageName(StageOfStep(3, 0)), "prefill step");
  EXPECT_STREQ(StepStageName(StageOfStep(0, 3)), "decode step");
  EXPECT_STREQ(StepStageName(StageOfStep(3, 3)), "mixed step");
}

}  // namespace
}  // namespace baton::engine
