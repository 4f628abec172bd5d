// Moves KV between two endpoints of this process over a real transport, and times it. A way to see
// whether the machine lets a transport work at all, and a first look at its speed: benchmarks and
// running workers measure it better.
#ifndef BATON_CLI_DOCTOR_LINK_PROBE_H_
#define BATON_CLI_DOCTOR_LINK_PROBE_H_

#include "kvcache/transport/transport_types.h"
#include "src/cli/doctor/host_facts.h"

namespace baton::cli {

// kShm or kTcp. About 0.2 s and 24 MiB; at most 1 s when nothing comes through.
LinkFact MeasureLink(kv::TransportKind kind);

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_LINK_PROBE_H_
