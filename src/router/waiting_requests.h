// WaitingRequests: how many requests of each model wait in each line, how fast they get on, and
// when there may be room for one that is refused. Shadows and probes count in nothing that clients
// can notice. The router's thread.
#ifndef BATON_ROUTER_WAITING_REQUESTS_H_
#define BATON_ROUTER_WAITING_REQUESTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "src/obs/baton_metrics.h"
#include "src/router/queue_forecast.h"
#include "src/router/queue_rate.h"
#include "src/router/request_error.h"
#include "src/router/retry_estimate.h"
#include "src/router/router_request.h"

namespace baton::router {

// Answers and vectors wait in lines of their own: a line that stands says nothing about the other.
inline constexpr size_t kAnswersLine = 0;
inline constexpr size_t kVectorsLine = 1;
inline constexpr size_t kNumLines = 2;
inline size_t LineOf(const RouterRequest& request) {
  return request.spec.embeds ? kVectorsLine : kAnswersLine;
}

// See the file comment.
class WaitingRequests {
 public:
  // `limits`: the server's.
  WaitingRequests(const WaitLimits& limits, const obs::BatonMetrics* metrics)
      : limits_(limits), metrics_(metrics) {}

  void Enter(RouterRequest& request);
  void Leave(RouterRequest& request);
  // `waits_aside`: for a worker of its own numerics, and nobody waits for it. `is_apart`: others
  // get on at workers that it cannot take, so that it says nothing about how fast.
  void SetApart(RouterRequest& request, bool waits_aside, bool is_apart);
  // A worker took a request of a client: a step of its line of its model.
  void OnTaken(const RouterRequest& request, int64_t now_us);
  void OnServed(const RouterRequest& request, int64_t now_us);

  // Why the request that has just entered would wait in vain, by the forecast of its line of its
  // model. `num_before`: those of the line, of all models, that go before it. Nothing: it may wait,
  // or it is the first, or a vector.
  std::optional<RequestError> WaitsInVain(const RouterRequest& request, size_t num_before,
                                          const RunningAnswers& running, int64_t now_us);
  // To the metrics: the longest wait that a new request of any model would have now.
  void ReportWait(int64_t now_us);
  // A refusal of one that waits, with the time after which there may be room.
  RequestError NoRoomError(const RouterRequest& request, ErrorCode code,
                           const RunningAnswers& running, int64_t now_us);

  size_t num_queued() const { return num_queued_; }
  size_t num_aside() const { return num_aside_; }
  // All that wait, in both lines, wait for workers of this model, and none of them apart.
  bool IsOnlyModel(std::string_view model) const;

 private:
  const WaitLimits limits_;
  const obs::BatonMetrics* const metrics_;
  size_t num_queued_ = 0;  // clients' only
  size_t num_aside_ = 0;   // of num_queued_, nobody waits for them
  // By model id. A queue exists while a request waits in it, but not apart.
  using ModelQueues = std::map<std::string, ModelQueue, std::less<>>;
  std::array<ModelQueues, kNumLines> lines_;
  std::map<std::string, RetryEstimate, std::less<>> retries_;  // by model id
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WAITING_REQUESTS_H_
