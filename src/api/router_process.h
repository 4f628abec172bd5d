// RouterProcess: everything `baton router` runs, joined: the router, both public APIs, the workers'
// registry and the admin port. Start, Drain and Stop are called by one thread (main).
#ifndef BATON_API_ROUTER_PROCESS_H_
#define BATON_API_ROUTER_PROCESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/keepalive.h"
#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/base/wire_versions.h"
#include "src/http/site_rules.h"
#include "src/obs/metric_aliases.h"
#include "src/router/model_catalog.h"
#include "src/router/router_core.h"
#include "src/text/tools/tool_style.h"
#include "src/tls/tls_files.h"

namespace baton::api {

// Where to listen and how to route; addresses are host:port, port 0 = any free one.
struct RouterConfig {
  std::string grpc_address = "127.0.0.1:7070";
  std::string http_address = "127.0.0.1:8080";
  std::string admin_address = "127.0.0.1:9090";
  // With files the gRPC port speaks TLS, and workers prove with a certificate that they belong to
  // the cluster; clients of the public API need none.
  tls::TlsFiles tls;
  bool serves_https = false;  // the HTTP port speaks TLS too, with the same files
  router::RouterCoreConfig core;
  // Read and built at once, so that the first workers' hellos need not wait for it.
  std::vector<router::TokenizerSource> expected_tokenizers;
  // After the first SIGTERM new connections are still accepted for this long, until load balancers
  // have seen that readiness is gone.
  int64_t drain_grace_us = 5'000'000;
  int64_t drain_timeout_us = 60'000'000;  // for running streams, after the grace
  // Wire versions that it speaks with workers; another range than this build's is for tests of
  // upgrades.
  WireRange wire = kWireVersions;
  ServerKeepalive keepalive;  // of the gRPC port; others than the defaults are for tests
  // Bytes of unfinished messages on the gRPC port; others are for tests.
  size_t grpc_memory_bytes = limits::kMaxGrpcMemoryBytes;
  // Thoughts get a field of their own (`reasoning_content`) where a request does not say.
  bool splits_reasoning = true;
  // How calls are read where a request does not say; absent = as the model's template says.
  std::optional<text::ToolStyle> tool_style;
  obs::MetricAliasSet metric_aliases;
  // A collector of spans, as --otlp-endpoint has it; "" = what the environment says
  // (otlp_target.h).
  std::string otlp_endpoint;
  // Silence after which an event stream gets a comment, 0 = never; and how long a connection of the
  // HTTP API is kept without a request.
  int64_t sse_ping_ms = 15'000;
  int64_t idle_timeout_ms = 75'000;
  bool serves_ui = true;  // the page at /ui
  // The file of keys that the public API asks for (key_file.h); "" = it asks for none.
  std::string api_keys_file;
  http::SiteRules sites;  // who may reach HTTP API and admin port from a browser
};

// A running router; see the file comment.
class RouterProcess {
 public:
  // FailedPrecondition naming the address when one cannot be bound; nothing runs then.
  static StatusOr<std::unique_ptr<RouterProcess>> Start(const RouterConfig& config);
  // Stops.
  virtual ~RouterProcess() = default;

  // As bound: host:port.
  virtual std::string grpc_address() const = 0;
  virtual std::string http_address() const = 0;
  virtual std::string admin_address() const = 0;
  // This life of the router, 16 hexadecimal digits.
  virtual std::string incarnation() const = 0;

  virtual bool ready() const = 0;

  // Leaves gracefully: not ready at once; after the grace no new connections and requests; returns
  // when the running answers have ended or the timeout has ended them. `keep_waiting` is asked
  // every 50 ms; false (a second signal) cuts the rest short. Stop follows.
  virtual void Drain(const std::function<bool()>& keep_waiting) = 0;
  // Ends everything; requests that still run fail with `draining`. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace baton::api

#endif  // BATON_API_ROUTER_PROCESS_H_
