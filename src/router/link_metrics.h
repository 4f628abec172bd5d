// The metrics of pairs of workers, whose labels are known only at run time. Pure; any thread.
#ifndef BATON_ROUTER_LINK_METRICS_H_
#define BATON_ROUTER_LINK_METRICS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "src/router/topology.h"

namespace baton::router {

// A data connection from a prefill to a decode worker, as the router knows it.
struct LinkRow {
  std::string model;
  std::string from;
  std::string to;
  LinkKind kind = LinkKind::kUnspecified;
  uint64_t bytes_per_s = 0;  // 0 = not measured yet
  uint64_t num_stalls = 0;   // hand-offs that failed or were too slow
};

// baton_link_bytes_per_second and baton_link_stalls_total{from,to,transport} as a part of a
// Prometheus page, with the labels role, worker and model of the router's other metrics.
// `router_id`: the router's worker id.
std::string LinkMetricsText(std::span<const LinkRow> links, std::string_view router_id);

}  // namespace baton::router

#endif  // BATON_ROUTER_LINK_METRICS_H_
