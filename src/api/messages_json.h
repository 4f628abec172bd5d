// The JSON of Anthropic's Messages API: a message, the events of a stream, errors. One thread at a
// time for one writer.
#ifndef BATON_API_MESSAGES_JSON_H_
#define BATON_API_MESSAGES_JSON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "src/api/answer_writer.h"
#include "src/api/messages_read.h"

namespace baton::api {

// An event that keeps a silent stream open.
inline constexpr std::string_view kMessagesPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

// The name that Messages have for a field of the chat that a request became: tools are checked in
// OpenAI's form.
std::string MessagesField(std::string field);

// {"type":"error","error":{"type","message"},"request_id"}.
std::string MessagesErrorJson(const router::RequestError& error, std::string_view request_id);

// The arguments of a call as the text of a JSON object. A model may break them, or its tokens run
// out; then their text is the member "raw_arguments".
std::string ToolInputJson(const std::string& arguments);

// MessagesWriter: a message as blocks of thinking, text and tool_use. A stream has one block open
// at a time; a token that brings another kind of text closes it and opens the next.
class MessagesWriter final : public AnswerWriter {
 public:
  MessagesWriter(AnswerPlan plan, const MessagesForm& form)
      : AnswerWriter(std::move(plan)), form_(form) {}

  void Begin(std::string* out) override;
  void AddToken(const router::TokenOutput& token, const TokenText& text, std::string* out) override;
  void EndChoice(uint32_t choice, const ChoiceEnd& end, const router::GenerateResult* result,
                 std::string* out) override;
  void Finish(const router::GenerateResult& result, uint32_t num_reasoning_tokens,
              std::string* out) override;
  void Fail(const router::RequestError& error, std::string* out) override;
  std::unique_ptr<WholeAnswer> Whole(const AnswerCollector& answer,
                                     const router::GenerateResult& result) const override;

 private:
  enum class Block : uint8_t { kNone, kThinking, kText, kToolUse };

  // Closes the open block unless it is of that kind, and opens one.
  void Enter(Block block, std::string* out);
  void OpenCall(const ToolCallDelta& call, std::string* out);
  void AddArguments(std::string_view arguments, std::string* out);
  void CloseBlock(std::string* out);

  const MessagesForm form_;
  Block block_ = Block::kNone;
  uint32_t num_blocks_ = 0;  // opened so far
  ChoiceEnd end_;            // set by EndChoice
};

}  // namespace baton::api

#endif  // BATON_API_MESSAGES_JSON_H_
