// EmbeddingService's messages as the request and the answer of a completion that embeds. Pure; any
// thread.
#ifndef BATON_API_EMBEDDINGS_PROTO_H_
#define BATON_API_EMBEDDINGS_PROTO_H_

#include "baton/v1/inference.pb.h"
#include "src/api/answer_collector.h"
#include "src/api/build_request.h"
#include "src/api/params.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"

namespace baton::api {

// False: `error` names the field.
bool ReadEmbeddingRequest(const v1::EmbeddingRequest& message, ApiParams* params,
                          router::RequestError* error);

// As the FillResponse of openai_proto.h.
void FillResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                  const router::GenerateResult& result, v1::EmbeddingResponse* out);

}  // namespace baton::api

#endif  // BATON_API_EMBEDDINGS_PROTO_H_
