// Spans: what one process did for one request and when, for whoever collects traces. No text of
// prompts or answers is in them. Plain values; the times are those of the process's steady clock.
#ifndef BATON_OBS_SPAN_H_
#define BATON_OBS_SPAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/base/span_ids.h"
#include "src/obs/metrics.h"
#include "src/obs/trace_sampler.h"

namespace baton::obs {

// One attribute; names follow OpenTelemetry's conventions where there is one (gen_ai.*, http.*),
// else they begin with `baton.`. `key` is a string literal.
struct SpanAttribute {
  std::string_view key;
  std::variant<int64_t, double, bool, std::string, std::vector<std::string>> value;
};

// The subject of a span: the request as its client sees it, or a part of the work.
enum class SpanKind : uint8_t { kServer, kInternal };

// One span; start_us <= end_us.
struct Span {
  SpanIds context;         // its own
  uint64_t parent_id = 0;  // 0 = the trace begins here
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  int64_t start_us = 0;
  int64_t end_us = 0;
  std::string error;  // "" = it went well
  std::vector<SpanAttribute> attributes;
};

// Takes spans from any thread. Never waits, never fails: what has no room is counted and dropped.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Add(std::vector<Span> spans) = 0;
  // Which traces are wanted at all; the same at any time.
  virtual TraceSampler sampler() const { return {}; }
};

// Why spans were lost: the label of baton_otlp_spans_dropped_total{reason}.
enum class SpanLoss : uint8_t { kQueueFull = 0, kExportFailed, kRejected };
inline constexpr std::array<std::string_view, 3> kSpanLossNames = {"queue_full", "export_failed",
                                                                   "rejected"};

// Counted by the exporter of a process; 0 in one without.
struct SpanMetrics {
  Counter* exported_total = nullptr;
  std::array<Counter*, kSpanLossNames.size()> dropped_total = {};  // by SpanLoss

  void CountLost(SpanLoss why, uint64_t num_spans) const {
    dropped_total[static_cast<size_t>(why)]->Add(num_spans);
  }
};

// Once per registry, which outlives the handles.
SpanMetrics RegisterSpanMetrics(MetricsRegistry* registry);

}  // namespace baton::obs

#endif  // BATON_OBS_SPAN_H_
