// WorkerRegistry: the workers that hold a lease, their loads, and the models they serve. Owned by
// the router's thread; time is an argument.
//
// Invariants
//  1. At most one registration per worker_id is alive: a newer one voids the older.
//  2. All workers of one model have equal weights, layout, tokenizer and a common wire version; a
//     worker that differs is refused with the name of the field. Numerics may differ: such workers
//     are only paired when both allow it (scheduler/route_policy.h).
//  3. A worker is alive until its stream ends or it was silent for limits::kDeadUs. After
//     limits::kSuspectUs of silence it gets no new request.
//  4. Requests that the router itself placed count at once. A pool counts as full by the worker's
//     report or by the router's own sum, whichever is larger.
#ifndef BATON_ROUTER_WORKER_REGISTRY_H_
#define BATON_ROUTER_WORKER_REGISTRY_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/link_health.h"
#include "scheduler/route_policy.h"
#include "src/base/status.h"
#include "src/obs/baton_metrics.h"
#include "src/router/shared_blocks.h"
#include "src/router/topology.h"
#include "src/router/worker_link.h"
#include "src/router/worker_messages.h"

namespace baton::router {

// A worker's context counts for its model this long after the worker left. So a stream that only
// this worker can hold waits until the worker has started again and loaded its model.
inline constexpr int64_t kContextKeptUs = 30'000'000;

// The cost of one placed request at one worker.
struct PlacementCost {
  uint32_t num_blocks = 0;   // shared ones once
  uint64_t num_tokens = 0;   // prompt tokens to compute there
  uint32_t num_prompts = 0;  // the prompts of num_tokens
  uint32_t num_sequences = 0;
  uint32_t num_streams = 0;  // of num_sequences, those whose prompt is computed
};

// Refusals for load, since the worker last took a request.
struct LoadRefusals {
  uint32_t num_refusals = 0;
  int64_t full_until_us = 0;  // no new request before
};

// One live registration.
struct RegisteredWorker {
  LeaseId lease;
  WorkerDescription description;
  std::unique_ptr<LeaseStream> stream;
  std::unique_ptr<WorkerSession> session;  // null while there is none
  uint32_t session_epoch = 0;              // of `session`, or of the last one
  bool session_up = false;
  int64_t reconnect_us = 0;          // when a lost session is opened again
  uint32_t num_failed_sessions = 0;  // since one was up
  int64_t avoided_until_us = 0;      // the worker hung: no new request before
  LoadRefusals refusals;
  int64_t draining_since_us = -1;
  RequestUid last_move_tried;  // of its streams, while it drains
  bool drain_asked = false;    // by this router; counts as draining before the reports say it
  WorkerLoadReport load;
  int64_t registered_us = 0;
  int64_t heard_us = 0;              // last message on the lease stream
  int64_t progress_us = 0;           // last sign that its engine moved
  int64_t speed_us = INT64_MIN / 2;  // when its reported speed last changed
  PlacementCost placed;              // live requests of this router
  uint64_t num_done_tokens = 0;      // prompt tokens that left `placed` since the last report
  SharedBlocks shared;               // their full prompt blocks, as counted in `placed`
  std::map<LeaseId, scheduler::LinkHealth> links;  // a prefill worker's, by decode worker
  uint32_t num_requests = 0;
  // The decode workers to which this prefill worker sends no KV. The reason never changes.
  std::vector<UnpairedView> not_paired;

  // No request of any router runs or waits at the worker.
  bool IsIdle() const { return num_requests == 0 && load.running == 0 && load.waiting == 0; }
  bool IsPrefill() const { return description.role == WorkerRole::kPrefill; }
  // Prompt tokens that the worker still has to compute, for all routers. Tokens computed since the
  // last report, which is up to a heartbeat old, do not count.
  uint64_t BacklogTokens() const {
    const uint64_t told = load.backlog_tokens;
    return std::max(told - std::min(told, num_done_tokens), placed.num_tokens);
  }
  // Prompt tokens of a placement are computed, or given up.
  void TakeFromBacklog(uint64_t num_tokens) {
    placed.num_tokens -= num_tokens;
    num_done_tokens += num_tokens;
  }
  uint32_t BlocksFor(uint64_t num_tokens) const {
    return static_cast<uint32_t>((num_tokens + description.block_size - 1) /
                                 description.block_size);
  }
  // Blocks that a new request may count on.
  uint32_t NumFreeBlocks() const;
  // Streams that the worker runs at once by its own measurement, at most max_running.
  uint32_t BatchLimit() const;
  // The worker refused a request for load and asks for `retry_after_ms`. It counts as full for a
  // while, and longer after each refusal until it takes a request.
  void CountRefusal(uint32_t retry_after_ms, int64_t now_us);
  // A data connection to this life of `other` is up.
  bool IsLinkedTo(const WorkerName& other) const;
  // Whether the worker may get a request at `now_us`.
  bool Usable(int64_t now_us) const;
};

// A snapshot for PickRoute; the leases name the rows.
struct RouteTable {
  std::vector<scheduler::PrefillLoad> prefill;
  std::vector<scheduler::DecodeLoad> decode;
  std::vector<scheduler::LinkUp> links;
  std::vector<LeaseId> prefill_leases;
  std::vector<LeaseId> decode_leases;

  scheduler::ClusterLoad Load() const { return {prefill, decode, links}; }
};

// The workers whose mean speed stands in for a worker without a recent measurement: the workers of
// its role, or of both roles where the roles are compared. Otherwise a role that gets no prompts
// would count as slow, or as fast, for ever.
enum class SpeedPools : uint8_t { kByRole, kBoth };

// Why a worker was not taken: for the counter, and as a sentence for logs and for the worker.
struct Refusal {
  obs::RefusalReason reason;
  std::string text;
};

// The table of workers; see the file comment.
class WorkerRegistry {
 public:
  // Why `worker` cannot join: the differing field, or another process of its id that was heard
  // within limits::kSuspectUs; nothing = it can.
  std::optional<Refusal> RefusalFor(const WorkerDescription& worker, int64_t now_us) const;
  // Prompts in flight at one prefill worker: enough to keep it busy between two messages. Other
  // prompts wait in the router: they may still go to another worker, and hold no decode blocks.
  static constexpr uint32_t kMaxPrefillsInFlight = 64;
  // New requests of a decode worker beyond its batch limit, for each prefill worker (for itself
  // where it computes the prompts). Their prompts are computed, or next, while the batch decodes.
  static constexpr uint32_t kPromptsAhead = 2;

  // Adds a worker that RefusalFor accepts and returns it. `lease` is new.
  RegisteredWorker& Add(LeaseId lease, WorkerDescription description,
                        std::unique_ptr<LeaseStream> stream, int64_t now_us);
  // The workers of the same model and the other role that cannot exchange KV with `worker`, and the
  // reason for each. The prefill worker of each pair keeps the row.
  std::vector<UnpairedView> NoteUnpaired(RegisteredWorker& worker);
  // Drops the worker with its stream and session; false = unknown.
  bool Remove(LeaseId lease, int64_t now_us);
  // Forgets workers that left long ago. True: Models() may have changed.
  bool ForgetLongGone(int64_t now_us);

  // Null = not alive.
  RegisteredWorker* Find(LeaseId lease);
  const RegisteredWorker* Find(LeaseId lease) const;
  // The live registration under this worker id; null = none.
  RegisteredWorker* FindByWorkerId(std::string_view worker_id);

  // Takes a heartbeat in.
  void OnLoad(RegisteredWorker& worker, WorkerLoadReport load, int64_t now_us);
  // True while a worker of that model and role is alive and not about to leave.
  bool Serves(std::string_view model_id, WorkerRole role) const;
  // True while the session with such a worker is up.
  bool HasSession(std::string_view model_id, WorkerRole role) const;
  // Leases silent for limits::kDeadUs.
  std::vector<LeaseId> Dead(int64_t now_us) const;

  // Rows for the workers of `model_id`.
  RouteTable TableFor(std::string_view model_id, int64_t now_us,
                      SpeedPools pools = SpeedPools::kByRole) const;
  // Sends a list of decode workers to each prefill worker and each draining decode worker: the ones
  // that may take its KV.
  void SendPeerLists();

  // One ModelInfo per model id that has a decode worker, ascending. max_context is the largest of
  // its decode workers, those that left within kContextKeptUs included. created_unix_s is the
  // earliest of its workers.
  std::vector<std::shared_ptr<const ModelInfo>> Models() const;

  const std::map<LeaseId, RegisteredWorker>& workers() const { return workers_; }
  std::map<LeaseId, RegisteredWorker>& workers() { return workers_; }

 private:
  // A decode worker that left and may be back.
  struct GoneWorker {
    std::string model_id;
    uint32_t max_context = 0;
    int64_t gone_us = 0;
  };

  std::map<LeaseId, RegisteredWorker> workers_;
  std::map<std::string, GoneWorker, std::less<>>
      gone_;  // by worker id; at most limits::kMaxWorkers
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_REGISTRY_H_
