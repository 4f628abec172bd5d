// When `baton drain` may say that a worker has left, and when it has to ask again.
#include "src/cli/drain_step.h"

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

const LedgerProcess kLeaver = {.worker_id = "decode-0", .incarnation = "01", .admin = "h:1"};

DrainStep StepFor(const std::vector<LedgerProcess>& workers, bool answers) {
  return NextDrainStep(workers, kLeaver, [answers] { return answers; });
}

LedgerProcess Row(const std::string& worker_id, const std::string& incarnation, bool ready) {
  return {.worker_id = worker_id, .incarnation = incarnation, .admin = "h:1", .ready = ready};
}

TEST(DrainStepTest, ARegisteredWorkerThatIsNotReadyIsOnItsWay) {
  EXPECT_EQ(StepFor({Row("prefill-0", "02", true), Row("decode-0", "01", false)}, true),
            DrainStep::kWait);
}

// Its lease broke before it had read the order, or the router that knew of it is another one now.
TEST(DrainStepTest, AReadyWorkerHasNotHeardOfIt) {
  EXPECT_EQ(StepFor({Row("decode-0", "01", true)}, true), DrainStep::kAskAgain);
}

TEST(DrainStepTest, AMissingWorkerHasLeftOnceItsProcessIsGone) {
  EXPECT_EQ(StepFor({Row("prefill-0", "02", true)}, true), DrainStep::kWait)
      << "frozen, or its router has just started";
  EXPECT_EQ(StepFor({Row("prefill-0", "02", true)}, false), DrainStep::kLeft);
}

TEST(DrainStepTest, ItsNextLifeShowsThatItHasLeft) {
  EXPECT_EQ(StepFor({Row("decode-0", "03", true)}, true), DrainStep::kLeft);
}

}  // namespace
}  // namespace baton::cli
