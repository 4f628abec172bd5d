#include "src/obs/span.h"

namespace baton::obs {

SpanMetrics RegisterSpanMetrics(MetricsRegistry* registry) {
  SpanMetrics metrics;
  metrics.exported_total = registry->AddCounter(
      {"baton_otlp_spans_exported_total", "Spans that the collector has taken."});
  for (size_t i = 0; i < kSpanLossNames.size(); ++i) {
    metrics.dropped_total[i] =
        registry->AddCounter({"baton_otlp_spans_dropped_total", "Spans that were not exported."},
                             {{"reason", std::string(kSpanLossNames[i])}});
  }
  return metrics;
}

}  // namespace baton::obs
