// WorkerSpans: the spans of a worker's part in requests, below the router's span of each: the
// prefill, the KV on its way here, the decoding. Made of the states that the engine reports.
//
// OnStart and Forget: gRPC's threads. The rest: the engine thread, a few times a request and never
// per step.
//
// Invariants
//  1. At most kMaxLive requests are followed; what comes beyond is counted as lost, once each.
//  2. A request that ends, however it does, is forgotten.
#ifndef BATON_WORKER_WORKER_SPANS_H_
#define BATON_WORKER_WORKER_SPANS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"

#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/base/span_ids.h"
#include "src/engine/engine_types.h"
#include "src/obs/span.h"

namespace baton::worker {

// See the file comment.
class WorkerSpans {
 public:
  // Eight times what a router places at a worker at once.
  static constexpr size_t kMaxLive = 4096;

  // All outlive it.
  WorkerSpans(std::string worker_id, obs::SpanSink* sink, const obs::SpanMetrics& metrics,
              const Clock* clock);

  // A request comes, as a part of the span `parent`; one that is not valid is not followed.
  void OnStart(const engine::RequestKey& key, const SpanIds& parent);
  // It was refused.
  void Forget(const engine::RequestKey& key);
  // The last token of one of its choices was sampled. The engine reports the request's end only
  // with its next step. Engine thread.
  void OnLastToken(const engine::RequestKey& key);
  void OnStatus(const engine::RequestStatus& status);

 private:
  // -1 = it has not happened.
  struct Live {
    SpanIds parent;
    int64_t started_us = -1;
    int64_t prefill_us = -1;
    int64_t prefilled_us = -1;
    int64_t verified_us = -1;
    int64_t transfer_us = 0;
    uint64_t kv_bytes = 0;
    uint32_t cached_tokens = 0;
    int64_t decode_us = -1;
    int64_t last_token_us = -1;
  };

  void Mark(const engine::RequestStatus& status, int64_t now_us, Live* live) const;
  std::vector<obs::Span> SpansOf(const engine::RequestStatus& end, const Live& live,
                                 int64_t now_us) const;

  const std::string worker_id_;
  obs::SpanSink* const sink_;
  const obs::SpanMetrics metrics_;
  const Clock* const clock_;
  Mutex mutex_;
  absl::btree_map<engine::RequestKey, Live> live_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_SPANS_H_
