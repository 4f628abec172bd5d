#include "src/cli/chat_session.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "nlohmann/json.hpp"

#include "src/api/schema.h"
#include "src/base/clock.h"
#include "src/base/quoted_text.h"
#include "src/cli/json_fields.h"
#include "src/text/utf8.h"

namespace baton::cli {

using api::Endpoint;
using api::FindParam;
using text::LossyUtf8;
using text::ValidUtf8Prefix;

namespace {

using nlohmann::json;

// An answer that is no event stream is kept this far, for its error message.
constexpr size_t kMaxErrorBytes = size_t{64} * 1024;
// Bytes that an error message shows of an answer that is no JSON error, like the page of a server
// of another kind.
constexpr size_t kMaxForeignBytes = 200;
// Levels of an event that are read; OpenAI's have 6.
constexpr int kMaxEventDepth = 32;
// A server's count of anything.
constexpr int64_t kMaxCount = int64_t{1} << 53;

// The member of that name, or null when `object` is no object or has none. Any server may be at the
// other end: nothing about the types of its answer is taken for granted.
const json& Member(const json& object, const char* name) {
  static const json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(name);
  return found == object.end() ? kNone : *found;
}

std::string TextOfJson(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

double MsOf(const json& object, const char* name) {
  const json& value = Member(object, name);
  const double ms = value.is_number() ? value.get<double>() : 0.0;
  constexpr double kMostMs = 1e12;
  return ms > 0 ? std::min(ms, kMostMs) : 0.0;  // of NaN too
}

int64_t CountOf(const json& object, const char* name) {
  return std::clamp<int64_t>(SignedOf(object, name), 0, kMaxCount);
}

// {"error": {"message": "..."}} as OpenAI has it, or {"error": "..."} as others do; "" = neither.
std::string ErrorText(const json& answer) {
  const json& error = Member(answer, "error");
  return error.is_string() ? error.get<std::string>() : TextOf(error, "message");
}

// Collects one streamed answer.
class AnswerReader {
 public:
  using OnPiece = std::function<void(std::string_view)>;
  AnswerReader(int64_t sent_us, const OnPiece& on_thought, const OnPiece& on_text)
      : sent_us_(sent_us), on_thought_(on_thought), on_text_(on_text) {}

  void OnData(std::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    // Writing a value again follows its depth by recursion, so deeper parts are left out.
    const auto is_flat = [](int depth, json::parse_event_t /*event*/, const json& /*value*/) {
      return depth <= kMaxEventDepth;
    };
    const json event = json::parse(data, is_flat, /*allow_exceptions=*/false);
    if (!event.is_object()) {
      error_ = DataLoss("the server sent an event that is no JSON object");
      return;
    }
    if (!Member(event, "error").is_null()) {
      const std::string text = ErrorText(event);
      error_ = Unavailable("{}", text.empty() ? "the server failed" : text);
      return;
    }
    TakeChoices(event);
    TakeStats(event);
  }

  StatusOr<AnswerStats> Finish() const {
    if (!error_.ok()) return error_;
    if (!done_) return DataLoss("the answer broke off");
    return stats_;
  }

  const std::string& text() const { return text_; }

 private:
  void TakeChoices(const json& event) {
    const json& choices = Member(event, "choices");
    if (!choices.is_array()) return;
    for (const json& choice : choices) {
      const std::string thought = TextOf(Member(choice, "delta"), "reasoning_content");
      // vLLM's name; some servers send it under both.
      TakeThought(thought.empty() ? TextOf(Member(choice, "delta"), "reasoning") : thought);
      TakeText(TextOf(Member(choice, "delta"), "content"));
      const std::string reason = TextOf(choice, "finish_reason");
      if (!reason.empty()) stats_.finish_reason = reason;
    }
  }

  void TakeThought(const std::string& piece) {
    if (piece.empty()) return;
    MarkFirst();
    if (on_thought_) on_thought_(piece);
  }

  // The next question is asked with what was answered, not with what was thought.
  void TakeText(const std::string& piece) {
    if (piece.empty()) return;
    MarkFirst();
    text_ += piece;
    on_text_(piece);
  }

  void MarkFirst() {
    if (has_first_) return;
    has_first_ = true;
    stats_.ttft_ms = static_cast<double>(SystemClock().NowUs() - sent_us_) / 1000.0;
  }

  void TakeStats(const json& event) {
    if (stats_.model.empty()) stats_.model = TextOf(event, "model");
    const json& usage = Member(event, "usage");
    if (usage.is_object()) {
      stats_.usage_json = TextOfJson(usage);
      stats_.cached_tokens = CountOf(Member(usage, "prompt_tokens_details"), "cached_tokens");
      stats_.prompt_tokens = CountOf(usage, "prompt_tokens");
      stats_.completion_tokens = CountOf(usage, "completion_tokens");
    }
    const json& timings = Member(event, "timings");
    if (!timings.is_object()) return;
    stats_.timings_json = TextOfJson(timings);
    stats_.path = TextOf(timings, "path");
    stats_.prefill_worker = TextOf(timings, "prefill_worker");
    stats_.decode_worker = TextOf(timings, "decode_worker");
    stats_.transport = TextOf(timings, "transport");
    stats_.kv_bytes = CountOf(timings, "kv_bytes");
    stats_.queue_ms = MsOf(timings, "queue_ms");
    stats_.prefill_ms = MsOf(timings, "prefill_ms");
    stats_.kv_wait_ms = MsOf(timings, "kv_wait_ms");
    stats_.first_step_ms = MsOf(timings, "first_step_ms");
    stats_.decode_ms = MsOf(timings, "decode_ms");
  }

  int64_t sent_us_;
  const OnPiece& on_thought_;
  const OnPiece& on_text_;
  std::string text_;
  bool has_first_ = false;
  AnswerStats stats_;
  Status error_ = OkStatus();
  bool done_ = false;
};

// The flag of `baton chat` that the server misses; "" = none.
std::string_view WayOut(int status, const json& answer) {
  if (status == 401) return "; --api-key-env NAME names the variable that holds the key";
  const bool is_model = TextOf(Member(answer, "error"), "param") == "model";
  return is_model && (status == 400 || status == 404) ? "; --model NAME chooses one" : "";
}

Status ServerError(const HttpClientResponse& response, const std::string& body) {
  const json answer = json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string message = ErrorText(answer);
  const std::string_view way_out = WayOut(response.status, answer);
  if (!way_out.empty() && message.ends_with('.')) message.pop_back();  // the sentence goes on
  std::string page = LossyUtf8(std::string_view(body).substr(0, kMaxForeignBytes));
  absl::StripAsciiWhitespace(&page);
  return Unavailable("the server answered {}: {}{}", response.status,
                     message.empty() ? Printable(page) : message, way_out);
}

// An error of the connection, with what to do where no server is.
Status WithWayOut(const Status& status) {
  constexpr absl::string_view kNobody = "cannot connect to ";
  if (!absl::StartsWith(status.message(), kNobody)) return status;
  return Status(status.code(),
                fmt::format("{}; `baton serve MODEL` starts a server, and `baton chat --url "
                            "HOST:PORT` asks one",
                            std::string(status.message())));
}

}  // namespace

double ChatMaxTemperature() { return FindParam(Endpoint::kChat, "temperature")->max; }

StatusOr<double> ParseChatTemperature(std::string_view text) {
  double number = 0;
  if (absl::SimpleAtod(absl::string_view(text.data(), text.size()), &number) && number >= 0 &&
      number <= ChatMaxTemperature()) {
    return number;
  }
  return InvalidArgument("{} is not a number in [0, {}]", QuotedForMessage(text),
                         ChatMaxTemperature());
}

Status CheckChatText(std::string_view text) {
  const size_t good = ValidUtf8Prefix(text);
  if (good == text.size()) return OkStatus();
  return InvalidArgument("byte {:#04x} at place {} is no UTF-8; nothing was sent",
                         static_cast<unsigned char>(text[good]), good);
}

namespace {
std::string WorkersOf(const AnswerStats& s) {
  if (s.prefill_worker == s.decode_worker) return s.decode_worker;
  return fmt::format("{} -> {}", s.prefill_worker, s.decode_worker);
}
}  // namespace

std::string DescribeAnswer(const AnswerStats& s) {
  // Every token but the first; the second one takes the first step. No rate of one token.
  const double later_ms = s.first_step_ms + s.decode_ms;
  const bool has_rate = s.completion_tokens > 1 && later_ms > 0;
  const std::string rate =
      has_rate ? fmt::format("{:.1f} tok/s | ",
                             static_cast<double>(s.completion_tokens - 1) * 1000.0 / later_ms)
               : "";
  return fmt::format(
      "{} tokens ({}) | TTFT {:.1f} ms (queue {:.1f}, prefill {:.1f}) | KV wait {:.1f} ms, first "
      "step "
      "{:.1f} ms | {}path={} {} | KV {} bytes over {}",
      s.completion_tokens, s.finish_reason, s.ttft_ms, s.queue_ms, s.prefill_ms, s.kv_wait_ms,
      s.first_step_ms, rate, s.path, WorkersOf(s), s.kv_bytes, s.transport);
}

std::string DescribeStages(const AnswerStats& s) {
  const std::pair<std::string_view, double> stages[] = {{"queue", s.queue_ms},
                                                        {"prefill", s.prefill_ms},
                                                        {"KV wait", s.kv_wait_ms},
                                                        {"first step", s.first_step_ms},
                                                        {"decode", s.decode_ms}};
  double sum_ms = 0;
  for (const auto& [name, ms] : stages) sum_ms += ms;
  std::string text = fmt::format(
      "request {}: path {}, {}, {} of {} prompt tokens cached, KV {} bytes over {}", s.request_id,
      s.path, WorkersOf(s), s.cached_tokens, s.prompt_tokens, s.kv_bytes, s.transport);
  constexpr double kBarLength = 40;
  for (const auto& [name, ms] : stages) {
    const auto length = sum_ms > 0 ? static_cast<size_t>(kBarLength * ms / sum_ms + 0.5) : 0;
    text += fmt::format("\n{:<10} {:>10.1f} ms{}{}", name, ms, length > 0 ? "  " : "",
                        std::string(length, '#'));
  }
  return text;
}

Status EventStreamParser::Push(std::string_view bytes,
                               const std::function<void(std::string_view)>& on_data) {
  buffer_.append(bytes);
  size_t begin = 0;
  size_t end = 0;
  while ((end = buffer_.find('\n', begin)) != std::string::npos) {
    std::string_view line(buffer_.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1;
    if (!line.starts_with("data:")) continue;
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    on_data(line);
  }
  buffer_.erase(0, begin);
  if (buffer_.size() <= kMaxLineBytes) return OkStatus();
  return ResourceExhausted("the server sent an event of more than {} bytes", kMaxLineBytes);
}

std::string ChatSession::RequestBody(const std::string& question) const {
  json messages = json::array();
  if (!options_.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", options_.system}});
  }
  for (const auto& [role, content] : messages_) {
    messages.push_back({{"role", role}, {"content", content}});
  }
  messages.push_back({{"role", "user"}, {"content", question}});
  json body = {{"messages", std::move(messages)},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"temperature", options_.temperature}};
  if (!options_.model.empty()) body["model"] = options_.model;
  if (options_.max_tokens > 0) body["max_completion_tokens"] = options_.max_tokens;
  if (options_.seed >= 0) body["seed"] = options_.seed;
  if (!options_.path.empty()) body["path"] = options_.path;
  if (!options_.json_schema.empty()) {
    json schema = json::parse(options_.json_schema, nullptr, /*allow_exceptions=*/false);
    body["response_format"] = {
        {"type", "json_schema"},
        {"json_schema", {{"name", "answer"}, {"strict", true}, {"schema", std::move(schema)}}}};
  }
  return TextOfJson(body);
}

HttpClientRequest ChatSession::RequestTo(std::string_view path) const {
  HttpClientRequest request;
  request.url = options_.url;
  request.url.target = BasePathOf(options_.url) + std::string(path);
  if (!options_.api_key.empty()) request.headers["Authorization"] = "Bearer " + options_.api_key;
  request.is_cancelled = options_.is_interrupted;
  return request;
}

StatusOr<std::vector<std::string>> ChatSession::ListModels() const {
  HttpClientRequest request = RequestTo("/v1/models");
  request.idle_timeout_ms = 5000;
  const StatusOr<HttpClientResponse> response = HttpCall(request);
  if (!response.ok()) return WithWayOut(response.status());
  if (response->status != 200) return ServerError(*response, response->body);
  const json answer = json::parse(response->body, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> ids;
  for (const json& row : Member(answer, "data")) {
    if (std::string id = TextOf(row, "id"); !id.empty()) ids.push_back(Printable(std::move(id)));
  }
  if (ids.empty()) return Unavailable("the server lists no models");
  return ids;
}

std::string ChatSession::WhyNoChats(int64_t limit_ms) const {
  HttpClientRequest request = RequestTo("/apply-template");
  request.method = "POST";
  request.headers["Content-Type"] = "application/json";
  json body = {{"messages", json::array({{{"role", "user"}, {"content", "Hello"}}})}};
  if (!options_.model.empty()) body["model"] = options_.model;
  request.body = TextOfJson(body);
  request.connect_timeout_ms = limit_ms;
  request.idle_timeout_ms = limit_ms;
  const StatusOr<HttpClientResponse> response = HttpCall(request);
  if (!response.ok() || response->status != 400) return "";
  const json answer = json::parse(response->body, nullptr, /*allow_exceptions=*/false);
  // Another field is wrong where a name of several models is missing.
  if (TextOf(Member(answer, "error"), "param") != "messages") return "";
  return Printable(ErrorText(answer));
}

void ChatSession::Count(const AnswerStats& stats) {
  ++totals_.num_answers;
  totals_.prompt_tokens += stats.prompt_tokens;
  totals_.cached_tokens += stats.cached_tokens;
  totals_.completion_tokens += stats.completion_tokens;
  totals_.kv_bytes += stats.kv_bytes;
  last_ = stats;
}

StatusOr<AnswerStats> ChatSession::Ask(const std::string& question,
                                       const std::function<void(std::string_view)>& on_text) {
  HttpClientRequest request = RequestTo("/v1/chat/completions");
  request.method = "POST";
  request.headers["Content-Type"] = "application/json";
  request.headers["Accept"] = "text/event-stream";
  request.body = RequestBody(question);
  // A long prompt ahead in the queue may keep the stream silent; the server's own deadline is 600
  // s.
  request.idle_timeout_ms = 610'000;

  AnswerReader reader(SystemClock().NowUs(), options_.on_thought, on_text);
  EventStreamParser events;
  int status = 0;
  std::string request_id;
  std::string error_body;
  Status parsed = OkStatus();
  const StatusOr<HttpClientResponse> response = HttpCall(
      request,
      [&](const HttpClientResponse& header) {
        status = header.status;
        const auto id = header.headers.find("x-request-id");
        if (id != header.headers.end()) request_id = Printable(id->second);
        return OkStatus();
      },
      [&](std::string_view chunk) {
        if (status != 200) {
          error_body.append(chunk.substr(0, kMaxErrorBytes - error_body.size()));
        } else {
          parsed = events.Push(chunk, [&reader](std::string_view data) { reader.OnData(data); });
        }
        return parsed.ok() && (!options_.wants_more || options_.wants_more());
      });
  if (!parsed.ok()) return parsed;
  const bool was_interrupted = options_.is_interrupted && options_.is_interrupted();
  if (absl::IsCancelled(response.status()) && was_interrupted && !reader.text().empty()) {
    messages_.push_back({"user", question});
    messages_.push_back({"assistant", reader.text()});
  }
  if (!response.ok()) return WithWayOut(response.status());
  if (response->status != 200) return ServerError(*response, error_body);
  BATON_ASSIGN_OR_RETURN(AnswerStats stats, reader.Finish());
  stats.request_id = std::move(request_id);
  messages_.push_back({"user", question});
  messages_.push_back({"assistant", reader.text()});
  Count(stats);
  return stats;
}

}  // namespace baton::cli
