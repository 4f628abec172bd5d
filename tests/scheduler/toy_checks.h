// Prompts, limits and checks of outputs that tests of the scheduler use with a ToyWorker.
#ifndef BATON_TESTS_SCHEDULER_TOY_CHECKS_H_
#define BATON_TESTS_SCHEDULER_TOY_CHECKS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/scheduler/toy_worker.h"

namespace baton::scheduler {

// Blocks of 4 tokens and chunks of up to 32, for a pool of some 64 blocks.
inline SchedulerConfig ToyConfig(WorkerRole role = WorkerRole::kDecode) {
  SchedulerConfig config;
  config.role = role;
  config.block_size = 4;
  config.max_batch_tokens = 64;
  config.max_chunk = 32;
  config.max_running = 8;
  config.max_prefilling = 4;
  config.max_waiting = 16;
  return config;
}

inline std::vector<TokenId> Prompt(uint32_t count, TokenId first = 1) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline SequenceLimits Limits(uint32_t max_tokens, uint32_t max_context = 1'000) {
  return {max_tokens, max_context};
}

// A prompt that is answered up to its limits, so that lengths are exact.
inline std::vector<TokenId> Chatty(uint32_t prompt_tokens) {
  std::vector<TokenId> prompt = Prompt(prompt_tokens);
  prompt[0] = kToyChatty;
  return prompt;
}

inline void ExpectOutputs(ToyWorker& worker, uint64_t uid, const std::vector<TokenId>& prompt,
                          const SequenceLimits& limits, uint32_t num_choices = 1) {
  for (uint32_t choice = 0; choice < num_choices; ++choice) {
    EXPECT_EQ((worker.outputs[{uid, choice}]), ToyOutput(prompt, choice, limits))
        << "uid " << uid << " choice " << choice;
    EXPECT_TRUE((worker.finished[{uid, choice}]));
  }
}

inline void RunToEnd(ToyWorker& worker, int max_steps = 10'000) {
  while (worker.scheduler().HasWork()) {
    ASSERT_GT(max_steps--, 0) << "no end";
    worker.Step();
  }
}

}  // namespace baton::scheduler

#endif  // BATON_TESTS_SCHEDULER_TOY_CHECKS_H_
