// PromptFanIn: one answer to several prompts. It submits one request for each prompt, so that each
// is admitted, placed and resumed by itself. It joins all tokens for one AnswerSink.
//
// Threads: Begin is called on a thread of the API; the sinks of the requests on the router's thread
// or within Submit. One mutex orders the calls of the AnswerSink.
//
// Invariants
//  1. The AnswerSink gets one end: OnFinished after all prompts have finished, or the failure of
//     the first prompt that fails. Then all other prompts are cancelled and send nothing more.
//  2. At most kAtOnce choices are under way, or all choices of one prompt. So a request of a
//     thousand prompts neither fills the router's queue nor waits longer than others.
//  3. OnTaken is passed on when workers have taken as many prompts as were submitted at first,
//     unless a token came before.
//  4. A prompt that finds no room (429) while other prompts are under way is put back. It is
//     submitted again after one of these has finished. The answer then has as many places as it has
//     prompts under way. Each prompt that finishes adds a place, up to the number of 2.
//  5. With no prompt under way, a prompt is put back only after another one has finished: the
//     router may not know yet that this room is free. Then the router refuses it by no forecast.
//     It is tried once more after a refusal at once, and once more after a wait (in the queue, or
//     for its tenant's share of the KV). Within kLateRoomUs of that finish it is tried up to
//     kMostTriesAlone times. So each prompt that finishes causes at most two other tries, and
//     kMostTriesAlone + 1 alone.
//  6. An answer that is older than kRoomLimitUs puts nothing back.
//  7. The sink gets the log of a prompt once. The progress of a prompt goes on from try to try.
//  8. A prompt that waited for others arrives at the router when it is submitted: the router's
//     objectives (--slo) and times count from then. Its deadline stays the answer's deadline.
//
// It lives until the last request has ended: the sinks of the requests keep it.
#ifndef BATON_API_PROMPT_FAN_IN_H_
#define BATON_API_PROMPT_FAN_IN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "src/api/answer_sink.h"
#include "src/api/call_cancellation.h"
#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/mutex.h"
#include "src/router/submit.h"

namespace baton::api {

// See the file comment.
class PromptFanIn : public std::enable_shared_from_this<PromptFanIn> {
 public:
  // A decode worker batches up to 256 rows; prompts that wait after 32 cost no throughput.
  static constexpr uint32_t kAtOnce = 32;
  // A batch of long answers waits for itself. Half an hour is above most clients' own limits.
  static constexpr int64_t kRoomLimitUs = int64_t{30} * 60 * 1'000'000;
  // A worker that is silent for kDeadUs is lost, so its news of free room are that late at most.
  // Five times that is for a machine that has no time for its processes.
  static constexpr int64_t kLateRoomUs = 5 * limits::kDeadUs;
  // A wait in the queue takes a tick of the router or more, whatever --queue-wait-ms and --slo say.
  static constexpr uint32_t kMostTriesAlone = kLateRoomUs / limits::kRouterTickUs;

  // `requests`: of one call, each with as many choices. The submitter and the clock outlive this.
  PromptFanIn(router::Submitter* submitter, std::vector<router::GenerateRequest> requests,
              std::shared_ptr<AnswerSink> sink, std::shared_ptr<CallCancellation> cancellation,
              const Clock& clock = SystemClock());

  // Submits the first prompts. Once.
  void Begin();

 private:
  class Part;

  // Submits prompts while there are places. One thread does so at a time; it also uses places that
  // another thread frees meanwhile.
  void SubmitMore();
  // The next prompt and its request; nothing: no prompt has a place.
  struct Next {
    uint32_t prompt = 0;
    router::GenerateRequest request;
  };
  std::optional<Next> TakeNextLocked() BATON_REQUIRES(mutex_);
  // Lets the request arrive now, with the rest of its deadline.
  void ArriveNow(router::GenerateRequest* request) const;
  // The error for the client, which speaks of the answer, not of the prompt's request.
  router::RequestError ToldError(uint32_t prompt, const router::RequestError& error) const;
  // True: the prompt waits for others of the answer, and is submitted again by SubmitMore.
  bool PutBack(uint32_t prompt, const router::RequestError& error);
  // True: another try is allowed, and counted.
  bool TakeTryLocked(uint32_t prompt, const router::RequestError& error) BATON_REQUIRES(mutex_);
  void OnAccepted(const router::AnswerName& name);
  void OnTaken();
  void OnLoggedPrompt(uint32_t prompt, std::shared_ptr<const router::PromptLogprobs> logprobs);
  void OnPromptProgress(uint32_t prompt, const router::PromptProgress& progress);
  void OnEmbeddedPrompt(uint32_t prompt, std::vector<float> embedding);
  void OnToken(uint32_t prompt, const router::TokenOutput& token);
  void OnFinished(uint32_t prompt, const router::GenerateResult& result);
  void OnFailed(uint32_t prompt, const router::RequestError& error);
  // Adds the result of a prompt's request to the result of the answer.
  void AddLocked(uint32_t prompt, const router::GenerateResult& result) BATON_REQUIRES(mutex_);

  router::Submitter* const submitter_;
  const std::shared_ptr<AnswerSink> sink_;
  const std::shared_ptr<CallCancellation> cancellation_;
  const Clock& clock_;
  const int64_t begin_us_;
  const std::string_view timeout_field_;  // as the client named the deadline
  const int64_t timeout_us_;              // of the answer; 0 = none
  const uint32_t num_choices_;            // of each prompt
  const size_t num_first_;                // prompts that Begin submits: the most places
  // Held while the sink is called, which orders the calls. The sink never calls this object.
  mutable Mutex mutex_;
  // Kept until the prompt has a token or its end: it may be submitted again.
  std::vector<router::GenerateRequest> requests_ BATON_GUARDED_BY(mutex_);
  // By prompt, the furthest progress that the sink got: another try starts from 0.
  std::vector<uint32_t> num_processed_ BATON_GUARDED_BY(mutex_);
  std::vector<uint32_t> put_back_ BATON_GUARDED_BY(mutex_);  // prompts that found no room
  bool is_submitting_ BATON_GUARDED_BY(mutex_) = false;
  size_t num_places_ BATON_GUARDED_BY(mutex_) = 0;
  size_t num_under_way_ BATON_GUARDED_BY(mutex_) = 0;
  size_t num_begun_ BATON_GUARDED_BY(mutex_) = 0;  // prompts that were submitted once
  size_t num_taken_ BATON_GUARDED_BY(mutex_) = 0;
  size_t num_finished_ BATON_GUARDED_BY(mutex_) = 0;
  int64_t finished_us_ BATON_GUARDED_BY(mutex_) = 0;  // when the last of them did
  // Since then: times that a prompt was put back with none under way, after a wait and at once.
  uint32_t num_waits_alone_ BATON_GUARDED_BY(mutex_) = 0;
  uint32_t num_refusals_alone_ BATON_GUARDED_BY(mutex_) = 0;
  bool is_accepted_ BATON_GUARDED_BY(mutex_) = false;  // the sink knows the answer's name
  bool has_begun_ BATON_GUARDED_BY(mutex_) = false;    // the sink had a token
  bool has_ended_ BATON_GUARDED_BY(mutex_) = false;    // the sink had its end
  router::GenerateResult result_ BATON_GUARDED_BY(mutex_);
};

// Submits the request, or all of several prompts; `cancellation` then cancels them. Answers those
// for no tokens at once (echo_answer.h); false: that was all.
bool SubmitAnswer(router::Submitter* submitter, router::GenerateRequest request,
                  std::vector<router::GenerateRequest> others, std::shared_ptr<AnswerSink> sink,
                  std::shared_ptr<CallCancellation> cancellation);

}  // namespace baton::api

#endif  // BATON_API_PROMPT_FAN_IN_H_
