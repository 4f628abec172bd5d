// SimClient: one client of a simulation, and what its answer must be. It computes each token
// itself, from a prefix that needs no KV, with the shipped sampler, detokeniser and stop matcher,
// and compares what arrives. One thread.
//
// Promises that it holds the router to: a prompt is found in a prefix cache only where a request of
// its tenant began like it; each choice's indices come as 0, 1, 2 .. once each (I7);
// tokens, log-probabilities, text and finish are those of a run without faults (I8); one terminal
// event, nothing after it (I10).
#ifndef BATON_SIM_SIM_CLIENT_H_
#define BATON_SIM_SIM_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/model/sampler.h"
#include "src/router/choice_text.h"
#include "src/router/submit.h"
#include "src/sim/asked_prefixes.h"
#include "src/sim/sim_model.h"
#include "src/sim/sim_workload.h"

namespace baton::sim {

// Working memory that all clients of a world share, and where their words go.
struct SimClientDesk {
  SimClientDesk() : sampler(kSimVocab, std::vector<TokenId>{kSimEos}), logits(kSimVocab) {}

  model::Sampler sampler;
  std::vector<float> logits;
  // `kind`: "wrong token", "order", "two ends", ...
  std::function<void(std::string_view kind, std::string text)> violate;
  std::function<int64_t()> now_us;
  int64_t max_silence_us = 0;  // between two tokens of one request; 0 = any
  // Whether a request can only find KV of others: without faults no worker computes one twice.
  bool has_no_faults = false;
  AskedPrefixes asked{kSimBlock};  // by all clients; filled in runs without faults
  bool has_states = false;         // of the model
  uint32_t window = 0;             // of the model; 0 = none
  uint64_t digest = 0;             // of everything that any client saw, with its time
  uint64_t num_tokens = 0;
};

// How a request ended for its client.
enum class SimEnd : uint8_t { kNone, kFinished, kFailed, kLost };

// See the file comment.
class SimClient final : public router::ResponseSink {
 public:
  // `spec` without its stop matcher's use; `desk` outlives this. `on_end` is told once.
  SimClient(const SimRequest& spec, SimClientDesk* desk, std::function<void(SimClient&)> on_end);

  // ---- ResponseSink.
  void OnToken(const router::TokenOutput& token) override;
  void OnFinished(const router::GenerateResult& result) override;
  void OnFailed(const router::RequestError& error) override;
  size_t buffered_bytes() const override { return 0; }

  // Its router died: it sees its connection break.
  void OnRouterDied();
  // Nobody listens any more: whatever comes is ignored.
  void Forget() { end_ = SimEnd::kLost; }

  uint64_t number() const { return number_; }
  SimEnd end() const { return end_; }
  router::ErrorCode error() const { return error_; }
  uint32_t num_resumes() const { return num_resumes_; }
  bool wants_cancel() const { return wants_cancel_; }
  void set_wants_cancel() { wants_cancel_ = true; }
  uint32_t num_seen() const { return num_seen_; }
  // A refusal before anything was seen, after which a client may ask again: 429 and 503.
  bool was_refused() const { return refused_; }
  int64_t retry_after_us() const { return retry_after_us_; }
  // The longest silence between two things that it saw.
  int64_t longest_silence_us() const { return longest_silence_us_; }

  // Set by the world.
  SimRequest spec;       // to ask again
  int64_t asked_us = 0;  // world's time
  uint32_t router = 0;   // index
  uint32_t num_tries = 1;

 private:
  // The rest of one choice, as it must be.
  struct Choice {
    SimPrefix prefix;
    model::SamplerState state;
    router::ChoiceText text;
    scheduler::FinishReason finish = scheduler::FinishReason::kNone;
  };

  void NoteAsked(const router::GenerateRequest& request) const;
  void CheckCached(const router::RequestTimings& timings);
  void Check(Choice& choice, const router::TokenOutput& token);
  void CheckLogprobs(const model::SampledToken& expected, const router::TokenOutput& token);
  scheduler::FinishReason FinishAfter(const Choice& choice, TokenId token) const;
  void Note(uint64_t a, uint64_t b);
  void End(SimEnd end);
  void Hear();

  const uint64_t number_;
  SimClientDesk* const desk_;
  const std::function<void(SimClient&)> on_end_;
  const std::shared_ptr<const router::ModelInfo> model_;
  const wire::SamplingParams params_;
  uint32_t num_prompt_ = 0;
  bool wants_cancel_ = false;
  std::vector<Choice> choices_;
  SimEnd end_ = SimEnd::kNone;
  router::ErrorCode error_ = router::ErrorCode::kInternal;
  uint32_t num_seen_ = 0;
  uint32_t num_resumes_ = 0;
  bool refused_ = false;
  int64_t retry_after_us_ = 0;
  int64_t heard_us_ = 0;  // 0 = nothing yet
  int64_t longest_silence_us_ = 0;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_CLIENT_H_
