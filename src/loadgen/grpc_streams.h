// Streams over Baton's gRPC API.
#ifndef BATON_LOADGEN_GRPC_STREAMS_H_
#define BATON_LOADGEN_GRPC_STREAMS_H_

#include <memory>

#include "src/base/status.h"
#include "src/loadgen/http_streams.h"
#include "src/loadgen/stream_backend.h"

namespace baton::loadgen {

// ChatService.StreamChatCompletion and CompletionService.StreamComplete of one server, driven from
// one thread by a completion queue. gRPC reads its sockets on threads of its own and gives no time
// of arrival: a token counts when the queue hands it out, and OnLag is never called. Its timers are
// of a millisecond, which is in the start lag.
class GrpcStreams {
 public:
  // Waits for the connection: Unavailable when there is none within 5 s.
  static StatusOr<std::unique_ptr<StreamBackend>> Create(const HttpTarget& target);
};

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_GRPC_STREAMS_H_
