// The page of fields that HTTP and gRPC have, made from the table of parameters, the fields of the
// surfaces and the descriptors of the messages.
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fmt/format.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

#include "baton/v1/inference.pb.h"
#include "src/api/embeddings_surface.h"
#include "src/api/read_json.h"
#include "src/api/schema.h"
#include "src/api/tokenize_json.h"

namespace baton::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr const char* kPage = "src/api/PARITY.md";

// One field that HTTP has.
struct HttpField {
  std::string name;
  std::string expected;
  const ParamRow* row = nullptr;  // null: the surface's own
};

// The two forms of one request.
struct Pair {
  const char* path;
  const char* method;
  std::vector<HttpField> fields;
  const Descriptor* message;
};

// Why one of the two has no field of that name, by message and name. An unused line fails.
using Reasons = std::map<std::pair<std::string, std::string>, std::string>;

const Reasons& HttpAlone() {
  static const Reasons reasons = [] {
    Reasons all = {
        {{"EmbeddingRequest", "encoding_format"}, "floats are four bytes each"},
        {{"TokenizeRequest", "with_pieces"}, "llama-server's form of the answer"},
        {{"TokenizeRequest", "prompt"}, "vLLM's form of the request: `content` with `add_special`"},
        {{"TokenizeRequest", "add_special_tokens"}, "vLLM's name of `add_special`"},
        {{"TokenizeRequest", "return_token_strs"}, "vLLM's form of the answer"},
        {{"TokenizeRequest", "messages"}, "`ApplyTemplate`, then `Tokenize`"},
    };
    for (const char* message : {"ChatCompletionRequest", "CompletionRequest"}) {
      all[{message, "stream"}] = "the method says it";
      all[{message, "stream_options"}] = "each last chunk has usage; a chunk has its token's index";
      for (const std::string name : {"json", "regex", "choice", "grammar"}) {
        all[{message, "guided_" + name}] = "older name of `structured_outputs." + name + "`";
      }
    }
    for (const char* name : {"documents", "reasoning_effort", "chat_template_kwargs",
                             "add_generation_prompt", "continue_final_message", "tools"}) {
      all[{"TokenizeRequest", name}] = "as `messages`";
    }
    return all;
  }();
  return reasons;
}

const Reasons& GrpcAlone() {
  static const Reasons reasons = {
      {{"CompletionRequest", "prompts"}, "`prompt` as a list of texts"},
      {{"CompletionRequest", "prompts_token_ids"}, "`prompt` as a list of lists of ids"},
      {{"EmbeddingRequest", "input_token_ids"}, "`input` as a list of ids, or of lists of ids"},
  };
  return reasons;
}

std::pair<std::string, std::string> KeyOf(const Descriptor& message, std::string_view name) {
  return {std::string(message.name()), std::string(name)};
}

std::vector<HttpField> RowsOf(Endpoint endpoint) {
  std::vector<HttpField> fields;
  for (const ParamRow& row : ParamTable()) {
    if (row.AppliesTo(endpoint)) fields.push_back({std::string(row.name), ExpectedOf(row), &row});
  }
  return fields;
}

void AddRows(Endpoint endpoint, std::span<const std::string_view> names,
             std::vector<HttpField>* fields) {
  for (const std::string_view name : names) {
    const ParamRow* row = FindParam(endpoint, name);
    fields->push_back({std::string(name), ExpectedOf(*row), row});
  }
}

void AddOwn(std::span<const SurfaceField> own, std::vector<HttpField>* fields) {
  for (const SurfaceField& field : own) {
    if (field.json_types == 0) continue;  // refused
    fields->push_back({std::string(field.name), std::string(field.expected)});
  }
}

std::vector<Pair> Pairs() {
  std::vector<HttpField> embeddings;
  AddOwn(EmbeddingsFields(), &embeddings);
  AddRows(Endpoint::kCompletion, EmbeddingsPassedFields(), &embeddings);
  std::vector<HttpField> tokenize;
  AddOwn(TokenizeFields(), &tokenize);
  AddRows(Endpoint::kChat, TemplateFieldNames(), &tokenize);
  std::vector<HttpField> detokenize;
  AddOwn(DetokenizeFields(), &detokenize);
  std::vector<HttpField> apply;
  constexpr std::string_view kModel[] = {"model"};
  AddRows(Endpoint::kChat, kModel, &apply);
  AddRows(Endpoint::kChat, TemplateFieldNames(), &apply);
  return {
      {"/v1/chat/completions", "ChatService", RowsOf(Endpoint::kChat),
       v1::ChatCompletionRequest::descriptor()},
      {"/v1/completions", "CompletionService", RowsOf(Endpoint::kCompletion),
       v1::CompletionRequest::descriptor()},
      {"/v1/embeddings", "EmbeddingService", embeddings, v1::EmbeddingRequest::descriptor()},
      {"/tokenize", "ModelService.Tokenize", tokenize, v1::TokenizeRequest::descriptor()},
      {"/detokenize", "ModelService.Detokenize", detokenize, v1::DetokenizeRequest::descriptor()},
      {"/apply-template", "ModelService.ApplyTemplate", apply,
       v1::ApplyTemplateRequest::descriptor()},
  };
}

std::string TypeOf(const FieldDescriptor& field) {
  if (field.is_map()) {
    const Descriptor& entry = *field.message_type();
    return fmt::format("map of {} to {}", entry.field(0)->type_name(), entry.field(1)->type_name());
  }
  const std::string type = field.message_type() != nullptr
                               ? std::string(field.message_type()->name())
                               : std::string(field.type_name());
  return field.is_repeated() ? "repeated " + type : type;
}

// Text for a cell of a table.
std::string Cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) {
    text.replace(at, 1, "\\|");
  }
  return text;
}

std::string RowText(const HttpField& field, const Descriptor& message) {
  const FieldDescriptor* const found = message.FindFieldByName(field.name);
  const auto reason = HttpAlone().find(KeyOf(message, field.name));
  std::string grpc = "MISSING";
  if (found != nullptr) {
    grpc = fmt::format("{} = {}", TypeOf(*found), found->number());
  } else if (reason != HttpAlone().end()) {
    grpc = "none: " + reason->second;
  }
  return fmt::format("| `{}` | {} | {} |\n", field.name, Cell(field.expected), Cell(grpc));
}

std::string Section(const Pair& pair) {
  std::string text = fmt::format("\n## `{}` and `{}`\n\n", pair.path, pair.method);
  text += "| field | what it must be | in `" + std::string(pair.message->name()) + "` |\n";
  text += "|---|---|---|\n";
  std::set<std::string> names;
  for (const HttpField& field : pair.fields) {
    names.insert(field.name);
    text += RowText(field, *pair.message);
  }
  for (int i = 0; i < pair.message->field_count(); ++i) {
    const FieldDescriptor& field = *pair.message->field(i);
    const std::string name(field.name());
    if (names.count(name) > 0) continue;
    const auto reason = GrpcAlone().find(KeyOf(*pair.message, name));
    const std::string json = reason == GrpcAlone().end() ? "MISSING" : reason->second;
    text +=
        fmt::format("| none: {} | | `{}` {} = {} |\n", json, name, TypeOf(field), field.number());
  }
  return text;
}

std::string Page() {
  std::string text =
      "# Fields of HTTP and of gRPC\n\n"
      "One table of parameters ([schema.cc](schema.cc)) reads both, so a field has one range and\n"
      "one error text. `parity_table_test` makes this page from it and from the messages of\n"
      "[inference.proto](../../proto/baton/v1/inference.proto), and fails where it differs;\n"
      "`BATON_UPDATE_PARITY=1` makes it write the page. Anthropic's Messages, OpenAI's Responses\n"
      "and Ollama's API are forms of other projects and are HTTP alone.\n";
  for (const Pair& pair : Pairs()) text += Section(pair);
  return text;
}

TEST(ParityTableTest, ThePageIsWhatTheTableAndTheMessagesSay) {
  const std::string page = Page();
  EXPECT_EQ(page.find("MISSING"), std::string::npos) << "a field of one API alone has no reason";
  if (std::getenv("BATON_UPDATE_PARITY") != nullptr) {
    std::ofstream(kPage) << page;
    return;
  }
  std::ifstream file(kPage);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == page)
      << kPage << " differs: BATON_UPDATE_PARITY=1 api_test --gtest_filter=Parity*";
}

TEST(ParityTableTest, EachReasonIsOfAFieldThatOneApiLacks) {
  Reasons http = HttpAlone();
  Reasons grpc = GrpcAlone();
  for (const Pair& pair : Pairs()) {
    for (const HttpField& field : pair.fields) {
      const auto key = KeyOf(*pair.message, field.name);
      if (pair.message->FindFieldByName(field.name) == nullptr) http.erase(key);
      EXPECT_EQ(grpc.count(key), 0u) << pair.path << " " << field.name << " is in both";
    }
    for (int i = 0; i < pair.message->field_count(); ++i) {
      grpc.erase(KeyOf(*pair.message, pair.message->field(i)->name()));
    }
  }
  for (const Reasons& unused : {http, grpc}) {
    for (const auto& [key, reason] : unused) {
      ADD_FAILURE() << key.first << "." << key.second << " needs no reason: " << reason;
    }
  }
}

// The types of a message's field that can carry a row's values; empty: any.
struct ProtoTypes {
  using Types = std::set<std::string>;
  Types operator()(std::optional<int64_t> ApiParams::* /*target*/) const {
    return {"int32", "int64"};
  }
  Types operator()(std::optional<double> ApiParams::* /*target*/) const { return {"float"}; }
  Types operator()(std::optional<bool> ApiParams::* /*target*/) const { return {"bool"}; }
  Types operator()(std::string ApiParams::* /*target*/) const { return {"string"}; }
  Types operator()(std::vector<std::string> ApiParams::* /*target*/) const {
    return {"repeated string"};
  }
  Types operator()(std::vector<int64_t> ApiParams::* /*target*/) const {
    return {"repeated int32"};
  }
  Types operator()(LogitBias ApiParams::* /*target*/) const { return {"map of int32 to float"}; }
  Types operator()(SpecialParam /*special*/) const { return {}; }
};

TEST(ParityTableTest, AFieldHasTheTypeOfItsRow) {
  for (const Pair& pair : Pairs()) {
    for (const HttpField& field : pair.fields) {
      const FieldDescriptor* const found = pair.message->FindFieldByName(field.name);
      if (found == nullptr || field.row == nullptr) continue;
      const auto types = std::visit(ProtoTypes{}, field.row->target);
      if (types.empty()) continue;
      EXPECT_EQ(types.count(TypeOf(*found)), 1u) << pair.path << " " << field.name;
    }
  }
}

}  // namespace
}  // namespace baton::api
