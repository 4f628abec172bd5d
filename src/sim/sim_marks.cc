#include "src/sim/sim_marks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <string>
#include <type_traits>
#include <variant>

#include "src/base/limits.h"
#include "src/base/xxh3.h"

namespace baton::sim {

using engine::EngineSnapshot;
using engine::RequestKey;
using engine::RequestKind;
using engine::RequestSpec;
using engine::RequestStatus;
using engine::TokenEvent;
using kv::Applied;
using kv::Grant;
using kv::HandoffMessage;
using kv::LinkInfo;
using kv::Nack;
using kv::PeerAddress;
using kv::PrefixChange;
using kv::Renew;
using kv::Revoke;
using kv::Seal;
using kv::TransferKey;
using kv::TransportKind;
using router::LinkKind;
using router::LinkView;
using router::ModelClaim;
using router::PlacementSpec;
using router::PrefixBatch;
using router::WorkerDescription;
using router::WorkerLoadReport;
using router::WorkerRequestState;
using router::WorkerRequestStatus;
using router::WorkerToken;
using scheduler::SchedulerLoad;
using wire::LogitBias;
using wire::SamplingParams;
using worker::HelloFacts;
using worker::PrefixNews;

namespace {

constexpr uint64_t kFactor = 0x9fb21c651e98df25;

// The states of an engine in its order, as routers name them.
constexpr std::array kStates = {
    WorkerRequestState::kUnspecified,    WorkerRequestState::kReserved,
    WorkerRequestState::kPrefillStarted, WorkerRequestState::kPrefillDone,
    WorkerRequestState::kGranted,        WorkerRequestState::kVerified,
    WorkerRequestState::kDecodeStarted,  WorkerRequestState::kFirstStepDone,
    WorkerRequestState::kStranded,       WorkerRequestState::kHandedOff,
    WorkerRequestState::kFinished,       WorkerRequestState::kRejected,
    WorkerRequestState::kFailed,         WorkerRequestState::kCancelled};
static_assert(kStates.size() == engine::kNumRequestStates);

LinkKind LinkOf(TransportKind kind) {
  switch (kind) {
    case TransportKind::kAuto:
      break;
    case TransportKind::kLocal:
      return LinkKind::kLocal;
    case TransportKind::kShm:
      return LinkKind::kShm;
    case TransportKind::kTcp:
      return LinkKind::kTcp;
    case TransportKind::kNccl:
      return LinkKind::kNccl;
    case TransportKind::kCudaIpc:
      return LinkKind::kCudaIpc;
  }
  return LinkKind::kUnspecified;
}

// Folds values in their order. Enums, flags and numbers are all added as what they are worth.
class Marker {
 public:
  template <typename T>
  Marker& operator<<(T value) {
    static_assert(!std::is_same_v<T, double>, "a cast would lose its fraction");
    if constexpr (std::is_same_v<T, float>) return *this << std::bit_cast<uint32_t>(value);
    mark_ = (mark_ ^ static_cast<uint64_t>(value)) * kFactor;
    mark_ ^= mark_ >> 29;
    return *this;
  }
  Marker& operator<<(std::string_view text) {
    return *this << text.size() << (text.empty() ? 0 : Xxh3Hash64(text));
  }
  Marker& operator<<(const std::string& text) { return *this << std::string_view(text); }
  Marker& operator<<(const RequestUid& uid) { return *this << uid.hi << uid.lo; }
  Marker& operator<<(Incarnation incarnation) { return *this << incarnation.value(); }
  Marker& operator<<(const RequestKey& key) { return *this << key.uid << key.attempt; }
  Marker& operator<<(const Hash128& hash) { return *this << hash.hi << hash.lo; }
  Marker& operator<<(const TransferKey& key) {
    return *this << key.uid << key.attempt << key.transfer.value();
  }
  Marker& operator<<(const TokenLogprob& top) { return *this << top.token << top.logprob; }
  Marker& operator<<(const SamplingParams& sampling);

  // Each element, and how many there are.
  template <typename Range>
  Marker& All(const Range& range) {
    for (const auto& element : range) *this << element;
    return *this << range.size();
  }
  uint64_t mark() const { return mark_; }

 private:
  uint64_t mark_ = 0x2545f4914f6cdd1d;
};

Marker& Marker::operator<<(const SamplingParams& sampling) {
  *this << sampling.temperature << sampling.top_k << sampling.top_p << sampling.min_p
        << sampling.repetition_penalty << sampling.presence_penalty << sampling.frequency_penalty
        << sampling.seed << sampling.min_tokens << sampling.logprobs << sampling.top_logprobs
        << sampling.max_tokens << sampling.ignore_eos << sampling.prompt_logprobs.has_value()
        << sampling.prompt_logprobs.value_or(0);
  uint64_t biases = 0;  // whose order says nothing
  for (const LogitBias& bias : sampling.logit_bias) {
    biases += (Marker() << bias.token << bias.bias).mark();
  }
  *this << biases << sampling.logit_bias.size();
  All(sampling.stop_token_ids);
  if (!sampling.grammar) return *this << 0;
  return *this << 1 << sampling.grammar->kind << sampling.grammar->start << sampling.grammar->text;
}

}  // namespace

// ---- Orders.

uint64_t MarkOf(const PlacementSpec& spec, RequestKind kind, Incarnation peer) {
  Marker marker;
  marker << spec.uid << spec.attempt << kind << peer;
  for (const TokenId token : *spec.prompt) marker << token;
  for (const TokenId token : spec.replayed) marker << token;
  return (marker << spec.prompt->size() + spec.replayed.size() << spec.prompt->size()
                 << spec.num_choices << *spec.sampling << int64_t{spec.deadline_ms} * 1000
                 << spec.tenant << spec.is_cacheable << spec.priority << spec.reports_progress)
      .mark();
}

uint64_t MarkOf(const RequestSpec& spec) {
  Marker marker;
  marker << spec.key << spec.kind << spec.peer;
  return (marker.All(spec.tokens) << spec.num_prompt_tokens << spec.num_choices << spec.sampling
                                  << spec.deadline_us << spec.tenant << spec.is_cacheable
                                  << spec.priority << spec.reports_progress)
      .mark();
}

uint64_t MarkOf(const RequestKey& key) { return (Marker() << key).mark(); }
uint64_t MarkOfNumber(uint64_t number) { return (Marker() << number).mark(); }
uint64_t MarkOfSession(uint64_t router, uint64_t worker, uint32_t wire_version) {
  return (Marker() << router << worker << wire_version).mark();
}

// ---- Tokens and states.

namespace {

// Both ends' tokens have these fields, under these names.
template <typename Token>
void AddToken(const Token& token, Marker* marker) {
  *marker << token.choice << token.index << token.token << token.finish << token.step_us
          << token.prompt_pos << token.rank << token.num_proposed << token.step_row
          << token.guess_state;
  if (token.has_logprob) (*marker << token.logprob).All(token.top_logprobs);
  if (token.progress.num_tokens > 0) {
    *marker << token.progress.num_tokens << token.progress.num_cached << token.progress.elapsed_us;
  }
  marker->All(token.embedding);
}

}  // namespace

uint64_t MarkOf(std::span<const TokenEvent> events) {
  Marker marker;
  for (const TokenEvent& event : events) AddToken(event, &(marker << event.key));
  return (marker << events.size()).mark();
}

uint64_t MarkOf(const std::vector<WorkerToken>& tokens) {
  Marker marker;
  for (const WorkerToken& token : tokens) AddToken(token, &(marker << token.uid << token.attempt));
  return (marker << tokens.size()).mark();
}

uint64_t MarkOf(const RequestStatus& status) {
  return (Marker() << status.key << kStates[static_cast<size_t>(status.state)]
                   << status.status.code() << std::string(status.status.message())
                   << status.failed_part << status.cached_tokens << status.retargeted
                   << status.kv_bytes << status.kv_total_bytes << LinkOf(status.transport)
                   << static_cast<float>(static_cast<double>(status.transfer_us) * 1e-6)
                   << status.retry_after_ms)
      .mark();
}

uint64_t MarkOf(const WorkerRequestStatus& status) {
  return (Marker() << status.uid << status.attempt << status.state << status.code << status.message
                   << status.failed_part << status.cached_tokens << status.retargeted
                   << status.kv_bytes << status.kv_total_bytes << status.transport
                   << status.transfer_seconds << status.retry_after_ms)
      .mark();
}

// ---- Reports.

uint64_t MarkOf(const HelloFacts& facts) {
  Marker marker;
  for (const TransportKind kind : facts.transports) marker << LinkOf(kind);
  return (marker << facts.worker_id << facts.incarnation << facts.role << facts.wire.min
                 << facts.wire.max << facts.layout_id << facts.weights_id << facts.tokenizer_id
                 << facts.numerics_id << facts.layout_text << facts.numerics_text
                 << facts.varies_with_batch << facts.grpc_address << facts.admin_address
                 << facts.kv_address << facts.kv_unix << facts.host_id << facts.pid
                 << facts.max_context << facts.block_size << facts.state_blocks
                 << facts.window_blocks << facts.kv_bytes_per_token << facts.num_blocks
                 << facts.max_running << facts.core_budget << facts.home_cores
                 << facts.allow_inexact << facts.chain_check << facts.grammar_version
                 << facts.logs_prompts << facts.embedding_size << facts.model_id
                 << facts.loaded_unix_s << facts.max_context << facts.vocab_size
                 << facts.embedding_size << facts.embedding_refusal << facts.tokenizer_id
                 << facts.tokenizer)
      .mark();
}

uint64_t MarkOf(const WorkerDescription& worker, const ModelClaim& claim) {
  Marker marker;
  for (const LinkKind kind : worker.transports) marker << kind;
  return (marker << worker.name.worker_id << worker.name.incarnation << worker.role
                 << worker.fingerprint.wire_min << worker.fingerprint.wire_max
                 << worker.fingerprint.layout_id << worker.weights_text
                 << worker.fingerprint.tokenizer_id << worker.numerics_id_text << worker.layout_text
                 << worker.numerics_text << worker.fingerprint.varies_with_batch
                 << worker.grpc_address << worker.admin_address << worker.kv_address
                 << worker.kv_unix << worker.host_id << worker.pid << worker.max_context
                 << worker.block_size << worker.state_blocks << worker.window_blocks
                 << worker.kv_bytes_per_token << worker.num_blocks << worker.max_running
                 << worker.core_budget << worker.home_cores << worker.fingerprint.allow_inexact
                 << worker.chain_check << worker.grammar_version << worker.logs_prompts
                 << worker.embedding_size << claim.id << claim.loaded_unix_s << claim.max_context
                 << claim.vocab_size << claim.embedding_size << claim.embedding_refusal
                 << claim.tokenizer_id << claim.tokenizer)
      .mark();
}

uint64_t MarkOf(const EngineSnapshot& snapshot, const std::vector<LinkInfo>& links, bool ready,
                bool draining, uint64_t sequence_number) {
  const SchedulerLoad& scheduler = snapshot.scheduler;
  Marker marker;
  marker << ready << draining << scheduler.num_running
         << scheduler.num_waiting + scheduler.num_prefilling << scheduler.backlog_tokens
         << snapshot.blocks.total << snapshot.prefill_tokens_per_s
         << std::clamp<int64_t>(snapshot.decode_step_us, 0, UINT32_MAX) << scheduler.batch_limit
         << sequence_number;
  marker.All(snapshot.blocks.by_state);
  for (const LinkInfo& link : links) {
    if (!link.dialled) continue;
    marker << link.worker_id << link.peer << LinkOf(link.kind) << link.up;
  }
  return marker.mark();
}

uint64_t MarkOf(const WorkerLoadReport& load) {
  Marker marker;
  marker << load.ready << load.draining << load.running << load.waiting << load.backlog_tokens
         << load.num_blocks << load.prefill_tokens_per_s << load.step_us << load.batch_limit
         << load.sequence_number;
  marker.All(load.blocks);
  for (const LinkView& link : load.links) {
    marker << link.to << link.to_incarnation << link.kind << link.up;
  }
  return marker.mark();
}

namespace {

template <typename Changes>
uint64_t MarkOfChanges(const Changes& told) {
  Marker marker;
  for (const PrefixChange& change : told.changes) marker << change.link << change.added;
  return (marker << told.changes.size() << told.first_sequence << told.reset).mark();
}

}  // namespace

uint64_t MarkOf(const PrefixNews& news) { return MarkOfChanges(news); }
uint64_t MarkOf(const PrefixBatch& batch) { return MarkOfChanges(batch); }

// ---- Directives.

uint64_t MarkOf(const std::vector<const WorkerDescription*>& peers) {
  Marker marker;
  for (const WorkerDescription* peer : peers) {
    marker << peer->name.worker_id << peer->name.incarnation << peer->host_id << peer->kv_address
           << peer->kv_unix;
  }
  return (marker << peers.size()).mark();
}

uint64_t MarkOf(const std::vector<PeerAddress>& peers) {
  Marker marker;
  for (const PeerAddress& peer : peers) {
    marker << peer.worker_id << peer.incarnation << peer.host_id << peer.tcp << peer.unix_name;
  }
  return (marker << peers.size()).mark();
}

uint64_t MarkOfAck(uint64_t router, uint32_t heartbeat_ms, std::string_view refusal) {
  return (Marker() << router << heartbeat_ms << refusal).mark();
}

// ---- Between workers.

namespace {

void Add(const Grant& grant, Marker* marker) {
  (*marker << grant.key << grant.decode_incarnation << grant.layout_id << grant.expected_bytes
           << grant.ttl_ms << grant.num_held)
      .All(grant.generations);
}

void Add(const Seal& seal, Marker* marker) {
  *marker << seal.key << seal.next_output_index << seal.num_slices << seal.num_tokens
          << seal.num_cached;
  for (const kv::FirstToken& first : seal.first_tokens) {
    *marker << first.choice << first.token << first.logprob.has_value()
            << first.logprob.value_or(0.0f);
    marker->All(first.top_logprobs);
  }
  *marker << seal.first_tokens.size();
  marker->All(seal.chain);
}

void Add(const Applied& applied, Marker* marker) { *marker << applied.key; }

void Add(const Nack& nack, Marker* marker) {
  *marker << nack.key;
  // Too many to name stand for all.
  const size_t num_named = nack.slices.size() > limits::kMaxNackSlices ? 0 : nack.slices.size();
  for (size_t i = 0; i < num_named; ++i) *marker << nack.slices[i].ordinal << nack.slices[i].layer;
  *marker << num_named;
}

void Add(const Revoke& revoke, Marker* marker) {
  *marker << revoke.key << revoke.reason << revoke.from_decode << revoke.failed_part;
}

void Add(const Renew& renew, Marker* marker) { *marker << renew.key; }

}  // namespace

uint64_t MarkOf(const HandoffMessage& message) {
  Marker marker;
  marker << message.index();
  std::visit([&marker](const auto& m) { Add(m, &marker); }, message);
  return marker.mark();
}

}  // namespace baton::sim
