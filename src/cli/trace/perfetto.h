// Pages of /debug/trace as a file that ui.perfetto.dev and chrome://tracing open. Pure; any thread.
#ifndef BATON_CLI_TRACE_PERFETTO_H_
#define BATON_CLI_TRACE_PERFETTO_H_

#include <string>
#include <vector>

#include "src/cli/trace/trace_page.h"

namespace baton::cli {

// JSON of the Trace Event Format ("JSON Object Format", complete events): a process for each page.
// In the router's each request is a span with its stages beneath, in as many rows as overlap; a
// worker's has its steps, and above them the parts of requests that it worked on, as the router saw
// them. Microseconds from the earliest event, whose Unix time is otherData.began_unix_us.
std::string PerfettoJson(const std::vector<TracePage>& pages);

}  // namespace baton::cli

#endif  // BATON_CLI_TRACE_PERFETTO_H_
