// A conversation with a server over its OpenAI-compatible HTTP API, as the terminal client holds
// it.
#ifndef BATON_CLI_CHAT_SESSION_H_
#define BATON_CLI_CHAT_SESSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/cli/http_client.h"

namespace baton::cli {

// A whole number of a setting.
struct FlagRange {
  int64_t low;
  int64_t high;
};
inline constexpr FlagRange kChatMaxTokens = {0, 1 << 24};
inline constexpr FlagRange kChatSeed = {-1, INT64_MAX};
// The largest temperature that the API takes (api/schema.h).
double ChatMaxTemperature();
// A number from 0 to ChatMaxTemperature(); InvalidArgument with the text for any other.
StatusOr<double> ParseChatTemperature(std::string_view text);
// InvalidArgument names the first byte that is no UTF-8: a request could carry it only as another
// character.
Status CheckChatText(std::string_view text);

// One conversation's server, and the values that each request carries.
struct ChatOptions {
  HttpUrl url;              // of the server; a path is put before /v1
  std::string api_key;      // "" = none is sent
  std::string model;        // "" = the server's only one
  std::string system;       // "" = the template's own
  std::string path;         // the request's field: "disagg" or "local"; "" = as the server chooses
  std::string json_schema;  // that each answer follows, as JSON; "" = none
  double temperature = 0.0;
  int64_t max_tokens = 0;   // 0 = up to the context
  int64_t seed = -1;        // -1 = drawn by the server
  bool shows_stats = true;  // one line after each answer
  // Gets each piece of what the model thinks before it answers; empty = nobody wants it.
  std::function<void(std::string_view)> on_thought;
  std::function<bool()> wants_more;  // asked with each piece of an answer; absent = always
  // Asked while an answer is waited for, some 20 times a second; absent = never.
  std::function<bool()> is_interrupted;
};

// The server's account of one answer (the `timings` and `usage` of its last chunk).
struct AnswerStats {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  std::string request_id;
  std::string model;
  std::string finish_reason;
  std::string path;
  std::string prefill_worker;
  std::string decode_worker;
  std::string transport;
  int64_t kv_bytes = 0;
  double queue_ms = 0;
  double prefill_ms = 0;
  double kv_wait_ms = 0;
  double first_step_ms = 0;
  double decode_ms = 0;
  double ttft_ms = 0;                 // measured here: question sent to first text, a thought's too
  std::string usage_json = "null";    // as the server sent it
  std::string timings_json = "null";  // as the server sent them
};

// "42 tokens | TTFT 83.1 ms (queue 0.4, prefill 81.2) | KV wait 0.9 ms, 737280 bytes over shm |
// ...".
std::string DescribeAnswer(const AnswerStats& stats);
// A line for each stage of the answer, with its share of the time as a bar.
std::string DescribeStages(const AnswerStats& stats);

// The sums over a session's answers.
struct ChatTotals {
  int64_t num_answers = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t kv_bytes = 0;
};

struct SessionMessage {
  std::string role;  // "user" or "assistant"
  std::string content;

  friend bool operator==(const SessionMessage&, const SessionMessage&) = default;
};

// Takes the bytes of an event stream in any split and gives the payload of each `data:` event.
// Keeps at most one line, of at most kMaxLineBytes.
class EventStreamParser {
 public:
  static constexpr size_t kMaxLineBytes = size_t{4} << 20;

  // Calls on_data for every complete event in order. ResourceExhausted when a line is too long;
  // the stream is then of no more use.
  Status Push(std::string_view bytes, const std::function<void(std::string_view)>& on_data);

 private:
  std::string buffer_;
};

// Keeps the messages; an answer that fails leaves them as before the question. One thread.
class ChatSession {
 public:
  explicit ChatSession(ChatOptions options) : options_(std::move(options)) {}

  // Asks, calling on_text with each piece of the answer. Fails with the server's message; DataLoss
  // when the stream ended without its end mark. Cancelled by is_interrupted: what came until then
  // stays in the conversation as the answer.
  StatusOr<AnswerStats> Ask(const std::string& question,
                            const std::function<void(std::string_view)>& on_text);
  // Why the server makes no prompt of a conversation with this model, in its words: it has no chat
  // template, or a broken one. "" = it makes one, or does not say within `limit_ms`: it is away,
  // wants a key, or has no /apply-template.
  std::string WhyNoChats(int64_t limit_ms) const;
  // The server's model ids, as /v1/models lists them; fails as Ask does.
  StatusOr<std::vector<std::string>> ListModels() const;
  void Clear() { messages_.clear(); }
  ChatOptions& options() { return options_; }  // of the next question
  const ChatOptions& options() const { return options_; }
  const std::vector<SessionMessage>& messages() const { return messages_; }
  void SetMessages(std::vector<SessionMessage> messages) { messages_ = std::move(messages); }
  // The last answer that came whole; none before the first.
  const std::optional<AnswerStats>& last() const { return last_; }
  const ChatTotals& totals() const { return totals_; }

 private:
  HttpClientRequest RequestTo(std::string_view path) const;
  std::string RequestBody(const std::string& question) const;
  void Count(const AnswerStats& stats);

  ChatOptions options_;
  std::vector<SessionMessage> messages_;
  std::optional<AnswerStats> last_;
  ChatTotals totals_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_CHAT_SESSION_H_
