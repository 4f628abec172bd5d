// OtlpExporter: sends the spans of a process to a collector, as OpenTelemetry's protocol says
// (OTLP over gRPC, https://opentelemetry.io/docs/specs/otlp).
//
// Add: any thread, at the cost of a lock held for moving a vector. Everything else happens on a
// thread of its own ("otlp").
//
// Invariants
//  1. At most max_queued spans wait; what comes beyond is dropped and counted, never waited for.
//  2. Every span that was added is counted once: exported, or dropped by one reason.
//  3. A collector that does not answer costs nobody but this thread.
//  4. The log says once that spans are being lost, and once that they are taken again.
#ifndef BATON_OTLP_OTLP_EXPORTER_H_
#define BATON_OTLP_OTLP_EXPORTER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "src/base/mutex.h"
#include "src/base/thread.h"
#include "src/obs/span.h"
#include "src/otlp/otlp_target.h"

namespace baton::otlp {

// Where spans go and whose they are.
struct OtlpConfig {
  OtlpTarget target;
  std::string role;                 // "router", "prefill", "decode"
  std::string worker_id;            // service.instance.id
  size_t max_queued = 8192;         // spans; about 1 KiB each
  size_t max_batch = 512;           // spans of one call
  int64_t interval_us = 1'000'000;  // a span waits no longer for others
  int max_tries = 3;           // of one batch, while the collector says that it may be tried again
  int64_t retry_us = 500'000;  // between two of them
};

// See the file comment.
class OtlpExporter final : public obs::SpanSink {
 public:
  OtlpExporter(OtlpConfig config, const obs::SpanMetrics& metrics);
  // Stop.
  ~OtlpExporter() override;

  void Add(std::vector<obs::Span> spans) override;
  obs::TraceSampler sampler() const override { return config_.target.sampler; }

  // Sends what waits, for at most `timeout_us`; what is left then is dropped and counted, as is
  // whatever is added later. Idempotent.
  void Stop(int64_t timeout_us = 2'000'000);

 private:
  class Wire;  // the generated types

  void Loop();
  void Send(const std::vector<obs::Span>& batch);
  // The batch was lost for `reason`, or taken.
  void OnLost(size_t num_spans, const std::string& reason);
  void OnTaken();
  // Waits before another try; false when there is to be none.
  bool WaitForRetry();
  int64_t CallTimeoutUs();

  const OtlpConfig config_;
  const obs::SpanMetrics metrics_;
  const std::unique_ptr<Wire> wire_;  // the thread's
  uint64_t num_lost_ = 0;             // the thread's: since the collector last took spans

  Mutex mutex_;
  CondVar wake_;
  std::deque<obs::Span> queue_ BATON_GUARDED_BY(mutex_);
  bool stopping_ BATON_GUARDED_BY(mutex_) = false;
  int64_t stop_by_us_ BATON_GUARDED_BY(mutex_) = 0;  // steady clock, while stopping_
  Thread thread_;
};

}  // namespace baton::otlp

#endif  // BATON_OTLP_OTLP_EXPORTER_H_
