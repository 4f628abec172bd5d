#include "src/cli/telemetry_flags.h"

#include "src/base/log_format.h"
#include "src/otlp/otlp_target.h"

namespace baton::cli {

using obs::MetricAliasSet;
using obs::ParseMetricAliases;
using otlp::ProcessEnvironment;
using otlp::ResolveOtlpTarget;

void DeclareTelemetry(FlagSet& flags, TelemetryFlags& telemetry) {
  flags.AddChoice("--log-format", telemetry.log_format, {"text", "json"},
                  "json: one object a line, with the request's uid where it is about one");
  flags.AddText(
      "--otlp-endpoint", telemetry.otlp_endpoint,
      "OpenTelemetry collector to which spans of each request are sent by gRPC: HOST:PORT, "
      "http://HOST:PORT or https://HOST:PORT; default: OTEL_EXPORTER_OTLP_ENDPOINT, else "
      "none");
  flags.AddJoined(
      "--metrics-aliases", telemetry.metrics_aliases,
      "more names for the same metrics, with commas: vllm, and inference-extension (what the "
      "endpoint picker of the Kubernetes Gateway API reads)");
}

Status CheckTelemetry(const TelemetryFlags& telemetry) {
  BATON_RETURN_IF_ERROR(ParseMetricAliases(telemetry.metrics_aliases).status());
  if (telemetry.otlp_endpoint.empty()) return OkStatus();
  return ResolveOtlpTarget(telemetry.otlp_endpoint, ProcessEnvironment).status();
}

MetricAliasSet AliasesOf(const TelemetryFlags& telemetry) {
  return ParseMetricAliases(telemetry.metrics_aliases).value_or(MetricAliasSet{});
}

void ApplyLogFormat(const TelemetryFlags& telemetry) {
  SetLogFormat(telemetry.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
}

void AppendTelemetry(const TelemetryFlags& telemetry, std::vector<std::string>& args) {
  args.push_back("--log-format=" + telemetry.log_format);
  const MetricAliasSet aliases = AliasesOf(telemetry);
  if (!aliases.none()) args.push_back("--metrics-aliases=" + aliases.Text());
  if (!telemetry.otlp_endpoint.empty()) {
    args.push_back("--otlp-endpoint=" + telemetry.otlp_endpoint);
  }
}

}  // namespace baton::cli
