// Engine: one worker's loop. Its one thread ("engine") owns scheduler, block pool, model and the
// hand-offs: it takes the inbox, ticks leases, plans a batch, runs it and reports tokens; it sleeps
// when there is nothing to do. All work is in EngineCore; this class adds the thread.
//
// Every function but Start may be called from any thread; none waits for a step, but for the debug
// queries.
//
// Invariants
//  1. Every request that TryStart took ends with exactly one terminal RequestStatus, unless the
//     engine is stopped first.
//  2. A cancelled request, or one whose session closed, computes nothing after the current step.
//  3. Blocks return to the pool when the request ended and no transport touches them.
//  4. The listener is called on the engine thread only, never after Stop returned.
#ifndef BATON_ENGINE_ENGINE_H_
#define BATON_ENGINE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "src/base/status.h"
#include "src/base/thread.h"
#include "src/engine/engine_debug.h"
#include "src/engine/engine_inbox.h"
#include "src/engine/engine_options.h"
#include "src/engine/engine_snapshot.h"
#include "src/engine/transport_sink.h"

namespace baton::engine {

class EngineCore;

// See the file comment.
class Engine {
 public:
  // Checks the numbers and takes the memory; starts neither thread nor transport.
  // InvalidArgument naming the number that is outside its range.
  static StatusOr<std::unique_ptr<Engine>> Create(const EngineConfig& config,
                                                  const EngineParts& parts);
  // Stops.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts the transport (if any) with this engine as its sink, then the thread. Once. `on_links`
  // hears on the transport's thread that a data connection has come or gone, and only posts.
  Status Start(std::function<void()> on_links = {});
  // Ends the thread after the current step and stops the transport; live requests end without a
  // word. Idempotent.
  void Stop();

  // Begins a request. ResourceExhausted when the inbox is full, Unavailable when stopped; any other
  // refusal comes as a REJECTED status.
  Status TryStart(RequestSpec spec);
  void Cancel(const RequestKey& key);
  void CloseSession(SessionId session);
  void Renew(SessionId session, int64_t lease_us);

  // New requests are rejected from now on; those that run go on, here or, by a higher attempt,
  // from here at another worker. Idempotent.
  void BeginDrain();
  // Ends every request as FAILED with this status.
  void FailAll(Status status);
  // True when everything that was asked of it before this call was taken: no step holds it up.
  bool HasTakenAll() const;
  // True when no request lives and no hand-off holds a block.
  bool IsIdle() const;

  // As of the last turn of the loop; costs a copy of half a KiB.
  EngineSnapshot Snapshot() const;
  // Answered between two steps; DeadlineExceeded after a second.
  StatusOr<std::vector<RequestRow>> DebugRequests();
  StatusOr<std::vector<kv::BlockInfo>> DebugBlocks();

 private:
  Engine(const EngineConfig& config, const EngineParts& parts);
  void Loop();

  const EngineParts parts_;
  EngineInbox inbox_;
  EngineTransportSink sink_;
  std::unique_ptr<EngineCore> core_;
  std::atomic<bool> stop_{false};
  bool started_ = false;
  Thread thread_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_H_
