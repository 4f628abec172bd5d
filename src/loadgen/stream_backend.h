// The seam between a load and a protocol: requests go out, pieces of text come back.
#ifndef BATON_LOADGEN_STREAM_BACKEND_H_
#define BATON_LOADGEN_STREAM_BACKEND_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/loadgen/request_record.h"

namespace baton::loadgen {

// Which method of the API is asked.
enum class StreamApi : uint8_t { kChat, kCompletions };

// One message of a conversation.
struct TurnText {
  std::string role;
  std::string content;
};

// One greedy, streamed request; messages with kChat, prompt or token_ids with kCompletions.
struct StreamRequest {
  StreamApi api = StreamApi::kChat;
  std::vector<TurnText> messages;
  std::string prompt;
  std::vector<uint32_t> token_ids;
  uint32_t max_tokens = 1;
  bool ignore_eos = true;  // the answer has exactly max_tokens tokens
};

// How a stream ended.
struct StreamEnd {
  int64_t at_us = 0;
  RequestOutcome outcome = RequestOutcome::kOk;
  std::string error;
  AnswerFacts facts;
};

// Hears what happens to the streams of a backend, from inside Start and Poll. Times are of
// SystemClock. It calls no method of the backend from inside.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  // The first byte was handed to the system.
  virtual void OnSent(uint64_t id, int64_t at_us) = 0;
  // A piece of text that arrived at this machine at that time.
  virtual void OnText(uint64_t id, int64_t at_us, std::string_view text) = 0;
  // How long bytes had been waiting for this client when it read them; once for each read.
  virtual void OnLag(int64_t lag_us) = 0;
  // Exactly once for each started stream that is not cancelled; nothing of it comes afterwards.
  virtual void OnEnd(uint64_t id, StreamEnd end) = 0;
};

// Runs many streams in one thread. Ids are the caller's and are used once.
class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  // The bytes that Start sends; made ahead of time, because a long prompt takes a while. `name` is
  // the request's name at the server.
  virtual std::string Encode(std::string_view name, const StreamRequest& request) const = 0;
  // Begins a stream and returns at once; the sink may hear OnSent, nothing else.
  virtual void Start(uint64_t id, std::string encoded, StreamSink& sink) = 0;
  // Ends a stream without OnEnd; unknown ids are ignored.
  virtual void Cancel(uint64_t id) = 0;
  // Waits for events until `until_us` at the latest (a time in the past: does not wait), passes at
  // least those that are ready to the sink, and returns.
  virtual void Poll(int64_t until_us, StreamSink& sink) = 0;
};

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_STREAM_BACKEND_H_
