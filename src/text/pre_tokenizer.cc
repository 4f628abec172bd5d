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

// DeepSeek-V2's tokenizer: letters that have a case, punctuation, Chinese and Korean. Characters
// beyond ASCII are escaped: some have a look-alike that editors take for them.
constexpr std::string_view kNewline = "[\r\n]";
constexpr std::string_view kCasedLetters =
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-"
    "\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80"
    "-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126"
    "\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-"
    "\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771"
    "-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+";
constexpr std::string_view kCjkPunctuation =
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";
// In files \s+$, which tries every end of a run of spaces from every place of it.
constexpr std::string_view kTrailingSpaceInFiles = "\\s+$";
constexpr std::string_view kTrailingSpace = "(?<!\\s)\\s+$";
constexpr std::string_view kCjk = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";

// DeepSeek-V3's: digits in threes, Chinese and Japanese, and a word with a mark before it.
constexpr std::string_view kDigitsInThrees = "\\p{N}{1,3}";
constexpr std::string_view kHanAndKana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view kMarkedWords =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

constexpr std::array kGpt2Rule = {kGpt2};
constexpr std::array kDigitsThenGpt2Rule = {kSingleDigit, kGpt2};
constexpr std::array kLlama3Rule = {kLlama3};
constexpr std::array kQwen2Rule = {kQwen2};
constexpr std::array kQwen35Rule = {kQwen35};
constexpr std::array kTekkenRule = {kTekken};
constexpr std::array kO200kRule = {kO200k};
constexpr std::array kDeepseekLlmRule = {kNewline,       kCasedLetters, kCjkPunctuation,
                                         kTrailingSpace, kCjk,          kSingleDigit};
constexpr std::array kDeepseekV3Rule = {kDigitsInThrees, kHanAndKana, kMarkedWords};

// A value of tokenizer.ggml.pre and what it means.
struct NamedRule {
  std::string_view name;
  PreTokenizer rule;
};

constexpr PreTokenizer kGpt2Splits = {kGpt2Rule};
constexpr PreTokenizer kDigitSplits = {kDigitsThenGpt2Rule};
constexpr PreTokenizer kLlama3Splits = {kLlama3Rule, /*ignore_merges=*/true,
                                        /*default_add_bos=*/true};
// The rule alone, for vocabularies of other models.
constexpr PreTokenizer kLlama3PatternSplits = {kLlama3Rule};
constexpr PreTokenizer kQwen2Splits = {kQwen2Rule};
constexpr PreTokenizer kQwen35Splits = {kQwen35Rule};
constexpr PreTokenizer kTekkenSplits = {kTekkenRule, /*ignore_merges=*/true,
                                        /*default_add_bos=*/true};
constexpr PreTokenizer kO200kSplits = {kO200kRule, /*ignore_merges=*/true};
constexpr PreTokenizer kDeepseekLlmSplits = {kDeepseekLlmRule};
constexpr PreTokenizer kDeepseekV3Splits = {kDeepseekV3Rule};

constexpr NamedRule kRules[] = {
    {"gpt-2", kGpt2Splits},
    {"phi-2", kGpt2Splits},
    {"mpt", kGpt2Splits},
    {"olmo", kGpt2Splits},
    {"jais", kGpt2Splits},
    {"smollm", kDigitSplits},
    {"starcoder", kDigitSplits},
    {"refact", kDigitSplits},
    {"command-r", kDigitSplits},
    {"codeshell", kDigitSplits},
    {"exaone", kDigitSplits},
    {"minerva-7b", kDigitSplits},
    {"llama-bpe", kLlama3Splits},
    {"llama3", kLlama3Splits},
    {"llama-v3", kLlama3Splits},
    {"falcon3", kLlama3Splits},
    {"falcon-h1", kLlama3Splits},
    {"lfm2", kLlama3Splits},
    {"pixtral", kLlama3Splits},
    {"dbrx", kLlama3PatternSplits},
    {"smaug-bpe", kLlama3PatternSplits},
    {"qwen2", kQwen2Splits},
    {"stablelm2", kQwen2Splits},
    {"hunyuan", kQwen2Splits},
    {"megrez", kQwen2Splits},
    {"deepseek-r1-qwen", kQwen2Splits},
    {"qwen35", kQwen35Splits},
    {"tekken", kTekkenSplits},
    {"gpt-4o", kO200kSplits},
    {"llama4", kO200kSplits},
    {"o200k", kO200kSplits},
    {"deepseek-llm", kDeepseekLlmSplits},
    {"deepseek-v3", kDeepseekV3Splits},
};

// One name of each rule, for messages.
constexpr std::array<std::string_view, 9> kRuleNames = {"gpt-2",  "starcoder",    "llama-bpe",
                                                        "qwen2",  "qwen35",       "tekken",
                                                        "gpt-4o", "deepseek-llm", "deepseek-v3"};

}  // namespace

const std::string_view kSingleDigitPattern = kSingleDigit;
const std::string_view kGpt2Pattern = kGpt2;

StatusOr<std::string_view> FindRuleByPatterns(std::span<const std::string> patterns) {
  for (const NamedRule& named : kRules) {
    const std::span<const std::string_view> known = named.rule.patterns;
    const auto is_same = [](std::string_view rule, const std::string& pattern) {
      return pattern == (rule == kTrailingSpace ? kTrailingSpaceInFiles : rule);
    };
    if (std::equal(known.begin(), known.end(), patterns.begin(), patterns.end(), is_same)) {
      return named.name;
    }
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
