// RouterRegistry over gRPC: the lease streams of workers (worker.proto). gRPC's threads decode what
// arrives and post it into the inbox; the router's thread answers through LeaseStream.
#ifndef BATON_ROUTER_GRPC_REGISTRY_SERVICE_H_
#define BATON_ROUTER_GRPC_REGISTRY_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "baton/v1/worker.grpc.pb.h"
#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/base/wire_versions.h"
#include "src/obs/baton_metrics.h"
#include "src/router/model_catalog.h"
#include "src/router/router_inbox.h"

namespace baton::router {

// How a lease stream ends whose hello, or a later report, the router cannot take.
struct RegistrationEnd {
  grpc::StatusCode code = grpc::StatusCode::OK;
  // Told to the worker, which gives up after some refusals. None: the worker comes again soon,
  // because the fault is not its own.
  std::optional<obs::RefusalReason> refusal;
};
RegistrationEnd EndOfRegistration(const Status& fault);

// The service object that the router's gRPC server is built with. It shares its port with the
// public API, so where the cluster has certificates it is the call, not the connection, that must
// have one: with `wants_certificates` a peer without is refused with UNAUTHENTICATED.
class GrpcRegistryService final : public v1::RouterRegistry::CallbackService {
 public:
  GrpcRegistryService(std::shared_ptr<RouterInbox> inbox, Incarnation router_incarnation,
                      bool wants_certificates = false, const WireRange& wire = kWireVersions,
                      std::vector<TokenizerSource> expected_tokenizers = {})
      : inbox_(std::move(inbox)),
        router_incarnation_(router_incarnation),
        wants_certificates_(wants_certificates),
        wire_(wire),
        catalog_(std::move(expected_tokenizers)) {}

  grpc::ServerBidiReactor<v1::WorkerReport, v1::RouterDirective>* Register(
      grpc::CallbackServerContext* context) override;

 private:
  const std::shared_ptr<RouterInbox> inbox_;
  const Incarnation router_incarnation_;
  const bool wants_certificates_;
  const WireRange wire_;
  ModelCatalog catalog_;  // used by calls, which end before their service does
  std::atomic<uint64_t> next_lease_{1};
  std::atomic<int64_t> refusal_logged_us_{0};
  // Strangers that the router's thread has not counted yet; while there are any, one message to it
  // is under way, however many come.
  const std::shared_ptr<std::atomic<uint64_t>> num_strangers_ =
      std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_GRPC_REGISTRY_SERVICE_H_
