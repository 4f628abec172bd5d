#include "src/api/messages_surface.h"

#include <memory>
#include <string>
#include <utility>

#include "src/api/json_writer.h"
#include "src/api/messages_json.h"
#include "src/api/messages_read.h"
#include "src/api/read_json.h"
#include "src/api/schema.h"

namespace baton::api {

using router::ErrorCode;
using router::FieldError;
using router::RequestError;
using text::ChatPrompt;

namespace {

bool Read(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  MessagesForm form;
  ApiParams& params = request->params;
  if (!ReadMessages(call.body, &params, &form, &request->ignored, error)) return false;
  if (!params.max_tokens.has_value()) {
    *error = FieldError(ErrorCode::kMissingField, "max_tokens",
                        ExpectedOf(*FindParam(Endpoint::kMessages, "max_tokens")));
    return false;
  }
  request->make_writer = [form](AnswerPlan plan) {
    return std::make_unique<MessagesWriter>(std::move(plan), form);
  };
  return true;
}

}  // namespace

constexpr Surface kMessagesSurface = {.endpoint = Endpoint::kMessages,
                                      .answer_id_prefix = "msg_",
                                      .ping = kMessagesPing,
                                      .request_id_field = "request-id",
                                      .read = &Read,
                                      .error_body = &MessagesErrorJson};

bool AnswerCountTokens(const TextCall& call, TextAnswer* answer, RequestError* error) {
  ApiParams params;
  MessagesForm form;
  ChatPrompt prompt;
  if (!ReadMessages(call.body, &params, &form, &answer->ignored, error) ||
      !RenderMessages(call.model, params, call.wall_unix_ms, &prompt, error)) {
    return false;
  }
  AddUnread(UnreadVariables(call.model, params), &answer->ignored);
  JsonWriter json;
  json.BeginObject().Key("input_tokens").Uint(prompt.tokens.size()).EndObject();
  answer->json = json.Take();
  return true;
}

}  // namespace baton::api
