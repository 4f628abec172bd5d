// Reads a gRPC request into ApiParams by the schema table: each row is looked up among the
// message's fields by its name (protobuf reflection), so a new parameter needs one row and one
// field. Any thread.
#ifndef BATON_API_READ_PROTO_H_
#define BATON_API_READ_PROTO_H_

#include "src/api/params.h"
#include "src/router/request_error.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace baton::api {

// `message`: a ChatCompletionRequest or CompletionRequest. False: `error` names the field and what
// it must be.
bool ReadProtoParams(const google::protobuf::Message& message, Endpoint endpoint, ApiParams* params,
                     router::RequestError* error);

// The field `messages` alone, for ApplyTemplate.
bool ReadProtoMessages(const google::protobuf::Message& message, ApiParams* params,
                       router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_READ_PROTO_H_
