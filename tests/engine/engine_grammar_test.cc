// Answers that follow a grammar: the same tokens at one engine, across a hand-off, after a resume
// at every token, and for every choice; a grammar that fails ends its own request alone.
#include <regex>

#include "gtest/gtest.h"

#include "src/text/grammar.h"
#include "tests/engine/hand_rig.h"
#include "tests/engine/toy_grammars.h"

namespace baton::engine {

using scheduler::FinishReason;
using text::Grammar;
using text::GrammarState;
using wire::GrammarKind;

namespace {

constexpr const char* kPattern = "[a-f]{3,9}(,[0-9]{2}){1,3}";

ToyGrammars& Toy() {
  static ToyGrammars toy;
  return toy;
}

RequestSpec Constrained(uint64_t number, uint32_t num_tokens, uint32_t max_tokens) {
  RequestSpec spec = ToyRequest(number, num_tokens, max_tokens);
  spec.sampling.grammar = GrammarOf(GrammarKind::kRegex, kPattern);
  return spec;
}

// As ExpectedTokens, with masks from a state of the grammar itself.
std::vector<TokenId> GuidedTokens(const RequestSpec& spec, uint32_t choice) {
  const wire::AnswerGrammar& form = *spec.sampling.grammar;
  const Grammar grammar = Toy().cache.Compile(form.kind, form.text).value();
  GrammarState follows = GrammarState::Create(grammar).value();
  model::Sampler sampler(kToyVocab, std::vector<TokenId>{0});
  const auto prompt = std::span<const TokenId>(spec.tokens).first(spec.num_prompt_tokens);
  model::SamplerState state(spec.sampling, prompt, spec.sampling.max_tokens);
  std::vector<TokenId> prefix(prompt.begin(), prompt.end());
  std::vector<TokenId> tokens;
  std::vector<uint32_t> mask((kToyVocab + 31) / 32);
  while (tokens.size() < spec.sampling.max_tokens) {
    EXPECT_TRUE(follows.FillMask(mask).ok());
    const std::vector<float> logits = ToyModel::LogitsAfter(prefix);
    model::SampledToken sampled;
    EXPECT_TRUE(sampler
                    .Sample({.params = &spec.sampling,
                             .state = &state,
                             .choice = choice,
                             .logits = logits,
                             .mask = mask},
                            sampled)
                    .ok());
    state.Append(sampled.token);
    prefix.push_back(sampled.token);
    tokens.push_back(sampled.token);
    if (sampled.token == 0) break;
    EXPECT_EQ(follows.Accept({&sampled.token, 1}).value(), 1u);
  }
  return tokens;
}

bool Matches(std::span<const TokenId> tokens) {
  return std::regex_match(TextOf(tokens), std::regex(kPattern));
}

TEST(EngineGrammarTest, AnAnswerFollowsItsGrammarAndEndsWithIt) {
  HandRig rig;
  HandWorker* worker = rig.Add({.guides = &Toy().guides});
  std::vector<RequestSpec> specs;
  for (const uint32_t length : {1u, 4u, 7u, 33u, 100u}) {
    specs.push_back(Constrained(specs.size() + 1, length, 40));
    worker->Start(specs.back());
  }
  const RequestSpec free = ToyRequest(99, 9, 12);
  worker->Start(free);
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) {
    const Record record = worker->recorder().Of(spec.key);
    EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
    EXPECT_EQ(IdsOf(record, 0), GuidedTokens(spec, 0));
    EXPECT_TRUE(Matches(IdsOf(record, 0))) << TextOf(IdsOf(record, 0));
    EXPECT_EQ(record.Tokens(0).back().finish, FinishReason::kStop) << "in spite of ignore_eos";
  }
  EXPECT_EQ(IdsOf(worker->recorder().Of(free.key), 0), ExpectedTokens(free, 0));
  EXPECT_TRUE(worker->AllFree());
}

TEST(EngineGrammarTest, ALengthCutsAnAnswerInItsMiddle) {
  HandRig rig;
  HandWorker* worker = rig.Add({.guides = &Toy().guides});
  const RequestSpec spec = Constrained(1, 5, 3);
  worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(spec.key);
  EXPECT_EQ(IdsOf(record, 0), GuidedTokens(spec, 0));
  EXPECT_EQ(record.Tokens(0).back().finish, FinishReason::kLength);
}

TEST(EngineGrammarTest, TheHandOffGivesTheSameTokensForEveryChoice) {
  device::ThreadPool pool(3);
  HandRig rig;
  HandWorker* p = rig.Add({.role = WorkerRole::kPrefill, .guides = &Toy().guides});
  HandWorker* d = rig.Add({.role = WorkerRole::kDecode, .guides = &Toy().guides, .pool = &pool});
  std::vector<RequestSpec> specs;
  for (const uint32_t length : {1u, 6u, 40u}) {
    RequestSpec spec = Constrained(specs.size() + 1, length, 40);
    spec.num_choices = 3;
    spec.sampling.temperature = 1.5f;
    spec.sampling.seed = 7 + length;
    spec.sampling.presence_penalty = 0.5f;
    specs.push_back(spec);
    d->Start(ForPeer(spec, RequestKind::kDest, *p));
    p->Start(ForPeer(spec, RequestKind::kSource, *d));
  }
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) {
    const Record record = d->recorder().Of(spec.key);
    EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
    for (uint32_t c = 0; c < spec.num_choices; ++c) {
      EXPECT_EQ(IdsOf(record, c), GuidedTokens(spec, c)) << "choice " << c;
      EXPECT_TRUE(Matches(IdsOf(record, c)));
    }
  }
  EXPECT_TRUE(p->AllFree());
  EXPECT_TRUE(d->AllFree());
}

TEST(EngineGrammarTest, AResumeAtEveryTokenGoesOnWithTheSameTokens) {
  const RequestSpec whole = Constrained(1, 11, 40);
  const std::vector<TokenId> tokens = GuidedTokens(whole, 0);
  HandRig rig;
  HandWorker* worker = rig.Add({.guides = &Toy().guides});
  std::vector<RequestSpec> specs;
  for (size_t cut = 1; cut + 1 < tokens.size(); ++cut) {
    RequestSpec spec = whole;
    spec.key.uid.lo += cut;
    spec.tokens.insert(spec.tokens.end(), tokens.begin(),
                       tokens.begin() + static_cast<ptrdiff_t>(cut));
    specs.push_back(spec);
    worker->Start(spec);
  }
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (size_t cut = 1; cut + 1 < tokens.size(); ++cut) {
    const std::vector<TokenId> rest(tokens.begin() + static_cast<ptrdiff_t>(cut), tokens.end());
    EXPECT_EQ(IdsOf(worker->recorder().Of(specs[cut - 1].key), 0), rest) << "cut at " << cut;
  }
}

TEST(EngineGrammarTest, AGrammarThatFailsEndsItsOwnRequestAlone) {
  HandRig rig;
  HandWorker* worker = rig.Add({.guides = &Toy().guides});
  RequestSpec bad = Constrained(1, 5, 20);
  bad.sampling.grammar = GrammarOf(GrammarKind::kRegex, "(");
  // None of the vocabulary's texts begins like this.
  RequestSpec impossible = Constrained(2, 5, 20);
  impossible.sampling.grammar = GrammarOf(GrammarKind::kRegex, "%+");
  // Its replayed token is no text of the grammar.
  RequestSpec strange = Constrained(3, 5, 20);
  strange.tokens.push_back(30);
  const RequestSpec good = Constrained(4, 5, 40);
  for (const RequestSpec& spec : {bad, impossible, strange, good}) worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : {bad, impossible, strange}) {
    const Record record = worker->recorder().Of(spec.key);
    EXPECT_EQ(record.last(), RequestState::kFailed);
    EXPECT_EQ(record.status.code(), StatusCode::kFailedPrecondition) << record.status;
    EXPECT_EQ(record.failed_part, FailedPart::kComputation);
    EXPECT_TRUE(IdsOf(record, 0).empty());
  }
  EXPECT_EQ(IdsOf(worker->recorder().Of(good.key), 0), GuidedTokens(good, 0));
  EXPECT_TRUE(worker->AllFree());
}

// Rounds until the request has ended, whatever else waits.
void RunUntilEnded(HandRig& rig, HandWorker& worker, const RequestKey& key) {
  for (int i = 0; i < 5'000 && !worker.recorder().Of(key).ended(); ++i) rig.Round();
}

TEST(EngineGrammarTest, AStepWaitsForNoCompilation) {
  SlowGrammars slow;
  HandRig rig;
  HandWorker* worker = rig.Add({.guides = &slow.guides});
  const RequestSpec guided = Constrained(1, 70, 40);
  RequestSpec resumed = Constrained(2, 5, 40);
  const std::vector<TokenId> whole = GuidedTokens(resumed, 0);
  resumed.tokens.insert(resumed.tokens.end(), whole.begin(), whole.begin() + 3);
  RequestSpec several = Constrained(3, 40, 40);
  several.num_choices = 3;
  const RequestSpec cancelled = Constrained(4, 9, 40);
  RequestSpec late = Constrained(5, 9, 40);
  late.deadline_us = 1'000;
  RequestSpec bad = Constrained(6, 33, 20);
  bad.sampling.grammar = GrammarOf(GrammarKind::kRegex, "(");
  for (const RequestSpec& spec : {guided, resumed, several, cancelled, late, bad}) {
    worker->Start(spec);
  }
  const RequestSpec free = ToyRequest(99, 50, 60);
  worker->Start(free);
  RunUntilEnded(rig, *worker, free.key);
  EXPECT_EQ(IdsOf(worker->recorder().Of(free.key), 0), ExpectedTokens(free, 0));
  EXPECT_EQ(worker->recorder().Of(late.key).status.code(), StatusCode::kDeadlineExceeded);
  worker->Cancel(cancelled.key);
  RunUntilEnded(rig, *worker, cancelled.key);
  EXPECT_EQ(worker->recorder().Of(cancelled.key).last(), RequestState::kCancelled);
  EXPECT_TRUE(worker->AwaitsMasks());
  EXPECT_FALSE(worker->recorder().Of(guided.key).ended());

  slow.Release();
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : {guided, several}) {
    for (uint32_t c = 0; c < spec.num_choices; ++c) {
      EXPECT_EQ(IdsOf(worker->recorder().Of(spec.key), c), GuidedTokens(spec, c));
    }
  }
  EXPECT_EQ(IdsOf(worker->recorder().Of(resumed.key), 0),
            std::vector<TokenId>(whole.begin() + 3, whole.end()));
  const Record failed = worker->recorder().Of(bad.key);
  EXPECT_EQ(failed.last(), RequestState::kFailed);
  EXPECT_EQ(failed.status.code(), StatusCode::kFailedPrecondition) << failed.status;
  EXPECT_EQ(failed.failed_part, FailedPart::kComputation);
  EXPECT_TRUE(worker->AllFree());
}

// All that the prefix cache lacks of the prompt waits for the grammar. So the plan that admits the
// prompt computes nothing, and still has to copy the state of the hit.
TEST(EngineGrammarTest, APromptThatWaitsKeepsTheStateOfItsHit) {
  SlowGrammars slow;
  HandRig rig;
  HandWorker* worker = rig.Add({.state_blocks = 2, .guides = &slow.guides});
  const RequestSpec first = ToyRequest(1, 10, 3);
  worker->Start(first);
  RunUntilEnded(rig, *worker, first.key);
  EXPECT_EQ(IdsOf(worker->recorder().Of(first.key), 0), ExpectedTokens(first, 0));
  const uint64_t num_steps = worker->model().num_steps();

  RequestSpec guided = Constrained(1, 10, 40);
  ASSERT_EQ(guided.tokens, first.tokens);
  guided.key.uid = {100, 100};
  worker->Start(guided);
  for (int i = 0; i < 4; ++i) rig.Round();
  EXPECT_TRUE(worker->AwaitsMasks());
  EXPECT_EQ(worker->core().scheduler().Load().num_prefilling, 1u) << "it holds its blocks";
  EXPECT_EQ(worker->model().num_steps(), num_steps) << "nothing was computed";

  slow.Release();
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(guided.key);
  EXPECT_EQ(record.cached_tokens, 2 * kToyBlock);
  EXPECT_EQ(IdsOf(record, 0), GuidedTokens(guided, 0)) << "it went on from another state";
  EXPECT_TRUE(worker->AllFree());
}

// The decode worker's grammar is not compiled when the KV is there.
TEST(EngineGrammarTest, ADecodeWorkerWaitsWithThatChoiceAlone) {
  SlowGrammars slow;
  HandRig rig;
  HandWorker* p = rig.Add({.role = WorkerRole::kPrefill, .guides = &Toy().guides});
  HandWorker* d = rig.Add({.role = WorkerRole::kDecode, .guides = &slow.guides});
  RequestSpec guided = Constrained(1, 40, 40);
  guided.num_choices = 2;
  const RequestSpec cancelled = Constrained(2, 12, 40);
  const RequestSpec free = ToyRequest(99, 20, 40);
  for (const RequestSpec& spec : {guided, cancelled, free}) {
    d->Start(ForPeer(spec, RequestKind::kDest, *p));
    p->Start(ForPeer(spec, RequestKind::kSource, *d));
  }
  RunUntilEnded(rig, *d, free.key);
  const std::vector<TokenId> expected = ExpectedTokens(free, 0);
  EXPECT_EQ(IdsOf(d->recorder().Of(free.key), 0),
            std::vector<TokenId>(expected.begin(), expected.end()));
  d->Cancel(cancelled.key);
  RunUntilEnded(rig, *d, cancelled.key);
  EXPECT_FALSE(d->recorder().Of(guided.key).ended());
  slow.Release();
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (uint32_t c = 0; c < guided.num_choices; ++c) {
    EXPECT_EQ(IdsOf(d->recorder().Of(guided.key), c), GuidedTokens(guided, c));
  }
  EXPECT_TRUE(p->AllFree());
  EXPECT_TRUE(d->AllFree());
}

TEST(EngineGrammarTest, AWorkerWithoutGrammarsRefuses) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  const RequestSpec spec = Constrained(1, 5, 20);
  worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(spec.key);
  EXPECT_EQ(record.last(), RequestState::kRejected);
  EXPECT_EQ(record.status.code(), StatusCode::kFailedPrecondition);
}

TEST(EngineGrammarTest, MinTokensEndsWhereTheGrammarLetsNothingElseFollow) {
  HandRig rig;
  HandWorker* worker = rig.Add({.guides = &Toy().guides});
  RequestSpec spec = Constrained(1, 5, 20);
  spec.sampling.grammar = GrammarOf(GrammarKind::kRegex, "ab{1,4}");
  spec.sampling.min_tokens = 15;
  worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(spec.key);
  EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
  EXPECT_EQ(TextOf(IdsOf(record, 0)), "abbbb") << "as long as it can be";
}

// A model that chooses tokens itself computes the rows of a grammar on the host.
TEST(EngineGrammarTest, StepsThatOverlapGiveTheSameTokens) {
  HandRig rig;
  HandWorker* worker = rig.Add({.overlaps_steps = true, .guides = &Toy().guides});
  RequestSpec spec = Constrained(1, 9, 40);
  RequestSpec free = ToyRequest(2, 9, 40);
  for (RequestSpec* each : {&spec, &free}) {
    each->sampling.logprobs = false;
    worker->Start(*each);
  }
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(IdsOf(worker->recorder().Of(spec.key), 0), GuidedTokens(spec, 0));
  EXPECT_EQ(IdsOf(worker->recorder().Of(free.key), 0), ExpectedTokens(free, 0));
}

}  // namespace
}  // namespace baton::engine
