// AdminServer: the port of each process for probes, metrics and a look inside. No authentication:
// bind it to an address that only operators reach.
//
// GET /livez /readyz /startupz /metrics /debug/requests /debug/blocks /debug/trace, and on a router
// GET /v1/topology and POST /drain?worker=ID[&timeout_s=N]; anything else is 404, another method
// 405. Providers are called on the server's thread, concurrently with everything else, and must
// answer without waiting for a step.
#ifndef BATON_OBS_ADMIN_SERVER_H_
#define BATON_OBS_ADMIN_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/http/http_router.h"
#include "src/http/http_server.h"
#include "src/obs/metrics.h"

namespace baton::obs {

// The sources of the port's answers. An empty probe is OK; an empty debug provider shows []. A
// status that is not OK answers 503 with its message, so that a look that failed is not taken for
// an empty table.
struct AdminProviders {
  std::function<Status()> live;     // the loops make progress
  std::function<Status()> ready;    // a request would be served now
  std::function<Status()> started;  // start-up is complete
  // Array of {request_uid, choice, attempt, state, ...}.
  std::function<StatusOr<std::string>()> requests_json;
  // Array of {index, generation, state, ...}.
  std::function<StatusOr<std::string>()> blocks_json;
  // The object of /debug/trace: the last requests or steps; empty = no such path here.
  std::function<StatusOr<std::string>()> trace_json;
  // The object of /v1/topology; empty = no such path here.
  std::function<StatusOr<std::string>()> topology_json;
  // More of /metrics, after the registry's: families whose labels are known only at run time.
  std::function<std::string()> more_metrics;
  // Lets a worker go and answers with an object that names its incarnation, NotFound for an unknown
  // one; empty = no such path here. `timeout_s` 0 = the worker's own limit.
  std::function<StatusOr<std::string>(std::string_view worker_id, uint32_t timeout_s)> drain;
};

// A running admin port; stops when destroyed. The registry must outlive it.
class AdminServer {
 public:
  // Port 0 = any free one. `sites`: hosts and origins beside the port's own; a foreign one is
  // refused with every method (http/site_rules.h).
  static StatusOr<std::unique_ptr<AdminServer>> Start(std::string host, uint16_t port,
                                                      const MetricsRegistry* registry,
                                                      AdminProviders providers,
                                                      http::SiteRules sites = {});

  uint16_t port() const { return server_->port(); }
  std::string address() const { return server_->address(); }
  void Stop() { server_->Stop(); }

 private:
  AdminServer(const MetricsRegistry* registry, AdminProviders providers);

  const MetricsRegistry* const registry_;
  const AdminProviders providers_;
  http::HttpRouter router_;                   // before server_: the server uses it until it stops
  std::unique_ptr<http::HttpServer> server_;  // constant after Start
};

}  // namespace baton::obs

#endif  // BATON_OBS_ADMIN_SERVER_H_
