// Vectors of texts over HTTP: OpenAI's form in floats and base64, Ollama's, and what is refused.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;

namespace {

constexpr const char* kEmbeddings = "/v1/embeddings";
constexpr const char* kOllamaEmbed = "/api/embed";
constexpr const char* kOllamaEmbeddings = "/api/embeddings";

class EmbeddingsTest : public HttpApiTest {
 protected:
  // The vector of a prompt of n tokens is (n, 0.5, -0.25).
  EmbeddingsTest() {
    SetModel(3, "");
    submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
      const auto num_tokens = static_cast<uint32_t>(request.prompt.size());
      sink.OnEmbedding({static_cast<float>(num_tokens), 0.5f, -0.25f});
      PlayText(sink, "x", 0, FinishReason::kLength, true);
      sink.OnFinished(TestResult(num_tokens, 0));
    };
  }
  void SetModel(uint32_t size, const std::string& refusal) {
    auto model = std::make_shared<ModelInfo>(*TestModel());
    model->embedding_size = size;
    model->embedding_refusal = refusal;
    submitter_.served = {std::move(model)};
  }
};

TEST_F(EmbeddingsTest, FloatsOfOneInput) {
  const auto answer = Post(kEmbeddings, R"({"model":"toy","input":"abc"})");
  ASSERT_EQ(answer->status, 200) << answer->body;
  EXPECT_EQ(answer->body, R"({"object":"list","data":[{"object":"embedding","index":0,)"
                          R"("embedding":[3,0.5,-0.25]}],"model":"toy",)"
                          R"("usage":{"prompt_tokens":3,"total_tokens":3}})");
  const GenerateRequest& request = submitter_.WaitSubmitted(0).request;
  EXPECT_TRUE(request.embeds);
  EXPECT_EQ(request.sampling.max_tokens, 1u);
}

TEST_F(EmbeddingsTest, Base64HasLittleEndianFloats) {
  const auto answer = Post(kEmbeddings, R"({"input":[97,98],"encoding_format":"base64"})");
  ASSERT_EQ(answer->status, 200) << answer->body;
  // 2.0f, 0.5f, -0.25f: 00 00 00 40, 00 00 00 3f, 00 00 80 be.
  EXPECT_EQ(Text(*answer, {"data", "0", "embedding"}), "AAAAQAAAAD8AAIC+");
}

TEST_F(EmbeddingsTest, InputsOfEachFormKeepTheirOrder) {
  for (const char* input : {R"(["a","bb","ccc"])", "[[97],[98,98],[99,99,99]]"}) {
    const auto answer =
        Post(kEmbeddings, R"({"encoding_format":"float","input":)" + std::string(input) + "}");
    ASSERT_EQ(answer->status, 200) << answer->body;
    for (const char* place : {"0", "1", "2"}) {
      EXPECT_EQ(Text(*answer, {"data", place, "index"}), place);
      EXPECT_EQ(Text(*answer, {"data", place, "embedding", "0"}),
                std::to_string(std::stoi(place) + 1));
    }
    EXPECT_EQ(Text(*answer, {"usage", "prompt_tokens"}), "6");
  }
}

TEST_F(EmbeddingsTest, ManyInputsComeInPieces) {
  constexpr uint32_t kSize = 4096;
  SetModel(kSize, "");
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    sink.OnEmbedding(std::vector<float>(kSize, 0.015625f));
    PlayText(sink, "x", 0, FinishReason::kLength, true);
    sink.OnFinished(TestResult(static_cast<uint32_t>(request.prompt.size()), 0));
  };
  std::string inputs;
  for (int i = 0; i < 100; ++i) inputs += (i == 0 ? "[\"" : "\",\"") + std::to_string(i);
  const auto answer = Post(kEmbeddings, R"({"input":)" + inputs + "\"]}");
  ASSERT_EQ(answer->status, 200);
  EXPECT_TRUE(answer->streamed) << "above a megabyte";
  EXPECT_EQ(Text(*answer, {"data", "99", "index"}), "99");
}

TEST_F(EmbeddingsTest, OllamasForm) {
  const auto answer =
      Post(kOllamaEmbed, R"({"model":"toy:latest","input":["ab","c"],"truncate":true})");
  ASSERT_EQ(answer->status, 200) << answer->body;
  EXPECT_EQ(
      answer->body.find(R"({"model":"toy:latest","embeddings":[[2,0.5,-0.25],[1,0.5,-0.25]])"), 0u)
      << answer->body;
  EXPECT_EQ(Text(*answer, {"prompt_eval_count"}), "3");
  const auto refused = Post(kOllamaEmbed, R"({"model":"toy"})");
  EXPECT_EQ(refused->status, 400);
  EXPECT_NE(Text(*refused, {"error"}).find("'input'"), std::string::npos) << refused->body;
}

TEST_F(EmbeddingsTest, OllamasOlderFormHasOneVector) {
  const auto answer = Post(kOllamaEmbeddings, R"({"model":"toy:latest","prompt":"ab",)"
                                              R"("keep_alive":"5m","options":{"num_ctx":9}})");
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, R"({"embedding":[2,0.5,-0.25]})");
  EXPECT_EQ(answer->Header("X-Baton-Ignored-Fields"), "keep_alive, options.num_ctx");
  const std::string too_long = R"({"prompt":")" + std::string(kTestContext + 1, 'a') + "\"}";
  const std::pair<std::string, const char*> cases[] = {
      {"{}", "'prompt' is required"},
      {R"({"prompt":""})", "'prompt'"},
      {R"({"prompt":["a"]})", "'prompt'"},
      {R"({"prompt":"a","input":"a"})", "'input'"},
      {R"({"input":"a"})", "prompt is its name here"},
      {R"({"prompt":"a","pooling":"cls"})", "'pooling'"},
      {R"({"prompt":"a","options":1})", "'options'"},
      {R"({"prompt":"a","keep_alive":"soon"})", "'keep_alive'"},
      {R"({"prompt":"a","dimensions":2})", "'dimensions'"},
      {too_long, "'prompt'"},
  };
  for (const auto& [body, words] : cases) {
    const auto refused = Post(kOllamaEmbeddings, body);
    EXPECT_EQ(refused->status, 400) << body.substr(0, 80);
    EXPECT_NE(Text(*refused, {"error"}).find(words), std::string::npos) << refused->body;
  }
}

TEST_F(EmbeddingsTest, DimensionsAreTheModels) {
  EXPECT_EQ(Post(kEmbeddings, R"({"input":"a","dimensions":3})")->status, 200);
  const auto other = Post(kEmbeddings, R"({"input":"a","dimensions":2})");
  EXPECT_EQ(other->status, 400);
  EXPECT_EQ(Text(*other, {"error", "param"}), "dimensions");
  EXPECT_NE(Text(*other, {"error", "message"}).find("3"), std::string::npos) << other->body;
}

TEST_F(EmbeddingsTest, AModelWithoutVectorsIsNamed) {
  SetModel(0, "rank");
  const auto answer = Post(kEmbeddings, R"({"input":"a"})");
  EXPECT_EQ(answer->status, 400);
  EXPECT_EQ(Text(*answer, {"error", "param"}), "model");
  EXPECT_EQ(Text(*answer, {"error", "code"}), "unsupported_parameter");
  EXPECT_NE(Text(*answer, {"error", "message"}).find("rank"), std::string::npos) << answer->body;
}

TEST_F(EmbeddingsTest, BadInputIsNamed) {
  struct Case {
    std::string body;
    const char* param;
    const char* code;
  };
  std::string too_many = R"({"input":["a")";
  for (uint32_t i = 0; i < limits::kMaxPrompts; ++i) too_many += ",\"a\"";
  const std::string too_long(kTestContext + 1, 'a');
  const Case cases[] = {
      {"{}", "input", "missing_required_parameter"},
      {R"({"input":null})", "input", "missing_required_parameter"},
      {R"({"input":""})", "input", "invalid_value"},
      {R"({"input":[]})", "input", "invalid_value"},
      {R"({"input":["a",""]})", "input[1]", "invalid_value"},
      {R"({"input":["a",3]})", "input[1]", "invalid_type"},
      {R"({"input":7})", "input", "invalid_type"},
      {R"({"input":[{"type":"image_url"}]})", "input", "invalid_type"},
      {R"({"input":[-1]})", "input", "invalid_value"},
      {too_many + "]}", "input", "invalid_value"},
      {R"({"input":")" + too_long + "\"}", "input", "context_length_exceeded"},
      {R"({"input":["a",")" + too_long + "\"]}", "input[1]", "context_length_exceeded"},
      {R"({"input":"a","encoding_format":"int8"})", "encoding_format", "invalid_value"},
      {R"({"input":"a","encoding_format":1})", "encoding_format", "invalid_type"},
      {R"({"input":"a","dimensions":"3"})", "dimensions", "invalid_type"},
      {R"({"input":"a","model":"nobody"})", "model", "model_not_found"},
      {R"({"input":"a","messages":[]})", "messages", "unsupported_parameter"},
      {R"({"input":"a","images":["AA=="]})", "images", "unsupported_parameter"},
  };
  for (const Case& c : cases) {
    const auto answer = Post(kEmbeddings, c.body);
    const std::string shown = c.body.substr(0, 80) + answer->body;
    EXPECT_EQ(answer->status, std::string(c.code) == "model_not_found" ? 404 : 400) << shown;
    EXPECT_EQ(Text(*answer, {"error", "param"}), c.param) << shown;
    EXPECT_EQ(Text(*answer, {"error", "code"}), c.code) << shown;
  }
  EXPECT_EQ(submitter_.num_submitted(), 0u);
}

// A vector of another norm, type or task must not pass for the one that was asked for.
TEST_F(EmbeddingsTest, WhatWouldChangeTheVectorIsRefusedByName) {
  struct Case {
    const char* name;
    const char* asking;
    const char* neutral;
  };
  for (const Case& c : {
           Case{"normalize", "false", "true"},
           Case{"normalized", "false", "true"},
           Case{"embd_normalize", "-1", "2"},
           Case{"use_activation", "false", "true"},
           Case{"pooling", R"("cls")", "null"},
           Case{"embed_dtype", R"("float16")", R"("float32")"},
           Case{"output_dtype", R"("int8")", R"("float")"},
           Case{"endianness", R"("big")", R"("little")"},
           Case{"add_special_tokens", "false", "true"},
           Case{"late_chunking", "true", "false"},
           Case{"task", R"("retrieval.query")", R"("embed")"},
           Case{"input_type", R"("query")", R"("")"},
           Case{"prompt_name", R"("query")", "null"},
           Case{"lora_path", R"("a")", R"("")"},
           Case{"priority", R"("high")", "0"},
       }) {
    for (const char* path : {kEmbeddings, kOllamaEmbed}) {
      const auto body = [&](const char* value) {
        return R"({"input":"a",")" + std::string(c.name) + "\":" + value + "}";
      };
      const auto refused = Post(path, body(c.asking));
      EXPECT_EQ(refused->status, 400) << path << body(c.asking);
      EXPECT_NE(refused->body.find("'" + std::string(c.name) + "'"), std::string::npos)
          << refused->body;
      const auto taken = Post(path, body(c.neutral));
      EXPECT_EQ(taken->status, 200) << path << body(c.neutral) << taken->body;
      EXPECT_EQ(taken->Header("X-Baton-Ignored-Fields"), "") << body(c.neutral);
    }
  }
  const auto refused = Post(kEmbeddings, R"({"input":"a","normalize":false})");
  EXPECT_EQ(Text(*refused, {"error", "param"}), "normalize");
  EXPECT_EQ(Text(*refused, {"error", "code"}), "unsupported_parameter");
  const auto unknown = Post(kEmbeddings, R"({"input":"a","mood":1,"user":"u"})");
  EXPECT_EQ(unknown->Header("X-Baton-Ignored-Fields"), "mood");
  const auto options = Post(kOllamaEmbed, R"({"input":"a","options":{"num_ctx":9,"seed":null}})");
  EXPECT_EQ(options->Header("X-Baton-Ignored-Fields"), "options.num_ctx");
}

TEST_F(EmbeddingsTest, AnInputThatIsTooLongHearsOfNoAnswer) {
  const auto answer =
      Post(kEmbeddings, R"({"input":")" + std::string(kTestContext + 1, 'a') + "\"}");
  EXPECT_EQ(Text(*answer, {"error", "message"}),
            "'input' is too large: it must be at most 511 tokens, one less than max_model_len, it "
            "has 513.");
  EXPECT_EQ(Text(*answer, {"error", "n_prompt_tokens"}), "513");
}

TEST_F(EmbeddingsTest, AFailureOfOneInputIsThatOfAll) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    if (request.prompt.size() == 2) return sink.OnFailed(PlainError(ErrorCode::kWorkerLost));
    sink.OnEmbedding({1.0f, 0.0f, 0.0f});
    PlayText(sink, "x", 0, FinishReason::kLength, true);
    sink.OnFinished(TestResult(1, 0));
  };
  const auto answer = Post(kEmbeddings, R"({"input":["a","bb","c"]})");
  EXPECT_EQ(answer->status, 503) << answer->body;
}

TEST_F(EmbeddingsTest, ADisconnectCancels) {
  submitter_.answer = nullptr;
  const auto responder =
      Send("POST", kEmbeddings, R"({"input":"abc"})", {{"Content-Type", "application/json"}});
  const auto submitted = submitter_.WaitSubmitted(0);
  responder->Close();
  EXPECT_TRUE(submitter_.WaitCancelled(submitted.uid));
}

}  // namespace
}  // namespace baton::api
