#include "src/api/responses_surface.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/api/build_request.h"
#include "src/api/json_writer.h"
#include "src/api/openai_json.h"
#include "src/api/read_json.h"
#include "src/api/responses_params.h"
#include "src/api/responses_writer.h"

namespace baton::api {

using router::RequestError;
using text::ChatPrompt;

namespace {

bool Read(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  auto read = std::make_shared<ResponsesRequest>();
  auto items = std::make_shared<StoredItems>(call.items.Of(call.tenant));
  if (!ReadResponses(call.body, items.get(), read.get(), error)) return false;
  request->params = std::move(read->params);
  request->ignored = std::move(read->ignored);
  request->make_writer = [read,
                          items = read->stores ? std::move(items) : nullptr](AnswerPlan plan) {
    return MakeResponsesWriter(std::move(plan), {std::move(read->repeated), read->summarizes},
                               items);
  };
  return true;
}

std::string ErrorBody(const RequestError& error, std::string_view /*request_id*/) {
  RequestError named = error;
  NameAsResponses(&named);
  return ErrorJson(named);
}

}  // namespace

constexpr Surface kResponsesSurface = {.endpoint = Endpoint::kChat,
                                       .answer_id_prefix = "resp_",
                                       .read = &Read,
                                       .name_field = &ResponsesField,
                                       .error_body = &ErrorBody};

bool AnswerInputTokens(const TextCall& call, TextAnswer* answer, RequestError* error) {
  ResponsesRequest request;
  ChatPrompt prompt;
  if (!ReadResponses(call.body, &call.items, &request, error) ||
      !RenderMessages(call.model, request.params, call.wall_unix_ms, &prompt, error)) {
    return false;
  }
  answer->ignored = std::move(request.ignored);
  std::vector<std::string> unread = UnreadVariables(call.model, request.params);
  for (std::string& field : unread) field = ResponsesField(std::move(field));
  AddUnread(unread, &answer->ignored);
  JsonWriter json;
  json.BeginObject().Key("object").String("response.input_tokens");
  json.Key("input_tokens").Uint(prompt.tokens.size()).EndObject();
  answer->json = json.Take();
  return true;
}

}  // namespace baton::api
