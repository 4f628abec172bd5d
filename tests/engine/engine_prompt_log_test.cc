// Log-probabilities of prompts: equal bits at one engine and across a hand-off, in one chunk and in
// several, alone and beside others, on one thread and on several, with a filled cache and after a
// preemption.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/engine/hand_rig.h"

namespace baton::engine {

namespace {

constexpr uint32_t kNumTop = 3;

RequestSpec Logged(uint64_t number, uint32_t num_tokens) {
  RequestSpec spec = ToyRequest(number, num_tokens, 3);
  spec.sampling.prompt_logprobs = kNumTop;
  return spec;
}

// The log that a model without KV gives, by the sampler alone.
std::vector<SeenPromptToken> ExpectedLog(const RequestSpec& spec) {
  std::vector<SeenPromptToken> log;
  for (uint32_t pos = 1; pos < spec.num_prompt_tokens; ++pos) {
    model::SampledToken token;
    token.token = spec.tokens[pos];
    const std::vector<float> logits =
        ToyModel::LogitsAfter(std::span<const TokenId>(spec.tokens).first(pos));
    const uint32_t rank = model::Sampler::LogprobOf(logits, kNumTop, token);
    SeenPromptToken seen{pos, rank, {token.token, token.logprob, {}, {}}};
    seen.token.top.assign(token.top_logprobs().begin(), token.top_logprobs().end());
    log.push_back(std::move(seen));
  }
  return log;
}

TEST(EnginePromptLogTest, TheyAreThoseOfTheLogitsInDoublePrecision) {
  const RequestSpec spec = Logged(1, 20);
  for (const SeenPromptToken& seen : ExpectedLog(spec)) {
    const std::vector<float> logits =
        ToyModel::LogitsAfter(std::span<const TokenId>(spec.tokens).first(seen.pos));
    double sum = 0;
    uint32_t num_likelier = 0;
    const float own = logits[static_cast<size_t>(seen.token.token)];
    for (const float l : logits) {
      sum += std::exp(double{l});
      num_likelier += l > own ? 1 : 0;
    }
    EXPECT_NEAR(seen.token.logprob, double{own} - std::log(sum), 1e-5);
    EXPECT_EQ(seen.rank, num_likelier + 1);
    for (const TokenLogprob& top : seen.token.top) {
      EXPECT_TRUE(top.token != seen.token.token || top.logprob == seen.token.logprob);
    }
  }
}

TEST(EnginePromptLogTest, ChunksBatchesAndAFilledCacheChangeNoBit) {
  for (const uint32_t max_chunk : {4u, 12u, 100u}) {
    HandRig rig;
    HandWorker* worker = rig.Add({.max_chunk = max_chunk});
    // The first one fills the cache for the second, which has the same prompt.
    const RequestSpec first = Logged(1, 90);
    worker->Start(first);
    ASSERT_TRUE(rig.RunUntilQuiet());
    RequestSpec again = first;
    again.key = Logged(2, 90).key;
    std::vector<RequestSpec> specs = {again, Logged(3, 1), Logged(4, 2), Logged(5, 41)};
    for (const RequestSpec& spec : specs) worker->Start(spec);
    const RequestSpec plain = ToyRequest(9, 30, 8);
    worker->Start(plain);
    ASSERT_TRUE(rig.RunUntilQuiet());
    specs.push_back(first);
    for (const RequestSpec& spec : specs) {
      const Record record = worker->recorder().Of(spec.key);
      EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
      EXPECT_EQ(record.prompt_log, ExpectedLog(spec)) << spec.tokens.size();
      EXPECT_EQ(IdsOf(record, 0), ExpectedTokens(spec, 0));
      EXPECT_EQ(record.cached_tokens, 0u);
    }
    EXPECT_TRUE(worker->recorder().Of(plain.key).prompt_log.empty());
    EXPECT_TRUE(worker->AllFree());
  }
}

// Steps with the rows of several prompts, of one, with a single row and with none.
TEST(EnginePromptLogTest, TheNumberOfThreadsChangesNoBit) {
  for (const uint32_t num_threads : {1u, 2u, 3u, 7u}) {
    for (const uint32_t max_chunk : {4u, 24u, 100u}) {
      device::ThreadPool pool(num_threads);
      HandRig rig;
      HandWorker* worker = rig.Add({.num_blocks = 2048, .max_chunk = max_chunk, .pool = &pool});
      std::vector<RequestSpec> specs;
      for (const uint32_t length : {1u, 2u, 3u, 40u, 55u, 90u, 91u}) {
        specs.push_back(Logged(specs.size() + 1, length));
        worker->Start(specs.back());
      }
      const RequestSpec plain = ToyRequest(99, 30, 8);
      worker->Start(plain);
      ASSERT_TRUE(rig.RunUntilQuiet());
      for (const RequestSpec& spec : specs) {
        const Record record = worker->recorder().Of(spec.key);
        EXPECT_EQ(record.prompt_log, ExpectedLog(spec))
            << spec.tokens.size() << " tokens, " << num_threads << " threads";
        EXPECT_EQ(IdsOf(record, 0), ExpectedTokens(spec, 0));
      }
      EXPECT_TRUE(worker->recorder().Of(plain.key).prompt_log.empty());
      EXPECT_EQ(IdsOf(worker->recorder().Of(plain.key), 0), ExpectedTokens(plain, 0));
      EXPECT_TRUE(worker->AllFree());
    }
  }
}

TEST(EnginePromptLogTest, APlainRequestFindsWhatALoggedOneComputed) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  const RequestSpec logged = Logged(1, 40);
  worker->Start(logged);
  ASSERT_TRUE(rig.RunUntilQuiet());
  RequestSpec plain = logged;
  plain.key = ToyRequest(2, 40, 3).key;
  plain.sampling.prompt_logprobs.reset();
  worker->Start(plain);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_GT(worker->recorder().Of(plain.key).cached_tokens, 0u);
}

TEST(EnginePromptLogTest, ThePrefillWorkerTellsThemForAllChoices) {
  for (const bool overlaps : {false, true}) {
    HandRig rig;
    HandWorker* p = rig.Add({.role = WorkerRole::kPrefill, .overlaps_steps = overlaps});
    HandWorker* d = rig.Add({.role = WorkerRole::kDecode, .overlaps_steps = overlaps});
    RequestSpec one = Logged(1, 70);
    RequestSpec three = Logged(2, 33);
    three.num_choices = 3;
    for (const RequestSpec& spec : {one, three}) {
      d->Start(ForPeer(spec, RequestKind::kDest, *p));
      p->Start(ForPeer(spec, RequestKind::kSource, *d));
    }
    ASSERT_TRUE(rig.RunUntilQuiet());
    for (const RequestSpec& spec : {one, three}) {
      EXPECT_EQ(p->recorder().Of(spec.key).prompt_log, ExpectedLog(spec));
      EXPECT_TRUE(d->recorder().Of(spec.key).prompt_log.empty());
      EXPECT_EQ(d->recorder().Of(spec.key).last(), RequestState::kFinished);
    }
  }
}

TEST(EnginePromptLogTest, AResumeTellsThemAgainForThePromptAlone) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  RequestSpec spec = Logged(1, 30);
  spec.sampling.max_tokens = 6;
  const std::vector<TokenId> tokens = ExpectedTokens(spec, 0);
  RequestSpec resumed = spec;
  resumed.tokens.insert(resumed.tokens.end(), tokens.begin(), tokens.begin() + 3);
  worker->Start(resumed);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(worker->recorder().Of(spec.key).prompt_log, ExpectedLog(spec));
}

// 128 rows of a step are for logged prompts, however many of them wait.
TEST(EnginePromptLogTest, ManyPromptsShareTheRowsOfAStep) {
  HandRig rig;
  HandWorker* worker = rig.Add({.num_blocks = 2048, .max_chunk = 100});
  std::vector<RequestSpec> specs;
  for (uint64_t i = 1; i <= 12; ++i) specs.push_back(Logged(i, 40 + static_cast<uint32_t>(i)));
  for (const RequestSpec& spec : specs) worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) {
    EXPECT_EQ(worker->recorder().Of(spec.key).prompt_log, ExpectedLog(spec));
  }
}

}  // namespace
}  // namespace baton::engine
