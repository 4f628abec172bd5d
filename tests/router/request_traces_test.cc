// Tests what a router remembers of requests: named times that sum, the workers that served them,
// and what was beside.
#include "src/router/request_traces.h"

#include <numeric>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using obs::kNumRequestStages;
using obs::RequestEvent;
using obs::RequestStage;
using obs::ResumeReason;
using scheduler::FinishReason;

namespace {

using Traces = std::vector<std::shared_ptr<const RequestTrace>>;

int64_t SumOfStages(const RequestTrace& trace) {
  return std::accumulate(trace.stages_us.begin(), trace.stages_us.end(), int64_t{0});
}

int64_t StageOf(const RequestTrace& trace, RequestStage stage) {
  return trace.stages_us[static_cast<size_t>(stage)];
}

// "prompt" -> "abc", each stage 1 ms longer than the one before.
RequestUid PlayWithTimes(FakeCluster& cluster) {
  GenerateRequest request = cluster.Request("prompt", 3);
  request.answer_id = "cmpl-1";
  const RequestUid uid = cluster.Submit(std::move(request));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.now_us += 1000;
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
  cluster.now_us += 2000;
  cluster.Text("prefill-0", uid, 0, "a");
  cluster.now_us += 3000;
  cluster.State("prefill-0", uid, WorkerRequestState::kGranted);
  cluster.now_us += 4000;
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.now_us += 5000;
  cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);
  cluster.now_us += 6000;
  cluster.State("decode-0", uid, WorkerRequestState::kFirstStepDone);
  cluster.Text("decode-0", uid, 0, "ab");
  cluster.now_us += 7000;
  cluster.Text("decode-0", uid, 2, "c", FinishReason::kLength);
  return uid;
}

TEST(RequestTracesTest, AnAnswerHasItsStagesItsWorkersAndItsTokens) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayWithTimes(cluster);
  cluster.now_us += 1'000'000;  // afterwards nothing grows
  const Traces traces = cluster.core.Traces(cluster.now_us);
  ASSERT_EQ(traces.size(), 1u);
  const RequestTrace& trace = *traces[0];
  EXPECT_EQ(trace.uid, uid);
  EXPECT_EQ(trace.request_id, "test");
  EXPECT_EQ(trace.answer_id, "cmpl-1");
  EXPECT_EQ(trace.http_status, 200);
  const std::array<int64_t, kNumRequestStages> expected = {0,    1000, 2000, 3000,
                                                           4000, 5000, 6000, 7000};
  EXPECT_EQ(trace.stages_us, expected);
  EXPECT_EQ(SumOfStages(trace), trace.end_us - *trace.lifetime.TimeOf(RequestEvent::kAccepted));
  EXPECT_EQ(trace.num_prompt_tokens, 6u);
  EXPECT_EQ(trace.num_output_tokens, 3u);
  EXPECT_EQ(trace.timings.prefill_worker, "prefill-0");
  EXPECT_EQ(trace.timings.decode_worker, "decode-0");
  EXPECT_EQ(trace.timings.kv_bytes, 4096u);
  EXPECT_EQ(trace.notes.longest_gap_us, 18'000) << "from token 0 to token 1";
  EXPECT_EQ(trace.notes.longest_gap_idx, 1u);
}

TEST(RequestTracesTest, ItSaysWhatElseWasThere) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Submit(cluster.Request("first"));
  cluster.Report("decode-0", {}, 40);
  cluster.Submit(cluster.Request("second"));
  const Traces traces = cluster.core.Traces(cluster.now_us);
  ASSERT_EQ(traces.size(), 2u);
  EXPECT_EQ(traces[0]->notes.num_running + traces[1]->notes.num_running, 1u);
  for (const auto& trace : traces) EXPECT_EQ(trace->notes.decode.num_blocks, 64u);
}

TEST(RequestTracesTest, OneThatLivesIsThereWithItsOpenStage) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
  const Traces traces = cluster.core.Traces(cluster.now_us + 5000);
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0]->http_status, 0);
  EXPECT_EQ(StageOf(*traces[0], RequestStage::kPrefill), 5000);
  EXPECT_EQ(SumOfStages(*traces[0]), 5000);
}

// Its client is told of another try; traces of such would push out those of real refusals.
TEST(RequestTracesTest, OneThatIsSubmittedAgainLeavesNone) {
  FakeCluster cluster;
  cluster.JoinPair();
  for (const bool tries_again : {true, false}) {
    const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
    cluster.sinks[uid]->tries_again = tries_again;
    cluster.core.Cancel(uid);
    EXPECT_TRUE(cluster.sinks[uid]->error.has_value());
    EXPECT_EQ(cluster.core.Traces(cluster.now_us).size(), tries_again ? 0u : 1u);
  }
}

TEST(RequestTracesTest, OneThatFailedSumsToItsEnd) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
  cluster.now_us += 7000;
  cluster.core.Cancel(uid, CancelCause::kClientLeft, cluster.now_us);
  const Traces traces = cluster.core.Traces(cluster.now_us + 1000);
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0]->http_status, 499);
  EXPECT_EQ(SumOfStages(*traces[0]), 7000);
  EXPECT_EQ(StageOf(*traces[0], RequestStage::kPrefill), 7000);
}

TEST(RequestTracesTest, APlacementThatIsLostIsCountedWithItsReasonAndItsWait) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.now_us += 30'000;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0"});
  cluster.Advance(100'000, {"decode-0", "prefill-0"});
  const Traces traces = cluster.core.Traces(cluster.now_us);
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0]->uid, uid);
  EXPECT_EQ(traces[0]->attempt, 2u);
  EXPECT_EQ(traces[0]->notes.resumes[static_cast<size_t>(ResumeReason::kDecodeLost)], 1u);
  EXPECT_GE(traces[0]->notes.again_us, 30'000);
  EXPECT_EQ(traces[0]->notes.unplaced_us, -1);
}

// A storm of refusals leaves the slow ones where they are.
TEST(RequestTracesTest, EachKindHasItsLimitAndKeepsTheLast) {
  RequestTraces traces;
  for (uint64_t i = 0; i < 2 * RequestTraces::kMaxServed; ++i) {
    auto served = std::make_shared<RequestTrace>();
    served->uid = {1, i};
    traces.AddServed(std::move(served));
    auto refused = std::make_shared<RequestTrace>();
    refused->uid = {2, i};
    traces.AddRefused(std::move(refused));
  }
  const Traces all = traces.All();
  ASSERT_EQ(all.size(), RequestTraces::kMaxServed + RequestTraces::kMaxRefused);
  EXPECT_EQ(all.front()->uid,
            (RequestUid{2, 2 * RequestTraces::kMaxServed - RequestTraces::kMaxRefused}));
  EXPECT_EQ(all[RequestTraces::kMaxRefused]->uid, (RequestUid{1, RequestTraces::kMaxServed}));
  EXPECT_EQ(all.back()->uid, (RequestUid{1, 2 * RequestTraces::kMaxServed - 1}));
}

// A wait in the queue that ends badly is told apart from a refusal at once.
TEST(RequestTracesTest, OneThatWaitedInTheQueueAndWasRefusedKeepsItsWait) {
  RouterCoreConfig config;
  config.queue_wait_us = 2'000'000;
  FakeCluster cluster(config);
  cluster.JoinPair();
  cluster.Report("decode-0", {}, 0);
  cluster.Submit(cluster.Request("prompt"));
  while (!cluster.sink->error.has_value()) {
    ASSERT_LT(cluster.now_us, 10'000'000) << "it waits for ever";
    cluster.now_us += 100'000;
    cluster.Report("decode-0", {}, 0);
    cluster.Report("prefill-0", {"decode-0"});
    cluster.core.Tick(cluster.now_us);
  }
  const Traces traces = cluster.core.Traces(cluster.now_us);
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0]->attempt, 0u);
  EXPECT_GE(traces[0]->queue_us, config.queue_wait_us);
  EXPECT_EQ(StageOf(*traces[0], RequestStage::kAdmit), traces[0]->queue_us);
}

TEST(RequestTracesTest, OneThatNobodyServesIsAmongTheRefused) {
  FakeCluster cluster;
  cluster.Submit(cluster.Request("prompt"));
  const Traces traces = cluster.core.Traces(cluster.now_us);
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0]->http_status, 503);
  EXPECT_EQ(traces[0]->attempt, 0u);
  EXPECT_EQ(traces[0]->queue_us, 0);
}

}  // namespace
}  // namespace baton::router
