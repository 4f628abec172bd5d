// The public gRPC services: ChatService, CompletionService, ModelService (inference.proto).
#ifndef BATON_API_GRPC_SERVICES_H_
#define BATON_API_GRPC_SERVICES_H_

#include <memory>
#include <vector>

#include "src/api/api_workers.h"
#include "src/router/submit.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace baton::api {

// Service objects for a server's builder; they must outlive the server.
std::vector<std::unique_ptr<grpc::Service>> MakeApiServices(const ApiParts& parts);

}  // namespace baton::api

#endif  // BATON_API_GRPC_SERVICES_H_
