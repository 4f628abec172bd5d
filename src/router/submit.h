// The interface between the public APIs and the router: submit a request, receive its tokens, look
// up models. src/api knows the router only through this header and the values it includes.
//
// Threads: Submitter's functions may be called from any thread and never block. ResponseSink's
// functions are called by the router's thread (or by Submit itself when it refuses at once), one at
// a time, and must not block.
#ifndef BATON_ROUTER_SUBMIT_H_
#define BATON_ROUTER_SUBMIT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"

#include "scheduler/sequence.h"
#include "src/base/ids.h"
#include "src/base/token_logprob.h"
#include "src/router/generate_request.h"
#include "src/router/model_directory.h"
#include "src/router/request_error.h"
#include "src/router/topology.h"
#include "src/wire/guess_state.h"

namespace baton::text {
class ChatTemplate;
class GrammarCache;
class Tokenizer;
}  // namespace baton::text

namespace baton::router {

// A served model, learned from its workers; constant once published.
struct ModelInfo {
  std::string id;
  int64_t created_unix_s = 0;  // when its first worker had loaded it
  uint32_t max_context = 0;    // tokens, prompt and answer together; the largest of its workers
  uint32_t vocab_size = 0;
  uint32_t embedding_size = 0;    // elements of a text's vector; 0 = its workers give none
  std::string embedding_refusal;  // how it pools, where that gives none; else ""
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate>
      chat_template;                 // null: the model file has no usable one
  bool has_broken_template = false;  // it has one that is no template
  // The model's template "tool_use", which writes requests with tools; null: chat_template does.
  std::shared_ptr<const text::ChatTemplate> tool_template;
  std::shared_ptr<text::GrammarCache> grammars;  // of the tokenizer; any thread
  std::vector<std::string> names;  // that clients use; empty = the id (served_names.h)

  // The name of the model in answers.
  const std::string& name() const { return names.empty() ? id : names.front(); }
  // The template of a conversation; null without chat_template.
  const text::ChatTemplate* TemplateFor(bool has_tools) const {
    return has_tools && tool_template != nullptr ? tool_template.get() : chat_template.get();
  }
};

// One token of one choice on its way to the client. Views are valid during the call.
struct TokenOutput {
  uint32_t choice = 0;
  uint32_t index = 0;  // output index within the choice, from 0 without gaps
  TokenId token = 0;
  // Text that this token released: whole code points; "" while text is held back.
  std::string_view text;
  bool has_logprob = false;
  float logprob = 0.0f;
  const std::vector<TokenLogprob>* top_logprobs = nullptr;  // never null with has_logprob
  scheduler::FinishReason finish =
      scheduler::FinishReason::kNone;  // set on the choice's last token
  std::optional<size_t> stop_idx;  // with kStop: the stop text that ended the choice, by its place
                                   // in the request; none: `token` ended it
  bool is_last = false;            // the request's last token; OnFinished follows at once
  int64_t arrived_us = 0;          // steady clock, when the router took it from the worker
};

// Log-probabilities of a prompt's tokens, from its second one on: the first one has none.
struct PromptLogprobs {
  struct Row {
    float logprob = 0.0f;
    uint32_t rank = 0;     // one more than the tokens that were likelier
    uint32_t top_end = 0;  // where its entries of `top` end
  };
  std::vector<Row> rows;
  std::vector<TokenLogprob> top;  // the likeliest tokens of each row, best first

  std::span<const TokenLogprob> TopOf(size_t row) const {
    const size_t begin = row == 0 ? 0 : rows[row - 1].top_end;
    return std::span(top).subspan(begin, rows[row].top_end - begin);
  }
};

// How far the prompt of a request is.
struct PromptProgress {
  uint32_t total = 0;  // its tokens
  uint32_t cache = 0;  // of them, found in the prefix cache of the worker that computes the rest
  uint32_t processed = 0;  // with KV, cached ones included
  int64_t time_ms = 0;     // since a worker began with it
};

// Where the time of a request went and which workers did the work (the `timings` object of the
// APIs). The five times follow one another.
struct RequestTimings {
  bool disaggregated = false;  // a pair of workers served it
  std::string prefill_worker;  // id of the worker that computed the prompt
  std::string decode_worker;   // id of the worker that decoded
  std::string transport;       // LinkKindName: "shm", "tcp", "local", ...
  uint64_t kv_bytes = 0;       // that crossed between the workers
  double queue_ms = 0;         // from receipt to the start of the prompt's first chunk
  double prefill_ms = 0;       // to token 0
  double kv_wait_ms = 0;       // to the start of the first decode step: grant, transfer, queue
  double first_step_ms = 0;    // the first decode step
  double decode_ms = 0;        // to the last token
  uint32_t cached_tokens = 0;  // of the prompt, whose KV was cached
  uint32_t resumes = 0;        // times that it was placed again after a fault or a planned move
  bool exact = true;           // false: another process could have given other bits
  uint64_t speculated = 0;     // guessed tokens that decode steps verified
  uint64_t accepted = 0;       // of them, those that were right and saved a step
  wire::GuessState speculation = wire::GuessState::kOff;  // of the last decode step

  // Where the KV of the prompt's first tokens was found: "pool", the prefix cache of the worker
  // that computed the rest, or "computed", nowhere.
  std::string_view prefix_source() const { return cached_tokens > 0 ? "pool" : "computed"; }
};

// The good end of a request.
struct GenerateResult {
  uint32_t num_prompt_tokens = 0;
  uint32_t num_completion_tokens = 0;  // of all choices, end-of-generation tokens included
  RequestTimings timings;
  // One for each prompt of an answer to several prompts, which src/api joins; else empty.
  std::vector<RequestTimings> prompts;
};

// Receives one request's answer. Exactly one of OnFinished and OnFailed ends it, after which no
// call follows. Owned by the router until then; the other end may share it.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // Requests with a key only, at most once and before everything else: the answer goes by this
  // name. It is another than the request's own when an earlier request with its key began it.
  virtual void OnAccepted(const AnswerName& /*name*/) {}
  // At most once, and before the first token, which may come without it: a worker has taken the
  // request. The client can be told that there is an answer; what fails from now on fails amid it.
  virtual void OnTaken() {}
  // Requests with sampling.prompt_logprobs only: once, before the first token.
  virtual void OnPromptLogprobs(std::shared_ptr<const PromptLogprobs> /*logprobs*/) {}
  // Requests with `reports_progress` only: before the first token, each time further than before.
  virtual void OnProgress(const PromptProgress& /*progress*/) {}
  // Requests with `embeds` only: once, before the OnToken that ends them.
  virtual void OnEmbedding(std::vector<float> /*embedding*/) {}
  // Tokens of one choice come in index order; choices interleave.
  virtual void OnToken(const TokenOutput& token) = 0;
  virtual void OnFinished(const GenerateResult& result) = 0;
  virtual void OnFailed(const RequestError& error) = 0;
  // Bytes accepted and not yet taken by the client; the router pauses above 256 KiB. Any thread.
  virtual size_t buffered_bytes() const = 0;
  // The client is told this instead of the answer, or instead of kCancelled: the sink has given the
  // answer up itself. The router counts the request by it. Null = it has not. Router's thread.
  virtual const RequestError* own_failure() const { return nullptr; }
  // Asked at most once, before a failure is counted: true where the request is submitted again and
  // its client is not told. Then it counts as no request, and it has missed no objective. OnFailed
  // follows at once, on the same thread, whatever the answer is.
  virtual bool TriesAgain(const RequestError& /*error*/) { return false; }
};

// The reason why an answer is not wanted any more.
enum class CancelCause : uint8_t { kClientLeft, kSlowClient };

// Accepts requests; implemented by Router and by fakes in tests.
class Submitter {
 public:
  virtual ~Submitter() = default;

  // Takes the request over. Every outcome, a refusal too, arrives at `sink`. The result names the
  // request for Cancel.
  virtual RequestUid Submit(GenerateRequest request, std::shared_ptr<ResponseSink> sink) = 0;
  // The client has gone: both workers are told within one step, unless the request has a key
  // (keyed_answers.h). Unknown or finished: no effect. The sink gets OnFailed: kSlowClient by that
  // cause, kDeadlineExceeded when the client's own deadline has just passed, else kCancelled; one
  // with a key always gets kCancelled.
  virtual void Cancel(RequestUid uid, CancelCause cause) = 0;

  // Counts a request that an API refused without Submit, by the HTTP status of the refusal.
  virtual void CountAnswered(int http_status) = 0;
  // Counts a request for no tokens that an API answered without Submit, and its choices: each has
  // ended by its length.
  virtual void CountEcho(uint32_t num_choices) = 0;
  // Counts a prompt of several that found no room and is submitted again later.
  virtual void CountPutBack() = 0;

  // The models that are served or waited for, as of now; never null.
  virtual std::shared_ptr<const ModelDirectory> models() const = 0;
  // True when requests would be served now (RouterCore::Ready).
  virtual bool ready() const = 0;
  // True when it is on its way out: not ready, and never again.
  virtual bool draining() const = 0;
  // Calls `done` on the router's thread with the present state.
  virtual void GetTopology(absl::AnyInvocable<void(const Topology&)> done) = 0;
  virtual void GetRequests(absl::AnyInvocable<void(const std::vector<RequestView>&)> done) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SUBMIT_H_
