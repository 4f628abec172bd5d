// Workload: the content of a load's requests. Pure: the same seed gives the same requests, whatever
// the server does and in whatever order they are built. One thread.
#ifndef BATON_LOADGEN_WORKLOAD_H_
#define BATON_LOADGEN_WORKLOAD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/loadgen/lengths.h"
#include "src/loadgen/stream_backend.h"
#include "src/loadgen/trace_reader.h"

namespace baton::loadgen {

// A prompt whose greedy answer is known.
struct GoldenPrompt {
  std::string prompt;
  std::string text;
  uint32_t max_tokens = 0;
};

// JSON lines {"prompt": "...", "max_tokens": n, "text": "..."}; InvalidArgument with the line
// number.
StatusOr<std::vector<GoldenPrompt>> ParseGolden(std::string_view text, std::string_view name);

// Where an answer leaves the golden one, with some of both texts; one line.
std::string DescribeWrongAnswer(const GoldenPrompt& golden, std::string_view answer);

// The shape of a load's requests.
struct WorkloadSpec {
  StreamApi api = StreamApi::kChat;
  LengthSpec input{.low = 128, .max = 128};  // tokens of a turn's new text
  LengthSpec output{.low = 64, .max = 64};
  uint32_t num_turns = 1;
  uint32_t shared_prefix = 0;  // tokens of a text that all sessions of a group begin with
  uint32_t prefix_groups = 1;
  // Prompts as token ids of [first, last], exact in length (kCompletions, one turn); else words.
  std::optional<std::pair<uint32_t, uint32_t>> token_ids;
  bool ignore_eos = true;
  uint64_t seed = 1;  // of the lengths
  // The seed of the words and ids, also of those in prefixes. A server that was asked the same text
  // before may answer it from its cache.
  uint64_t text_seed = 1;
  std::vector<TraceRow> trace;  // not empty: lengths and shared blocks come from here, row by row
  double trace_length = 1.0;    // the length scale that was applied to `trace`
  std::vector<GoldenPrompt> golden;
  uint64_t golden_every = 10;  // every so many-th session asks a golden prompt instead
};

// The turn of a session: what is asked and how long it is meant to be.
struct PlannedTurn {
  StreamRequest request;
  std::string new_text;     // the user's words of this turn, when more turns follow
  uint32_t want_input = 0;  // tokens, when the workload can promise them; else 0
  uint32_t want_output = 0;
  std::optional<uint32_t> golden_idx;
};

// Builds requests.
class Workload {
 public:
  explicit Workload(WorkloadSpec spec) : spec_(std::move(spec)) {}

  const WorkloadSpec& spec() const { return spec_; }
  // Turns of this session: golden prompts and trace rows have one.
  uint32_t NumTurns(uint64_t session_idx) const;
  // `history` holds what was asked and answered before in this session, oldest first.
  PlannedTurn Build(uint64_t session_idx, uint32_t turn_idx,
                    const std::vector<TurnText>& history) const;

 private:
  std::optional<uint32_t> GoldenOf(uint64_t session_idx) const;
  PlannedTurn BuildGolden(uint32_t golden_idx) const;
  std::vector<uint32_t> Ids(uint64_t session_idx, uint32_t num_input) const;
  std::string NewText(uint64_t session_idx, uint32_t turn_idx, uint32_t num_input) const;

  const WorkloadSpec spec_;
};

// `count` short words from a seed, about one token each.
std::string Words(uint64_t seed, uint32_t count);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_WORKLOAD_H_
