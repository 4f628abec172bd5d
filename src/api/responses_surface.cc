#include "src/api/responses_surface.h"

#include <memory>
#include <string>
#include <utility>

#include "src/api/openai_json.h"
#include "src/api/responses_params.h"
#include "src/api/responses_writer.h"

namespace baton::api {

using router::RequestError;

namespace {

bool Read(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  auto read = std::make_shared<ResponsesRequest>();
  auto items = std::make_shared<StoredItems>(call.items.Of(call.tenant));
  if (!ReadResponses(call.body, items.get(), read.get(), error)) return false;
  request->params = std::move(read->params);
  request->ignored = std::move(read->ignored);
  request->make_writer = [read,
                          items = read->stores ? std::move(items) : nullptr](AnswerPlan plan) {
    return MakeResponsesWriter(std::move(plan), std::move(read->repeated), items);
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

}  // namespace baton::api
