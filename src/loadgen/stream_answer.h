// One streamed answer of an OpenAI-compatible server, from its body's bytes to text and facts.
// Pure; one thread per object.
#ifndef BATON_LOADGEN_STREAM_ANSWER_H_
#define BATON_LOADGEN_STREAM_ANSWER_H_

#include <functional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/loadgen/request_record.h"
#include "src/loadgen/sse_parser.h"
#include "src/loadgen/stream_backend.h"

namespace baton::loadgen {

// The content of one event of a stream.
struct ChunkEvent {
  std::string text;  // of the first choice; reasoning and content alike
  bool failed = false;
  std::string error;  // with `failed`: the server's message
};

// Reads one `data` payload into `event`, and usage and timings into `facts` (what it does not
// mention stays). False when it is no JSON object.
bool ReadChunkEvent(std::string_view payload, ChunkEvent& event, AnswerFacts& facts);

// Collects an answer: status and type first, then the body in any cut, then the end.
class StreamAnswer {
 public:
  using OnText = std::function<void(std::string_view)>;

  // Once, when the header is complete.
  void Begin(int http_status, std::string_view content_type);
  // DataLoss when the bytes are no event stream of JSON objects; nothing more is pushed then.
  Status Push(std::string_view bytes, const OnText& on_text);
  // The stream said that it is complete; what follows does not matter.
  bool done() const { return done_; }
  // The account of the answer when the body is over; `transport` is how the connection ended.
  // at_us stays 0.
  StreamEnd Finish(const Status& transport) const;

 private:
  Status TakeEvent(std::string_view payload, const OnText& on_text);

  int http_status_ = 0;
  bool event_stream_ = false;
  bool done_ = false;
  bool failed_ = false;     // an error event came
  std::string error_;       // its message
  std::string other_body_;  // the start of a body that is no event stream
  Status malformed_ = OkStatus();
  SseParser parser_;
  AnswerFacts facts_;
};

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_STREAM_ANSWER_H_
