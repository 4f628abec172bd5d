// gRPC server reflection by its present name, grpc.reflection.v1, for servers whose library has
// only v1alpha (gRPC 1.51). Both answer from the descriptors that are linked in.
#ifndef BATON_API_REFLECTION_V1_H_
#define BATON_API_REFLECTION_V1_H_

namespace baton::api {

// Every server that is built from now on has the service, in which all its services are listed.
// Idempotent; before the first server of the process is built.
void EnableReflectionV1();

}  // namespace baton::api

#endif  // BATON_API_REFLECTION_V1_H_
