#include "src/cli/chat_session.h"

#include "nlohmann/json.hpp"

#include "src/base/clock.h"

namespace baton {
namespace {

using nlohmann::json;

// Collects one streamed answer.
class AnswerReader {
 public:
  AnswerReader(int64_t sent_us, const std::function<void(std::string_view)>& on_text)
      : sent_us_(sent_us), on_text_(on_text) {}

  void OnData(std::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const json event = json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) {
      error_ = DataLoss("the server sent an event that is no JSON object");
      return;
    }
    if (event.contains("error")) {
      error_ = Unavailable("{}", event["error"].value("message", "the server failed"));
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
    if (!event.contains("choices") || !event["choices"].is_array()) return;
    for (const json& choice : event["choices"]) {
      const json delta = choice.value("delta", json::object());
      if (delta.contains("content") && delta["content"].is_string()) {
        const std::string piece = delta["content"].get<std::string>();
        if (piece.empty()) continue;
        if (text_.empty()) {
          stats_.ttft_ms = static_cast<double>(SystemClock().NowUs() - sent_us_) / 1000.0;
        }
        text_ += piece;
        on_text_(piece);
      }
      if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) {
        stats_.finish_reason = choice["finish_reason"].get<std::string>();
      }
    }
  }

  void TakeStats(const json& event) {
    if (event.contains("usage") && event["usage"].is_object()) {
      stats_.prompt_tokens = event["usage"].value("prompt_tokens", int64_t{0});
      stats_.completion_tokens = event["usage"].value("completion_tokens", int64_t{0});
    }
    if (!event.contains("timings") || !event["timings"].is_object()) return;
    const json& timings = event["timings"];
    stats_.path = timings.value("path", "");
    stats_.prefill_worker = timings.value("prefill_worker", "");
    stats_.decode_worker = timings.value("decode_worker", "");
    stats_.transport = timings.value("transport", "");
    stats_.kv_bytes = timings.value("kv_bytes", int64_t{0});
    stats_.queue_ms = timings.value("queue_ms", 0.0);
    stats_.prefill_ms = timings.value("prefill_ms", 0.0);
    stats_.kv_wait_ms = timings.value("kv_wait_ms", 0.0);
    stats_.first_step_ms = timings.value("first_step_ms", 0.0);
    stats_.decode_ms = timings.value("decode_ms", 0.0);
  }

  int64_t sent_us_;
  const std::function<void(std::string_view)>& on_text_;
  std::string text_;
  AnswerStats stats_;
  Status error_ = OkStatus();
  bool done_ = false;
};

Status ServerError(const HttpClientResponse& response, const std::string& body) {
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string message = body;
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_object()) {
    message = parsed["error"].value("message", body);
  }
  return Unavailable("the server answered {}: {}", response.status, message);
}

}  // namespace

std::string DescribeAnswer(const AnswerStats& s) {
  const double rate =
      s.decode_ms > 0 ? static_cast<double>(s.completion_tokens - 1) * 1000.0 / s.decode_ms : 0.0;
  const std::string workers = s.prefill_worker == s.decode_worker
                                  ? s.decode_worker
                                  : fmt::format("{} -> {}", s.prefill_worker, s.decode_worker);
  return fmt::format(
      "{} tokens ({}) | TTFT {:.1f} ms (queue {:.1f}, prefill {:.1f}) | KV wait {:.1f} ms, first "
      "step "
      "{:.1f} ms | {:.1f} tok/s | path={} {} | KV {} bytes over {}",
      s.completion_tokens, s.finish_reason, s.ttft_ms, s.queue_ms, s.prefill_ms, s.kv_wait_ms,
      s.first_step_ms, rate, s.path, workers, s.kv_bytes, s.transport);
}

void EventStreamParser::Push(std::string_view bytes,
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
  if (options_.max_tokens > 0) body["max_completion_tokens"] = options_.max_tokens;
  if (options_.seed >= 0) body["seed"] = options_.seed;
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

StatusOr<AnswerStats> ChatSession::Ask(const std::string& question,
                                       const std::function<void(std::string_view)>& on_text) {
  HttpClientRequest request;
  request.method = "POST";
  request.url = options_.url;
  request.url.target = "/v1/chat/completions";
  request.headers = {{"Content-Type", "application/json"}, {"Accept", "text/event-stream"}};
  request.body = RequestBody(question);
  // A long prompt ahead in the queue may keep the stream silent; the server's own deadline is 600
  // s.
  request.idle_timeout_ms = 610'000;

  AnswerReader reader(SystemClock().NowUs(), on_text);
  EventStreamParser events;
  int status = 0;
  std::string error_body;
  const StatusOr<HttpClientResponse> response = HttpCall(
      request,
      [&status](const HttpClientResponse& header) {
        status = header.status;
        return OkStatus();
      },
      [&](std::string_view chunk) {
        if (status != 200) {
          error_body.append(chunk);
        } else {
          events.Push(chunk, [&reader](std::string_view data) { reader.OnData(data); });
        }
        return true;
      });
  if (!response.ok()) return response.status();
  if (response->status != 200) return ServerError(*response, error_body);
  BATON_ASSIGN_OR_RETURN(AnswerStats stats, reader.Finish());
  messages_.emplace_back("user", question);
  messages_.emplace_back("assistant", reader.text());
  return stats;
}

}  // namespace baton
