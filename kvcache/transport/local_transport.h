// LocalHub: makes the KvTransports between workers of one process (`--colocate`, tests).
// Slices are copied and checked from pool to pool, in host memory by the hub's thread and on a
// device by one launch for many; no sockets, no frames.
//
// A LocalHub joins any number of transports: all attached ones are connected with each other. The
// hub's one thread ("kv-transport") does the copying; without a thread, Pump() does, on the
// caller's.
#ifndef BATON_KVCACHE_TRANSPORT_LOCAL_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_LOCAL_TRANSPORT_H_

#include <memory>
#include <string>

#include "kvcache/kv_arena.h"
#include "kvcache/kv_memory.h"
#include "kvcache/transport/ipc/slice_puller.h"
#include "kvcache/transport/kv_transport.h"
#include "src/base/clock.h"

namespace baton::kv {

class LocalCore;

// A worker that joins a hub.
struct LocalWorker {
  std::string worker_id;
  Incarnation incarnation;
  KvMemory memory;  // outlives its transport
  // Not null when the memory is a device's. It copies the slices of the other transports into that
  // memory, in the hub's thread alone.
  std::unique_ptr<SlicePuller> puller;
  bool dials = false;  // its ends of connections count as those that dialled
};

// Joins the local transports of a process. Outlives them; any thread.
class LocalHub {
 public:
  // With `own_thread` a thread serves the transports; otherwise the owner calls Pump.
  explicit LocalHub(bool own_thread, const Clock* clock = &SystemClock());
  ~LocalHub();
  LocalHub(const LocalHub&) = delete;
  LocalHub& operator=(const LocalHub&) = delete;

  // A transport for one worker. It connects at its Start with the others whose layout is equal and
  // whose memory is of the same kind, and disconnects at its Stop. The parts of the puller's device
  // outlive it.
  std::unique_ptr<KvTransport> Attach(LocalWorker worker);
  // As above, for an arena, which outlives the transport.
  std::unique_ptr<KvTransport> Attach(std::string worker_id, Incarnation incarnation,
                                      const KvArena* arena);

  // Does all posted work and returns whether there was any. Only without an own thread; one thread
  // at a time.
  bool Pump();

 private:
  const std::shared_ptr<LocalCore> core_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_LOCAL_TRANSPORT_H_
