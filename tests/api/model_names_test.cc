// Names of models over HTTP: which are served, and what another name is answered.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)

namespace {

TEST_F(HttpApiTest, WhatNoModelIsCalledIsNotFoundHoweverOdd) {
  for (const std::string& name : {std::string(300, 'm'), std::string("a\\nb")}) {
    const auto responder = Post(kChatPath, kHello + R"(,"model":")" + name + "\"}");
    EXPECT_EQ(responder->status, 404) << responder->body;
    EXPECT_EQ(Text(*responder, {"error", "code"}), "model_not_found");
  }
}

TEST_F(HttpApiTest, OllamasTagIsNoNameElsewhere) {
  const std::string named = R"("model":"toy:latest"})";
  const std::pair<const char*, std::string> posts[] = {
      {kChatPath, kHello + ","},
      {kCompletionPath, R"({"prompt":"x",)"},
      {"/v1/messages", R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,)"},
      {"/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"x"}],)"},
      {"/v1/responses", R"({"input":"x",)"},
      {"/tokenize", R"({"content":"x",)"},
      {"/detokenize", R"({"tokens":[104],)"},
      {"/apply-template", kHello + ","},
  };
  for (const auto& [path, fields] : posts) {
    const auto responder = Post(path, fields + named);
    EXPECT_EQ(responder->status, 404) << path << responder->body;
  }
  EXPECT_EQ(Send("GET", "/v1/models/toy:latest")->status, 404);
  EXPECT_EQ(submitter_.num_submitted(), 0u);
}

TEST_F(HttpApiTest, ModelsAndHealth) {
  auto responder = Send("GET", "/v1/models");
  EXPECT_EQ(responder->body,
            R"({"object":"list","data":[{"id":"toy","object":"model","created":1700000000,)"
            R"("owned_by":"baton","max_context":512,"max_model_len":512,"vocab_size":259}]})");
  EXPECT_EQ(Send("GET", "/v1/models/toy")->status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/t%6Fy")->status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/none")->status, 404);
  EXPECT_EQ(Send("GET", "/health")->body, R"({"status":"ok"})");
  EXPECT_EQ(Send("HEAD", "/health")->status, 200);
  submitter_.is_ready = false;
  responder = Send("GET", "/health");
  EXPECT_EQ(responder->status, 503);
  EXPECT_EQ(responder->Header("Retry-After"), "1");
  EXPECT_NE(responder->body.find("No worker is ready"), std::string::npos) << responder->body;
  submitter_.is_draining = true;
  responder = Send("GET", "/health");
  EXPECT_EQ(responder->status, 503);
  EXPECT_EQ(responder->body.find("No worker"), std::string::npos) << responder->body;
  EXPECT_NE(responder->body.find("draining"), std::string::npos) << responder->body;
  submitter_.served.clear();
  const auto chat = Post(kChatPath, kHello + "}");
  EXPECT_EQ(chat->status, 503) << "loading: not the client's mistake";
  EXPECT_EQ(Send("GET", "/v1/models/toy")->status, 404);
}

TEST_F(HttpApiTest, OfSeveralModelsARequestNamesOne) {
  auto second = std::make_shared<ModelInfo>(*TestModel());
  second->id = "second";
  submitter_.directory = ModelDirectory({{.id = "gone", .names = {"gone"}, .is_expected = true},
                                         {.id = "second", .names = {"second"}, .served = second},
                                         {.id = "toy", .names = {"toy"}, .served = TestModel()}});
  const std::string all = "'gone', 'second', 'toy'";
  struct Case {
    std::string model;
    int status;
    std::string said;
  };
  const Case cases[] = {{"", 400, all},
                        {R"(,"model":"default")", 400, all},
                        {R"(,"model":"no")", 404, all},
                        {R"(,"model":"gone")", 503, "No worker is ready"}};
  for (const Case& c : cases) {
    for (const auto& responder :
         {Post(kChatPath, kHello + c.model + "}"), Post("/apply-template", kHello + c.model + "}"),
          Post("/tokenize", R"({"content":"hi")" + c.model + "}")}) {
      EXPECT_EQ(responder->status, c.status) << c.model;
      EXPECT_THAT(responder->body, testing::HasSubstr(c.said));
      EXPECT_EQ(responder->Header("Retry-After"), c.status == 503 ? "1" : "");
    }
  }
  EXPECT_EQ(Post("/tokenize", R"({"content":"hi","model":"second"})")->status, 200);
  const std::string list = Send("GET", "/v1/models")->body;
  EXPECT_THAT(list, testing::AllOf(testing::HasSubstr(R"("id":"second")"),
                                   testing::HasSubstr(R"("id":"toy")")));
  EXPECT_EQ(Send("GET", "/v1/models/gone")->status, 503);
  EXPECT_EQ(Send("GET", "/v1/models/no")->status, 404);
}

}  // namespace
}  // namespace baton::api
