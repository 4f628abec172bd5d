// The router's sessions with workers over gRPC: one bidirectional stream per worker carries all its
// requests (worker.proto, WorkerService.Session). Messages of a worker of this host come over a
// unix socket instead, which the router's thread reads itself (local_sessions.h).
//
// Threads: GrpcWorkerConnector and the sessions it makes are called by the router's thread; gRPC's
// threads post what arrives into the inbox. At most kMaxUnhandled messages of one session wait
// there: then the stream is not read until the router has caught up, and gRPC's flow control slows
// the worker.
//
// Ownership: the connector holds each stream from its start until gRPC is done with it and the
// router's thread, or the connector's destructor, lets it go. A stream owns its channel, and a
// channel must not be destroyed on a thread of gRPC, which would then wait for itself.
#ifndef BATON_ROUTER_GRPC_WORKER_SESSION_H_
#define BATON_ROUTER_GRPC_WORKER_SESSION_H_

#include <memory>

#include "src/base/ids.h"
#include "src/base/wire_versions.h"
#include "src/router/router_inbox.h"
#include "src/router/worker_link.h"
#include "src/tls/tls_files.h"

namespace grpc {
class ChannelCredentials;
}

namespace baton::router {

class LocalSessions;
class SessionStreams;

// Opens sessions, encrypted when `tls` names files; events go to `inbox`. Outlives its sessions.
class GrpcWorkerConnector final : public WorkerConnector {
 public:
  // Becomes the source of the inbox. `wire`: what this router speaks; a session uses the newest
  // version that the worker speaks too.
  GrpcWorkerConnector(std::shared_ptr<RouterInbox> inbox, Incarnation router_incarnation,
                      const tls::TlsFiles& tls = {}, const WireRange& wire = kWireVersions);
  // Waits until gRPC is done with every stream; the sessions, being gone, have ended them.
  ~GrpcWorkerConnector() override;

  std::unique_ptr<WorkerSession> Connect(SessionRef session,
                                         const WorkerDescription& worker) override;

 private:
  const std::shared_ptr<RouterInbox> inbox_;
  const Incarnation router_incarnation_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const WireRange wire_;
  const std::shared_ptr<LocalSessions> locals_;  // null where the system has no such sockets
  const std::shared_ptr<SessionStreams> streams_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_GRPC_WORKER_SESSION_H_
