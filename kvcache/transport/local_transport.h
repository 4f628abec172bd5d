// LocalTransport: the KvTransport between workers that live in one process (colocated pools, tests,
// simulation). Slices are copied and checked from arena to arena; no sockets, no frames.
//
// A LocalHub joins any number of transports: all attached ones are connected with each other. The
// hub's one thread ("kv-transport") does the copying; without a thread, Pump() does, on the
// caller's.
#ifndef BATON_KVCACHE_TRANSPORT_LOCAL_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_LOCAL_TRANSPORT_H_

#include <memory>
#include <string>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/kv_transport.h"
#include "src/base/clock.h"

namespace baton {

class LocalCore;

// Joins the local transports of a process. Outlives them; any thread.
class LocalHub {
 public:
  // With `own_thread` a thread serves the transports; otherwise the owner calls Pump.
  explicit LocalHub(bool own_thread, const Clock* clock = &SystemClock());
  ~LocalHub();
  LocalHub(const LocalHub&) = delete;
  LocalHub& operator=(const LocalHub&) = delete;

  // A transport for one worker; it connects with the others at its Start and disconnects at its
  // Stop. `arena` outlives it.
  std::unique_ptr<KvTransport> Attach(std::string worker_id, Incarnation incarnation,
                                      const KvArena* arena);

  // Does all posted work and returns whether there was any. Only without an own thread; one thread
  // at a time.
  bool Pump();

 private:
  const std::shared_ptr<LocalCore> core_;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_LOCAL_TRANSPORT_H_
