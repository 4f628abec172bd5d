// Flags of every process about what it tells its operators; serve passes them on unchanged.
#ifndef BATON_CLI_TELEMETRY_FLAGS_H_
#define BATON_CLI_TELEMETRY_FLAGS_H_

#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/cli/flags.h"
#include "src/obs/metric_aliases.h"

namespace baton::cli {

// Texts as typed.
struct TelemetryFlags {
  std::string metrics_aliases;
  std::string otlp_endpoint;  // "" = no spans
  std::string log_format = "text";
};

void DeclareTelemetry(FlagSet& flags, TelemetryFlags& telemetry);

// InvalidArgument naming the flag.
Status CheckTelemetry(const TelemetryFlags& telemetry);

// The sets of --metrics-aliases; none when CheckTelemetry would refuse them.
obs::MetricAliasSet AliasesOf(const TelemetryFlags& telemetry);

// Writes the log as --log-format says; before InitLog.
void ApplyLogFormat(const TelemetryFlags& telemetry);

// The flags that tell another process the same.
void AppendTelemetry(const TelemetryFlags& telemetry, std::vector<std::string>& args);

}  // namespace baton::cli

#endif  // BATON_CLI_TELEMETRY_FLAGS_H_
