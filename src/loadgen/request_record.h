// RequestRecord: what one request of a load was meant to be, and what happened to it. Plain data;
// one thread.
#ifndef BATON_LOADGEN_REQUEST_RECORD_H_
#define BATON_LOADGEN_REQUEST_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton::loadgen {

// How a request ended.
enum class RequestOutcome : uint8_t {
  kUnfinished,     // the run was over first
  kOk,             // the answer came whole
  kConnectFailed,  // no connection
  kHttpError,      // a status other than 200, or a gRPC error
  kServerError,    // an error event inside the stream
  kMalformed,      // bytes that are no HTTP, no event stream or no JSON
  kBrokeOff,       // the connection ended before the answer did
  kTimedOut,
  kLocalError,  // this machine had no socket or port for it; says nothing about the server
};
inline constexpr size_t kNumOutcomes = 9;
// "ok", "connect_failed", ...
std::string_view OutcomeName(RequestOutcome outcome);

// The server's own account of one answer, as Baton sends it; milliseconds. Consecutive intervals
// that sum to the time from receipt to the last token.
struct StageTimes {
  double queue_ms = 0;
  double prefill_ms = 0;
  double kv_wait_ms = 0;
  double first_step_ms = 0;
  double decode_ms = 0;
};
inline constexpr size_t kNumStages = 5;
// "queue", "prefill", "kv_wait", "first_step", "decode".
std::string_view StageName(size_t stage);
double StageMs(const StageTimes& stages, size_t stage);

// The facts that the last chunks of an answer gave.
struct AnswerFacts {
  std::optional<uint32_t> prompt_tokens;
  std::optional<uint32_t> completion_tokens;
  std::optional<uint32_t> cached_tokens;
  std::optional<StageTimes> stages;
};

// One request. Times in microseconds from the start of the run.
struct RequestRecord {
  uint64_t session_idx = 0;
  uint32_t turn_idx = 0;
  std::optional<uint32_t> golden_idx;  // row of the golden file that it asked
  uint32_t want_input = 0;             // tokens the workload declares; 0 = not declared
  uint32_t want_output = 0;
  int64_t intended_us = 0;
  int64_t sent_us = -1;           // first byte handed to the system; -1 = never
  std::vector<int64_t> token_us;  // arrival of each piece of text, ascending
  int64_t end_us = -1;
  RequestOutcome outcome = RequestOutcome::kUnfinished;
  std::string error;  // "" when ok
  bool golden_wrong = false;
  AnswerFacts facts;

  bool ok() const { return outcome == RequestOutcome::kOk; }
  // The server's count, or the pieces seen when it gives none.
  uint64_t NumOutput() const;
};

// The words of measuring, in microseconds; nothing where the record cannot tell.
std::optional<double> TtftUs(const RequestRecord& record);        // from the intended start
std::optional<double> TtftSentUs(const RequestRecord& record);    // from the actual send
std::optional<double> TtftServerUs(const RequestRecord& record);  // at the server
std::optional<double> SecondTokenUs(const RequestRecord& record);
std::optional<double> TpotUs(const RequestRecord& record);  // (last - first) / (n - 1)
std::optional<double> E2eUs(const RequestRecord& record);   // from the intended start
// Gaps between consecutive tokens.
std::vector<double> ItlUs(const RequestRecord& record);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_REQUEST_RECORD_H_
