// EngineReport: the engine's numbers and rows for others: load reports, metrics and debug pages.
// Engine thread, but for Read.
#ifndef BATON_ENGINE_ENGINE_REPORT_H_
#define BATON_ENGINE_ENGINE_REPORT_H_

#include "src/engine/engine_debug.h"
#include "src/engine/engine_snapshot.h"
#include "src/engine/engine_state.h"
#include "src/engine/session_leases.h"
#include "src/engine/transfer_hub.h"

namespace baton::engine {

// See the file comment.
class EngineReport {
 public:
  // All outlive it.
  EngineReport(EngineState* state, const TransferHub* hub, const SessionLeases* leases)
      : state_(state), hub_(hub), leases_(leases) {}

  // Publishes the numbers as of now.
  void Publish();
  // The numbers that were published last. Any thread.
  EngineSnapshot Read() const { return snapshot_.Read(); }
  void Answer(DebugQuery* query) const;

 private:
  std::vector<RequestRow> RequestRows() const;

  EngineState* const state_;
  const TransferHub* const hub_;
  const SessionLeases* const leases_;
  SnapshotCell<EngineSnapshot> snapshot_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_REPORT_H_
