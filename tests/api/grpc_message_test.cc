// Bytes that are no message of the method: the client hears what is wrong with them.
#include <string>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "tests/api/router_process_rig.h"

namespace baton::api {
namespace {

// An error as an answer tells it.
struct Refusal {
  grpc::Status status;
  std::string code;
  std::string field;
};

class GrpcMessageTest : public RouterProcessTest {
 protected:
  // Sends the bytes as they are, which no stub does.
  Refusal Send(const char* path, const std::string& bytes) {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    Refusal refusal;
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channel_);
    const auto call = stub.PrepareUnaryCall(&context, path, request, &queue);
    call->StartCall();
    call->Finish(&response, &refusal.status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    const auto text_of = [&context](const char* name) {
      const auto& metadata = context.GetServerTrailingMetadata();
      const auto it = metadata.find(name);
      return it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
    };
    refusal.code = text_of("baton-error-code");
    refusal.field = text_of("baton-error-param");
    return refusal;
  }

  // The bytes of a message whose text "@@" is not valid UTF-8.
  static std::string Broken(const google::protobuf::Message& message) {
    std::string bytes = message.SerializeAsString();
    bytes.replace(bytes.find("@@"), 2, "a\xff");
    return bytes;
  }
};

TEST_F(GrpcMessageTest, TextThatIsNotUtf8IsRefusedByItsField) {
  v1::ChatCompletionRequest chat = Chat(2);
  chat.add_messages()->set_role("user");
  chat.mutable_messages(1)->set_content("@@");
  v1::ChatCompletionRequest tool = Chat(2);
  tool.add_tools()->mutable_function()->set_name("@@");
  v1::CompletionRequest completion;
  completion.set_prompt("valid");
  completion.add_stop("\xc3\xa9");
  completion.add_stop("@@");
  v1::EmbeddingRequest embedding;
  embedding.add_input("@@");
  v1::TokenizeRequest tokenize;
  tokenize.set_content("@@");
  v1::DetokenizeRequest detokenize;
  detokenize.set_model("@@");
  v1::ApplyTemplateRequest rendered;
  rendered.set_documents("@@");
  struct Case {
    const char* path;
    std::string bytes;
    const char* field;
  };
  const Case cases[] = {
      {"/baton.v1.ChatService/ChatCompletion", Broken(chat), "messages[1].content"},
      {"/baton.v1.ChatService/StreamChatCompletion", Broken(tool), "tools[0].function.name"},
      {"/baton.v1.CompletionService/Complete", Broken(completion), "stop[1]"},
      {"/baton.v1.CompletionService/StreamComplete", Broken(completion), "stop[1]"},
      {"/baton.v1.EmbeddingService/CreateEmbedding", Broken(embedding), "input[0]"},
      {"/baton.v1.ModelService/Tokenize", Broken(tokenize), "content"},
      {"/baton.v1.ModelService/Detokenize", Broken(detokenize), "model"},
      {"/baton.v1.ModelService/ApplyTemplate", Broken(rendered), "documents"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.path);
    const Refusal refusal = Send(c.path, c.bytes);
    EXPECT_EQ(refusal.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(refusal.code, "invalid_utf8");
    EXPECT_EQ(refusal.field, c.field);
    EXPECT_NE(refusal.status.error_message().find(c.field), std::string::npos)
        << refusal.status.error_message();
  }
  EXPECT_TRUE(WaitMetric("code=\"400\"} " + std::to_string(std::size(cases)) + "\n"));
}

TEST_F(GrpcMessageTest, BytesOfNoMessageAreRefused) {
  const std::string cut_short("\x12\x7f\x61", 3);
  const std::string no_message("\x12\x02\x0a\xff", 4);
  const std::string half_a_number("\x12\x01\xff", 3);
  struct Case {
    const char* path;
    const std::string& bytes;
    const char* field;
  };
  const Case cases[] = {
      {"/baton.v1.ChatService/ChatCompletion", cut_short, ""},
      {"/baton.v1.ChatService/StreamChatCompletion", no_message, "messages[0]"},
      {"/baton.v1.ModelService/Tokenize", cut_short, ""},
      {"/baton.v1.ModelService/Detokenize", half_a_number, "tokens"},
      {"/baton.v1.ModelService/ListModels", cut_short, ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.path);
    const Refusal refusal = Send(c.path, c.bytes);
    EXPECT_EQ(refusal.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(refusal.code, "malformed_request");
    EXPECT_EQ(refusal.field, c.field);
    EXPECT_NE(refusal.status.error_message().find(c.field), std::string::npos);
    EXPECT_NE(refusal.status.error_message().find("Its bytes are no baton.v1."), std::string::npos)
        << refusal.status.error_message();
  }
}

}  // namespace
}  // namespace baton::api
