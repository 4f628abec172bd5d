// Finished requests that run again alone: when, where, and what is found when a worker lies.
#include "src/router/shadow_runs.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/router/fake_cluster.h"

namespace baton::router {

using kv::kDefaultTenant;
using limits::kMaxStopBytes;
using obs::Counter;
using obs::ShadowResult;
using scheduler::FinishReason;
using text::StopMatcher;

namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class ShadowRunsTest : public testing::Test {
 protected:
  explicit ShadowRunsTest(double share = 1.0) : runs_(share, &cluster_.core, &cluster_.metrics) {
    cluster_.JoinPair();
  }
  ~ShadowRunsTest() override { cluster_.core.Shutdown(); }

  // Submits as the router does.
  RequestUid Submit(GenerateRequest request) {
    const RequestUid uid{9, ++num_submitted_};
    client_ = std::make_shared<RecordingSink>();
    auto sink = runs_.Wrap(uid, request, client_);
    cluster_.core.Submit(uid, std::move(request), std::move(sink), cluster_.now_us);
    return uid;
  }
  GenerateRequest Request(uint32_t num_choices = 1) {
    GenerateRequest request = cluster_.Request("prompt", 4);
    request.sampling.seed = 42;
    request.sampling.logprobs = true;
    request.num_choices = num_choices;
    return request;
  }
  static WorkerToken LikelyToken(RequestUid uid, uint32_t index, char token, uint32_t choice) {
    WorkerToken event = FakeCluster::Token(
        uid, index, token, index == 3 ? FinishReason::kLength : FinishReason::kNone, choice);
    event.has_logprob = true;
    event.logprob = -0.25f * static_cast<float>(index);
    event.top_logprobs = {{token, event.logprob}, {'z', -7.0f}};
    return event;
  }
  // The tokens that decode-0 gives a request: "wxyz" in every choice.
  static std::vector<WorkerToken> Answer(RequestUid uid, uint32_t num_choices = 1) {
    std::vector<WorkerToken> tokens;
    for (uint32_t choice = 0; choice < num_choices; ++choice) {
      for (uint32_t i = 0; i < 4; ++i) {
        tokens.push_back(LikelyToken(uid, i, static_cast<char>('w' + i), choice));
      }
    }
    return tokens;
  }
  // Serves a client's request by both workers.
  void Serve(RequestUid uid, uint32_t num_choices = 1) {
    cluster_.State("decode-0", uid, WorkerRequestState::kReserved);
    cluster_.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
    cluster_.State("decode-0", uid, WorkerRequestState::kVerified);
    cluster_.Tokens("decode-0", Answer(uid, num_choices));
    ASSERT_TRUE(client_->result.has_value());
  }
  void Tick() { runs_.Tick(cluster_.now_us); }
  // The orders for shadows at a worker.
  std::vector<Order> Shadows(const std::string& worker = "decode-0") {
    std::vector<Order> found;
    for (const Order& order : cluster_.Log(worker).Of(Order::Kind::kDecode)) {
      if (order.tenant == kShadowTenant) found.push_back(order);
    }
    return found;
  }
  // Serves one client, and the shadow of it as `lie` changes its tokens.
  void ServeAndLie(const std::function<void(std::vector<WorkerToken>*)>& lie) {
    const size_t before = Shadows().size();
    Serve(Submit(Request()));
    Tick();
    ASSERT_THAT(Shadows(), SizeIs(before + 1));
    std::vector<WorkerToken> tokens = Answer(Shadows().back().uid);
    lie(&tokens);
    cluster_.Tokens("decode-0", tokens);
    EXPECT_EQ(runs_.num_running(), 0u);
  }
  uint64_t Count(ShadowResult result) const {
    return cluster_.metrics.shadow_total[static_cast<size_t>(result)]->value();
  }
  uint64_t NumCounted() const {
    uint64_t sum = 0;
    for (const Counter* counter : cluster_.metrics.shadow_total) sum += counter->value();
    return sum;
  }

  FakeCluster cluster_;
  ShadowRuns runs_;
  std::shared_ptr<RecordingSink> client_;  // of the last Submit
  uint64_t num_submitted_ = 0;
};

TEST_F(ShadowRunsTest, AFinishedRequestRunsAgainAloneAndIsCountedForNobodyElse) {
  const RequestUid uid = Submit(Request());
  Tick();
  EXPECT_THAT(Shadows(), IsEmpty()) << "not before it has finished";
  Serve(uid);
  EXPECT_THAT(Shadows(), IsEmpty());
  Tick();
  ASSERT_THAT(Shadows(), SizeIs(1));
  const Order order = Shadows().front();
  EXPECT_NE(order.uid, uid);
  EXPECT_EQ(order.peer, "") << "no prefill worker";
  EXPECT_EQ(order.prompt, BytesOf("prompt"));
  EXPECT_EQ(order.sampling.seed, 42u);
  EXPECT_TRUE(order.sampling.logprobs);
  EXPECT_EQ(cluster_.Log("decode-0").Of(Order::Kind::kDecode).front().tenant, kDefaultTenant);
  EXPECT_EQ(cluster_.metrics.requests_running->value(), 0);
  cluster_.Tokens("decode-0", Answer(order.uid));
  EXPECT_EQ(Count(ShadowResult::kEqual), 1u);
  EXPECT_EQ(NumCounted(), 1u);
  EXPECT_EQ(cluster_.metrics.requests_total[0]->value(), 1u) << "one client, one 200";
  EXPECT_EQ(cluster_.metrics.generation_tokens_total->value(), 4u);
  EXPECT_EQ(cluster_.metrics.prompt_tokens_total->value(), 6u);
  EXPECT_EQ(cluster_.core.num_live(), 0u);
  EXPECT_EQ(cluster_.PlacedBlocks("decode-0"), 0u);
}

TEST_F(ShadowRunsTest, EveryLieIsAMismatch) {
  using Tokens = std::vector<WorkerToken>;
  const std::vector<std::pair<std::string, std::function<void(Tokens*)>>> lies = {
      {"another token", [](Tokens* t) { (*t)[2].token = 'q'; }},
      {"another first token", [](Tokens* t) { (*t)[0].token = 'q'; }},
      {"another log-probability", [](Tokens* t) { (*t)[1].logprob -= 1e-6f; }},
      {"another alternative", [](Tokens* t) { (*t)[3].top_logprobs[1].token = 'q'; }},
      {"one alternative less", [](Tokens* t) { (*t)[3].top_logprobs.pop_back(); }},
      {"another reason to end", [](Tokens* t) { (*t)[3].finish = FinishReason::kStop; }},
      {"a shorter answer",
       [](Tokens* t) {
         t->pop_back();
         t->back().finish = FinishReason::kStop;
       }},
  };
  uint64_t count = 0;
  for (const auto& [name, lie] : lies) {
    ServeAndLie(lie);
    EXPECT_EQ(Count(ShadowResult::kMismatch), ++count) << name;
    EXPECT_EQ(NumCounted(), count) << name;
  }
  ServeAndLie([](Tokens* /*honest*/) {});
  EXPECT_EQ(Count(ShadowResult::kEqual), 1u);
}

TEST_F(ShadowRunsTest, AMismatchIsOneLineWithBothTokensAndWorkersButNoText) {
  testing::internal::CaptureStderr();
  ServeAndLie([](std::vector<WorkerToken>* tokens) { (*tokens)[2].token = 'q'; });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("differs at index 2"));
  EXPECT_THAT(log, HasSubstr("token 121 (")) << log;  // 'y'
  EXPECT_THAT(log, HasSubstr("from prefill-0 and decode-0, decode-0 alone computes token 113 ("));
  EXPECT_THAT(log, HasSubstr("(test) choice 0"));
  EXPECT_EQ(log.find("prompt"), std::string::npos);
  EXPECT_EQ(log.find(" differs"), log.rfind(" differs"));
}

TEST_F(ShadowRunsTest, ChoicesAndStopTextsAreComparedAsTheClientGotThem) {
  GenerateRequest request = Request(2);
  request.stop = StopMatcher::Create({"xy"}).value();
  Serve(Submit(std::move(request)), 2);
  EXPECT_THAT(client_->tokens, SizeIs(6)) << "each choice ended with its stop text";
  Tick();
  ASSERT_THAT(Shadows(), SizeIs(1));
  EXPECT_EQ(Shadows()[0].num_choices, 2u);
  cluster_.Tokens("decode-0", Answer(Shadows()[0].uid, 2));
  EXPECT_EQ(Count(ShadowResult::kEqual), 1u);
  Serve(Submit(Request(2)), 2);
  Tick();
  std::vector<WorkerToken> tokens = Answer(Shadows().back().uid, 2);
  tokens[6].token = 'q';  // of the second choice
  cluster_.Tokens("decode-0", tokens);
  EXPECT_EQ(Count(ShadowResult::kMismatch), 1u);
}

TEST_F(ShadowRunsTest, AClientTakesTheWorkerAtOnce) {
  Serve(Submit(Request()));
  Tick();
  ASSERT_THAT(Shadows(), SizeIs(1));
  const RequestUid shadow = Shadows()[0].uid;
  const RequestUid uid = Submit(Request());
  const auto& orders = cluster_.Log("decode-0").orders;
  ASSERT_GE(orders.size(), 2u);
  EXPECT_EQ(orders[orders.size() - 2].kind, Order::Kind::kCancel) << "before the client's start";
  EXPECT_EQ(orders[orders.size() - 2].uid, shadow);
  EXPECT_EQ(orders.back().uid, uid);
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u);
  EXPECT_EQ(cluster_.metrics.requests_total[0]->value(), 1u);
  Serve(uid);
}

// The pool is the shadow's in part; a client that needs it all still starts in the same call.
TEST_F(ShadowRunsTest, AClientThatFindsNoRoomGetsTheRoomOfShadows) {
  GenerateRequest large = Request();
  large.prompt = std::vector<TokenId>(400, 'p');
  Serve(Submit(std::move(large)));
  Tick();
  ASSERT_THAT(Shadows(), SizeIs(1));
  ASSERT_GT(cluster_.PlacedBlocks("decode-0"), 24u);
  GenerateRequest larger = Request(30);
  larger.prompt = std::vector<TokenId>(480, 'p');
  const RequestUid uid = Submit(std::move(larger));
  EXPECT_EQ(cluster_.Log("decode-0").Of(Order::Kind::kDecode).back().uid, uid);
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u);
}

TEST_F(ShadowRunsTest, ABusyWorkerRunsNoShadowAndWaitingEnds) {
  Serve(Submit(Request()));
  const RequestUid busy = Submit(Request());
  Tick();
  EXPECT_THAT(Shadows(), IsEmpty());
  EXPECT_EQ(runs_.num_pending(), 1u);
  cluster_.now_us += ShadowRuns::kWaitUs - 1;
  Tick();
  EXPECT_EQ(NumCounted(), 0u);
  cluster_.now_us += 1;
  Tick();
  EXPECT_EQ(runs_.num_pending(), 0u);
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u);
  cluster_.Report("prefill-0", {"decode-0"});
  cluster_.Report("decode-0");
  Serve(busy);
}

TEST_F(ShadowRunsTest, NothingWaitsBesideAQueue) {
  const RequestUid served = Submit(Request());
  const auto first = client_;
  cluster_.Report("decode-0", {}, 0);
  Submit(Request());
  ASSERT_EQ(cluster_.core.num_queued(), 1u);
  client_ = first;
  Serve(served);
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u);
  EXPECT_EQ(runs_.num_pending(), 0u);
}

TEST_F(ShadowRunsTest, WaitingOnesGiveWayToAQueue) {
  Serve(Submit(Request()));
  EXPECT_EQ(runs_.num_pending(), 1u);
  cluster_.Report("decode-0", {}, 0);
  Submit(Request());
  ASSERT_EQ(cluster_.core.num_queued(), 1u);
  Tick();
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u);
  EXPECT_EQ(runs_.num_pending(), 0u);
}

TEST_F(ShadowRunsTest, TooManyWaitingAreDropped) {
  for (size_t i = 0; i < ShadowRuns::kMaxPending + 3; ++i) Serve(Submit(Request()));
  EXPECT_EQ(runs_.num_pending(), ShadowRuns::kMaxPending);
  EXPECT_EQ(Count(ShadowResult::kDropped), 3u);
}

TEST_F(ShadowRunsTest, EachRunsOnAnIdleWorkerOfTheSameNumerics) {
  WorkerDescription other = FakeCluster::Describe("decode-1", WorkerRole::kDecode);
  other.fingerprint.numerics_id = 5;
  cluster_.Join(other);
  cluster_.Join(FakeCluster::Describe("decode-2", WorkerRole::kDecode));
  cluster_.Join(FakeCluster::Describe("decode-3", WorkerRole::kDecode));
  for (int i = 0; i < 4; ++i) Serve(Submit(Request()));
  Tick();
  EXPECT_THAT(Shadows("decode-1"), IsEmpty()) << "its bits are its own";
  size_t num_started = 0;
  for (const char* worker : {"decode-0", "decode-2", "decode-3"}) {
    EXPECT_LE(Shadows(worker).size(), 1u);
    num_started += Shadows(worker).size();
  }
  EXPECT_EQ(num_started, ShadowRuns::kMaxRunning);
  EXPECT_EQ(runs_.num_pending(), 2u);
}

TEST_F(ShadowRunsTest, AShadowThatFailsIsCountedAndNotPlacedAgain) {
  Serve(Submit(Request()));
  Tick();
  cluster_.State("decode-0", Shadows()[0].uid, WorkerRequestState::kRejected,
                 StatusCode::kInvalidArgument);
  EXPECT_EQ(Count(ShadowResult::kFailed), 1u);
  Serve(Submit(Request()));
  Tick();
  cluster_.State("decode-0", Shadows()[1].uid, WorkerRequestState::kRejected,
                 StatusCode::kResourceExhausted);
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u) << "there was no room after all";
  Serve(Submit(Request()));
  Tick();
  ASSERT_THAT(Shadows(), SizeIs(3));
  cluster_.core.OnLeaseClosed(cluster_.leases["decode-0"]);
  EXPECT_EQ(cluster_.metrics.requests_running->value(), 0) << "it is in the queue for a moment";
  EXPECT_EQ(cluster_.metrics.requests_waiting->value(), 0) << "and no client is";
  cluster_.core.Tick(cluster_.now_us += 100'000);
  EXPECT_EQ(Count(ShadowResult::kFailed), 2u);
  EXPECT_EQ(cluster_.core.num_live(), 0u);
}

TEST_F(ShadowRunsTest, ARouterThatLeavesEndsItsShadows) {
  Serve(Submit(Request()));
  Serve(Submit(Request()));
  Tick();
  EXPECT_EQ(runs_.num_running(), 1u);
  cluster_.core.BeginLeave();
  EXPECT_EQ(cluster_.core.num_live(), 0u);
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u);
  Tick();
  EXPECT_EQ(Count(ShadowResult::kDropped), 2u) << "nothing starts any more";
}

TEST_F(ShadowRunsTest, OnlyExactDisaggregatedAnswersAreRunAgain) {
  const RequestUid failed = Submit(Request());
  cluster_.core.Cancel(failed);
  GenerateResult result;
  result.timings.decode_worker = "decode-0";
  for (const bool disaggregated : {false, true}) {
    const auto sink = std::make_shared<RecordingSink>();
    const auto wrapped = runs_.Wrap({8, 8}, Request(), sink);
    EXPECT_NE(wrapped, sink);
    result.timings.disaggregated = disaggregated;
    result.timings.exact = !disaggregated;
    wrapped->OnFinished(result);
    EXPECT_TRUE(sink->result.has_value());
  }
  EXPECT_EQ(runs_.num_pending(), 0u);
  EXPECT_EQ(NumCounted(), 0u);
}

TEST_F(ShadowRunsTest, TheClientSaysWhetherItTriesAgain) {
  for (const bool tries_again : {true, false}) {
    const auto sink = std::make_shared<RecordingSink>();
    sink->tries_again = tries_again;
    const auto wrapped = runs_.Wrap({8, 8}, Request(), sink);
    ASSERT_NE(wrapped, sink);
    EXPECT_EQ(wrapped->TriesAgain(PlainError(ErrorCode::kQueueTimeout)), tries_again);
  }
}

TEST_F(ShadowRunsTest, WhatIsWrittenDownIsBounded) {
  const std::vector<TokenLogprob> huge(ShadowRuns::kMaxBytes / sizeof(TokenLogprob));
  TokenOutput token;
  token.has_logprob = true;
  token.top_logprobs = &huge;
  GenerateResult result;
  result.timings.disaggregated = true;
  result.timings.decode_worker = "decode-0";
  const auto sink = std::make_shared<RecordingSink>();
  const auto wrapped = runs_.Wrap({8, 8}, Request(), sink);
  wrapped->OnToken(token);
  wrapped->OnFinished(result);
  EXPECT_THAT(sink->tokens, SizeIs(1)) << "the client gets it all the same";
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u);
  Serve(Submit(Request()));
  EXPECT_EQ(runs_.num_pending(), 1u) << "what was taken is given back";
}

// Prompts are not all that a request has.
TEST_F(ShadowRunsTest, WhatARequestIsMadeOfIsBoundedToo) {
  GenerateResult result;
  result.timings.disaggregated = true;
  result.timings.decode_worker = "decode-0";
  constexpr size_t kTooMany = ShadowRuns::kMaxBytes / sizeof(TokenId);
  const std::vector<std::pair<std::string, std::function<void(GenerateRequest*)>>> large = {
      {"prompt",
       [](GenerateRequest* request) { request->prompt = std::vector<TokenId>(kTooMany); }},
      {"biases", [](GenerateRequest* request) { request->sampling.logit_bias.resize(kTooMany); }},
      {"stops",
       [](GenerateRequest* request) { request->sampling.stop_token_ids.resize(kTooMany); }},
  };
  uint64_t num_dropped = 0;
  for (const auto& [name, enlarge] : large) {
    GenerateRequest request = Request();
    enlarge(&request);
    runs_.Wrap({8, 8}, request, std::make_shared<RecordingSink>())->OnFinished(result);
    EXPECT_EQ(Count(ShadowResult::kDropped), ++num_dropped) << name;
  }
  std::vector<std::shared_ptr<ResponseSink>> open;
  GenerateRequest request = Request();
  request.stop = StopMatcher::Create({std::string(kMaxStopBytes, 's')}).value();
  for (size_t i = 0; i < ShadowRuns::kMaxBytes / (kMaxStopBytes * 9) + 1; ++i) {
    open.push_back(runs_.Wrap({8, 8}, request, std::make_shared<RecordingSink>()));
  }
  open.back()->OnFinished(result);
  EXPECT_EQ(Count(ShadowResult::kDropped), ++num_dropped) << "stop texts";
  open.clear();
  Serve(Submit(Request()));
  EXPECT_EQ(runs_.num_pending(), 1u) << "what was taken is given back";
}

// A client that waits longer has a shadow that may take longer.
TEST_F(ShadowRunsTest, AShadowHasItsClientsTimeAndItsEndIsNoFault) {
  GenerateRequest request = Request();
  request.timeout_us = 300'000'000;
  Serve(Submit(std::move(request)));
  Tick();
  ASSERT_THAT(Shadows(), SizeIs(1));
  EXPECT_EQ(Shadows()[0].deadline_ms, 300'000u);
  for (int64_t i = 0; i < 299; ++i) {
    cluster_.Tokens("decode-0", {LikelyToken(Shadows()[0].uid, 0, 'w', 0)});  // it works on
    cluster_.Advance(1'000'000, {"decode-0", "prefill-0"});
  }
  EXPECT_EQ(runs_.num_running(), 1u);
  cluster_.Advance(1'000'000, {"decode-0", "prefill-0"});
  EXPECT_EQ(runs_.num_running(), 0u);
  EXPECT_EQ(Count(ShadowResult::kDropped), 1u);
  EXPECT_EQ(Count(ShadowResult::kFailed), 0u);
}

TEST_F(ShadowRunsTest, OneThatCannotStartHoldsUpNobody) {
  WorkerDescription other = FakeCluster::Describe("decode-1", WorkerRole::kDecode);
  other.fingerprint.numerics_id = 5;
  cluster_.Join(other);
  GenerateResult result;
  result.timings.disaggregated = true;
  for (const char* worker : {"decode-0", "decode-1"}) {
    result.timings.decode_worker = worker;
    runs_.Wrap({8, 8}, Request(), std::make_shared<RecordingSink>())->OnFinished(result);
  }
  Submit(Request());  // keeps decode-0 busy
  Tick();
  EXPECT_THAT(Shadows("decode-0"), IsEmpty());
  EXPECT_THAT(Shadows("decode-1"), SizeIs(1));
  EXPECT_EQ(runs_.num_pending(), 1u);
  EXPECT_EQ(NumCounted(), 0u);
}

class QuarterShadowTest : public ShadowRunsTest {
 protected:
  QuarterShadowTest() : ShadowRunsTest(0.25) {}
};

TEST_F(QuarterShadowTest, AShareOfTheRequestsIsChosen) {
  for (int i = 0; i < 16; ++i) Serve(Submit(Request()));
  EXPECT_EQ(runs_.num_pending(), 4u);
}

class NoShadowTest : public ShadowRunsTest {
 protected:
  NoShadowTest() : ShadowRunsTest(0.0) {}
};

TEST_F(NoShadowTest, WithoutAShareSinksStayAsTheyAre) {
  const auto sink = std::make_shared<RecordingSink>();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(runs_.Wrap({8, 8}, Request(), sink), sink);
}

}  // namespace
}  // namespace baton::router
