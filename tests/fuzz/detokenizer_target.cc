// Text in pieces: tokens to text, text through the stop matcher and the splitter of thoughts.
// Joined pieces equal the whole, whatever the tokens and wherever the cuts.
#include <memory>
#include <string>
#include <vector>

#include "src/base/limits.h"
#include "src/text/detokenizer.h"
#include "src/text/reasoning_splitter.h"
#include "src/text/stop_matcher.h"
#include "src/text/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/router/test_model.h"

namespace baton::fuzz {

using limits::kMaxStopBytes;

using namespace text;  // NOLINT(google-build-using-namespace)
using router::TestModel;

namespace {

// A SentencePiece-style vocabulary: byte tokens, a word with its leading space, a control token.
const Tokenizer& SpmTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    TokenizerSpec spec;
    spec.model = "llama";
    const auto add = [&spec](std::string text, TokenType type) {
      spec.tokens.push_back(std::move(text));
      spec.token_types.push_back(static_cast<int32_t>(type));
      spec.scores.push_back(-static_cast<float>(spec.tokens.size()));
    };
    add("<unk>", TokenType::kUnknown);
    add("<s>", TokenType::kControl);
    add("</s>", TokenType::kControl);
    for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), TokenType::kByte);
    for (const char* text : {"\xe2\x96\x81", "a", "b",
                             "\xe2\x96\x81"
                             "a",
                             "ab", "\xc3\xa9"}) {
      add(text, TokenType::kNormal);
    }
    spec.bos_id = 1;
    spec.eos_id = 2;
    auto made = Tokenizer::Create(spec);
    BATON_CHECK(made.ok(), "{}", made.status().ToString());
    return *std::move(made);
  }();
  return *tokenizer;
}

// Valid ids, single bytes among them, and now and then one outside the vocabulary.
std::vector<TokenId> DrawTokens(ByteSource* source, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids(source->U8());
  for (TokenId& id : ids) {
    const uint32_t drawn = source->Draw<uint16_t>();
    id = drawn >= 0xff00 ? static_cast<TokenId>(source->U32())
                         : static_cast<TokenId>(drawn % tokenizer.vocab_size());
  }
  return ids;
}

void CheckTokens(ByteSource* source) {
  const Tokenizer& tokenizer = source->Flag() ? SpmTokenizer() : *TestModel()->tokenizer;
  const bool skip_special = source->Flag();
  const std::vector<TokenId> ids = DrawTokens(source, tokenizer);
  std::vector<TokenId> valid;
  Detokenizer detokenizer(&tokenizer, skip_special, /*begins_text=*/true);
  std::string joined;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.Push(id);
    BATON_CHECK(ValidUtf8Prefix(piece) == piece.size(), "half a character from token {}", id);
    joined += piece;
    if (tokenizer.IsValid(id)) valid.push_back(id);
  }
  joined += detokenizer.Flush();
  const auto whole = tokenizer.Decode(valid, skip_special);
  BATON_CHECK(whole.ok() && *whole == joined, "{} tokens: {} bytes in pieces, {} whole", ids.size(),
              joined.size(), whole.ok() ? whole->size() : 0);
  BATON_CHECK(valid.size() == ids.size() || !tokenizer.Decode(ids, skip_special).ok(),
              "an id outside the vocabulary has a text");
  BATON_CHECK(detokenizer.Flush().empty(), "something is held back behind the end");
}

// Checks that `run` makes the same of the text in one piece and in pieces of a few bytes.
template <typename Make>
void CheckCuts(std::string_view text, size_t max_piece, const Make& run) {
  const std::string whole = run(std::vector<std::string_view>{text});
  const std::string pieces = run(CutPieces(text, max_piece));
  BATON_CHECK(whole == pieces, "{} bytes in one piece, {} in many", whole.size(), pieces.size());
}

std::string RunUtf8(const std::vector<std::string_view>& pieces) {
  Utf8Stream stream;
  std::string out;
  for (const std::string_view piece : pieces) {
    stream.Push(piece, &out);
    BATON_CHECK(ValidUtf8Prefix(out) == out.size(), "half a character");
  }
  stream.Finish(&out);
  BATON_CHECK(ValidUtf8Prefix(out) == out.size(), "half a character at the end");
  return out;
}

std::string RunSplitter(bool starts_inside, const std::vector<std::string_view>& pieces) {
  ReasoningSplitter splitter(starts_inside);
  AnswerParts all;
  const auto take = [&all](const AnswerParts& parts) {
    all.reasoning += parts.reasoning;
    all.content += parts.content;
  };
  for (const std::string_view piece : pieces) take(splitter.Push(piece));
  take(splitter.Flush());
  return all.reasoning + '\0' + all.content + (splitter.opened() ? "1" : "0");
}

std::string RunMatcher(StopMatcher matcher, const std::vector<std::string_view>& pieces) {
  std::string out;
  for (const std::string_view piece : pieces) {
    if (matcher.stopped()) break;
    out += matcher.Push(piece);
    BATON_CHECK(matcher.num_held_bytes() <= kMaxStopBytes, "{} bytes are held back",
                matcher.num_held_bytes());
  }
  if (!matcher.stopped()) out += matcher.Flush();
  return out + '\0' + std::to_string(matcher.matched_idx().value_or(99));
}

// The naive reading of the stop strings: the match that ends first, of those the longest.
std::string NaiveMatch(const std::vector<std::string>& stops, std::string_view text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t best = stops.size();
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool is_longer = best == stops.size() || stops[i].size() > stops[best].size();
      if (text.substr(0, end).ends_with(stops[i]) && is_longer) best = i;
    }
    if (best == stops.size()) continue;
    return std::string(text.substr(0, end - stops[best].size())) + '\0' + std::to_string(best);
  }
  return std::string(text) + '\0' + "99";
}

void CheckText(ByteSource* source) {
  const size_t max_piece = 1 + source->Below(8);
  const bool inside = source->Flag();
  std::vector<std::string> stops;
  for (uint32_t left = source->Below(4); left > 0; --left) {
    stops.emplace_back(TextOf(source->Take(1 + source->Below(6))));
  }
  const std::string_view bytes = TextOf(source->rest());
  CheckCuts(bytes, max_piece, RunUtf8);
  // The others are given whole characters.
  const std::string text = RunUtf8({bytes});
  CheckCuts(text, max_piece, [inside](const std::vector<std::string_view>& pieces) {
    return RunSplitter(inside, pieces);
  });
  const auto matcher = StopMatcher::Create(stops);
  if (!matcher.ok()) return CheckRefusal(matcher.status());
  const auto match = [&matcher](const std::vector<std::string_view>& pieces) {
    return RunMatcher(*matcher, pieces);
  };
  CheckCuts(text, max_piece, match);
  if (text.size() < 2000) {
    BATON_CHECK(match({text}) == NaiveMatch(stops, text), "another match than the naive one");
  }
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(detokenizer) {
  using namespace baton::fuzz;  // NOLINT: the whole target
  ByteSource source(input);
  if (source.Flag()) return CheckTokens(&source);
  CheckText(&source);
}
