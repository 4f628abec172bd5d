// Marks: one number of all that a message says, the same from the plain values of its sender and
// from those of its receiver. The two have types of their own, so each pair of functions here reads
// the same fields in the same order; nothing is converted. Pure; any thread.
#ifndef BATON_SIM_SIM_MARKS_H_
#define BATON_SIM_SIM_MARKS_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/handoff_messages.h"
#include "kvcache/transport/transport_types.h"
#include "src/engine/engine_snapshot.h"
#include "src/engine/engine_types.h"
#include "src/router/model_catalog.h"
#include "src/router/worker_messages.h"
#include "src/worker/hello_codec.h"
#include "src/worker/prefix_teller.h"

namespace baton::sim {

// Orders: router, then worker.
uint64_t MarkOf(const router::PlacementSpec& spec, engine::RequestKind kind, Incarnation peer);
uint64_t MarkOf(const engine::RequestSpec& spec);
// A cancel, by what it names.
uint64_t MarkOf(const engine::RequestKey& key);
// A renewal, and an order to leave: one number each.
uint64_t MarkOfNumber(uint64_t number);

// The hello of a session.
uint64_t MarkOfSession(uint64_t router, uint64_t worker, uint32_t wire_version);

// Tokens and states: worker, then router.
uint64_t MarkOf(std::span<const engine::TokenEvent> events);
uint64_t MarkOf(const std::vector<router::WorkerToken>& tokens);
uint64_t MarkOf(const engine::RequestStatus& status);
uint64_t MarkOf(const router::WorkerRequestStatus& status);

// Reports: worker, then router.
uint64_t MarkOf(const worker::HelloFacts& facts);
uint64_t MarkOf(const router::WorkerDescription& worker, const router::ModelClaim& claim);
uint64_t MarkOf(const engine::EngineSnapshot& snapshot, const std::vector<kv::LinkInfo>& links,
                bool ready, bool draining, uint64_t sequence_number);
uint64_t MarkOf(const router::WorkerLoadReport& load);
uint64_t MarkOf(const worker::PrefixNews& news);
uint64_t MarkOf(const router::PrefixBatch& batch);

// Directives: router, then worker.
uint64_t MarkOf(const std::vector<const router::WorkerDescription*>& peers);
uint64_t MarkOf(const std::vector<kv::PeerAddress>& peers);
uint64_t MarkOfAck(uint64_t router, uint32_t heartbeat_ms, std::string_view refusal);

// Between workers.
uint64_t MarkOf(const kv::HandoffMessage& message);

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_MARKS_H_
