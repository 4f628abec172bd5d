// Guessed tokens change nothing but the number of steps: every token and log-probability is that of
// an engine without guesses. The toy model's tokens hash every KV byte of their prefix, so a row of
// a wrong guess that was kept anywhere would show.
#include <map>

#include "gtest/gtest.h"

#include "tests/engine/hand_rig.h"
#include "tests/test_seed.h"

namespace baton::engine {

using scheduler::FinishReason;
using scheduler::Proposer;
using scheduler::Sequence;

namespace {

// Knows the answers, and guesses each token of them right with a chance.
class Oracle final : public Proposer {
 public:
  Oracle(uint64_t seed, uint32_t percent_right) : random_(seed), percent_right_(percent_right) {}

  void Expect(const RequestSpec& spec) {
    for (uint32_t c = 0; c < spec.num_choices; ++c) {
      answers_[{spec.key.uid.lo, c}] = {spec.num_prompt_tokens, ExpectedTokens(spec, c)};
    }
  }
  void BeginStep(uint32_t, bool) override {}
  void Propose(const Sequence& sequence, uint32_t max_tokens, std::vector<TokenId>* out) override {
    const auto& [num_prompt, answer] = answers_.at({sequence.spec.uid.lo, sequence.spec.choice});
    const uint32_t num_tokens = random_.Between(0, max_tokens);
    for (uint32_t i = 0; i < num_tokens; ++i) {
      const size_t at = sequence.num_tokens() - num_prompt + i;
      const TokenId right = at < answer.size() ? answer[at] : 1;
      const bool is_right = random_.Below(100) < percent_right_;
      out->push_back(is_right ? right : static_cast<TokenId>(random_.Below(kToyVocab)));
    }
  }

 private:
  TestRandom random_;
  const uint32_t percent_right_;
  std::map<std::pair<uint64_t, uint32_t>, std::pair<uint32_t, std::vector<TokenId>>> answers_;
};

// A request with any of the settings that choose a token.
RequestSpec RandomRequest(uint64_t number, TestRandom* random) {
  RequestSpec spec = ToyRequest(number, random->Between(1, 60), random->Between(1, 60));
  wire::SamplingParams& sampling = spec.sampling;
  sampling.seed = random->Next();
  sampling.temperature = random->OneIn(2) ? 0.0f : 0.3f + 0.1f * random->Below(10);
  if (random->OneIn(3)) sampling.repetition_penalty = 1.2f;
  if (random->OneIn(3)) sampling.presence_penalty = 0.7f;
  if (random->OneIn(3)) sampling.frequency_penalty = 0.3f;
  if (random->OneIn(4)) sampling.min_p = 0.05f;
  if (random->OneIn(4)) sampling.top_k = 8;
  if (random->OneIn(4)) sampling.top_p = 0.8f;
  if (random->OneIn(4)) sampling.logit_bias = {{3, 2.0f}, {7, -100.0f}};
  sampling.top_logprobs = random->Below(4);
  sampling.logprobs = sampling.top_logprobs > 0 || random->OneIn(2);
  sampling.ignore_eos = !random->OneIn(3);
  if (random->OneIn(3)) sampling.stop_token_ids = {static_cast<TokenId>(random->Below(kToyVocab))};
  if (random->OneIn(4)) sampling.min_tokens = random->Below(sampling.max_tokens);
  if (random->OneIn(4)) spec.num_choices = random->Between(2, 4);
  return spec;
}

std::vector<Record> RunAll(const HandWorkerOptions& options, const std::vector<RequestSpec>& specs,
                           uint64_t* num_accepted = nullptr) {
  HandRig rig;
  HandWorker* worker = rig.Add(options);
  for (const RequestSpec& spec : specs) worker->Start(spec);
  EXPECT_TRUE(rig.RunUntilQuiet());
  std::vector<Record> records;
  for (const RequestSpec& spec : specs) records.push_back(worker->recorder().Of(spec.key));
  const EngineSnapshot snapshot = worker->core().Snapshot();
  EXPECT_LE(snapshot.accepted_tokens, snapshot.proposed_tokens);
  if (num_accepted != nullptr) *num_accepted = snapshot.accepted_tokens;
  EXPECT_TRUE(worker->AllFree());
  return records;
}

void ExpectEqual(const std::vector<Record>& on, const std::vector<Record>& off) {
  ASSERT_EQ(on.size(), off.size());
  for (size_t i = 0; i < on.size(); ++i) {
    EXPECT_EQ(on[i].choices, off[i].choices) << "request " << i;
    EXPECT_EQ(on[i].last(), off[i].last()) << "request " << i;
    EXPECT_EQ(on[i].num_duplicates, 0u);
  }
}

TEST(EngineSpeculationTest, RandomRequestsAnswerBitForBitAsWithoutGuesses) {
  uint64_t num_accepted = 0;
  for (const uint64_t seed : TestSeeds(16)) {
    SCOPED_TRACE(seed);
    TestRandom random(seed);
    Oracle oracle(seed, random.Between(0, 100));
    std::vector<RequestSpec> specs;
    for (uint32_t i = random.Between(1, 12); i > 0; --i) {
      specs.push_back(RandomRequest(i, &random));
      oracle.Expect(specs.back());
    }
    HandWorkerOptions options{.num_blocks = random.Between(60, 256),
                              .max_running = random.Between(4, 16),
                              .max_chunk = random.Between(4, 32),
                              .prefix_cache = random.OneIn(2)};
    const std::vector<Record> off = RunAll(options, specs);
    options.proposer = &oracle;
    uint64_t num = 0;
    ExpectEqual(RunAll(options, specs, &num), off);
    num_accepted += num;
    options.proposer = nullptr;
    for (const SpeculateMode mode : {SpeculateMode::kNgram, SpeculateMode::kAuto}) {
      options.speculate = mode;
      ExpectEqual(RunAll(options, specs), off);
    }
  }
  EXPECT_GT(num_accepted, 300u) << "guesses were right";
}

TEST(EngineSpeculationTest, RightGuessesSaveTheirSteps) {
  const RequestSpec spec = ToyRequest(4, 20, 60);
  Oracle oracle(1, 100);
  oracle.Expect(spec);
  HandRig rig;
  HandWorker* plain = rig.Add({});
  HandWorker* guessing = rig.Add({.proposer = &oracle});
  plain->Start(spec);
  guessing->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(IdsOf(guessing->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0));
  const EngineSnapshot snapshot = guessing->core().Snapshot();
  EXPECT_EQ(guessing->model().num_steps() + snapshot.accepted_tokens, plain->model().num_steps());
  EXPECT_GT(snapshot.accepted_tokens, 30u);
}

TEST(EngineSpeculationTest, AStopTokenAmidRightGuessesEndsTheChoiceThere) {
  const RequestSpec plain = ToyRequest(5, 10, 40);
  const std::vector<TokenId> tokens = ExpectedTokens(plain, 0);
  for (size_t at = 0; at < tokens.size(); ++at) {
    RequestSpec spec = plain;
    spec.sampling.stop_token_ids = {tokens[at]};
    Oracle oracle(at, 100);
    oracle.Expect(plain);  // it guesses beyond the end
    const Record record = RunAll({.proposer = &oracle}, {spec}).front();
    EXPECT_EQ(IdsOf(record, 0), ExpectedTokens(spec, 0));
    EXPECT_EQ(record.Tokens(0).back().finish, FinishReason::kStop);
    EXPECT_EQ(record.last(), RequestState::kFinished);
  }
}

// The next turn of a chat finds the answer's blocks: none of them has a wrong guess.
TEST(EngineSpeculationTest, CachedBlocksHoldAcceptedTokensOnly) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(seed);
    Oracle oracle(seed, 60);
    HandRig rig;
    HandWorker* worker = rig.Add({.proposer = &oracle});
    RequestSpec spec = ToyRequest(seed, 9, 40);
    for (uint32_t turn = 0; turn < 3; ++turn) {
      spec.key.uid.lo = seed * 10 + turn;
      oracle.Expect(spec);
      worker->Start(spec);
      ASSERT_TRUE(rig.RunUntilQuiet());
      const Record record = worker->recorder().Of(spec.key);
      const std::vector<TokenId> answer = IdsOf(record, 0);
      ASSERT_EQ(answer, ExpectedTokens(spec, 0));
      EXPECT_EQ(record.cached_tokens > 0, turn > 0);
      spec.tokens.insert(spec.tokens.end(), answer.begin(), answer.end());
      spec.num_prompt_tokens = static_cast<uint32_t>(spec.tokens.size());
    }
  }
}

TEST(EngineSpeculationTest, HandedOffAndResumedStreamsGoOnWithGuesses) {
  for (const uint64_t seed : TestSeeds(10)) {
    SCOPED_TRACE(seed);
    Oracle oracle(seed, 70);
    RequestSpec spec = ToyRequest(seed + 50, 21, 40);
    spec.sampling.temperature = seed % 2 == 0 ? 0.8f : 0.0f;
    spec.sampling.seed = seed;
    spec.sampling.frequency_penalty = 0.2f;
    oracle.Expect(spec);
    const std::vector<TokenId> expected = ExpectedTokens(spec, 0);
    HandRig rig;
    HandWorker* p = rig.Add({.role = WorkerRole::kPrefill});
    HandWorker* first = rig.Add({.role = WorkerRole::kDecode, .proposer = &oracle});
    HandWorker* second = rig.Add({.role = WorkerRole::kDecode, .proposer = &oracle});
    first->Start(ForPeer(spec, RequestKind::kDest, *p));
    p->Start(ForPeer(spec, RequestKind::kSource, *first));
    for (uint32_t i = 0; i < 500 && IdsOf(first->recorder().Of(spec.key), 0).size() < 8; ++i) {
      rig.Round();
    }
    const std::vector<TokenId> begun = IdsOf(first->recorder().Of(spec.key), 0);
    ASSERT_GE(begun.size(), 8u);
    ASSERT_TRUE(std::equal(begun.begin(), begun.end(), expected.begin()));
    if (begun.size() == expected.size()) continue;
    // The stream moves to the second decode worker: by its KV, all of which is accepted tokens'.
    RequestSpec moved = spec;
    moved.key.attempt = 2;
    moved.tokens.insert(moved.tokens.end(), begun.begin(), begun.end() - 1);
    second->Start(ForPeer(moved, RequestKind::kDest, *first));
    first->Start(ForPeer(moved, RequestKind::kSource, *second));
    ASSERT_TRUE(rig.RunUntilQuiet());
    const Record record = second->recorder().Of(moved.key);
    EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
    const std::vector<TokenId> rest(
        expected.begin() + static_cast<std::ptrdiff_t>(begun.size()) - 1, expected.end());
    EXPECT_EQ(IdsOf(record, 0), rest);
    EXPECT_TRUE(p->AllFree() && first->AllFree() && second->AllFree());
  }
}

TEST(EngineSpeculationTest, GuessesTakeNoBlockFromOthersAndNoRowFromPrompts) {
  // 24 blocks of 4 tokens: sequences are preempted all the time.
  std::vector<RequestSpec> specs;
  Oracle oracle(3, 90);
  for (uint32_t i = 0; i < 8; ++i) {
    specs.push_back(ToyRequest(i + 1, 9, 30));
    oracle.Expect(specs.back());
  }
  const HandWorkerOptions options{.num_blocks = 24, .proposer = &oracle};
  const std::vector<Record> records = RunAll(options, specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(IdsOf(records[i], 0), ExpectedTokens(specs[i], 0));
  }
}

// A model whose device chooses tokens gives the rows with guesses to the host.
TEST(EngineSpeculationTest, AModelThatChoosesTokensGivesTheSame) {
  for (const uint64_t seed : TestSeeds(5)) {
    SCOPED_TRACE(seed);
    TestRandom random(seed);
    Oracle oracle(seed, 80);
    std::vector<RequestSpec> specs;
    for (uint32_t i = 0; i < 5; ++i) {
      specs.push_back(RandomRequest(i + 1, &random));
      oracle.Expect(specs.back());
    }
    const std::vector<Record> off = RunAll({.overlaps_steps = true}, specs);
    ExpectEqual(RunAll({.overlaps_steps = true, .proposer = &oracle}, specs), off);
  }
}

}  // namespace
}  // namespace baton::engine
