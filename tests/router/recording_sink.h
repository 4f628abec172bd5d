// A client for tests of the router: it keeps what it is given and insists on one end.
#ifndef BATON_TESTS_ROUTER_RECORDING_SINK_H_
#define BATON_TESTS_ROUTER_RECORDING_SINK_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/router/submit.h"

namespace baton::router {

// Records what a client saw.
class RecordingSink final : public ResponseSink {
 public:
  struct Seen {
    uint32_t choice;
    uint32_t index;
    TokenId token;
    std::string text;
    scheduler::FinishReason finish;
    bool is_last;
    std::optional<float> logprob;
    std::optional<size_t> stop_idx;
  };
  void OnTaken() override {
    EXPECT_TRUE(tokens.empty() && !ended()) << "it is known by then";
    ++num_taken;
  }
  void OnPromptLogprobs(std::shared_ptr<const PromptLogprobs> logprobs) override {
    EXPECT_TRUE(tokens.empty() && !ended() && prompt_log == nullptr);
    prompt_log = std::move(logprobs);
  }
  void OnProgress(const PromptProgress& value) override {
    EXPECT_TRUE(tokens.empty() && !ended());
    progress.push_back(value);
  }
  void OnEmbedding(std::vector<float> vector) override {
    EXPECT_TRUE(tokens.empty() && !ended() && embedding.empty());
    embedding = std::move(vector);
  }
  void OnToken(const TokenOutput& token) override {
    EXPECT_FALSE(ended()) << "a token after the end";
    tokens.push_back({token.choice, token.index, token.token, std::string(token.text), token.finish,
                      token.is_last,
                      token.has_logprob ? std::optional<float>(token.logprob) : std::nullopt,
                      token.stop_idx});
  }
  void OnFinished(const GenerateResult& value) override {
    EXPECT_FALSE(ended()) << "two ends";
    result = value;
    if (on_end) on_end();
  }
  void OnFailed(const RequestError& value) override {
    EXPECT_FALSE(ended()) << "two ends";
    error = value;
    if (on_end) on_end();
  }
  size_t buffered_bytes() const override { return buffered; }
  const RequestError* own_failure() const override { return own ? &*own : nullptr; }
  bool TriesAgain(const RequestError&) override {
    EXPECT_FALSE(ended()) << "it is asked before";
    return tries_again;
  }

  bool ended() const { return result.has_value() || error.has_value(); }
  std::string Text(uint32_t choice = 0) const {
    std::string text;
    for (const Seen& seen : tokens) {
      if (seen.choice == choice) text += seen.text;
    }
    return text;
  }
  scheduler::FinishReason Finish(uint32_t choice = 0) const {
    scheduler::FinishReason finish = scheduler::FinishReason::kNone;
    for (const Seen& seen : tokens) {
      if (seen.choice == choice && seen.finish != scheduler::FinishReason::kNone)
        finish = seen.finish;
    }
    return finish;
  }

  int num_taken = 0;
  std::shared_ptr<const PromptLogprobs> prompt_log;
  std::vector<PromptProgress> progress;
  std::vector<float> embedding;
  std::vector<Seen> tokens;
  std::optional<GenerateResult> result;
  std::optional<RequestError> error;
  size_t buffered = 0;
  std::optional<RequestError> own;  // the sink gives the answer up by it
  bool tries_again = false;         // a failure is followed by another request
  std::function<void()> on_end;     // as the client is told
};

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_RECORDING_SINK_H_
