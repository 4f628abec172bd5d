#include "src/otlp/otlp_target.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "src/base/host_port.h"
#include "src/base/log.h"
#include "src/base/percent_text.h"

namespace baton::otlp {

using obs::TraceSampler;

namespace {

constexpr const char* kFlag = "--otlp-endpoint";
constexpr std::string_view kPlainPort = ":4317";  // of the OTLP specification
constexpr std::string_view kTlsPort = ":443";
// Size of a file of certificates: the largest system bundles have 300 KiB.
constexpr size_t kMaxPemBytes = 4 << 20;
constexpr int64_t kMaxTimeoutMs = 60'000;
constexpr size_t kMaxPairs = 64;  // of one list in the environment

// Where distributions keep the authorities that they trust.
constexpr std::array<const char*, 4> kSystemAuthorities = {
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

std::string View(absl::string_view text) { return std::string(text); }

StatusOr<std::string> ReadPem(const std::string& path, std::string_view named_by) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (text.empty()) return InvalidArgument("{}: cannot read {}", named_by, path);
  if (text.size() > kMaxPemBytes) {
    return InvalidArgument("{}: {} has more than {} bytes", named_by, path, kMaxPemBytes);
  }
  return text;
}

// A variable of the signal "traces", else the one for all signals; with its name, for errors.
struct Variable {
  std::string name;
  std::string value;
};
Variable Find(const Environment& environment, std::string_view suffix) {
  for (const std::string_view prefix : {"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"}) {
    std::string name = std::string(prefix) + std::string(suffix);
    std::string value = environment(name.c_str());
    if (!value.empty()) return {std::move(name), std::move(value)};
  }
  return {"OTEL_EXPORTER_OTLP_" + std::string(suffix), ""};
}

// "key=value,key2=value2" with percent-encoded values, as W3C baggage has it.
StatusOr<std::vector<std::pair<std::string, std::string>>> ParsePairs(const Variable& variable) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const absl::string_view part : absl::StrSplit(variable.value, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    std::string key = sides.size() == 2 ? View(absl::StripAsciiWhitespace(sides[0])) : "";
    if (key.empty()) return InvalidArgument("{}: a part is not key=value", variable.name);
    if (pairs.size() == kMaxPairs) {
      return InvalidArgument("{}: more than {} parts", variable.name, kMaxPairs);
    }
    pairs.emplace_back(std::move(key), PercentDecoded(View(absl::StripAsciiWhitespace(sides[1]))));
  }
  return pairs;
}

bool IsHeaderKey(std::string_view key) {
  return std::ranges::all_of(key, [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_' || c == '.';
  });
}

Status AddHeaders(const Environment& environment, OtlpTarget* target) {
  const Variable variable = Find(environment, "HEADERS");
  BATON_ASSIGN_OR_RETURN(target->headers, ParsePairs(variable));
  for (auto& [key, value] : target->headers) {
    absl::AsciiStrToLower(&key);
    const bool is_printed =
        std::ranges::all_of(value, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
    // gRPC takes a key with this ending as bytes; one that begins with "grpc-" is the library's.
    const bool is_taken = IsHeaderKey(key) && !key.ends_with("-bin") && !key.starts_with("grpc-");
    if (!is_taken || !is_printed) {
      return InvalidArgument("{}: '{}' cannot be sent as a header", variable.name, key);
    }
  }
  return OkStatus();
}

Status AddTls(const Environment& environment, OtlpTarget* target) {
  const Variable ca = Find(environment, "CERTIFICATE");
  const Variable cert = Find(environment, "CLIENT_CERTIFICATE");
  const Variable key = Find(environment, "CLIENT_KEY");
  if (cert.value.empty() != key.value.empty()) {
    return InvalidArgument("{} and {} go together", cert.name, key.name);
  }
  if (!cert.value.empty()) {
    BATON_ASSIGN_OR_RETURN(target->client_cert_pem, ReadPem(cert.value, cert.name));
    BATON_ASSIGN_OR_RETURN(target->client_key_pem, ReadPem(key.value, key.name));
  }
  if (!ca.value.empty()) {
    BATON_ASSIGN_OR_RETURN(target->ca_pem, ReadPem(ca.value, ca.name));
    return OkStatus();
  }
  if (const std::string file = environment("SSL_CERT_FILE"); !file.empty()) {
    BATON_ASSIGN_OR_RETURN(target->ca_pem, ReadPem(file, "SSL_CERT_FILE"));
    return OkStatus();
  }
  for (const char* path : kSystemAuthorities) {
    StatusOr<std::string> pem = ReadPem(path, "the system's authorities");
    if (!pem.ok()) continue;
    target->ca_pem = *std::move(pem);
    return OkStatus();
  }
  return InvalidArgument(
      "no file of authorities for https: install ca-certificates, or name one by {}", ca.name);
}

Status AddResource(const Environment& environment, OtlpTarget* target) {
  target->service_name = environment("OTEL_SERVICE_NAME");
  const Variable variable{"OTEL_RESOURCE_ATTRIBUTES", environment("OTEL_RESOURCE_ATTRIBUTES")};
  BATON_ASSIGN_OR_RETURN(auto pairs, ParsePairs(variable));
  for (auto& [key, value] : pairs) {
    if (key == "service.name") {
      if (target->service_name.empty()) target->service_name = value;
    } else {
      target->resource_attributes.emplace_back(std::move(key), std::move(value));
    }
  }
  return OkStatus();
}

// Out of [0, 1], or no number: as if the variable were not set, which means all.
double ShareOf(const std::string& text) {
  double share = 1;
  if (text.empty()) return share;
  if (absl::SimpleAtod(text, &share) && share >= 0 && share <= 1) return share;
  BATON_LOG_WARN("OTEL_TRACES_SAMPLER_ARG is not heard: '{}' is not a number in [0, 1]", text);
  return 1;
}

void AddSampler(const Environment& environment, TraceSampler* sampler) {
  constexpr std::string_view kParentBased = "parentbased_";
  const std::string named = environment("OTEL_TRACES_SAMPLER");
  std::string_view name = named;
  const bool asks_parent = name.starts_with(kParentBased);
  if (asks_parent) name.remove_prefix(kParentBased.size());
  if (named.empty()) return;
  if (name == "always_on" || name == "always_off") {
    *sampler = {.asks_parent = asks_parent, .share = name == "always_on" ? 1.0 : 0.0};
  } else if (name == "traceidratio") {
    const std::string share = environment("OTEL_TRACES_SAMPLER_ARG");
    *sampler = {.asks_parent = asks_parent, .share = ShareOf(share)};
  } else {
    BATON_LOG_WARN(
        "OTEL_TRACES_SAMPLER is not heard: '{}' is not [parentbased_]always_on, always_off or "
        "traceidratio; traces are recorded as clients say, and without their word always",
        named);
  }
}

Status AddTimeout(const Environment& environment, OtlpTarget* target) {
  const Variable variable = Find(environment, "TIMEOUT");
  if (variable.value.empty()) return OkStatus();
  int64_t timeout_ms = 0;
  if (!absl::SimpleAtoi(variable.value, &timeout_ms) || timeout_ms < 1 ||
      timeout_ms > kMaxTimeoutMs) {
    return InvalidArgument("{} is not a whole number of milliseconds in [1, {}]", variable.name,
                           kMaxTimeoutMs);
  }
  target->timeout_us = timeout_ms * 1000;
  return OkStatus();
}

}  // namespace

std::string ProcessEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view text) {
  OtlpEndpoint endpoint;
  std::string_view rest = text;
  bool has_scheme = false;
  if (const size_t mark = rest.find("://"); mark != std::string_view::npos) {
    const std::string scheme = absl::AsciiStrToLower(std::string(rest.substr(0, mark)));
    if (scheme != "http" && scheme != "https") {
      return InvalidArgument("'{}' is not HOST:PORT, http://HOST:PORT or https://HOST:PORT", text);
    }
    has_scheme = true;
    endpoint.is_tls = scheme == "https";
    rest.remove_prefix(mark + 3);
    if (rest.ends_with('/')) rest.remove_suffix(1);
  }
  if (rest.find_first_of("/?#") != std::string_view::npos) {
    return InvalidArgument("'{}' has a path, but spans are sent by OTLP over gRPC, which has none",
                           text);
  }
  if (rest.find('@') != std::string_view::npos) {
    return InvalidArgument(
        "the address has a user; credentials go into OTEL_EXPORTER_OTLP_HEADERS");
  }
  endpoint.address = rest;
  const size_t colon = rest.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && rest.find(']', colon) == std::string_view::npos;
  if (has_scheme && !has_port) endpoint.address += endpoint.is_tls ? kTlsPort : kPlainPort;
  BATON_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(endpoint.address));
  if (address.port == 0) return InvalidArgument("'{}' has port 0", text);
  return endpoint;
}

StatusOr<std::optional<OtlpTarget>> ResolveOtlpTarget(std::string_view flag,
                                                      const Environment& environment) {
  Variable named{kFlag, std::string(flag)};
  if (flag.empty()) {
    named = Find(environment, "ENDPOINT");
    const std::string disabled = absl::AsciiStrToLower(environment("OTEL_SDK_DISABLED"));
    const bool is_off = disabled == "true" || environment("OTEL_TRACES_EXPORTER") == "none";
    if (named.value.empty() || is_off) return std::optional<OtlpTarget>();
    const Variable protocol = Find(environment, "PROTOCOL");
    if (!protocol.value.empty() && protocol.value != "grpc") {
      return InvalidArgument("{} is '{}', but spans are sent by 'grpc' only", protocol.name,
                             protocol.value);
    }
  }
  StatusOr<OtlpEndpoint> endpoint = ParseOtlpEndpoint(named.value);
  if (!endpoint.ok()) return WithPrefix(endpoint.status(), named.name);
  OtlpTarget target;
  target.address = endpoint->address;
  target.is_tls = endpoint->is_tls;
  if (target.is_tls) BATON_RETURN_IF_ERROR(AddTls(environment, &target));
  BATON_RETURN_IF_ERROR(AddHeaders(environment, &target));
  BATON_RETURN_IF_ERROR(AddTimeout(environment, &target));
  BATON_RETURN_IF_ERROR(AddResource(environment, &target));
  AddSampler(environment, &target.sampler);
  return std::optional<OtlpTarget>(std::move(target));
}

StatusOr<std::optional<OtlpTarget>> OtlpTargetAtStart(std::string_view flag,
                                                      const Environment& environment) {
  if (!flag.empty()) {
    const StatusOr<OtlpEndpoint> endpoint = ParseOtlpEndpoint(flag);
    if (!endpoint.ok()) return WithPrefix(endpoint.status(), kFlag);
  }
  StatusOr<std::optional<OtlpTarget>> target = ResolveOtlpTarget(flag, environment);
  if (target.ok()) return target;
  BATON_LOG_WARN("no spans are sent: {}", std::string(target.status().message()));
  return std::optional<OtlpTarget>();
}

}  // namespace baton::otlp
