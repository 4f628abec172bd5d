// Messages of gRPC calls from their bytes and back. gRPC's own reading answers bytes that are no
// message with UNIMPLEMENTED and not a word; here the client hears which field is at fault.
#ifndef BATON_API_GRPC_MESSAGE_H_
#define BATON_API_GRPC_MESSAGE_H_

#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

#include "src/router/request_error.h"

namespace baton::api {

// False: `error`, which names the field whose text is not valid UTF-8.
bool ReadMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message,
                 router::RequestError* error);
void WriteMessage(const google::protobuf::Message& message, grpc::ByteBuffer* bytes);

}  // namespace baton::api

#endif  // BATON_API_GRPC_MESSAGE_H_
