// Measures the cost of forms and of tool calls beside the model, without a server: compiling
// schemas for the first time, the mask of a token, reading tool calls.
//
//   answer_bench MODEL.gguf [SCHEMAS]     prints one JSON object; SCHEMAS has one schema a line
//
// Masks are those of answers of random tokens that the schemas allow, from a fixed seed. Calls are
// cut into the model's tokens. benchmarks/serve/structured.py calls it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

#include "src/base/check.h"
#include "src/model/gguf.h"
#include "src/model/tokenizer_metadata.h"
#include "src/text/grammar.h"
#include "src/text/spec_from_metadata.h"
#include "src/text/tokenizer.h"
#include "src/text/tools/tool_parser.h"
#include "src/text/tools/tool_style.h"

namespace baton::text {
namespace {

constexpr size_t kMaxAnswerTokens = 48;
// Calls of one answer, and answers that are read.
constexpr int kNumCalls = 20;
constexpr int kNumAnswers = 200;

double NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

std::unique_ptr<Tokenizer> TokenizerOf(const std::string& path) {
  const auto file = model::GgufFile::Open(path);
  BATON_CHECK(file.ok(), "{}", file.status().ToString());
  const auto metadata = model::ReadTokenizerMetadata(**file);
  BATON_CHECK(metadata.ok(), "{}", metadata.status().ToString());
  auto tokenizer = Tokenizer::Create(TokenizerSpecFrom(*metadata));
  BATON_CHECK(tokenizer.ok(), "{}", tokenizer.status().ToString());
  return *std::move(tokenizer);
}

// The grammars of one vocabulary, timed.
class SchemaBench {
 public:
  explicit SchemaBench(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    const double start_us = NowUs();
    auto made = GrammarVocabulary::Create(tokenizer);
    BATON_CHECK(made.ok(), "{}", made.status().ToString());
    vocabulary_ms_ = (NowUs() - start_us) / 1e3;
    vocabulary_ = *std::move(made);
  }

  void Add(std::string_view schema) {
    const double start_us = NowUs();
    const auto grammar = Grammar::Compile(vocabulary_, wire::GrammarKind::kSchemaStrict, schema);
    const double took_ms = (NowUs() - start_us) / 1e3;
    if (!grammar.ok()) {
      ++num_refused_;
      return;
    }
    compile_ms_.push_back(took_ms);
    Answer(*grammar);
  }

  std::string Json() const {
    return fmt::format(
        "\"vocabulary_ms\":{:.1f},\"refused\":{},\"compile_ms\":[{:.3f}],\"mask_us\":[{:.1f}],"
        "\"accept_us\":[{:.1f}]",
        vocabulary_ms_, num_refused_, fmt::join(compile_ms_, ","), fmt::join(mask_us_, ","),
        fmt::join(accept_us_, ","));
  }

 private:
  // One answer of random tokens.
  void Answer(const Grammar& grammar) {
    auto state = GrammarState::Create(grammar);
    BATON_CHECK(state.ok(), "{}", state.status().ToString());
    std::vector<uint32_t> words(vocabulary_.num_mask_words());
    std::vector<TokenId> allowed;
    for (size_t i = 0; i < kMaxAnswerTokens; ++i) {
      double start_us = NowUs();
      if (!state->FillMask(words).ok()) return;
      mask_us_.push_back(NowUs() - start_us);
      allowed.clear();
      for (size_t id = 0; id < vocabulary_.vocab_size(); ++id) {
        const bool is_allowed = (words[id / 32] >> (id % 32) & 1) != 0;
        const auto token = static_cast<TokenId>(id);
        if (is_allowed && !tokenizer_.IsEog(token)) allowed.push_back(token);
      }
      if (allowed.empty()) return;
      const TokenId token = allowed[random_() % allowed.size()];
      start_us = NowUs();
      const auto taken = state->Accept({&token, 1});
      BATON_CHECK(taken.ok() && *taken == 1, "an allowed token is refused");
      accept_us_.push_back(NowUs() - start_us);
    }
  }

  const Tokenizer& tokenizer_;
  GrammarVocabulary vocabulary_;
  double vocabulary_ms_ = 0;
  int num_refused_ = 0;
  std::mt19937 random_{1};
  std::vector<double> compile_ms_;
  std::vector<double> mask_us_;
  std::vector<double> accept_us_;
};

// An answer of several calls in one style.
std::string CallsIn(ToolStyle style) {
  const std::string json =
      R"({"name": "f", "arguments": {"city": "Z\u00fcrich, \"Old Town\"", "days": [1, 2, 3]}})";
  std::string text;
  for (int i = 0; i < kNumCalls; ++i) {
    switch (style) {
      case ToolStyle::kHermes:
        text += "<tool_call>\n" + json + "\n</tool_call>\n";
        break;
      case ToolStyle::kQwen3Coder:
        text +=
            "<tool_call>\n<function=f>\n<parameter=city>\nZürich, \"Old Town\"\n</parameter>\n"
            "<parameter=days>\n[1, 2, 3]\n</parameter>\n</function>\n</tool_call>\n";
        break;
      case ToolStyle::kGemma:
        text +=
            "<start_function_call>call:f{city:<escape>Zürich, \"Old Town\"<escape>,days:[1,2,3]}"
            "<end_function_call>";
        break;
      case ToolStyle::kMistral:
        text += "[TOOL_CALLS]f[ARGS]{\"city\": \"Zürich\", \"days\": [1, 2, 3]}";
        break;
      case ToolStyle::kHarmony:
        text +=
            "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
            "{\"city\": \"Zürich\", \"days\": [1, 2, 3]}<|call|>";
        break;
      case ToolStyle::kLlama3:
        text += (i == 0 ? "" : "; ") + json;
        break;
      case ToolStyle::kGeneric:
        text += (i == 0 ? "[" : ", ") + json + (i + 1 == kNumCalls ? "]" : "");
        break;
      case ToolStyle::kNone:
        text += json;
        break;
    }
  }
  return text;
}

// The model's tokens of a text, as texts.
std::vector<std::string> PiecesOf(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.Encode(text);
  BATON_CHECK(ids.ok(), "{}", ids.status().ToString());
  std::vector<std::string> pieces;
  size_t done = 0;
  // By the lengths of the beginnings, so that no character is half of one.
  for (size_t i = 1; i <= ids->size(); ++i) {
    const auto begin = tokenizer.Decode(std::span(*ids).first(i), false);
    const bool is_whole = begin.ok() && text.starts_with(*begin) && begin->size() > done;
    if (!is_whole) continue;
    pieces.emplace_back(text.substr(done, begin->size() - done));
    done = begin->size();
  }
  BATON_CHECK(done == text.size(), "{} of {} bytes", done, text.size());
  return pieces;
}

// Microseconds a token.
double TimeOfCalls(const Tokenizer& tokenizer, ToolStyle style) {
  const ToolRules rules{.functions = {{"f", {{"city", kJsonText}, {"days", kJsonArray}}}}};
  const std::vector<std::string> pieces = PiecesOf(tokenizer, CallsIn(style));
  size_t num_calls = 0;
  const double start_us = NowUs();
  for (int i = 0; i < kNumAnswers; ++i) {
    const std::unique_ptr<ToolParser> parser = ToolParser::Create(style, rules);
    for (const std::string& piece : pieces) parser->Push(piece);
    parser->Flush();
    num_calls += parser->num_calls();
  }
  const double took_us = NowUs() - start_us;
  const size_t expected = style == ToolStyle::kNone ? 0 : size_t{kNumCalls} * kNumAnswers;
  BATON_CHECK(num_calls == expected, "{}: {} calls of {}", ToolStyleName(style), num_calls,
              expected);
  return took_us / static_cast<double>(pieces.size() * kNumAnswers);
}

}  // namespace
}  // namespace baton::text

int main(int argc, char** argv) {
  using namespace baton::text;  // NOLINT: the whole program
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: answer_bench MODEL.gguf [SCHEMAS]\n");
    return 2;
  }
  const std::unique_ptr<Tokenizer> tokenizer = TokenizerOf(argv[1]);
  std::string schemas;
  if (argc == 3) {
    std::ifstream file(argv[2]);
    BATON_CHECK(file.good(), "{} cannot be read", argv[2]);
    SchemaBench bench(*tokenizer);
    for (std::string line; std::getline(file, line);) {
      if (!line.empty()) bench.Add(line);
    }
    schemas = bench.Json() + ",";
  }
  std::string tools;
  for (int i = 0; i <= static_cast<int>(ToolStyle::kGeneric); ++i) {
    const auto style = static_cast<ToolStyle>(i);
    tools += fmt::format("{}\"{}\":{:.3f}", i == 0 ? "" : ",", ToolStyleName(style),
                         TimeOfCalls(*tokenizer, style));
  }
  fmt::print("{{{}\"tool_us_a_token\":{{{}}}}}\n", schemas, tools);
  return 0;
}
