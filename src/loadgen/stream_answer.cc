#include "src/loadgen/stream_answer.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "nlohmann/json.hpp"

namespace baton::loadgen {
namespace {

using nlohmann::json;

// As much of an answer that is no stream as an error message needs.
constexpr size_t kMaxOtherBytes = 2000;

// The keys that matter, wherever they stand.
enum class Key : uint8_t {
  kOther,
  kChoices,
  kDelta,
  kContent,
  kReasoning,
  kText,
  kUsage,
  kPromptTokens,
  kCompletionTokens,
  kPromptDetails,
  kCachedTokens,
  kTimings,
  kQueueMs,
  kPrefillMs,
  kKvWaitMs,
  kFirstStepMs,
  kDecodeMs,
  kError,
  kMessage,
};

Key KeyOf(std::string_view name) {
  static constexpr std::pair<std::string_view, Key> kKeys[] = {
      {"choices", Key::kChoices},
      {"delta", Key::kDelta},
      {"content", Key::kContent},
      {"reasoning_content", Key::kReasoning},
      {"reasoning", Key::kReasoning},  // vLLM's name
      {"text", Key::kText},
      {"usage", Key::kUsage},
      {"prompt_tokens", Key::kPromptTokens},
      {"completion_tokens", Key::kCompletionTokens},
      {"prompt_tokens_details", Key::kPromptDetails},
      {"cached_tokens", Key::kCachedTokens},
      {"timings", Key::kTimings},
      {"queue_ms", Key::kQueueMs},
      {"prefill_ms", Key::kPrefillMs},
      {"kv_wait_ms", Key::kKvWaitMs},
      {"first_step_ms", Key::kFirstStepMs},
      {"decode_ms", Key::kDecodeMs},
      {"error", Key::kError},
      {"message", Key::kMessage},
  };
  for (const auto& [text, key] : kKeys) {
    if (text == name) return key;
  }
  return Key::kOther;
}

// Takes the few members that matter as the parser passes them: at tens of thousands of events a
// second a tree of each would be half of this client's work.
class EventSax {
 public:
  EventSax(ChunkEvent& event, AnswerFacts& facts) : event_(event), facts_(facts) {}

  bool is_object() const { return is_object_; }

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(json::number_integer_t value) { return Number(static_cast<double>(value)); }
  bool number_unsigned(json::number_unsigned_t value) { return Number(static_cast<double>(value)); }
  bool number_float(json::number_float_t value, const std::string&) { return Number(value); }
  bool binary(json::binary_t&) { return true; }
  bool start_array(size_t) { return true; }
  bool end_array() { return true; }
  bool parse_error(size_t, const std::string&, const json::exception&) { return false; }

  bool start_object(size_t) {
    if (depth_ == 0) is_object_ = true;
    ++depth_;
    Set(Key::kOther);
    if (depth_ == 2 && path_[1] == Key::kError) event_.failed = true;
    return true;
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool key(const std::string& name) {
    Set(KeyOf(name));
    return true;
  }

  bool string(const std::string& value) {
    if (At({Key::kChoices, Key::kDelta, Key::kContent}) || At({Key::kChoices, Key::kText})) {
      event_.text += value;
    } else if (At({Key::kChoices, Key::kDelta, Key::kReasoning})) {
      if (!has_thought_) event_.text += value;  // some servers send it under both names
      has_thought_ = !value.empty();
    } else if (At({Key::kError})) {
      event_.failed = true;
      event_.error = value;
    } else if (At({Key::kError, Key::kMessage})) {
      event_.error = value;
    }
    return true;
  }

 private:
  static constexpr size_t kMaxDepth = 8;

  // Keys of the objects around the current value are path_[1..depth_]; arrays do not count.
  void Set(Key key) {
    if (depth_ < kMaxDepth) path_[depth_] = key;
  }
  bool At(std::initializer_list<Key> keys) const {
    return depth_ == keys.size() && depth_ < kMaxDepth &&
           std::equal(keys.begin(), keys.end(), path_.begin() + 1);
  }

  bool Number(double value) {
    const uint32_t count =
        value >= 0 && value <= UINT32_MAX ? static_cast<uint32_t>(value) : uint32_t{0};
    if (At({Key::kUsage, Key::kPromptTokens})) facts_.prompt_tokens = count;
    if (At({Key::kUsage, Key::kCompletionTokens})) facts_.completion_tokens = count;
    if (At({Key::kUsage, Key::kPromptDetails, Key::kCachedTokens})) facts_.cached_tokens = count;
    if (At({Key::kTimings, Key::kCachedTokens})) facts_.cached_tokens = count;
    if (depth_ == 2 && path_[1] == Key::kTimings) TakeStage(path_[2], value);
    return true;
  }

  void TakeStage(Key key, double value) {
    static constexpr std::pair<Key, double StageTimes::*> kStages[] = {
        {Key::kQueueMs, &StageTimes::queue_ms},
        {Key::kPrefillMs, &StageTimes::prefill_ms},
        {Key::kKvWaitMs, &StageTimes::kv_wait_ms},
        {Key::kDecodeMs, &StageTimes::decode_ms},
        {Key::kFirstStepMs, &StageTimes::first_step_ms}};
    for (const auto& [name, member] : kStages) {
      if (name != key) continue;
      if (!facts_.stages) facts_.stages.emplace();
      (*facts_.stages).*member = value;
    }
  }

  ChunkEvent& event_;
  AnswerFacts& facts_;
  size_t depth_ = 0;
  bool is_object_ = false;
  bool has_thought_ = false;
  std::array<Key, kMaxDepth> path_{};
};

// The message of {"error": ...}, or the text itself.
std::string ErrorText(const std::string& body) {
  ChunkEvent event;
  AnswerFacts facts;
  if (ReadChunkEvent(body, event, facts) && !event.error.empty()) return event.error;
  return body.substr(0, 200);
}

}  // namespace

bool ReadChunkEvent(std::string_view payload, ChunkEvent& event, AnswerFacts& facts) {
  EventSax sax(event, facts);
  return json::sax_parse(payload.begin(), payload.end(), &sax) && sax.is_object();
}

void StreamAnswer::Begin(int http_status, std::string_view content_type) {
  http_status_ = http_status;
  event_stream_ = http_status == 200 && content_type == "text/event-stream";
}

Status StreamAnswer::Push(std::string_view bytes, const OnText& on_text) {
  if (!event_stream_) {
    other_body_.append(
        bytes.substr(0, kMaxOtherBytes - std::min(kMaxOtherBytes, other_body_.size())));
    return OkStatus();
  }
  if (done_) return OkStatus();
  Status taken = OkStatus();
  malformed_ = parser_.Push(bytes, [&](std::string_view payload) {
    if (taken.ok() && !done_ && !failed_) taken = TakeEvent(payload, on_text);
  });
  // The first error counts: an event's error came before the parser's.
  if (!taken.ok()) malformed_ = taken;
  // Bytes after the end do not belong to this answer, whether or not they came in the same piece.
  if (done_) malformed_ = OkStatus();
  return malformed_;
}

Status StreamAnswer::TakeEvent(std::string_view payload, const OnText& on_text) {
  if (payload == "[DONE]") {
    done_ = true;
    return OkStatus();
  }
  ChunkEvent event;
  if (!ReadChunkEvent(payload, event, facts_)) {
    return DataLoss("an event is no JSON object: '{}'", payload.substr(0, 80));
  }
  if (event.failed) {
    failed_ = true;
    error_ = event.error.empty() ? "the server sent an error event" : event.error;
  } else if (!event.text.empty()) {
    on_text(event.text);
  }
  return OkStatus();
}

StreamEnd StreamAnswer::Finish(const Status& transport) const {
  StreamEnd end;
  end.facts = facts_;
  const auto fail = [&end](RequestOutcome outcome, std::string error) {
    end.outcome = outcome;
    end.error = std::move(error);
    return end;
  };
  const std::string transport_text(transport.message().data(), transport.message().size());
  if (!malformed_.ok()) {
    return fail(RequestOutcome::kMalformed,
                std::string(malformed_.message().data(), malformed_.message().size()));
  }
  if (http_status_ != 0 && http_status_ != 200) {
    return fail(RequestOutcome::kHttpError,
                fmt::format("status {}: {}", http_status_, ErrorText(other_body_)));
  }
  if (failed_) return fail(RequestOutcome::kServerError, error_);
  if (done_) return end;
  if (!transport.ok()) return fail(RequestOutcome::kBrokeOff, transport_text);
  if (!event_stream_) {
    return fail(RequestOutcome::kMalformed,
                "the answer is no event stream: " + ErrorText(other_body_));
  }
  return fail(RequestOutcome::kBrokeOff, "the stream ended without [DONE]");
}

}  // namespace baton::loadgen
