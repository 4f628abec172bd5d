#include "src/worker/worker_spans.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton::worker {

using engine::RequestKey;
using engine::RequestState;
using engine::RequestStatus;
using namespace obs;  // NOLINT(google-build-using-namespace)

namespace {

constexpr SpanIds kParent = {.trace_hi = 1, .trace_lo = 2, .span_id = 3, .sampled = true};

class SpanLog final : public SpanSink {
 public:
  void Add(std::vector<Span> spans) override {
    for (Span& span : spans) all.push_back(std::move(span));
  }
  std::vector<Span> all;
};

class WorkerSpansTest : public ::testing::Test {
 protected:
  void State(RequestState state, int64_t after_us) {
    clock_.AdvanceUs(after_us);
    RequestStatus status;
    status.key = key_;
    status.state = state;
    status.kv_bytes = 4096;
    status.transfer_us = 300;
    status.cached_tokens = 16;
    spans_.OnStatus(status);
  }
  uint64_t Lost() const { return metrics_.dropped_total[0]->value(); }

  const RequestKey key_{{5, 6}, 2};
  FakeClock clock_{1'000'000};
  MetricsRegistry registry_;
  SpanMetrics metrics_ = RegisterSpanMetrics(&registry_);
  SpanLog log_;
  WorkerSpans spans_{"decode-0", &log_, metrics_, &clock_};
};

TEST_F(WorkerSpansTest, APrefillWorkersPartIsThePrefill) {
  spans_.OnStart(key_, kParent);
  State(RequestState::kPrefillStarted, 100);
  State(RequestState::kPrefillDone, 5000);
  EXPECT_TRUE(log_.all.empty()) << "the request goes on";
  State(RequestState::kHandedOff, 200);
  ASSERT_EQ(log_.all.size(), 1u);
  const Span& prefill = log_.all[0];
  EXPECT_EQ(prefill.name, "worker prefill");
  EXPECT_EQ(prefill.start_us, 1'000'100);
  EXPECT_EQ(prefill.end_us, 1'005'100);
  EXPECT_EQ(prefill.parent_id, 3u);
  EXPECT_EQ(prefill.context.trace_hi, 1u);
  EXPECT_NE(prefill.context.span_id, 3u);
  EXPECT_TRUE(prefill.error.empty());
}

TEST_F(WorkerSpansTest, ADecodeWorkersPartIsTheTransferAndTheDecoding) {
  spans_.OnStart(key_, kParent);
  State(RequestState::kReserved, 100);
  State(RequestState::kVerified, 900);
  State(RequestState::kDecodeStarted, 50);
  State(RequestState::kFirstStepDone, 700);
  clock_.AdvanceUs(7000);
  spans_.OnLastToken(key_);
  State(RequestState::kFinished, 9000);
  ASSERT_EQ(log_.all.size(), 2u);
  EXPECT_EQ(log_.all[0].name, "worker kv_transfer");
  EXPECT_EQ(log_.all[0].start_us, 1'000'700) << "the transfer took 300 us";
  EXPECT_EQ(log_.all[0].end_us, 1'001'000);
  EXPECT_EQ(log_.all[1].name, "worker decode");
  EXPECT_EQ(log_.all[1].end_us - log_.all[1].start_us, 7700) << "until the last token";
}

TEST_F(WorkerSpansTest, WhatWasUnderWayAtABadEndHasTheError) {
  spans_.OnStart(key_, kParent);
  State(RequestState::kPrefillStarted, 100);
  State(RequestState::kFailed, 400);
  ASSERT_EQ(log_.all.size(), 1u);
  EXPECT_EQ(log_.all[0].end_us - log_.all[0].start_us, 400);
  EXPECT_FALSE(log_.all[0].error.empty());
}

// The router ends what is complete for its client so, at a stop text.
TEST_F(WorkerSpansTest, ACancelIsAnEndAndNoError) {
  spans_.OnStart(key_, kParent);
  State(RequestState::kDecodeStarted, 100);
  State(RequestState::kCancelled, 400);
  ASSERT_EQ(log_.all.size(), 1u);
  EXPECT_TRUE(log_.all[0].error.empty());
  EXPECT_EQ(std::get<std::string>(log_.all[0].attributes.back().value), "cancelled");
}

TEST_F(WorkerSpansTest, AFinishedPrefillStaysGoodWhenItsHandOffFails) {
  spans_.OnStart(key_, kParent);
  State(RequestState::kPrefillStarted, 100);
  State(RequestState::kPrefillDone, 100);
  State(RequestState::kFailed, 400);
  ASSERT_EQ(log_.all.size(), 1u);
  EXPECT_TRUE(log_.all[0].error.empty());
}

// A prefill worker whose decode worker was lost gives its blocks to the next attempt's.
TEST_F(WorkerSpansTest, AnAttemptThatIsTakenOverEndsWithTheNext) {
  const RequestKey old{key_.uid, 1};
  spans_.OnStart(old, kParent);
  spans_.OnStatus({.key = old, .state = RequestState::kPrefillStarted});
  spans_.OnStart({{5, 5}, 1}, kParent);
  spans_.OnStart(key_, kParent);
  EXPECT_TRUE(log_.all.empty()) << "it may still be refused";
  const RequestKey refused{key_.uid, 3};
  spans_.OnStart(refused, kParent);
  spans_.OnStatus({.key = refused, .state = RequestState::kRejected});
  EXPECT_TRUE(log_.all.empty());
  State(RequestState::kPrefillStarted, 100);
  ASSERT_EQ(log_.all.size(), 1u);
  EXPECT_EQ(std::get<std::string>(log_.all[0].attributes[3].value), "cancelled");
  EXPECT_TRUE(log_.all[0].error.empty());
  State(RequestState::kHandedOff, 100);
  EXPECT_EQ(log_.all.size(), 2u);
  for (uint64_t i = 1; i < WorkerSpans::kMaxLive; ++i) spans_.OnStart({{1, i}, 1}, kParent);
  EXPECT_EQ(Lost(), 0u) << "neither holds a place, the other request does";
  spans_.OnStart(old, kParent);
  EXPECT_EQ(Lost(), 1u);
}

TEST_F(WorkerSpansTest, OnlyStartsWithASpanAreFollowed) {
  spans_.OnStart(key_, SpanIds{});
  State(RequestState::kPrefillStarted, 1);
  State(RequestState::kFinished, 1);
  spans_.OnStart(key_, kParent);
  spans_.Forget(key_);
  State(RequestState::kPrefillStarted, 1);
  State(RequestState::kFinished, 1);
  EXPECT_TRUE(log_.all.empty());
}

TEST_F(WorkerSpansTest, BeyondTheLimitRequestsAreCountedAsLost) {
  for (uint64_t i = 0; i < WorkerSpans::kMaxLive; ++i) spans_.OnStart({{1, i + 1}, 1}, kParent);
  EXPECT_EQ(Lost(), 0u);
  spans_.OnStart(key_, kParent);
  EXPECT_EQ(Lost(), 1u);
  State(RequestState::kPrefillStarted, 1);
  State(RequestState::kFinished, 1);
  EXPECT_TRUE(log_.all.empty());
}

}  // namespace
}  // namespace baton::worker
