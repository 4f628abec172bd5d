// The picture of `baton top`: a cluster as two looks saw it, drawn as lines of text. Pure; any
// thread.
#ifndef BATON_CLI_TOP_TOP_FRAME_H_
#define BATON_CLI_TOP_TOP_FRAME_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/cli/top/metric_page.h"

namespace baton::cli {

// A data connection of a prefill worker, as its router reports it.
struct TopLink {
  std::string to;
  std::string transport;
  double bytes_per_s = 0;  // of the last hand-offs; 0 = none yet
  bool up = false;
  std::string why;  // it is down; "" = not told
};

// A decode worker that gets nothing of a prefill worker, and why.
struct TopUnpaired {
  std::string with;
  std::string why;
};

// A worker of the topology; its metrics when it answered.
struct TopWorker {
  std::string role;
  std::string worker_id;
  std::string incarnation;
  std::string admin;
  bool ready = false;
  uint64_t running = 0;
  uint64_t waiting = 0;
  std::map<std::string, uint64_t> blocks;  // by state
  std::vector<TopLink> links;
  std::vector<TopUnpaired> not_paired;
  std::optional<MetricPage> metrics;
  int64_t taken_us = 0;  // when the metrics were; one that is silent keeps others waiting
  std::string error;     // why there are no metrics
};

// An objective of the router (--slo), with the requests that met it or missed it since its start.
struct TopObjective {
  std::string name;  // "ttft", "itl"
  double limit_ms = 0;
  uint64_t num_met = 0;
  uint64_t num_missed = 0;
};

// The cluster as one look saw it.
struct TopSnapshot {
  int64_t taken_us = 0;  // when the router's metrics were, of a steady clock
  std::string model;
  MetricPage router;
  std::vector<TopObjective> objectives;  // "itl" before "ttft", those that it has
  std::vector<TopWorker> workers;
};

// The workers of /v1/topology, without metrics, and the model; DataLoss for another JSON.
StatusOr<TopSnapshot> ReadTopTopology(std::string_view json);

// How a line is to be painted.
enum class LineStyle : uint8_t { kPlain, kHead, kWarning };

// One line without its end.
struct FrameLine {
  std::string text;
  LineStyle style = LineStyle::kPlain;
};

// One frame. `before` is an earlier look, for rates; without it they are "-".
std::vector<FrameLine> TopFrame(const TopSnapshot* before, const TopSnapshot& now);

// The size of a terminal; 0 = as large as needed.
struct FrameSize {
  size_t columns = 0;
  size_t rows = 0;
};

// Lines as text, cut to the size. With `paint`, bold heads and red warnings, and every line clears
// what stood right of it, the last one what stood below.
std::string PaintFrame(const std::vector<FrameLine>& lines, const FrameSize& size, bool paint);

}  // namespace baton::cli

#endif  // BATON_CLI_TOP_TOP_FRAME_H_
