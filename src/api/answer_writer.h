// AnswerWriter: writes one answer in the form of its surface (surface.h). A writer only makes
// bytes; the sinks own the exchange with the client. Plain; one thread at a time.
//
// A stream is Begin, then for each choice OpenChoice, AddToken..., EndChoice (choices interleave),
// then Finish. After Begin, Fail may end the stream instead at any point. Each call appends whole
// events with their framing: server-sent events, lines of JSON, or another form.
#ifndef BATON_API_ANSWER_WRITER_H_
#define BATON_API_ANSWER_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "src/api/answer_collector.h"
#include "src/api/answer_text.h"
#include "src/api/build_request.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"

namespace baton::api {

// Gives a collected answer as text, piece by piece. So an answer of hundreds of megabytes is never
// held as one text.
class WholeAnswer {
 public:
  virtual ~WholeAnswer() = default;
  // The next `num_bytes` of the text, and up to one token or 24 KiB more; "" = the end.
  virtual std::string Next(size_t num_bytes) = 0;
};

// The log-probabilities of a prompt as values of a chunk's members; "" = the plan has none.
struct PromptLogJson {
  std::string echoed;     // `logprobs` of the echoed prompt
  std::string positions;  // `prompt_logprobs`

  size_t num_bytes() const { return echoed.size() + positions.size(); }
};

// See the file comment.
class AnswerWriter {
 public:
  explicit AnswerWriter(AnswerPlan plan) : plan_(std::move(plan)) {}
  virtual ~AnswerWriter() = default;

  const AnswerPlan& plan() const { return plan_; }
  // The first call of all (ResponseSink::OnAccepted).
  void Rename(const router::AnswerName& name) { plan_.Rename(name); }

  // A worker has taken the request; the answer's header is out.
  virtual void Begin(std::string* /*out*/) {}
  // The log-probabilities of a prompt in this form; `log` null: the prompt is one token. Any thread
  // may call it after Rename, also while another thread makes other calls.
  virtual PromptLogJson PromptLog(uint32_t /*prompt*/,
                                  const router::PromptLogprobs* /*log*/) const {
    return {};
  }
  // `log`: PromptLog of the choice's prompt.
  virtual void OpenChoice(uint32_t /*choice*/, const PromptLogJson& /*log*/, std::string* /*out*/) {
  }
  // Writes how far the prompt is, for a request that asked for it, before the choice opens.
  virtual void AddProgress(uint32_t /*choice*/, const router::PromptProgress& /*progress*/,
                           std::string* /*out*/) {}
  // Writes one token and its text, which may be empty.
  virtual void AddToken(const router::TokenOutput& token, const TokenText& text,
                        std::string* out) = 0;
  // `result`: set for the choice that ends last; null for the others.
  virtual void EndChoice(uint32_t choice, const ChoiceEnd& end,
                         const router::GenerateResult* result, std::string* out) = 0;
  // EndChoice for the last choice of a prompt, while other prompts of the request still run.
  virtual void EndPrompt(uint32_t choice, const ChoiceEnd& end,
                         const router::GenerateResult& /*result*/, std::string* out) {
    EndChoice(choice, end, nullptr, out);
  }
  virtual void Finish(const router::GenerateResult& result, uint32_t num_reasoning_tokens,
                      std::string* out) = 0;
  // The answer fails after Begin; the connection is closed afterwards.
  virtual void Fail(const router::RequestError& error, std::string* out) = 0;

  // The whole answer instead of a stream. `answer` and this outlive the result.
  virtual std::unique_ptr<WholeAnswer> Whole(const AnswerCollector& answer,
                                             const router::GenerateResult& result) const = 0;

 private:
  AnswerPlan plan_;
};

// Appends a server-sent event without a name: `data: <json>` and an empty line.
inline void AppendEvent(std::string_view json, std::string* out) {
  constexpr std::string_view kBegin = "data: ";
  constexpr std::string_view kEnd = "\n\n";
  out->reserve(out->size() + kBegin.size() + json.size() + kEnd.size());
  out->append(kBegin).append(json).append(kEnd);
}
// Appends a named event.
inline void AppendEvent(std::string_view name, std::string_view json, std::string* out) {
  out->append("event: ").append(name).append("\n");
  AppendEvent(json, out);
}

}  // namespace baton::api

#endif  // BATON_API_ANSWER_WRITER_H_
