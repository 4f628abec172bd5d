// One engine that computes and decodes by itself, with the toy model, turned by hand.
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/engine/hand_rig.h"

namespace baton::engine {

using scheduler::FinishReason;

namespace {

TEST(EngineLocalTest, EveryPromptLengthDecodesThePrefixesTokens) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  std::vector<RequestSpec> specs;
  for (const uint32_t length : {1u, 3u, 4u, 5u, 7u, 8u, 31u, 32u, 33u, 64u, 65u, 150u}) {
    specs.push_back(ToyRequest(specs.size() + 1, length, 12));
    worker->Start(specs.back());
  }
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) {
    const Record record = worker->recorder().Of(spec.key);
    EXPECT_EQ(IdsOf(record, 0), ExpectedTokens(spec, 0)) << spec.tokens.size() << " tokens";
    EXPECT_EQ(record.states, (std::vector{RequestState::kPrefillStarted, RequestState::kPrefillDone,
                                          RequestState::kDecodeStarted,
                                          RequestState::kFirstStepDone, RequestState::kFinished}));
    EXPECT_EQ(record.Tokens(0).back().finish, FinishReason::kLength);
  }
  EXPECT_TRUE(worker->AllFree());
}

// Nobody may get a token that a failed device would compute: the process ends, and routers go on
// elsewhere.
TEST(EngineLocalDeathTest, AnErrorOfTheDeviceEndsTheWorker) {
  const Status error = Internal("CUDA_ERROR_ILLEGAL_ADDRESS");
  for (const bool overlaps_steps : {false, true}) {
    HandRig rig;
    HandWorker* worker = rig.Add({.overlaps_steps = overlaps_steps});
    worker->Start(ToyRequest(1, 10, 100));
    rig.Round();
    worker->model().SetDeviceError(error);
    worker->overlapping().device_error = error;
    EXPECT_DEATH(rig.RunUntilQuiet(), "did not compute a batch of ours.*ILLEGAL_ADDRESS");
    worker->model().SetDeviceError(OkStatus());
    worker->overlapping().device_error = OkStatus();
    EXPECT_TRUE(rig.RunUntilQuiet());
  }
}

TEST(EngineLocalTest, ChoicesShareAPromptAndDifferBySeed) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  std::vector<RequestSpec> specs;
  for (const uint32_t length : {1u, 4u, 6u, 8u, 33u}) {
    RequestSpec spec = ToyRequest(length, length, 9);
    spec.num_choices = 4;
    spec.sampling.temperature = 1.5f;
    spec.sampling.seed = 99 + length;
    spec.sampling.presence_penalty = 0.5f;
    specs.push_back(spec);
    worker->Start(spec);
  }
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) {
    const Record record = worker->recorder().Of(spec.key);
    for (uint32_t c = 0; c < 4; ++c) EXPECT_EQ(IdsOf(record, c), ExpectedTokens(spec, c));
    EXPECT_NE(IdsOf(record, 0), IdsOf(record, 1));
  }
  EXPECT_TRUE(worker->AllFree());
}

// Requests whose rows differ in what they cost and in what they read beside their logits.
std::vector<RequestSpec> MixedRequests() {
  std::vector<RequestSpec> specs;
  for (uint32_t i = 0; i < 14; ++i) {
    RequestSpec spec = ToyRequest(i + 1, 3 + 7 * i, 9 + i);
    spec.num_choices = 1 + i % 3;
    wire::SamplingParams& params = spec.sampling;
    params.temperature = i % 3 == 0 ? 0.0f : 0.3f * static_cast<float>(i);
    params.seed = 11 + i;
    params.logprobs = i % 2 == 0;
    params.top_logprobs = params.logprobs ? i % 5 : 0;
    if (i % 4 == 1) params.top_p = 0.8f;
    if (i % 4 == 2) params.top_k = 5;
    if (i % 4 == 3) params.min_p = 0.1f;
    if (i % 5 == 0) params.repetition_penalty = 1.3f;
    if (i % 5 == 1) params.logit_bias = {{7, 2.0f}};
    specs.push_back(spec);
  }
  return specs;
}

// With `overlaps_steps` the model chooses some of the tokens.
TEST(EngineLocalTest, TheNumberOfThreadsChangesNoBit) {
  const std::vector<RequestSpec> specs = MixedRequests();
  for (const bool overlaps_steps : {false, true}) {
    std::vector<Record> alone;
    for (const uint32_t num_threads : {1u, 2u, 3u, 7u}) {
      device::ThreadPool pool(num_threads);
      HandRig rig;
      HandWorker* worker = rig.Add(
          {.num_blocks = 2048, .max_running = 64, .overlaps_steps = overlaps_steps, .pool = &pool});
      for (const RequestSpec& spec : specs) worker->Start(spec);
      ASSERT_TRUE(rig.RunUntilQuiet());
      for (size_t i = 0; i < specs.size(); ++i) {
        const Record record = worker->recorder().Of(specs[i].key);
        EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
        for (uint32_t c = 0; c < specs[i].num_choices; ++c) {
          EXPECT_EQ(IdsOf(record, c), ExpectedTokens(specs[i], c)) << num_threads << " threads";
        }
        if (num_threads == 1) alone.push_back(record);
        EXPECT_TRUE(record.choices == alone[i].choices) << num_threads << " threads, request " << i;
      }
      EXPECT_TRUE(worker->AllFree());
    }
  }
}

TEST(EngineLocalTest, StopTokensAndLimitsEndAChoiceAtTheirToken) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  const RequestSpec plain = ToyRequest(5, 10, 12);
  const std::vector<TokenId> tokens = ExpectedTokens(plain, 0);
  for (const size_t at : {size_t{0}, size_t{1}, size_t{5}}) {
    RequestSpec spec = plain;
    spec.key.uid.lo += at + 1;
    spec.sampling.stop_token_ids = {tokens[at]};
    const size_t first =
        static_cast<size_t>(std::find(tokens.begin(), tokens.end(), tokens[at]) - tokens.begin());
    worker->Start(spec);
    ASSERT_TRUE(rig.RunUntilQuiet());
    const Record record = worker->recorder().Of(spec.key);
    ASSERT_EQ(record.Tokens(0).size(), first + 1);
    EXPECT_EQ(record.Tokens(0).back().finish, FinishReason::kStop);
    EXPECT_EQ(record.last(), RequestState::kFinished);
  }
  RequestSpec one = ToyRequest(6, 4, 1);
  worker->Start(one);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(worker->recorder().Of(one.key).Tokens(0).size(), 1u);
  EXPECT_EQ(worker->recorder().Of(one.key).last(), RequestState::kFinished);
  EXPECT_TRUE(worker->AllFree());
}

TEST(EngineLocalTest, TheContextEndsAChoiceWhenItIsFull) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  const RequestSpec spec = ToyRequest(1, 190, 1000);
  worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(spec.key);
  EXPECT_EQ(record.Tokens(0).size(), 10u);
  EXPECT_EQ(record.Tokens(0).back().finish, FinishReason::kLength);
  EXPECT_TRUE(worker->AllFree());
}

TEST(EngineLocalTest, AResumedRequestGoesOnWhereItWasCut) {
  const RequestSpec whole = ToyRequest(3, 9, 10);
  const std::vector<TokenId> tokens = ExpectedTokens(whole, 0);
  for (size_t cut = 1; cut < tokens.size(); ++cut) {
    HandRig rig;
    HandWorker* worker = rig.Add({});
    RequestSpec rest = whole;
    rest.tokens.insert(rest.tokens.end(), tokens.begin(), tokens.begin() + cut);
    worker->Start(rest);
    ASSERT_TRUE(rig.RunUntilQuiet());
    const Record record = worker->recorder().Of(rest.key);
    const std::vector<TokenId> expected(tokens.begin() + cut, tokens.end());
    EXPECT_EQ(IdsOf(record, 0), expected) << "cut at " << cut;
    EXPECT_EQ(record.choices.at(0).begin()->first, cut) << "output indices go on";
  }
}

TEST(EngineLocalTest, PreemptedRequestsAnswerAsIfTheyHadRunAlone) {
  HandRig rig;
  // 40 blocks of 4 tokens for ten requests of up to 28 tokens: 70 blocks are wanted.
  HandWorker* worker = rig.Add({.num_blocks = 40});
  std::vector<RequestSpec> specs;
  for (uint32_t i = 0; i < 10; ++i) {
    specs.push_back(ToyRequest(i + 1, 8, 20));
    worker->Start(specs.back());
  }
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) {
    EXPECT_EQ(IdsOf(worker->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0));
  }
  EXPECT_GT(worker->core().Snapshot().scheduler.num_preemptions, 0u);
  EXPECT_TRUE(worker->AllFree());
}

TEST(EngineLocalTest, CancelStopsWithinOneStepAndFreesTheBlocks) {
  for (uint32_t rounds = 0; rounds < 12; ++rounds) {
    HandRig rig;
    HandWorker* worker = rig.Add({.max_chunk = 8});
    RequestSpec spec = ToyRequest(1, 40, 50);
    spec.num_choices = 1 + rounds % 2;
    worker->Start(spec);
    for (uint32_t i = 0; i < rounds; ++i) rig.Round();
    const uint64_t steps = worker->model().num_steps();
    worker->Cancel(spec.key);
    ASSERT_TRUE(rig.RunUntilQuiet());
    EXPECT_EQ(worker->model().num_steps(), steps) << "nothing is computed after the cancel";
    const Record record = worker->recorder().Of(spec.key);
    EXPECT_EQ(record.last(), RequestState::kCancelled);
    EXPECT_EQ(record.num_terminal, 1u);
    EXPECT_TRUE(worker->AllFree());
  }
}

TEST(EngineLocalTest, TheEndOfASessionCancelsItsRequestsAndNoOthers) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  RequestSpec mine = ToyRequest(1, 10, 150);
  RequestSpec other = ToyRequest(2, 10, 20);
  other.session = SessionId(2);
  worker->Start(mine);
  worker->Start(other);
  rig.Round();
  worker->Post(CloseSession{SessionId(1)});
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(worker->recorder().Of(mine.key).last(), RequestState::kCancelled);
  EXPECT_EQ(worker->recorder().Of(other.key).last(), RequestState::kFinished);
  EXPECT_TRUE(worker->AllFree());
}

TEST(EngineLocalTest, ASilentRouterLosesItsRequestsAtTheLeasesEnd) {
  HandRig rig;
  // One block too few to start, so that the request waits all the time.
  HandWorker* worker = rig.Add({.num_blocks = 60});
  RequestSpec spec = ToyRequest(1, 10, 150);
  worker->Start(spec);
  rig.Round();
  rig.clock().AdvanceMs(9'000);
  worker->Post(RenewSession{SessionId(1), 10'000'000});
  rig.Round();
  rig.clock().AdvanceMs(9'000);
  rig.Round();
  EXPECT_FALSE(worker->recorder().Of(spec.key).ended()) << "the renewal counts";
  rig.clock().AdvanceMs(1'000);
  rig.Round();
  EXPECT_EQ(worker->recorder().Of(spec.key).last(), RequestState::kCancelled);
  EXPECT_TRUE(worker->AllFree());
}

TEST(EngineLocalTest, ADeadlineEndsARequestWithItsCode) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  RequestSpec spec = ToyRequest(1, 10, 150);
  spec.deadline_us = 5'000;
  worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(spec.key);
  EXPECT_EQ(record.last(), RequestState::kFailed);
  EXPECT_EQ(record.failed_part, FailedPart::kComputation);
  EXPECT_TRUE(absl::IsDeadlineExceeded(record.status)) << record.status;
  EXPECT_TRUE(worker->AllFree());
}

TEST(EngineLocalTest, BadRequestsAreRejectedWithTheReason) {
  struct Case {
    const char* what;
    void (*spoil)(RequestSpec*);
    StatusCode code;
  };
  const Case cases[] = {
      {"no tokens", [](RequestSpec* s) { s->tokens.clear(); }, StatusCode::kInvalidArgument},
      {"too long", [](RequestSpec* s) { s->tokens.assign(200, 1); }, StatusCode::kInvalidArgument},
      {"token", [](RequestSpec* s) { s->tokens[0] = kToyVocab; }, StatusCode::kInvalidArgument},
      {"negative", [](RequestSpec* s) { s->tokens[0] = -1; }, StatusCode::kInvalidArgument},
      {"prompt", [](RequestSpec* s) { s->num_prompt_tokens = 99; }, StatusCode::kInvalidArgument},
      {"n", [](RequestSpec* s) { s->num_choices = 129; }, StatusCode::kInvalidArgument},
      {"no choice", [](RequestSpec* s) { s->num_choices = 0; }, StatusCode::kInvalidArgument},
      {"attempt", [](RequestSpec* s) { s->key.attempt = 0; }, StatusCode::kInvalidArgument},
      {"max_tokens", [](RequestSpec* s) { s->sampling.max_tokens = 0; },
       StatusCode::kInvalidArgument},
      {"top_p", [](RequestSpec* s) { s->sampling.top_p = 2; }, StatusCode::kInvalidArgument},
      {"stop", [](RequestSpec* s) { s->sampling.stop_token_ids = {-5}; },
       StatusCode::kInvalidArgument},
      {"deadline", [](RequestSpec* s) { s->deadline_us = 0; }, StatusCode::kInvalidArgument},
      {"a prompt to hand off, at a worker that decodes",
       [](RequestSpec* s) { s->kind = RequestKind::kSource; }, StatusCode::kAborted},
      {"never fits",
       [](RequestSpec* s) {
         s->num_choices = 120;
         s->sampling.max_tokens = 190;
       },
       StatusCode::kOutOfRange},
  };
  uint64_t number = 0;
  for (const Case& c : cases) {
    HandRig rig;
    HandWorker* worker = rig.Add({.num_blocks = 60});
    RequestSpec spec = ToyRequest(++number, 10, 5);
    c.spoil(&spec);
    worker->Start(spec);
    rig.Round();
    const Record record = worker->recorder().Of(spec.key);
    EXPECT_EQ(record.last(), RequestState::kRejected) << c.what;
    EXPECT_EQ(record.status.code(), c.code) << c.what << ": " << record.status;
    EXPECT_TRUE(worker->AllFree());
  }
}

TEST(EngineLocalTest, ALaterAttemptTakesThePlaceOfAnEarlierOne) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  RequestSpec first = ToyRequest(1, 10, 30);
  RequestSpec second = first;
  second.key.attempt = 2;
  worker->Start(first);
  rig.Round();
  worker->Start(second);
  rig.Round();
  worker->Start(first);  // late
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(worker->recorder().Of(first.key).states.back(), RequestState::kRejected);
  EXPECT_TRUE(worker->recorder().Of(first.key).Reached(RequestState::kCancelled));
  EXPECT_EQ(worker->recorder().Of(second.key).last(), RequestState::kFinished);
  EXPECT_EQ(IdsOf(worker->recorder().Of(second.key), 0), ExpectedTokens(second, 0));
  EXPECT_TRUE(worker->AllFree());
}

TEST(EngineLocalTest, ADrainingEngineFinishesWhatRunsAndTakesNothingNew) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  const RequestSpec running = ToyRequest(1, 10, 20);
  const RequestSpec late = ToyRequest(2, 10, 20);
  worker->Start(running);
  rig.Round();
  worker->Post(BeginDrain{});
  worker->Start(late);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(worker->recorder().Of(running.key).last(), RequestState::kFinished);
  EXPECT_EQ(worker->recorder().Of(late.key).last(), RequestState::kRejected);
  EXPECT_TRUE(absl::IsUnavailable(worker->recorder().Of(late.key).status));
  EXPECT_EQ(worker->recorder().Of(late.key).retry_after_ms, limits::kRetryHintMs);
  EXPECT_EQ(worker->core().Snapshot().num_requests, 0u);
}

TEST(EngineLocalTest, LogprobsAndAlternativesComeWithTheirToken) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  RequestSpec spec = ToyRequest(1, 10, 4);
  spec.sampling.top_logprobs = 3;
  worker->Start(spec);
  worker->Start(ToyRequest(2, 10, 4));
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const SeenToken& token : worker->recorder().Of(spec.key).Tokens(0)) {
    ASSERT_EQ(token.top.size(), 3u);
    EXPECT_EQ(token.top[0].token, token.token) << "greedy takes the most likely one";
    EXPECT_EQ(token.top[0].logprob, token.logprob);
    EXPECT_LE(token.top[2].logprob, token.top[1].logprob);
  }
}

}  // namespace
}  // namespace baton::engine
