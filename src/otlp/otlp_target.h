// OtlpTarget: where the spans of a process go and how, from --otlp-endpoint and from the
// environment variables that OpenTelemetry defines for exporters
// (https://opentelemetry.io/docs/specs/otel/protocol/exporter). Pure but for the files it reads;
// any thread.
#ifndef BATON_OTLP_OTLP_TARGET_H_
#define BATON_OTLP_OTLP_TARGET_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/obs/trace_sampler.h"

namespace baton::otlp {

// A collector that speaks OTLP over gRPC.
struct OtlpTarget {
  std::string address;  // host:port
  bool is_tls = false;
  std::string ca_pem;           // authorities of a TLS collector; not empty with is_tls
  std::string client_cert_pem;  // of this process, for a collector that asks; "" = none
  std::string client_key_pem;
  std::vector<std::pair<std::string, std::string>> headers;  // sent with every call
  int64_t timeout_us = 2'000'000;                            // of one call
  obs::TraceSampler sampler;
  std::string service_name;  // resource attribute service.name; "" = "baton-" and the role
  std::vector<std::pair<std::string, std::string>> resource_attributes;
};

// The value of an environment variable; "" = it is not set.
using Environment = std::function<std::string(const char* name)>;
std::string ProcessEnvironment(const char* name);

// A collector's host:port, and whether it speaks TLS: "HOST:PORT" and "http://HOST[:PORT]"
// (plaintext), "https://HOST[:PORT]". Ports by default: 4317, and 443 for https. InvalidArgument
// for another scheme, a path, a user, or no host.
struct OtlpEndpoint {
  std::string address;
  bool is_tls = false;
};
StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view text);

// `flag`: the value of --otlp-endpoint; "" = the environment decides: no target without
// OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT, with OTEL_SDK_DISABLED=true or OTEL_TRACES_EXPORTER=none.
// Reads the files of certificates that are named. InvalidArgument names the flag or the variable at
// fault. An OTEL_TRACES_SAMPLER or OTEL_TRACES_SAMPLER_ARG that cannot be heard is a line in the
// log instead, and counts as not set, as the specification has it.
StatusOr<std::optional<OtlpTarget>> ResolveOtlpTarget(std::string_view flag,
                                                      const Environment& environment);

// ResolveOtlpTarget for a process that starts. A fault of the environment, which may be meant for
// other programs of the pod, is a line in the log and no target, also with the flag. Only a flag
// that is no endpoint is an error.
StatusOr<std::optional<OtlpTarget>> OtlpTargetAtStart(std::string_view flag,
                                                      const Environment& environment);

}  // namespace baton::otlp

#endif  // BATON_OTLP_OTLP_TARGET_H_
