// EngineState: what all parts of an EngineCore share: its configuration, the blocks and the plan of
// its device, its live requests, its numbers, and the time. Engine thread.
#ifndef BATON_ENGINE_ENGINE_STATE_H_
#define BATON_ENGINE_ENGINE_STATE_H_

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"

#include "kvcache/block_pool.h"
#include "kvcache/prefix_index.h"
#include "scheduler/scheduler.h"
#include "src/engine/engine_options.h"
#include "src/engine/engine_snapshot.h"
#include "src/engine/live_request.h"
#include "src/engine/outbox.h"
#include "src/engine/speculator.h"

namespace baton::engine {

// See the file comment.
struct EngineState {
  // The numbers were checked (CheckEngine, engine_checks.h).
  EngineState(const EngineConfig& config_in, const EngineParts& parts_in);

  const EngineConfig config;
  const EngineParts parts;
  const kv::KvView kv_view;
  kv::BlockPool pool;
  std::unique_ptr<kv::PrefixIndex> prefix_index;  // null when it is switched off
  Speculator speculator;
  scheduler::Scheduler scheduler;
  LiveRequests requests;
  absl::flat_hash_map<Incarnation, kv::TransportKind> peers;  // that are connected, and how
  Outbox outbox;
  EngineSnapshot numbers;  // counters, and what EngineReport fills in
  bool draining = false;   // no new requests
  uint64_t last_sequence_id = 0;
  int64_t now_us = 0;  // of this turn; at a step's end it advances to that

  // The request, if this attempt of it is live.
  LiveRequest* FindLive(const RequestKey& key) const;
  SequenceId NewSequenceId() { return SequenceId(++last_sequence_id); }
  // A sequence of the request's tokens. `id` 0: for the rules of room only, or of choices that have
  // ids of their own.
  scheduler::SequenceSpec SequenceSpecOf(const LiveRequest& request, SequenceId id) const;
  // Tokens are guessed here.
  bool guesses() const {
    return parts.proposer != nullptr || config.speculate != SpeculateMode::kOff;
  }
  // Items of one plan at most: a decode row for each running sequence and a chunk of each prompt.
  uint32_t MaxItems() const {
    return config.scheduler.max_running + config.scheduler.max_prefilling;
  }
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_STATE_H_
