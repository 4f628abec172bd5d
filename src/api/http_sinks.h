// Answers over HTTP, whole or as a stream, in the form of any surface (surface.h). Called on the
// router's thread.
#ifndef BATON_API_HTTP_SINKS_H_
#define BATON_API_HTTP_SINKS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/api/answer_budget.h"
#include "src/api/answer_collector.h"
#include "src/api/answer_sink.h"
#include "src/api/answer_text.h"
#include "src/api/answer_writer.h"
#include "src/api/api_workers.h"
#include "src/api/call_cancellation.h"
#include "src/api/event_ids.h"
#include "src/api/prompt_logs.h"
#include "src/api/surface.h"
#include "src/http/http_responder.h"
#include "src/router/submit.h"

namespace baton::api {

// The headers of an answer, by which a client finds its request again.
http::HttpHeaders AnswerHeaders(const Surface& surface, const std::string& request_id,
                                const std::vector<std::string>& ignored);
// An error as a whole answer, with Retry-After where the error has one. `headers`: AnswerHeaders.
http::HttpResponse ErrorResponse(const Surface& surface, const router::RequestError& error,
                                 http::HttpHeaders headers);

// Where an answer goes and in which form.
struct AnswerTarget {
  const Surface& surface;
  std::unique_ptr<AnswerWriter> writer;
  http::HttpHeaders headers;
  std::shared_ptr<http::HttpResponder> responder;
};

// A sink that answers through one responder.
class HttpSink : public AnswerSink {
 public:
  explicit HttpSink(AnswerTarget target)
      : surface_(target.surface),
        writer_(std::move(target.writer)),
        headers_(std::move(target.headers)),
        responder_(std::move(target.responder)) {}

  void OnAccepted(const router::AnswerName& name) override;
  size_t buffered_bytes() const override { return responder_->buffered_bytes(); }
  // This cancels the requests of this answer. An answer that has no room cancels itself.
  void CancelBy(std::shared_ptr<CallCancellation> cancellation) {
    cancellation_ = std::move(cancellation);
  }

 protected:
  const AnswerPlan& plan() const { return writer_->plan(); }
  void CancelItself(router::Submitter* submitter) {
    if (cancellation_ != nullptr) cancellation_->OnCancel(submitter);
  }

  const Surface& surface_;
  const std::unique_ptr<AnswerWriter> writer_;
  http::HttpHeaders headers_;
  const std::shared_ptr<http::HttpResponder> responder_;

 private:
  std::shared_ptr<CallCancellation> cancellation_;  // null: nothing was submitted
};

// Collects the tokens and answers once; an answer of megabytes is written on a thread of `workers`,
// and above kMaxTextBytes in pieces, as the client takes them.
class HttpWholeSink final : public HttpSink, public std::enable_shared_from_this<HttpWholeSink> {
 public:
  // An answer up to this is one text and has a Content-Length.
  static constexpr size_t kMaxTextBytes = size_t{1} << 20;
  // Unsent bytes at which a larger answer waits for its client.
  static constexpr size_t kMaxBufferedBytes = size_t{256} << 10;

  // `num_choices`: computed ones, at least plan.num_choices. The pointees of `parts` outlive this.
  HttpWholeSink(AnswerTarget target, uint32_t num_choices, const ApiParts& parts)
      : HttpSink(std::move(target)),
        answer_(plan(), num_choices),
        submitter_(parts.submitter),
        workers_(parts.workers) {}

  // Takes the reservation of the answer; the destructor gives it back.
  void Keep(AnswerRoom room) { answer_.Keep(std::move(room)); }

  void OnToken(const router::TokenOutput& token) override {
    if (!answer_.Add(token)) CancelItself(submitter_);
  }
  void OnLoggedPrompt(uint32_t prompt,
                      std::shared_ptr<const router::PromptLogprobs> logprobs) override {
    answer_.SetPromptLog(prompt, std::move(logprobs));
  }
  void OnEmbeddedPrompt(uint32_t prompt, std::vector<float> embedding) override {
    answer_.SetEmbedding(prompt, std::move(embedding));
  }
  void OnFinished(const router::GenerateResult& result) override;
  void OnFailed(const router::RequestError& error) override;
  const router::RequestError* own_failure() const override { return answer_.failure(); }

 private:
  // Writes pieces until the client has to take some; then it is called again. Ends, and with it
  // this sink, when everything is written or the client has gone.
  void WritePieces();
  // Writes up to kMaxBufferedBytes; false: there is nothing more to write, or no reader.
  bool FillBuffer();
  // Lets a thread of the workers call WritePieces; false: no thread takes it.
  bool TryWriteLater();

  AnswerCollector answer_;
  router::Submitter* const submitter_;
  ApiWorkers* const workers_;
  std::unique_ptr<WholeAnswer> pieces_;  // set once an answer in pieces has begun
};

// A stream of the surface's events. The header goes out once a worker has taken the request, so
// that everything before it can still be a proper status; what fails afterwards is an event. While
// nothing comes the server writes the surface's ping.
class HttpStreamSink final : public HttpSink, public std::enable_shared_from_this<HttpStreamSink> {
 public:
  // `stream`: the name of a stream that can be resumed, whose events have ids; "" = another one.
  // The pointees of `parts` outlive this.
  HttpStreamSink(AnswerTarget target, const ApiParts& parts, const std::string& stream);

  // Takes what is reserved for the log-probabilities of the prompts, until all choices are open.
  void Keep(AnswerRoom room) { prompt_logs_.Keep(std::move(room)); }

  void OnTaken() override { Start(); }
  void OnLoggedPrompt(uint32_t prompt,
                      std::shared_ptr<const router::PromptLogprobs> logprobs) override {
    prompt_logs_.Set(prompt, std::move(logprobs), shared_from_this());
  }
  void OnPromptProgress(uint32_t prompt, const router::PromptProgress& progress) override;
  void OnToken(const router::TokenOutput& token) override;
  void OnPromptFinished(const router::GenerateResult& result) override;
  void OnFinished(const router::GenerateResult& result) override;
  void OnFailed(const router::RequestError& error) override;
  size_t buffered_bytes() const override;
  const router::RequestError* own_failure() const override {
    return failure_ ? &*failure_ : nullptr;
  }

 private:
  // The choice whose end waits for the result.
  struct LastEnd {
    uint32_t choice = 0;
    ChoiceEnd end;
  };

  void Start();
  // Appends the first event of a choice. The pause for slow clients counts tokens, so that the
  // prompt's log-probabilities wait for the choice's first token. False: the event is too large, as
  // failure_ says, and the answer cancels itself.
  bool OpenChoice(uint32_t choice, std::string* events);
  // Gives the events from byte `begin` on their ids, if the stream has ids (EventIds::Insert).
  void Name(size_t begin, bool is_token, std::string* events) {
    if (ids_.has_value()) ids_->Insert(begin, is_token, events);
  }

  const int64_t ping_ms_;  // silence before a ping, 0 = there are none
  router::Submitter* const submitter_;
  std::optional<EventIds> ids_;  // of a stream that can be resumed
  AnswerText texts_;
  std::vector<bool> opened_;  // by choice: its first event is out
  PromptLogs<PromptLogJson> prompt_logs_;
  std::optional<router::RequestError> failure_;  // why the answer cancelled itself
  // By prompt, the latest progress that waits for the header: a prompt may be done before the
  // decode worker has reserved. Empty after it.
  std::map<uint32_t, router::PromptProgress> early_progress_;
  std::optional<LastEnd> last_end_;
  bool started_ = false;
};

}  // namespace baton::api

#endif  // BATON_API_HTTP_SINKS_H_
