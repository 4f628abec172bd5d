// WorkerLeases: which workers are there: their registrations, what they report of themselves, the
// sessions with them, and what follows when one falls silent. The router's thread.
#ifndef BATON_ROUTER_WORKER_LEASES_H_
#define BATON_ROUTER_WORKER_LEASES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "src/router/placement_queue.h"
#include "src/router/planned_moves.h"
#include "src/router/recovery.h"
#include "src/router/router_state.h"
#include "src/router/worker_link.h"

namespace baton::router {

// See the file comment. RouterCore says what the functions of the same name do.
class WorkerLeases {
 public:
  // All outlive the leases.
  WorkerLeases(RouterState* state, WorkerConnector* connector, PlacementQueue* queue,
               Recovery* recovery, PlannedMoves* moves)
      : state_(state), connector_(connector), queue_(queue), recovery_(recovery), moves_(moves) {}

  void OnWorkerHello(LeaseId lease, WorkerDescription worker, std::unique_ptr<LeaseStream> stream,
                     int64_t now_us);
  void CountRefusals(obs::RefusalReason reason, uint64_t num_refused);
  void OnWorkerLoad(LeaseId lease, WorkerLoadReport load, int64_t now_us);
  void OnPrefixEvents(LeaseId lease, const PrefixBatch& batch, int64_t now_us);
  void OnLeaseClosed(LeaseId lease);
  StatusOr<Incarnation> DrainWorker(std::string_view worker_id, uint32_t timeout_ms);
  void OnSessionUp(SessionRef session, int64_t now_us);
  void OnSessionDown(SessionRef session, std::string_view reason, int64_t now_us);
  // None: there is no such worker.
  std::optional<uint64_t> NumericsOf(std::string_view worker_id);
  void ForgiveSilence(int64_t late_us);
  // Null: a former session.
  RegisteredWorker* FindSession(SessionRef session);

  // Does what is due: silent workers, lost sessions, renewals, streams to move.
  void CheckWorkers(int64_t now_us);
  int64_t renewed_us() const { return renewed_us_; }  // when request leases were renewed last
  bool TakeModelsChanged() { return std::exchange(models_changed_, false); }

 private:
  void DropWorker(LeaseId lease, std::string_view reason);
  void OpenSession(RegisteredWorker& worker);
  void MembersChanged();
  void TrackPrefixes(const RegisteredWorker& worker, int64_t now_us);
  void AskResyncs(int64_t now_us);
  void ReportDecodePool();

  RouterState* const state_;
  WorkerConnector* const connector_;
  PlacementQueue* const queue_;
  Recovery* const recovery_;
  PlannedMoves* const moves_;
  bool models_changed_ = false;
  uint64_t num_not_kept_ = 0;  // of the index, when it was last looked at
  bool warned_key_ = false;    // of workers with another chain key
  int64_t renewed_us_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_LEASES_H_
