// AnswerWriter: writes one answer in the form of its surface (surface.h). The sinks own the
// exchange; a writer only makes bytes. Plain; one thread at a time.
//
// A stream is Begin, then for each choice OpenChoice, AddToken..., EndChoice (choices interleave),
// then Finish. Fail ends it instead at any point after Begin. Each call appends whole events,
// framing included, so that a surface may send server-sent events, lines of JSON or neither.
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

// A collected answer as text, front to back in pieces, so that an answer of hundreds of megabytes
// is never held as text.
class WholeAnswer {
 public:
  virtual ~WholeAnswer() = default;
  // The next `num_bytes` and up to one token or 24 KiB of text more; "" = all was given.
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
  // Before everything else (ResponseSink::OnAccepted).
  void Rename(const router::AnswerName& name) { plan_.Rename(name); }

  // A worker has taken the request; the answer's header is out.
  virtual void Begin(std::string* /*out*/) {}
  // The log-probabilities of a prompt in this form; `log` null: the prompt is one token. Any
  // thread, after Rename, beside the calls of another.
  virtual PromptLogJson PromptLog(uint32_t /*prompt*/,
                                  const router::PromptLogprobs* /*log*/) const {
    return {};
  }
  // `log`: PromptLog of the choice's prompt.
  virtual void OpenChoice(uint32_t /*choice*/, const PromptLogJson& /*log*/, std::string* /*out*/) {
  }
  // How far the prompt of this choice is, where the request asked for it; before the choice opens.
  virtual void AddProgress(uint32_t /*choice*/, const router::PromptProgress& /*progress*/,
                           std::string* /*out*/) {}
  // One token and what it adds, which may be nothing.
  virtual void AddToken(const router::TokenOutput& token, const TokenText& text,
                        std::string* out) = 0;
  // `result`: set for the choice that ends last; null for the others.
  virtual void EndChoice(uint32_t choice, const ChoiceEnd& end,
                         const router::GenerateResult* result, std::string* out) = 0;
  // As EndChoice, for the last choice of one of several prompts while others still run.
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
  out->append("data: ").append(json).append("\n\n");
}
// Appends a named event.
inline void AppendEvent(std::string_view name, std::string_view json, std::string* out) {
  out->append("event: ").append(name).append("\n");
  AppendEvent(json, out);
}

}  // namespace baton::api

#endif  // BATON_API_ANSWER_WRITER_H_
