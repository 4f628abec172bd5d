// Requests of live workers, run through one of them or a pair, and compared bit for bit.
#ifndef BATON_TESTS_ENGINE_LIVE_REQUESTS_H_
#define BATON_TESTS_ENGINE_LIVE_REQUESTS_H_

#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"

#include "tests/engine/live_rig.h"
#include "tests/patience.h"

namespace baton::engine {

// A request of random tokens below `vocab_size` (> 100); every second to fourth one with sampling,
// a penalty or two choices. Ends after max_tokens and not before.
inline RequestSpec MakeRequest(uint64_t number, uint32_t num_tokens, uint32_t max_tokens,
                               uint32_t vocab_size = 40'100) {
  std::mt19937_64 random(number);
  RequestSpec spec;
  spec.key = {{number, 42}, 1};
  spec.session = SessionId(1);
  for (uint32_t i = 0; i < num_tokens; ++i) {
    spec.tokens.push_back(static_cast<TokenId>(100 + random() % (vocab_size - 100)));
  }
  spec.num_prompt_tokens = num_tokens;
  spec.sampling.max_tokens = max_tokens;
  spec.sampling.temperature = number % 3 == 0 ? 0.9f : 0.0f;
  spec.sampling.seed = number * 31;
  spec.sampling.logprobs = true;
  spec.sampling.top_logprobs = 2;
  if (number % 3 == 1) spec.sampling.repetition_penalty = 1.1f;
  spec.num_choices = number % 4 == 0 ? 2 : 1;
  spec.sampling.ignore_eos = true;
  spec.deadline_us = 300'000'000 * int64_t{kPatienceFactor};
  return spec;
}

inline std::vector<RequestSpec> Requests(std::span<const uint32_t> lengths, uint32_t max_tokens,
                                         uint32_t vocab_size = 40'100) {
  std::vector<RequestSpec> specs;
  for (const uint32_t length : lengths) {
    specs.push_back(MakeRequest(specs.size() + 1, length, max_tokens, vocab_size));
  }
  return specs;
}

// Runs all at once through one engine.
inline std::vector<Record> RunAggregated(LiveWorker* worker,
                                         const std::vector<RequestSpec>& specs) {
  for (const RequestSpec& spec : specs) EXPECT_TRUE(worker->engine().TryStart(spec).ok());
  std::vector<Record> records;
  for (const RequestSpec& spec : specs) {
    EXPECT_TRUE(worker->recorder().WaitEnded(spec.key));
    records.push_back(worker->recorder().Of(spec.key));
    EXPECT_EQ(records.back().last(), RequestState::kFinished) << records.back().status;
  }
  EXPECT_TRUE(worker->WaitIdle());
  return records;
}

// Runs all requests at once through a connected pair; returns what the decode worker made of each.
inline std::vector<Record> RunPair(LiveWorker* p, LiveWorker* d,
                                   const std::vector<RequestSpec>& specs) {
  for (const RequestSpec& spec : specs) {
    RequestSpec dest = spec;
    dest.kind = RequestKind::kDest;
    dest.peer = p->incarnation();
    RequestSpec source = spec;
    source.kind = RequestKind::kSource;
    source.peer = d->incarnation();
    EXPECT_TRUE(d->engine().TryStart(dest).ok());
    EXPECT_TRUE(p->engine().TryStart(source).ok());
  }
  std::vector<Record> records;
  for (const RequestSpec& spec : specs) {
    EXPECT_TRUE(d->recorder().WaitEnded(spec.key));
    records.push_back(d->recorder().Of(spec.key));
    EXPECT_EQ(records.back().last(), RequestState::kFinished) << records.back().status;
    EXPECT_TRUE(p->recorder().WaitEnded(spec.key));
    EXPECT_EQ(p->recorder().Of(spec.key).last(), RequestState::kHandedOff);
  }
  EXPECT_TRUE(p->WaitIdle());
  EXPECT_TRUE(d->WaitIdle());
  return records;
}

inline void ExpectSameBits(const Record& a, const Record& b, const RequestSpec& spec) {
  for (uint32_t c = 0; c < spec.num_choices; ++c) {
    EXPECT_EQ(a.Tokens(c), b.Tokens(c)) << spec.tokens.size() << " tokens, choice " << c;
    EXPECT_EQ(a.Tokens(c).size(), spec.sampling.max_tokens);
  }
}

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_LIVE_REQUESTS_H_
