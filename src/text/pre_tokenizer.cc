#include "src/text/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <string>

#include "src/base/log.h"
#include "src/base/quoted_text.h"

namespace baton::text {
namespace {

// The patterns are those of the models' own tokenizer.json files.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::string_view kSingleDigit = R"(\p{N})";

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// kQwen2 with combining marks counted as letters.
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Words are cut where upper case follows lower case.
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// tiktoken's o200k_base: words as in kTekken, with contractions, and digits in threes.
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array kGpt2Rule = {kGpt2};
constexpr std::array kDigitsThenGpt2Rule = {kSingleDigit, kGpt2};
constexpr std::array kLlama3Rule = {kLlama3};
constexpr std::array kQwen2Rule = {kQwen2};
constexpr std::array kQwen35Rule = {kQwen35};
constexpr std::array kTekkenRule = {kTekken};
constexpr std::array kO200kRule = {kO200k};

// A value of tokenizer.ggml.pre and what it means.
struct NamedRule {
  std::string_view name;
  PreTokenizer rule;
};

constexpr PreTokenizer kGpt2Splits = {kGpt2Rule};
constexpr PreTokenizer kDigitSplits = {kDigitsThenGpt2Rule};
constexpr PreTokenizer kLlama3Splits = {kLlama3Rule, /*ignore_merges=*/true,
                                        /*default_add_bos=*/true};
constexpr PreTokenizer kQwen2Splits = {kQwen2Rule};
constexpr PreTokenizer kQwen35Splits = {kQwen35Rule};
constexpr PreTokenizer kTekkenSplits = {kTekkenRule, /*ignore_merges=*/true,
                                        /*default_add_bos=*/true};
constexpr PreTokenizer kO200kSplits = {kO200kRule, /*ignore_merges=*/true};

constexpr NamedRule kRules[] = {
    {"gpt-2", kGpt2Splits},       {"phi-2", kGpt2Splits},       {"mpt", kGpt2Splits},
    {"olmo", kGpt2Splits},        {"jais", kGpt2Splits},        {"smollm", kDigitSplits},
    {"starcoder", kDigitSplits},  {"refact", kDigitSplits},     {"command-r", kDigitSplits},
    {"codeshell", kDigitSplits},  {"exaone", kDigitSplits},     {"minerva-7b", kDigitSplits},
    {"llama-bpe", kLlama3Splits}, {"llama3", kLlama3Splits},    {"llama-v3", kLlama3Splits},
    {"falcon3", kLlama3Splits},   {"falcon-h1", kLlama3Splits}, {"lfm2", kLlama3Splits},
    {"pixtral", kLlama3Splits},   {"qwen2", kQwen2Splits},      {"stablelm2", kQwen2Splits},
    {"hunyuan", kQwen2Splits},    {"megrez", kQwen2Splits},     {"deepseek-r1-qwen", kQwen2Splits},
    {"qwen35", kQwen35Splits},    {"tekken", kTekkenSplits},    {"gpt-4o", kO200kSplits},
    {"o200k", kO200kSplits},
};

// One name of each rule, for messages.
constexpr std::array<std::string_view, 7> kRuleNames = {"gpt-2",  "starcoder", "llama-bpe", "qwen2",
                                                        "qwen35", "tekken",    "gpt-4o"};

}  // namespace

const std::string_view kSingleDigitPattern = kSingleDigit;
const std::string_view kGpt2Pattern = kGpt2;

StatusOr<std::string_view> FindRuleByPatterns(std::span<const std::string> patterns) {
  for (const NamedRule& named : kRules) {
    const std::span<const std::string_view> known = named.rule.patterns;
    if (std::equal(known.begin(), known.end(), patterns.begin(), patterns.end())) return named.name;
  }
  // The digits are a rule's first pattern only together with others.
  const bool after_digits = patterns.size() > 1 && patterns.front() == kSingleDigit;
  return Unimplemented(
      "the split pattern {} is not one of a supported model",
      QuotedForMessage(patterns.empty() ? std::string() : patterns[after_digits ? 1 : 0]));
}

StatusOr<PreTokenizer> FindPreTokenizer(std::string_view name) {
  if (name.empty() || name == "default") {
    BATON_LOG_WARN(
        "the model file names no pre-tokenizer (tokenizer.ggml.pre): the gpt-2 split rule is used, "
        "which may not be the one it was trained with");
    return kGpt2Splits;
  }
  for (const NamedRule& named : kRules) {
    if (named.name == name) return named.rule;
  }
  // No name that looks like it: the rules of falcon and falcon3 have nothing in common.
  return Unimplemented(
      "pre-tokenizer {} (tokenizer.ggml.pre) is not supported: its split rule is not built in "
      "(those of {} are, and of models that split alike); another rule would give other tokens",
      QuotedForMessage(name), fmt::join(kRuleNames, ", "));
}

}  // namespace baton::text
