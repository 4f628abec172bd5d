// The bytes that the load client reads from a server: HTTP answers, server-sent events, the chunks
// in them.
#include <string>
#include <vector>

#include "src/loadgen/http_reply.h"
#include "src/loadgen/sse_parser.h"
#include "src/loadgen/stream_answer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using namespace loadgen;  // NOLINT(google-build-using-namespace)

namespace {

std::string TextOfStatus(const Status& status) {
  return status.ok() ? "ok" : std::string(absl::StatusCodeToString(status.code()));
}

// Everything that one reader made of a stream, as one text to compare.
std::string RunEvents(const std::vector<std::string_view>& pieces) {
  SseParser parser;
  std::string seen;
  for (const std::string_view piece : pieces) {
    const Status status = parser.Push(
        piece, [&seen](std::string_view event) { seen += "[" + std::string(event) + "]"; });
    if (!status.ok()) {
      BATON_CHECK(!status.message().empty(), "a refusal without a word");
      return seen + TextOfStatus(status);
    }
  }
  return seen;
}

std::string RunAnswer(const std::vector<std::string_view>& pieces) {
  StreamAnswer answer;
  answer.Begin(200, "text/event-stream");
  std::string text;
  Status status;
  for (const std::string_view piece : pieces) {
    status = answer.Push(piece, [&text](std::string_view part) { text += part; });
    if (!status.ok() || answer.done()) break;
  }
  const StreamEnd end = answer.Finish(OkStatus());
  BATON_CHECK(end.outcome == RequestOutcome::kOk || !end.error.empty(), "a failure without a word");
  BATON_CHECK(status.ok() || end.outcome != RequestOutcome::kOk, "a broken stream counts as good");
  return text + "|" + TextOfStatus(status) + (answer.done() ? "|done|" : "|open|") + end.error;
}

std::string RunReply(const std::vector<std::string_view>& pieces) {
  HttpReply reply;
  std::string body;
  size_t used = 0;
  const auto on_body = [&body](std::string_view part) {
    body += part;
    return OkStatus();
  };
  for (const std::string_view piece : pieces) {
    const auto taken = reply.Push(piece, on_body);
    if (!taken.ok()) {
      BATON_CHECK(!taken.status().message().empty(), "a refusal without a word");
      return body + "|" + TextOfStatus(taken.status());
    }
    BATON_CHECK(*taken == piece.size() || reply.done(), "bytes were left in the middle");
    used += *taken;
    if (reply.done()) break;
  }
  return body + "|" + std::to_string(reply.status()) + reply.content_type() +
         (reply.keep_alive() ? "k" : "c") + std::to_string(used) + TextOfStatus(reply.PushEnd());
}

template <typename Run>
void CheckCuts(std::string_view bytes, size_t max_piece, const Run& run) {
  const std::string whole = run(std::vector<std::string_view>{bytes});
  const std::string pieces = run(CutPieces(bytes, max_piece));
  BATON_CHECK(whole == pieces, "in one piece: {}, in many: {}", whole, pieces);
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(stream) {
  using namespace baton::fuzz;  // NOLINT: the whole target
  ByteSource source(input);
  const size_t max_piece = 1 + source.Below(32);
  const std::string_view bytes = TextOf(source.rest());
  CheckCuts(bytes, max_piece, RunEvents);
  CheckCuts(bytes, max_piece, RunAnswer);
  CheckCuts(bytes, max_piece, RunReply);
}
