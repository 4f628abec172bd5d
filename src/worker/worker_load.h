// A worker's numbers and peers between the engine's and transport's types and worker.proto.
#ifndef BATON_WORKER_WORKER_LOAD_H_
#define BATON_WORKER_WORKER_LOAD_H_

#include <span>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "kvcache/transport/transport_types.h"
#include "src/base/status.h"
#include "src/engine/engine_snapshot.h"

namespace baton::worker {

// Everything of a report but ready, draining and sequence_number.
void FillLoad(const engine::EngineSnapshot& snapshot, const std::vector<kv::LinkInfo>& links,
              v1::WorkerLoad* out);

// Whether a worker with these links can hand KV to anybody. Ok while a link that it dials is up or
// was not tried yet, and while it dials none; else Unavailable with why the first one is down.
Status CanHandOff(const std::vector<kv::LinkInfo>& links);

// Where the peers of a router's list are reached; entries without a name or incarnation are left
// out, and peers that have none of the transports `kinds`.
std::vector<kv::PeerAddress> PeerAddresses(const std::vector<v1::Peer>& peers,
                                           const std::vector<kv::TransportKind>& kinds);

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_LOAD_H_
