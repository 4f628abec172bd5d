// The matrix of `baton topo`: the links from prefill to decode workers, as their hand-offs measured
// them. Pure; any thread.
#ifndef BATON_CLI_TOP_TOPO_MATRIX_H_
#define BATON_CLI_TOP_TOPO_MATRIX_H_

#include <string>

#include "src/cli/top/top_frame.h"

namespace baton::cli {

// A row for each prefill worker, a column for each decode worker; each cell "shm 2.50 GB/s",
// "shm" before the first hand-off that was long enough to time, "down", "not paired", or "-"
// without a link; "tcp 0.25 MB/s rests" where the router leaves a bad link alone. Below, a line for
// each pair that is not paired, with what differs, and for each link that is down or rests, with
// why.
std::string TopoText(const TopSnapshot& cluster);

// {"links":[{"from","to","transport","up","bytes_per_s"}],"not_paired":[{"from","to","why"}]}, in
// the order of the workers. bytes_per_s is null until the link was measured. A link that is down
// has a "why" too.
std::string TopoJson(const TopSnapshot& cluster);

}  // namespace baton::cli

#endif  // BATON_CLI_TOP_TOPO_MATRIX_H_
