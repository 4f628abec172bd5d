// Fields of other servers that change an answer: refused by name, unless their value asks for
// nothing.
#include "src/api/unsupported_params.h"

#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"

#include "src/api/read_json.h"
#include "src/api/schema.h"

namespace baton::api {

using router::ErrorCode;
using router::ErrorNameOf;
using router::HttpStatusOf;
using router::RequestError;

namespace {

// The reader's verdict on a request with one more field.
struct Verdict {
  bool ok = false;
  RequestError error;
  std::vector<std::string> ignored;
};

Verdict Read(Endpoint endpoint, const std::string& fields) {
  const char* base = endpoint == Endpoint::kChat
                         ? R"({"messages":[{"role":"user","content":"hi"}],)"
                         : R"({"prompt":"hi",)";
  Verdict verdict;
  JsonValue root;
  ApiParams params;
  verdict.ok = ParseJson(base + fields + "}", &root, &verdict.error) &&
               ReadJsonParams(root, endpoint, &params, &verdict.ignored, &verdict.error);
  return verdict;
}

// One field with a value that asks for something.
struct Asking {
  const char* name;
  const char* value;
};

// For both endpoints.
constexpr Asking kAsking[] = {
    {"guided_whitespace_pattern", R"("\n")"},
    {"structural_tag", R"({"structures":[1]})"},
    {"grammar", R"("root ::= 1")"},
    {"json_schema", R"({"enum":[1]})"},
    {"json_schema", "{}"},
    {"regex", R"("a+")"},
    {"ebnf", R"("root ::= 1")"},
    {"functions", R"([{"name":"f"}])"},
    {"function_call", R"({"name":"f"})"},
    {"web_search_options", "{}"},
    {"moderation", R"({"model":"m"})"},
    {"suffix", R"(" end")"},
    {"prompt_embeds", R"("AA==")"},
    {"modalities", R"(["text","audio"])"},
    {"audio", R"({"voice":"x"})"},
    {"truncate_prompt_tokens", "1"},
    {"chat_template", R"("{{ messages }}")"},
    {"include_stop_str_in_output", "true"},
    {"skip_special_tokens", "false"},
    {"verbosity", R"("low")"},
    {"thinking", R"({"type":"disabled"})"},
    {"enable_thinking", "false"},
    {"thinking_token_budget", "0"},
    {"reasoning", R"({"effort":"high"})"},
    {"include_reasoning", "false"},
    {"separate_reasoning", "false"},
    {"max_new_tokens", "5"},
    {"n_predict", "5"},
    {"stop_regex", R"("a")"},
    {"do_sample", "false"},
    {"use_beam_search", "true"},
    {"length_penalty", "1.5"},
    {"bad_words", R"(["x"])"},
    {"allowed_token_ids", "[1]"},
    {"logits_processors", R"(["x"])"},
    {"vllm_xargs", R"({"a":1})"},
    {"repeat_penalty", "1.1"},
    {"repeat_last_n", "5"},
    {"no_repeat_ngram_size", "3"},
    {"typical_p", "0.5"},
    {"tfs_z", "0.5"},
    {"top_a", "0.2"},
    {"mirostat", "2"},
    {"dynatemp_range", "0.5"},
    {"dry_multiplier", "0.8"},
    {"xtc_probability", "0.5"},
    {"samplers", R"(["top_k"])"},
    {"guidance_scale", "2"},
    {"n_probs", "3"},
    {"return_token_ids", "true"},
    {"return_tokens_as_token_ids", "true"},
    {"service_tier", R"("flex")"},
    {"lora", R"([{"id":0,"scale":1}])"},
    {"cache_prompt", "false"},
    {"extra_key", R"("a")"},
    {"kv_transfer_params", R"({"do_remote_prefill":true})"},
    {"receipt", "true"},
};

// Values that ask for nothing, as clients send them by default.
constexpr Asking kNeutral[] = {
    {"guided_json", "null"},
    {"guided_choice", "null"},
    {"guided_regex", "null"},
    {"guided_grammar", "null"},
    {"json_schema", R"("")"},
    {"json_schema", "null"},
    {"structured_outputs", "null"},
    {"response_format", R"({"type":"text"})"},
    {"structural_tag", "{}"},
    {"ebnf", R"("")"},
    {"grammar", R"("")"},
    {"functions", "[]"},
    {"function_call", R"("auto")"},
    {"parallel_tool_calls", "true"},
    {"modalities", R"(["text"])"},
    {"audio", "null"},
    {"include_stop_str_in_output", "false"},
    {"skip_special_tokens", "true"},
    {"verbosity", R"("medium")"},
    {"thinking_token_budget", "-1"},
    {"include_reasoning", "true"},
    {"do_sample", "true"},
    {"use_beam_search", "false"},
    {"length_penalty", "1.0"},
    {"bad_words", "[]"},
    {"repeat_penalty", "1"},
    {"repeat_last_n", "64"},
    {"repeat_last_n", "-1"},
    {"typical_p", "1.0"},
    {"top_a", "0.0"},
    {"mirostat", "0"},
    {"mirostat_tau", "5"},
    {"dry_multiplier", "0.0"},
    {"dry_base", "1.75"},
    {"xtc_probability", "0"},
    {"xtc_threshold", "0.1"},
    {"n_probs", "0"},
    {"lora", "[]"},
    {"cache_prompt", "true"},
    {"kv_transfer_params", "null"},
};

TEST(UnsupportedParamsTest, AskingForWhatIsNotImplementedIsRefusedByName) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const Asking& asking : kAsking) {
      const Verdict verdict = Read(endpoint, fmt::format("\"{}\":{}", asking.name, asking.value));
      ASSERT_FALSE(verdict.ok) << asking.name;
      EXPECT_EQ(ErrorNameOf(verdict.error.code), "unsupported_parameter") << asking.name;
      EXPECT_EQ(HttpStatusOf(verdict.error.code), 400);
      EXPECT_EQ(verdict.error.param, asking.name);
      EXPECT_NE(verdict.error.Message().find("not supported by this server"), std::string::npos)
          << verdict.error.Message();
    }
  }
}

TEST(UnsupportedParamsTest, AskingForNothingIsAnswered) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const Asking& asking : kNeutral) {
      const Verdict verdict = Read(endpoint, fmt::format("\"{}\":{}", asking.name, asking.value));
      EXPECT_TRUE(verdict.ok) << asking.name << ": " << verdict.error.Message();
      EXPECT_TRUE(verdict.ignored.empty()) << asking.name << " is what the server does anyway";
    }
  }
}

TEST(UnsupportedParamsTest, FieldsOfOneEndpointAreRefusedAtTheOther) {
  const std::vector<std::pair<const char*, const char*>> of_completions = {
      {"echo", "true"}, {"best_of", "2"}, {"prompt", "\"x\""}, {"add_special_tokens", "true"}};
  for (const auto& [name, value] : of_completions) {
    const Verdict verdict = Read(Endpoint::kChat, fmt::format("\"{}\":{}", name, value));
    EXPECT_EQ(verdict.error.param, name);
    EXPECT_EQ(verdict.error.code, ErrorCode::kUnsupported);
  }
  const std::vector<std::pair<const char*, const char*>> of_chats = {
      {"messages", "[{}]"},
      {"max_completion_tokens", "5"},
      {"top_logprobs", "2"},
      {"tools", "[{}]"},
      {"add_special_tokens", "false"}};
  for (const auto& [name, value] : of_chats) {
    const Verdict verdict = Read(Endpoint::kCompletion, fmt::format("\"{}\":{}", name, value));
    EXPECT_EQ(verdict.error.param, name);
    EXPECT_EQ(verdict.error.code, ErrorCode::kUnsupported);
  }
  EXPECT_TRUE(Read(Endpoint::kCompletion, R"("response_format":{"type":"text"})").ok);
  EXPECT_TRUE(Read(Endpoint::kChat, R"("best_of":1,"echo":false)").ok);
}

// A client that sends the prompt, form or options under another surface's name would miss them.
TEST(UnsupportedParamsTest, FieldsOfAnotherSurfaceThatShapeAnAnswerAreRefused) {
  constexpr Asking kForeign[] = {
      {"system", R"("be brief")"},
      {"instructions", R"("be brief")"},
      {"input", R"("hi")"},
      {"text", R"({"format":{"type":"json_object"}})"},
      {"format", R"("json")"},
      {"output_config", R"({"effort":"low"})"},
      {"conversation", R"({"id":"a"})"},
      {"context", "[1]"},
      {"options", R"({"num_ctx":2048})"},
      {"think", "false"},
      {"template", R"("{{ .Prompt }}")"},
      {"raw", "true"},
      {"images", R"(["AAAA"])"},
      {"mcp_servers", R"([{"name":"a"}])"},
  };
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion, Endpoint::kMessages}) {
    for (const Asking& asking : kForeign) {
      // Messages has the first two itself, and its own row for the third.
      const std::string_view name = asking.name;
      const bool is_own = name == "system" || name == "output_config" || name == "mcp_servers";
      if (endpoint == Endpoint::kMessages && is_own) continue;
      EXPECT_TRUE(IsUnsupportedParam(endpoint, name)) << name;
      if (endpoint == Endpoint::kMessages) continue;
      const Verdict verdict = Read(endpoint, fmt::format("\"{}\":{}", name, asking.value));
      EXPECT_FALSE(verdict.ok) << name;
      EXPECT_EQ(verdict.error.code, ErrorCode::kUnsupported) << name;
      EXPECT_EQ(verdict.error.param, name);
    }
  }
  EXPECT_EQ(Read(Endpoint::kChat, R"("instructions":"be brief")").error.Message(),
            "'instructions' is not supported by this server: it must be absent; a message of the "
            "role system has it.");
  EXPECT_TRUE(Read(Endpoint::kChat, R"("system":"","format":"","options":{},"images":[])").ok);
}

TEST(UnsupportedParamsTest, HarmlessFieldsAreIgnoredAndNamed) {
  const Verdict verdict = Read(
      Endpoint::kChat,
      R"("store":true,"metadata":{"a":"b"},"service_tier":"auto","safety_identifier":"u",)"
      R"("prompt_cache_key":"k","prediction":{"type":"content","content":"x"},"x_colour":"blue",)"
      R"("n_keep":5,"n_discard":0)");
  ASSERT_TRUE(verdict.ok) << verdict.error.Message();
  EXPECT_EQ(verdict.ignored,
            (std::vector<std::string>{"store", "metadata", "service_tier", "safety_identifier",
                                      "prompt_cache_key", "prediction", "x_colour", "n_keep",
                                      "n_discard"}));
}

TEST(UnsupportedParamsTest, TheWayOutIsNamed) {
  EXPECT_EQ(Read(Endpoint::kChat, R"("max_new_tokens":5)").error.Message(),
            "'max_new_tokens' is not supported by this server: it must be absent; max_tokens is "
            "its name here.");
  EXPECT_EQ(Read(Endpoint::kChat, R"("service_tier":"flex")").error.Message(),
            "'service_tier' is not supported by this server: it must be \"auto\", \"default\" or "
            "absent.");
  EXPECT_EQ(Read(Endpoint::kChat, R"("repeat_last_n":5)").error.Message(),
            "'repeat_last_n' is not supported by this server: it must be -1, 64 or absent.");
  EXPECT_EQ(Read(Endpoint::kChat, R"("ebnf":"root ::= 1")").error.Message(),
            "'ebnf' is not supported by this server: it must be absent; structured_outputs does "
            "it.");
}

TEST(UnsupportedParamsTest, NoFieldIsBothServedAndRefused) {
  for (const ParamRow& row : ParamTable()) {
    for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
      if (!row.AppliesTo(endpoint)) continue;
      EXPECT_FALSE(IsUnsupportedParam(endpoint, row.name)) << row.name;
    }
  }
}

TEST(UnsupportedParamsTest, MembersOfATurnThatChangeItAreRefused) {
  const std::vector<std::pair<const char*, const char*>> members = {
      {"function_call", R"({"name":"f","arguments":"{}"})"},
      {"prefix", "true"},
      {"partial", "true"},
      {"audio", R"({"id":"a"})"}};
  for (const auto& [name, value] : members) {
    JsonValue root;
    RequestError error;
    ApiParams params;
    std::vector<std::string> ignored;
    ASSERT_TRUE(ParseJson(fmt::format(R"({{"messages":[{{"role":"user","content":"q"}},)"
                                      R"({{"role":"assistant","content":"a","{}":{}}}]}})",
                                      name, value),
                          &root, &error));
    EXPECT_FALSE(ReadJsonParams(root, Endpoint::kChat, &params, &ignored, &error)) << name;
    EXPECT_EQ(error.code, ErrorCode::kUnsupported);
    EXPECT_EQ(error.param, fmt::format("messages[1].{}", name));
  }
}

}  // namespace
}  // namespace baton::api
