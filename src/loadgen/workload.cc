#include "src/loadgen/workload.h"

#include <algorithm>

#include "nlohmann/json.hpp"

#include "src/base/quoted_text.h"

namespace baton::loadgen {
namespace {

using nlohmann::json;

// Independent streams of one seed.
enum class Stream : uint64_t { kLengths = 1, kText = 2, kPrefix = 3, kBlock = 4 };

uint64_t Mix(uint64_t seed, Stream stream, uint64_t a, uint64_t b) {
  RandomDraws draws(seed ^ (static_cast<uint64_t>(stream) << 56));
  RandomDraws inner(draws.NextU64() ^ a);
  return RandomDraws(inner.NextU64() ^ b).NextU64();
}

void AppendIds(uint64_t seed, uint32_t count, std::pair<uint32_t, uint32_t> range,
               std::vector<uint32_t>& ids) {
  RandomDraws draws(seed);
  for (uint32_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<uint32_t>(draws.Between(range.first, range.second)));
  }
}

// Tokens of block `index` of a trace row: full blocks, then the rest.
uint32_t BlockTokens(const TraceRow& row, size_t index, double scale) {
  const uint32_t full =
      std::max<uint32_t>(1, static_cast<uint32_t>(kTraceBlockTokens * scale + 0.5));
  const uint64_t before = uint64_t{full} * index;
  if (before >= row.num_input) return 0;
  const uint64_t left = row.num_input - before;
  // The last block takes what rounding left over.
  const bool last = index + 1 == row.block_ids.size();
  return static_cast<uint32_t>(last ? left : std::min<uint64_t>(full, left));
}

}  // namespace

std::string Words(uint64_t seed, uint32_t count) {
  // One token each, with the space before it, in the vocabularies that were tried (SmolLM2, GPT-2).
  static constexpr std::string_view kWords[] = {
      " river",  " stone",  " winter",  " engine", " paper", " garden", " music", " window",
      " letter", " silver", " morning", " forest", " house", " water",  " light", " road",
      " hand",   " table",  " night",   " train",  " book",  " field",  " glass", " king",
      " city",   " tree",   " horse",   " ship",   " wind",  " fire",   " snow",  " song"};
  RandomDraws draws(seed);
  std::string text;
  text.reserve(size_t{7} * count);
  for (uint32_t i = 0; i < count; ++i) text += kWords[draws.NextU64() >> 59];
  return text;
}

StatusOr<std::vector<GoldenPrompt>> ParseGolden(std::string_view text, std::string_view name) {
  std::vector<GoldenPrompt> prompts;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    if (line.empty() && text.empty()) break;
    const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto is = [&row](const char* key, bool (json::*test)() const noexcept) {
      return row.is_object() && row.contains(key) && (row[key].*test)();
    };
    if (!is("prompt", &json::is_string) || !is("text", &json::is_string) ||
        !is("max_tokens", &json::is_number_unsigned) || row["max_tokens"] == 0 ||
        row["max_tokens"] > kMaxLength) {
      return InvalidArgument(
          "{} line {}: it is no object with prompt (text), max_tokens (1 to {}) and text (text)",
          name, line_number, kMaxLength);
    }
    prompts.push_back({row["prompt"], row["text"], row["max_tokens"].get<uint32_t>()});
  }
  if (prompts.empty()) return InvalidArgument("{} has no golden prompt", name);
  return prompts;
}

std::string DescribeWrongAnswer(const GoldenPrompt& golden, std::string_view answer) {
  constexpr size_t kShownBefore = 24;  // of the text that both have
  const std::string_view wanted = golden.text;
  const size_t most = std::min(wanted.size(), answer.size());
  size_t same = 0;
  while (same < most && wanted[same] == answer[same]) ++same;
  const size_t begin = same - std::min(same, kShownBefore);
  return fmt::format("the answer to {} differs at byte {}: it is {}, golden is {}",
                     QuotedForMessage(golden.prompt), same, QuotedForMessage(answer.substr(begin)),
                     QuotedForMessage(wanted.substr(begin)));
}

std::optional<uint32_t> Workload::GoldenOf(uint64_t session_idx) const {
  if (spec_.golden.empty() || session_idx % spec_.golden_every != spec_.golden_every - 1) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(session_idx / spec_.golden_every % spec_.golden.size());
}

uint32_t Workload::NumTurns(uint64_t session_idx) const {
  return GoldenOf(session_idx) || !spec_.trace.empty() ? 1 : spec_.num_turns;
}

PlannedTurn Workload::BuildGolden(uint32_t golden_idx) const {
  const GoldenPrompt& golden = spec_.golden[golden_idx];
  PlannedTurn turn;
  turn.golden_idx = golden_idx;
  turn.request.api = spec_.api;
  turn.request.ignore_eos = false;
  turn.request.max_tokens = golden.max_tokens;
  if (spec_.api == StreamApi::kChat) {
    turn.request.messages.push_back({"user", golden.prompt});
  } else {
    turn.request.prompt = golden.prompt;
  }
  return turn;
}

std::vector<uint32_t> Workload::Ids(uint64_t session_idx, uint32_t num_input) const {
  std::vector<uint32_t> ids;
  if (!spec_.trace.empty()) {
    const TraceRow& row = spec_.trace[session_idx % spec_.trace.size()];
    for (size_t i = 0; i < row.block_ids.size(); ++i) {
      AppendIds(Mix(spec_.text_seed, Stream::kBlock, row.block_ids[i], i),
                BlockTokens(row, i, spec_.trace_length), *spec_.token_ids, ids);
    }
  } else if (spec_.shared_prefix > 0) {
    AppendIds(Mix(spec_.text_seed, Stream::kPrefix, session_idx % spec_.prefix_groups, 0),
              spec_.shared_prefix, *spec_.token_ids, ids);
    num_input += spec_.shared_prefix;
  }
  AppendIds(Mix(spec_.text_seed, Stream::kText, session_idx, 0),
            num_input - static_cast<uint32_t>(ids.size()), *spec_.token_ids, ids);
  return ids;
}

std::string Workload::NewText(uint64_t session_idx, uint32_t turn_idx, uint32_t num_input) const {
  if (!spec_.trace.empty()) {
    const TraceRow& row = spec_.trace[session_idx % spec_.trace.size()];
    std::string text;
    for (size_t i = 0; i < row.block_ids.size(); ++i) {
      text += Words(Mix(spec_.text_seed, Stream::kBlock, row.block_ids[i], i),
                    BlockTokens(row, i, spec_.trace_length));
    }
    if (!text.empty()) return text;
  }
  return Words(Mix(spec_.text_seed, Stream::kText, session_idx, turn_idx), num_input);
}

PlannedTurn Workload::Build(uint64_t session_idx, uint32_t turn_idx,
                            const std::vector<TurnText>& history) const {
  if (const std::optional<uint32_t> golden = GoldenOf(session_idx)) return BuildGolden(*golden);
  RandomDraws draws(Mix(spec_.seed, Stream::kLengths, session_idx, turn_idx));
  uint32_t num_input = spec_.input.Draw(draws);
  PlannedTurn turn;
  turn.want_output = spec_.output.Draw(draws);
  if (!spec_.trace.empty()) {
    const TraceRow& row = spec_.trace[session_idx % spec_.trace.size()];
    num_input = row.num_input;
    turn.want_output = row.num_output;
  }
  turn.request.api = spec_.api;
  turn.request.ignore_eos = spec_.ignore_eos;
  turn.request.max_tokens = turn.want_output;
  if (spec_.token_ids) {
    turn.request.token_ids = Ids(session_idx, num_input);
    turn.want_input = static_cast<uint32_t>(turn.request.token_ids.size());
    return turn;
  }
  const uint64_t group = session_idx % spec_.prefix_groups;
  const std::string prefix =
      Words(Mix(spec_.text_seed, Stream::kPrefix, group, 0), spec_.shared_prefix);
  const std::string text = NewText(session_idx, turn_idx, num_input);
  if (turn_idx + 1 < NumTurns(session_idx)) turn.new_text = text;
  if (spec_.api == StreamApi::kChat) {
    if (!prefix.empty()) turn.request.messages.push_back({"system", prefix});
    for (const TurnText& past : history) turn.request.messages.push_back(past);
    turn.request.messages.push_back({"user", text});
    return turn;
  }
  turn.request.prompt = prefix;
  for (const TurnText& past : history) turn.request.prompt += past.content;
  turn.request.prompt += text;
  return turn;
}

}  // namespace baton::loadgen
