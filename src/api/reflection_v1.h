// gRPC server reflection under the name grpc.reflection.v1. The library itself (gRPC 1.51) has only
// v1alpha. Both services answer from the linked descriptors.
#ifndef BATON_API_REFLECTION_V1_H_
#define BATON_API_REFLECTION_V1_H_

namespace baton::api {

// Gives the service to every server that is built later; it lists all services of its server.
// Idempotent. Call it before the first server of the process is built.
void EnableReflectionV1();

}  // namespace baton::api

#endif  // BATON_API_REFLECTION_V1_H_
