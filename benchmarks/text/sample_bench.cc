// Measures what the host does with rows of logits, without a model: log-probabilities of a prompt,
// and the tokens of a decode step, by one thread and by several that share the rows as an engine's
// do.
//
//   sample_bench [THREADS [VOCAB_SIZE]]     prints one JSON object; default 2 and 49152
//
// Each row has one number a round for one thread and for THREADS, which take turns:
//   prompt_log/2000   milliseconds for the tokens of a prompt of 2,000, in steps of 64 rows
//   sample/KIND       microseconds a row of a decode step of 16
//   fork_join         microseconds of a region of 64 tasks that do nothing
// Logits are normal with a deviation of 3, from a fixed seed. serve/structured.py calls it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

#include "src/base/check.h"
#include "src/device/thread_pool.h"
#include "src/model/sampler.h"
#include "src/model/sampler_state.h"
#include "src/wire/sampling_params.h"

namespace baton::model {

using device::ThreadPool;
using wire::SamplingParams;

namespace {

constexpr uint32_t kPromptTokens = 2000;
constexpr uint32_t kPromptRows = 64;  // about what a step of 100 ms has
constexpr uint32_t kDecodeRows = 16;
constexpr uint32_t kEmptyTasks = 64;
constexpr int kRounds = 9;
constexpr int kRepeats = 20;  // of what takes less than some milliseconds

double NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// Rows of one step.
class Logits {
 public:
  explicit Logits(uint32_t vocab_size) : vocab_size_(vocab_size) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    values_.resize(size_t{kPromptRows} * vocab_size);
    for (float& l : values_) l = normal(random);
  }
  std::span<const float> Row(uint32_t row) const {
    return std::span(values_).subspan(size_t{row} * vocab_size_, vocab_size_);
  }
  uint32_t vocab_size() const { return vocab_size_; }

 private:
  const uint32_t vocab_size_;
  std::vector<float> values_;
};

// The threads of one worker, with a sampler each.
class Worker {
 public:
  Worker(const Logits& logits, uint32_t num_threads)
      : logits_(logits), pool_(num_threads), tokens_(kPromptRows) {
    for (uint32_t i = 0; i < num_threads; ++i) {
      samplers_.emplace_back(logits.vocab_size(), std::span<const TokenId>());
    }
  }

  uint32_t num_threads() const { return pool_.num_threads(); }

  double PromptLogMs() {
    const double start_us = NowUs();
    for (uint32_t first = 0; first < kPromptTokens; first += kPromptRows) {
      pool_.Run(std::min(kPromptRows, kPromptTokens - first), [&](uint32_t row, uint32_t) {
        tokens_[row].token = static_cast<TokenId>((first + row) % logits_.vocab_size());
        (void)Sampler::LogprobOf(logits_.Row(row), /*num_top=*/1, tokens_[row]);
      });
    }
    return (NowUs() - start_us) / 1e3;
  }

  double SampleUs(const SamplingParams& params) {
    const SamplerState state(params, {}, 1);
    const double start_us = NowUs();
    for (int i = 0; i < kRepeats; ++i) {
      pool_.Run(kDecodeRows, [&](uint32_t row, uint32_t thread) {
        const SampleQuery query = {
            .params = &params, .state = &state, .choice = row, .logits = logits_.Row(row)};
        const absl::Status status = samplers_[thread].Sample(query, tokens_[row]);
        BATON_CHECK(status.ok(), "{}", status.ToString());
      });
    }
    return (NowUs() - start_us) / (kRepeats * kDecodeRows);
  }

  double ForkJoinUs() {
    const double start_us = NowUs();
    for (int i = 0; i < kRepeats; ++i) pool_.Run(kEmptyTasks, [](uint32_t, uint32_t) {});
    return (NowUs() - start_us) / kRepeats;
  }

 private:
  const Logits& logits_;
  ThreadPool pool_;
  std::vector<Sampler> samplers_;
  std::vector<SampledToken> tokens_;
};

std::vector<std::pair<std::string, SamplingParams>> Kinds() {
  std::vector<std::pair<std::string, SamplingParams>> kinds;
  const auto add = [&](const char* name) -> SamplingParams& {
    SamplingParams& params = kinds.emplace_back(name, SamplingParams()).second;
    params.seed = 1;
    return params;
  };
  add("greedy").temperature = 0;
  SamplingParams& logged = add("greedy, 5 log-probabilities");
  logged.temperature = 0;
  logged.logprobs = true;
  logged.top_logprobs = 5;
  add("temperature 1");
  add("top_k 50").top_k = 50;
  add("top_p 0.95").top_p = 0.95f;
  add("min_p 0.05").min_p = 0.05f;
  return kinds;
}

// Numbers of the rounds, by row, then by number of threads.
using Times = std::map<std::string, std::map<uint32_t, std::vector<double>>>;

void Measure(Worker* worker, const std::vector<std::pair<std::string, SamplingParams>>& kinds,
             Times* times) {
  const uint32_t num_threads = worker->num_threads();
  (*times)["prompt_log/2000"][num_threads].push_back(worker->PromptLogMs());
  (*times)["fork_join"][num_threads].push_back(worker->ForkJoinUs());
  for (const auto& [name, params] : kinds) {
    (*times)["sample/" + name][num_threads].push_back(worker->SampleUs(params));
  }
}

std::string Json(const Times& times) {
  std::string text;
  for (const auto& [name, by_threads] : times) {
    std::string cells;
    for (const auto& [num_threads, values] : by_threads) {
      cells += fmt::format("{}\"{}\":[{:.3f}]", cells.empty() ? "" : ",", num_threads,
                           fmt::join(values, ","));
    }
    text += fmt::format("{}\"{}\":{{{}}}", text.empty() ? "" : ",", name, cells);
  }
  return "{" + text + "}";
}

std::string Run(uint32_t num_threads, uint32_t vocab_size) {
  const Logits logits(vocab_size);
  Worker alone(logits, 1);
  Worker shared(logits, num_threads);
  const auto kinds = Kinds();
  Times warm_up;
  for (Worker* worker : {&alone, &shared}) Measure(worker, kinds, &warm_up);
  Times times;
  for (int round = 0; round < kRounds; ++round) {
    const bool is_even = round % 2 == 0;
    Measure(is_even ? &alone : &shared, kinds, &times);
    Measure(is_even ? &shared : &alone, kinds, &times);
  }
  return Json(times);
}

}  // namespace
}  // namespace baton::model

int main(int argc, char** argv) {
  const long num_threads = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 2;
  const long vocab_size = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 49152;
  const bool is_right = argc <= 3 && num_threads > 1 && vocab_size >= 100 &&
                        num_threads <= baton::device::ThreadPool::kMaxThreads &&
                        vocab_size <= 1'000'000;
  if (!is_right) {
    fmt::print(stderr, "usage: sample_bench [THREADS [VOCAB_SIZE]], 2 to {} and 100 to 1000000\n",
               baton::device::ThreadPool::kMaxThreads);
    return 2;
  }
  fmt::print("{}\n", baton::model::Run(static_cast<uint32_t>(num_threads),
                                       static_cast<uint32_t>(vocab_size)));
  return 0;
}
