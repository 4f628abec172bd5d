// Fields that vLLM's and llama-server's clients send, and what the server says of itself.
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/schema.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using kv::kDefaultTenant;
using router::GenerateRequest;
using router::ModelInfo;
using router::ResponseSink;
using router::TestModel;
using scheduler::FinishReason;
using text::ChatTemplate;

namespace {

TEST_F(HttpApiTest, ContinuousUsageCountsUpInEveryChunk) {
  AnswerWith("Hi");
  auto responder = Post(kChatPath, kHello + R"(,"stream":true,"n":2,"stream_options":)"
                                            R"({"include_usage":true,"continuous_usage_stats":)"
                                            R"(true}})");
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 10u);
  EXPECT_TRUE(responder->Header("X-Baton-Ignored-Fields").empty());
  const char* expected[] = {"0,\"total_tokens\":9", "1,\"total_tokens\":10",
                            "2,\"total_tokens\":11", "2,\"total_tokens\":11"};
  for (int i = 0; i < 8; ++i) {
    const std::string usage =
        std::string(R"(}],"usage":{"prompt_tokens":9,"completion_tokens":)") + expected[i % 4];
    EXPECT_NE(events[i].find(usage), std::string::npos) << events[i];
  }
  EXPECT_NE(events[8].find(R"("choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4)"),
            std::string::npos)
      << events[8];
  responder = Post(kChatPath, kHello + R"(,"stream":true,"stream_options":)"
                                       R"({"continuous_usage_stats":true}})");
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(responder->body.find("\"usage\""), std::string::npos) << "nobody asked for usage";
}

TEST_F(HttpApiTest, TokenizeAnswersInTheFormOfTheRequest) {
  auto responder = Post("/tokenize", R"({"prompt":"hi","add_special_tokens":false})");
  EXPECT_EQ(responder->body,
            R"({"count":2,"max_model_len":512,"tokens":[104,105],"token_strs":null})");
  responder =
      Post("/tokenize", R"({"prompt":"hi","add_special_tokens":false,"return_token_strs":true})");
  EXPECT_EQ(responder->body,
            R"({"count":2,"max_model_len":512,"tokens":[104,105],"token_strs":["h","i"]})");
  responder = Post("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(responder->status, 200);
  const auto chat = Post("/apply-template", R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(Text(*chat, {"prompt"}), "<user>u:hi<assistant>");
  const auto parsed =
      Post("/tokenize", R"({"content":"<user>u:hi<assistant>","parse_special":true})");
  const std::string ids = parsed->body.substr(1, parsed->body.size() - 2);
  EXPECT_NE(responder->body.find(ids), std::string::npos) << responder->body << parsed->body;
  responder = Post("/tokenize", "{\"content\":\"h\xc3\xa9\",\"with_pieces\":true}");
  EXPECT_EQ(responder->body, R"({"tokens":[{"id":104,"piece":"h"},{"id":195,"piece":[195]},)"
                             R"({"id":169,"piece":[169]}]})");
  for (const char* body : {R"({"content":"a","prompt":"a"})", R"({"prompt":"a","messages":[]})"}) {
    responder = Post("/tokenize", body);
    EXPECT_EQ(responder->status, 400) << body;
    EXPECT_EQ(Text(*responder, {"error", "code"}), "invalid_combination");
  }
  responder = Post("/tokenize", R"({"prompt":["a"]})");
  EXPECT_EQ(Text(*responder, {"error", "param"}), "prompt");
  responder =
      Post("/tokenize", R"({"messages":[{"role":"user","content":"a"}],"chat_template":"x"})");
  EXPECT_EQ(Text(*responder, {"error", "param"}), "chat_template");
  EXPECT_EQ(Text(*responder, {"error", "code"}), "unsupported_parameter");
}

TEST_F(HttpApiTest, TheServerDescribesItself) {
  auto responder = Send("GET", "/tokenizer_info");
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(Text(*responder, {"eos_token"}), "<eos>");
  EXPECT_EQ(Text(*responder, {"model_max_length"}), "512");
  responder = Send("GET", "/openapi.json");
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(Text(*responder, {"openapi"}), "3.1.0");
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize"}) {
    EXPECT_NE(Text(*responder, {"paths", path, "post", "summary"}), "<absent>") << path;
  }
  const std::vector<std::string> fields = {"components", "schemas", "ChatCompletionRequest",
                                           "properties"};
  const auto member = [&](const std::string& name, const std::string& what) {
    std::vector<std::string> path = fields;
    path.insert(path.end(), {name, what});
    return Text(*responder, path);
  };
  for (const ParamRow& row : ParamTable()) {
    if (!row.AppliesTo(Endpoint::kChat)) continue;
    EXPECT_EQ(member(std::string(row.name), "description"), ExpectedOf(row));
  }
  EXPECT_EQ(member("n", "minimum"), "1");
  EXPECT_EQ(member("n", "maximum"), "128");
  EXPECT_EQ(member("temperature", "type"), "number");
}

TEST_F(HttpApiTest, TheDescriptionHasTheFormOfEachErrorAndItsStatuses) {
  const auto responder = Send("GET", "/openapi.json");
  const auto form_of = [&](const char* path, const char* method, const char* status) {
    return Text(*responder, {"paths", path, method, "responses", status, "$ref"});
  };
  for (const char* status : {"400", "401", "404", "413", "429", "503", "504"}) {
    EXPECT_EQ(form_of("/v1/responses", "post", status), "#/components/responses/Error") << status;
    EXPECT_EQ(form_of("/api/chat", "post", status), "#/components/responses/OllamaError");
    EXPECT_EQ(form_of("/api/tags", "get", status), "#/components/responses/OllamaError");
    EXPECT_EQ(form_of("/v1/messages/count_tokens", "post", status),
              "#/components/responses/MessagesError");
  }
  for (const char* name : {"Error", "MessagesError", "OllamaError"}) {
    EXPECT_EQ(Text(*responder, {"components", "responses", name, "content", "application/json",
                                "schema", "$ref"}),
              std::string("#/components/schemas/") + name);
    EXPECT_EQ(Text(*responder, {"components", "schemas", name, "type"}), "object");
  }
  EXPECT_EQ(Text(*responder,
                 {"components", "schemas", "OllamaError", "properties", "error", "type", "0"}),
            "string");
  EXPECT_EQ(form_of("/v1/completions", "post", "default"), "<absent>");
  EXPECT_EQ(form_of("/api/chat", "post", "499"), "<absent>");
}

TEST_F(HttpApiTest, OpenApiTellsTheBodiesOfEverySurface) {
  const auto responder = Send("GET", "/openapi.json");
  const auto of = [&](const char* schema, const char* field, const char* what) {
    return Text(*responder, {"components", "schemas", schema, "properties", field, what});
  };
  EXPECT_EQ(of("ResponsesRequest", "input", "description"),
            "a string or an array of items: messages, function_call, function_call_output, "
            "reasoning");
  EXPECT_EQ(of("ResponsesRequest", "temperature", "type"), "number");
  EXPECT_EQ(of("ResponsesRequest", "max_tokens", "description"), "<absent>");
  EXPECT_EQ(of("CountTokensRequest", "max_tokens", "minimum"), "1");
  EXPECT_EQ(of("OllamaChatRequest", "options", "description"), "an object");
  EXPECT_EQ(of("OllamaChatRequest", "prompt", "description"), "<absent>");
  EXPECT_EQ(of("OllamaGenerateRequest", "prompt", "description"), "a string");
  EXPECT_EQ(of("OllamaGenerateRequest", "images", "description"), "<absent>");
  EXPECT_EQ(of("EmbeddingsRequest", "dimensions", "description"),
            "absent, or the number of elements that the model's vectors have");
  EXPECT_EQ(of("EmbeddingsRequest", "user", "type"), "string");
  EXPECT_EQ(of("EmbeddingsRequest", "messages", "description"), "<absent>");
  EXPECT_EQ(of("OllamaEmbedRequest", "options", "description"),
            "an object; nothing in it changes a vector");
}

TEST_F(HttpApiTest, ToolsThatMustNotBeCalledAreAnswered) {
  AnswerWith("x");
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"clock","parameters":{}}}])";
  for (const std::string& fields :
       {tools + R"(,"tool_choice":"none")", std::string(R"(,"tool_choice":"auto")"),
        std::string(R"(,"tools":[],"tool_choice":"auto")"),
        std::string(R"(,"tools":null,"tool_choice":"none","parallel_tool_calls":false)")}) {
    const auto responder = Post(kChatPath, kHello + fields + "}");
    EXPECT_EQ(responder->status, 200) << fields << responder->body;
    // The test model's template shows no tools.
    const bool is_given = fields.starts_with(tools);
    EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), is_given ? "tools" : "") << fields;
  }
}

TEST_F(HttpApiTest, VariablesThatTheTemplateDoesNotReadAreNamed) {
  AnswerWith("x");
  auto reader = std::make_shared<ModelInfo>(*TestModel());
  reader->chat_template = std::make_shared<const ChatTemplate>(
      ChatTemplate::Create("{{ mood }}{{ documents | length if documents }}reasoning_effort"
                           "{{ messages[0].content }}",
                           "", "<eos>")
          .value());
  const auto model = TestModel();
  struct Case {
    std::shared_ptr<const ModelInfo> model;
    std::string fields;
    const char* ignored;
  };
  const std::string all =
      R"(,"documents":[{"text":"d"}],"reasoning_effort":"low",)"
      R"("chat_template_kwargs":{"mood":"m","enable_thinking":false,"none":null})";
  for (const Case& c :
       {Case{model, all,
             "documents, reasoning_effort, chat_template_kwargs.mood, "
             "chat_template_kwargs.enable_thinking"},
        Case{reader, all, "reasoning_effort, chat_template_kwargs.enable_thinking"},
        Case{reader, R"(,"nick":1,"reasoning_effort":"none")", "nick, reasoning_effort"},
        Case{model, R"(,"documents":[],"chat_template_kwargs":{},"reasoning_effort":null)", ""},
        Case{reader, R"(,"documents":[{}],"chat_template_kwargs":{"mood":"m"})", ""}}) {
    submitter_.served = {c.model};
    for (const char* path : {kChatPath, "/apply-template", "/tokenize"}) {
      const auto responder = Post(path, kHello + c.fields + "}");
      EXPECT_EQ(responder->status, 200) << path << c.fields << responder->body;
      EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), c.ignored) << path << c.fields;
    }
  }
}

TEST_F(HttpApiTest, ThoughtsThatTheTemplateDoesNotReadAreNamed) {
  AnswerWith("x");
  const auto with = [](const char* source) {
    auto model = std::make_shared<ModelInfo>(*TestModel());
    model->chat_template =
        std::make_shared<const ChatTemplate>(ChatTemplate::Create(source, "", "<eos>").value());
    return model;
  };
  struct Case {
    const char* source;
    bool reads;
  };
  for (const Case& c : {Case{"{% for m in messages %}{{ m.content }}{% endfor %}", false},
                        Case{"{{ enable_thinking }}{{ messages[0].content }}", false},
                        Case{"{{ messages[0].content }}{{ messages[1].reasoning_content }}", true},
                        Case{"{{ messages[0].content }}{{ messages[1]['thinking'] }}", true},
                        Case{"{{ messages[0].content }}{{ 'reasoning' in messages[1] }}", true}}) {
    submitter_.served = {with(c.source)};
    for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
      for (const char* path : {kChatPath, "/apply-template"}) {
        const auto responder =
            Post(path, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
                       R"("content":"b",")" +
                           std::string(name) + R"(":"hm"},{"role":"user","content":"c",")" + name +
                           R"(":""}]})");
        EXPECT_EQ(responder->status, 200) << responder->body;
        EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"),
                  c.reads ? "" : "messages[1]." + std::string(name))
            << c.source << path;
      }
    }
  }
}

// The history of an agent: no text beside a call, and a function without arguments.
TEST_F(HttpApiTest, ACallMayLackTextAndArguments) {
  auto model = std::make_shared<ModelInfo>(*TestModel());
  model->chat_template = std::make_shared<const ChatTemplate>(
      ChatTemplate::Create("{% for m in messages %}{{ '<' + m['content'] + '>' }}"
                           "{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}"
                           "{% endfor %}",
                           "", "<eos>")
          .value());
  submitter_.served = {model};
  for (const std::string& content :
       {std::string(R"("content":null,)"), std::string(), std::string(R"("content":"",)")}) {
    for (const char* arguments : {"", R"(,"arguments":"null")", R"(,"arguments":"")",
                                  R"(,"arguments":null)", R"(,"arguments":"{}")"}) {
      const std::string call =
          std::string(R"({"id":"1","type":"function","function":{"name":"f")") + arguments + "}}";
      const auto responder =
          Post("/apply-template", R"({"messages":[{"role":"user","content":"q"},)"
                                  R"({"role":"assistant",)" +
                                      content + R"("tool_calls":[)" + call + "]}]}");
      EXPECT_EQ(responder->body, R"({"prompt":"<q><>{}"})") << content << arguments;
    }
  }
}

TEST_F(HttpApiTest, AnEmptyModelIsUnknownEverywhere) {
  for (const char* path :
       {kChatPath, kCompletionPath, "/tokenize", "/detokenize", "/apply-template"}) {
    const auto responder = Post(path, R"({"model":""})");
    EXPECT_EQ(responder->status, 404) << path;
    EXPECT_EQ(Text(*responder, {"error", "code"}), "model_not_found");
  }
}

TEST_F(HttpApiTest, ASaltNamesTheTenant) {
  std::vector<std::string> tenants;
  submitter_.answer = [&](const GenerateRequest& request, ResponseSink& sink) {
    tenants.push_back(request.tenant);
    PlayText(sink, "x", 0, FinishReason::kStop, true);
    sink.OnFinished(TestResult(1, 1));
  };
  for (const char* salt : {"", R"(,"cache_salt":"a")", R"(,"cache_salt":"b")",
                           R"(,"cache_salt":"a")", R"(,"cache_salt":null)"}) {
    EXPECT_EQ(Post(kChatPath, kHello + salt + "}")->status, 200);
  }
  ASSERT_EQ(tenants.size(), 5u);
  EXPECT_EQ(tenants[0], kDefaultTenant);
  EXPECT_EQ(tenants[4], kDefaultTenant);
  EXPECT_EQ(tenants[1], tenants[3]);
  EXPECT_EQ(std::set<std::string>(tenants.begin(), tenants.end()).size(), 3u);
}

}  // namespace
}  // namespace baton::api
