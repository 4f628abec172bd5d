#include "src/router/worker_codec.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"

#include "scheduler/proposer.h"
#include "src/base/host_port.h"
#include "src/base/limits.h"
#include "src/base/wire_text.h"
#include "src/base/worker_id.h"
#include "src/base/xxh3.h"
#include "src/text/tokenizer_spec.h"
#include "src/text/utf8.h"

namespace baton::router {

using kv::ChainFromBytes;
using kv::ChainLink;
using limits::kHeartbeatMs;
using limits::kMaxModelIdBytes;
using limits::kMaxPoolBlocks;
using limits::kMaxPrefixChanges;
using limits::kMaxRetryHintMs;
using limits::kMaxSpecBytes;
using limits::kMaxStateBlocks;
using limits::kMaxTopLogprobs;
using limits::kMaxWorkerIdBytes;
using limits::kMaxWorkers;
using scheduler::FinishReason;
using scheduler::kMaxProposals;
using text::ValidUtf8Prefix;

namespace {

constexpr size_t kMaxAddressBytes = 256;
// Readable ids and parts of fingerprints have some hundred bytes.
constexpr size_t kMaxTextBytes = 4096;
constexpr uint32_t kMaxEmbeddingSize = 1u << 17;  // model::kMaxHiddenSize
constexpr uint32_t kMaxHomeCores = 1024;          // device::kMaxCores
constexpr size_t kMaxPoolingBytes = 64;
// Context and vocabulary that a hello may name: a worker of a later release may take more than
// this one does, and the router computes with 31 bits.
constexpr uint64_t kMaxHelloTokens = uint64_t{1} << 30;
static_assert(kMaxHelloTokens >= limits::kMaxContextTokens);
static_assert(kMaxHelloTokens >= limits::kMaxVocabTokens);

// The route policy compares numbers; equal texts give equal numbers.
uint64_t IdOfText(const std::string& text) { return Xxh3Hash64(text); }

LinkKind DecodeKind(v1::TransportKind kind) {
  const int number = static_cast<int>(kind);
  const bool is_known = number >= 1 && number <= kLastLinkKind;
  return is_known ? static_cast<LinkKind>(number) : LinkKind::kUnspecified;
}

// Where the router dials the worker: HOST:PORT. gRPC has other kinds of targets, which would make a
// router ask a control plane or a socket that a worker names.
Status CheckGrpcAddress(const std::string& text) {
  const StatusOr<HostPort> address = ParseHostPort(text);
  if (!address.ok()) return WithPrefix(address.status(), "grpc_address");
  if (address->port != 0) return OkStatus();
  return InvalidArgument("grpc_address '{}' has no port", text);
}

// A day: no prompt takes longer, whatever a worker says.
constexpr uint64_t kMaxElapsedUs = uint64_t{86'400} * 1'000'000;

RequestUid DecodeUid(const v1::RequestUid& uid) { return {uid.hi(), uid.lo()}; }

void EncodeUid(RequestUid uid, v1::RequestUid* out) {
  out->set_hi(uid.hi);
  out->set_lo(uid.lo);
}

void EncodeName(const WorkerName& name, v1::WorkerRef* out) {
  out->set_worker_id(name.worker_id);
  out->set_incarnation(name.incarnation.value());
}

void EncodeSampling(const wire::SamplingParams& sampling, v1::SamplingParams* out) {
  out->set_temperature(sampling.temperature);
  out->set_top_p(sampling.top_p);
  out->set_top_k(sampling.top_k);
  out->set_min_p(sampling.min_p);
  out->set_repetition_penalty(sampling.repetition_penalty);
  out->set_presence_penalty(sampling.presence_penalty);
  out->set_frequency_penalty(sampling.frequency_penalty);
  out->set_seed(sampling.seed);
  for (const auto& [token, bias] : sampling.logit_bias) {
    (*out->mutable_logit_bias())[static_cast<uint32_t>(token)] = bias;
  }
  out->set_logprobs(sampling.logprobs);
  out->set_top_logprobs(sampling.top_logprobs);
  out->set_max_tokens(sampling.max_tokens);
  out->set_min_tokens(sampling.min_tokens);
  out->set_ignore_eos(sampling.ignore_eos);
  if (sampling.prompt_logprobs) out->set_prompt_logprobs(*sampling.prompt_logprobs);
  for (const TokenId token : sampling.stop_token_ids) {
    out->add_stop_token_ids(static_cast<uint32_t>(token));
  }
  if (sampling.grammar) {
    v1::AnswerGrammar* const grammar = out->mutable_grammar();
    grammar->set_kind(
        static_cast<v1::AnswerGrammar::Kind>(static_cast<int>(sampling.grammar->kind) + 1));
    grammar->set_start(
        static_cast<v1::AnswerGrammar::Start>(static_cast<int>(sampling.grammar->start) + 1));
    grammar->set_text(sampling.grammar->text);
  }
}

void EncodeSpec(const PlacementSpec& spec, v1::RequestSpec* out) {
  EncodeUid(spec.uid, out->mutable_uid());
  out->set_attempt(spec.attempt);
  out->mutable_tokens()->Reserve(static_cast<int>(spec.prompt->size() + spec.replayed.size()));
  out->mutable_tokens()->Add(spec.prompt->begin(), spec.prompt->end());
  out->mutable_tokens()->Add(spec.replayed.begin(), spec.replayed.end());
  out->set_num_prompt_tokens(static_cast<uint32_t>(spec.prompt->size()));
  EncodeSampling(*spec.sampling, out->mutable_sampling());
  out->set_n(spec.num_choices);
  out->set_deadline_ms(spec.deadline_ms);
  out->set_tenant(std::string(spec.tenant));
  out->set_not_cacheable(!spec.is_cacheable);
  if (spec.priority != 0) out->set_priority(spec.priority);
  out->set_reports_progress(spec.reports_progress);
  if (!spec.trace.valid()) return;
  v1::TraceSpan* const span = out->mutable_span();
  span->set_trace_hi(spec.trace.trace_hi);
  span->set_trace_lo(spec.trace.trace_lo);
  span->set_span_id(spec.trace.span_id);
}

Status CheckHelloNames(const v1::WorkerHello& hello) {
  if (!IsWorkerId(hello.worker().worker_id())) {
    return InvalidArgument("worker_id must be 1 to {} of [a-z0-9-], it has {} bytes",
                           kMaxWorkerIdBytes, hello.worker().worker_id().size());
  }
  if (hello.worker().incarnation() == 0) return InvalidArgument("incarnation is 0");
  if (!IsModelId(hello.model())) {
    return InvalidArgument(
        "model must be 1 to {} bytes of UTF-8 without '/' and ASCII control characters, not "
        "\"default\"",
        kMaxModelIdBytes);
  }
  if (hello.tokenizer().size() > kMaxSpecBytes) {
    return InvalidArgument("tokenizer has {} bytes, the limit is {}", hello.tokenizer().size(),
                           kMaxSpecBytes);
  }
  if (hello.role() != v1::WORKER_ROLE_PREFILL && hello.role() != v1::WORKER_ROLE_DECODE) {
    return InvalidArgument("role {} is unknown", static_cast<int>(hello.role()));
  }
  for (const std::string* address :
       {&hello.grpc_address(), &hello.admin_address(), &hello.kv_address(), &hello.kv_unix()}) {
    if (address->size() > kMaxAddressBytes) {
      return InvalidArgument("an address has {} bytes, more than {}", address->size(),
                             kMaxAddressBytes);
    }
    // Operators' tools print them.
    if (!std::all_of(address->begin(), address->end(), absl::ascii_isgraph)) {
      return InvalidArgument("an address has a byte that is not printed");
    }
  }
  BATON_RETURN_IF_ERROR(CheckGrpcAddress(hello.grpc_address()));
  const v1::Fingerprint& fingerprint = hello.fingerprint();
  for (const std::string* text :
       {&fingerprint.weights_id(), &fingerprint.numerics_id(), &fingerprint.layout_text(),
        &fingerprint.numerics_text(), &hello.host_id()}) {
    if (text->size() > kMaxTextBytes) {
      return InvalidArgument("a text of the fingerprint or the host has {} bytes, more than {}",
                             text->size(), kMaxTextBytes);
    }
  }
  return OkStatus();
}

Status CheckHelloNumbers(const v1::WorkerHello& hello) {
  const auto check = [](std::string_view field, uint64_t value, uint64_t max) {
    if (value >= 1 && value <= max) return OkStatus();
    return InvalidArgument("{} is {}, outside 1..{}", field, value, max);
  };
  BATON_RETURN_IF_ERROR(check("max_context", hello.max_context(), kMaxHelloTokens));
  BATON_RETURN_IF_ERROR(check("block_size", hello.block_size(), 1u << 16));
  BATON_RETURN_IF_ERROR(check("num_blocks", hello.num_blocks(), kMaxPoolBlocks));
  const uint32_t most_state_blocks = std::min(hello.num_blocks() - 1, kMaxStateBlocks);
  if (hello.state_blocks() > most_state_blocks) {
    return InvalidArgument("state_blocks is {}, outside 0..{}", hello.state_blocks(),
                           most_state_blocks);
  }
  if (hello.window_blocks() > kMaxPoolBlocks) {
    return InvalidArgument("window_blocks is {}, outside 0..{}", hello.window_blocks(),
                           kMaxPoolBlocks);
  }
  BATON_RETURN_IF_ERROR(check("max_running", hello.max_running(), 1u << 20));
  if (hello.core_budget() != 0) {
    BATON_RETURN_IF_ERROR(check("home_cores", hello.home_cores(), kMaxHomeCores));
  }
  if (hello.embedding_size() > kMaxEmbeddingSize) {
    return InvalidArgument("embedding_size is {}, outside 0..{}", hello.embedding_size(),
                           kMaxEmbeddingSize);
  }
  if (hello.embedding_refusal().size() > kMaxPoolingBytes) {
    return InvalidArgument("embedding_refusal has {} bytes, more than {}",
                           hello.embedding_refusal().size(), kMaxPoolingBytes);
  }
  BATON_RETURN_IF_ERROR(check("vocab_size", hello.vocab_size(), kMaxHelloTokens));
  return OkStatus();
}

// First of all: what else the worker says may have another meaning in a version not spoken here.
Status CheckHelloWire(const v1::WorkerHello& hello, const WireRange& own) {
  const WireRange theirs = {hello.fingerprint().wire_min(), hello.fingerprint().wire_max()};
  if (theirs.min < 1 || theirs.min > theirs.max) {
    return InvalidArgument("wire_min is {}, outside 1..{} (wire_max)", theirs.min, theirs.max);
  }
  if (CommonWireVersion(theirs, own) != 0) return OkStatus();
  return FailedPrecondition("the worker speaks wire versions {}, this router {}: none is common",
                            ToString(theirs), ToString(own));
}

FinishReason DecodeFinish(v1::WorkerFinish finish) {
  if (finish == v1::WORKER_FINISH_UNSPECIFIED) return FinishReason::kNone;
  return finish == v1::WORKER_FINISH_STOP ? FinishReason::kStop : FinishReason::kLength;
}

}  // namespace

bool IsModelId(std::string_view id) {
  if (id.empty() || id.size() > kMaxModelIdBytes || id == "default") return false;
  return ValidUtf8Prefix(id) == id.size() && std::all_of(id.begin(), id.end(), [](char c) {
           return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '/';
         });
}

StatusOr<WorkerDescription> DecodeHello(const v1::WorkerHello& hello, const WireRange& own) {
  BATON_RETURN_IF_ERROR(CheckHelloWire(hello, own));
  BATON_RETURN_IF_ERROR(CheckHelloNames(hello));
  BATON_RETURN_IF_ERROR(CheckHelloNumbers(hello));
  const v1::Fingerprint& fingerprint = hello.fingerprint();
  WorkerDescription worker;
  worker.name = {hello.worker().worker_id(), Incarnation(hello.worker().incarnation())};
  worker.role =
      hello.role() == v1::WORKER_ROLE_PREFILL ? WorkerRole::kPrefill : WorkerRole::kDecode;
  worker.fingerprint.wire_min = fingerprint.wire_min();
  worker.fingerprint.wire_max = fingerprint.wire_max();
  worker.fingerprint.layout_id = fingerprint.layout_id();
  worker.fingerprint.weights_id = IdOfText(fingerprint.weights_id());
  worker.fingerprint.tokenizer_id = fingerprint.tokenizer_id();
  worker.fingerprint.numerics_id = IdOfText(fingerprint.numerics_id());
  worker.fingerprint.allow_inexact = hello.allow_inexact();
  worker.fingerprint.varies_with_batch = fingerprint.varies_with_batch();
  worker.weights_text = fingerprint.weights_id();
  worker.layout_text = fingerprint.layout_text();
  worker.numerics_id_text = fingerprint.numerics_id();
  worker.numerics_text = fingerprint.numerics_text();
  worker.grpc_address = hello.grpc_address();
  worker.admin_address = hello.admin_address();
  worker.kv_address = hello.kv_address();
  worker.kv_unix = hello.kv_unix();
  worker.host_id = hello.host_id();
  worker.pid = hello.pid();
  worker.max_context = hello.max_context();
  worker.block_size = hello.block_size();
  worker.kv_bytes_per_token = hello.kv_bytes_per_token();
  worker.num_blocks = hello.num_blocks();
  worker.state_blocks = hello.state_blocks();
  worker.window_blocks = hello.window_blocks();
  worker.max_running = hello.max_running();
  worker.core_budget = hello.core_budget();
  worker.home_cores = hello.home_cores();
  worker.chain_check = hello.chain_check();
  worker.grammar_version = hello.grammar_version();
  worker.logs_prompts = hello.prompt_logprobs();
  worker.embedding_size = hello.embedding_size();
  for (const int kind : hello.transports()) {
    const LinkKind decoded = DecodeKind(static_cast<v1::TransportKind>(kind));
    const bool is_news = std::find(worker.transports.begin(), worker.transports.end(), decoded) ==
                         worker.transports.end();
    if (decoded != LinkKind::kUnspecified && is_news) worker.transports.push_back(decoded);
  }
  return worker;
}

ModelClaim TakeClaim(v1::WorkerHello* hello) {
  ModelClaim claim;
  claim.id = hello->model();
  claim.loaded_unix_s = static_cast<int64_t>(hello->loaded_unix_s());
  claim.max_context = hello->max_context();
  claim.vocab_size = hello->vocab_size();
  claim.embedding_size = hello->embedding_size();
  claim.embedding_refusal = WireText(hello->embedding_refusal());
  claim.tokenizer_id = hello->fingerprint().tokenizer_id();
  claim.tokenizer = std::move(*hello->mutable_tokenizer());
  return claim;
}

WorkerLoadReport DecodeLoad(const v1::WorkerLoad& load) {
  WorkerLoadReport report;
  report.ready = load.ready();
  report.draining = load.draining();
  report.running = load.running();
  report.waiting = load.waiting();
  report.backlog_tokens = load.backlog_tokens();
  const v1::BlockCounts& blocks = load.blocks();
  report.num_blocks = blocks.total();
  report.blocks = {blocks.free(),      blocks.cached(),   blocks.computing(),
                   blocks.bound(),     blocks.exported(), blocks.reserved(),
                   blocks.receiving(), blocks.draining(), blocks.quarantined()};
  const bool is_speed = std::isfinite(load.prefill_tokens_per_s());
  report.prefill_tokens_per_s = is_speed ? std::max(0.0f, load.prefill_tokens_per_s()) : 0.0f;
  report.step_us = load.step_us();
  report.batch_limit = load.batch_limit();
  for (const v1::LinkLoad& link : load.links()) {
    if (report.links.size() >= kMaxWorkers) break;
    if (link.to().size() > kMaxWorkerIdBytes) continue;  // nobody's name
    report.links.push_back({link.to(), Incarnation(link.to_incarnation()),
                            DecodeKind(link.transport()), link.bytes_per_s(), link.up(),
                            WireText(link.failure())});
  }
  report.sequence_number = load.sequence_number();
  return report;
}

StatusOr<PrefixBatch> DecodePrefix(const v1::PrefixEvents& events) {
  BATON_ASSIGN_OR_RETURN(const std::vector<ChainLink> links, ChainFromBytes(events.links()));
  const std::string& removed = events.removed();
  if (links.size() > kMaxPrefixChanges) {
    return InvalidArgument("a batch of {} prefix changes, more than {}", links.size(),
                           kMaxPrefixChanges);
  }
  if (removed.size() > (links.size() + 7) / 8) {
    return InvalidArgument("{} bytes of `removed` for {} links", removed.size(), links.size());
  }
  PrefixBatch batch;
  batch.first_sequence = events.first_sequence();
  batch.reset = events.reset();
  batch.changes.reserve(links.size());
  for (size_t i = 0; i < links.size(); ++i) {
    const bool gone = i / 8 < removed.size() && (removed[i / 8] >> (i % 8) & 1) != 0;
    batch.changes.push_back({links[i], !gone});
  }
  return batch;
}

std::vector<WorkerToken> DecodeStep(const v1::StepEvents& step) {
  std::vector<WorkerToken> tokens;
  tokens.reserve(static_cast<size_t>(step.events_size()));
  for (const v1::TokenEvent& event : step.events()) {
    WorkerToken& token = tokens.emplace_back();
    token.uid = DecodeUid(event.uid());
    token.attempt = event.attempt();
    token.choice = event.choice();
    token.index = event.index();
    // A number beyond int32 becomes negative, which the core refuses like any id outside the
    // vocabulary.
    token.token = static_cast<TokenId>(event.token());
    token.has_logprob = event.has_logprob();
    token.logprob = event.logprob();
    for (const v1::WorkerTokenLogprob& top : event.top_logprobs()) {
      if (token.top_logprobs.size() == kMaxTopLogprobs) break;
      token.top_logprobs.push_back({static_cast<TokenId>(top.token()), top.logprob()});
    }
    token.finish = DecodeFinish(event.finish());
    token.step_us = event.step_us();
    token.prompt_pos = event.prompt_pos();
    token.rank = event.rank();
    if (event.has_progress()) {
      const uint64_t elapsed_us = event.progress().elapsed_us();
      token.progress = {event.progress().num_tokens(), event.progress().num_cached(),
                        static_cast<int64_t>(std::min<uint64_t>(elapsed_us, kMaxElapsedUs))};
    }
    token.embedding.assign(event.embedding().begin(), event.embedding().end());
    token.num_proposed = std::min(event.proposed(), kMaxProposals);
    token.step_row = event.step_row();
    // A newer worker may tell a state that is not known here.
    const auto state = static_cast<uint32_t>(event.guess_state());
    if (state < wire::kGuessStateNames.size()) {
      token.guess_state = static_cast<wire::GuessState>(state);
    }
  }
  return tokens;
}

WorkerRequestStatus DecodeStatus(const v1::RequestStatus& status) {
  WorkerRequestStatus decoded;
  decoded.uid = DecodeUid(status.uid());
  decoded.attempt = status.attempt();
  const int state = static_cast<int>(status.state());
  const bool is_known = state >= 1 && state <= static_cast<int>(WorkerRequestState::kStranded);
  if (is_known) decoded.state = static_cast<WorkerRequestState>(state);
  decoded.code =
      status.code() <= 16 ? static_cast<StatusCode>(status.code()) : StatusCode::kUnknown;
  decoded.message = WireText(status.message());
  // A part that only a newer worker knows counts as not told.
  const int part = static_cast<int>(status.failed_part());
  const bool is_part = part >= 0 && part <= static_cast<int>(FailedPart::kPeer);
  if (is_part) decoded.failed_part = static_cast<FailedPart>(part);
  decoded.kv_bytes = status.kv_bytes();
  decoded.kv_total_bytes = status.kv_total_bytes();
  decoded.transport = DecodeKind(status.transport());
  const bool is_time = std::isfinite(status.transfer_seconds());
  decoded.transfer_seconds = is_time ? std::max(0.0f, status.transfer_seconds()) : 0.0f;
  decoded.retry_after_ms = std::min(status.retry_after_ms(), kMaxRetryHintMs);
  decoded.cached_tokens = status.cached_tokens();
  decoded.retargeted = status.retargeted();
  return decoded;
}

void EncodeStartPrefill(const PlacementSpec& spec, const WorkerName& decode,
                        v1::RouterMessage* out) {
  v1::StartPrefill* start = out->mutable_start_prefill();
  EncodeSpec(spec, start->mutable_spec());
  EncodeName(decode, start->mutable_decode());
}

void EncodeStartDecode(const PlacementSpec& spec, const WorkerName* prefill,
                       v1::RouterMessage* out) {
  v1::StartDecode* start = out->mutable_start_decode();
  EncodeSpec(spec, start->mutable_spec());
  if (prefill != nullptr) EncodeName(*prefill, start->mutable_prefill());
  start->set_local(prefill == nullptr);
}

void EncodeStartEmbedding(const PlacementSpec& spec, v1::RouterMessage* out) {
  EncodeSpec(spec, out->mutable_start_embedding()->mutable_spec());
}

void EncodeCancel(RequestUid uid, uint32_t attempt, v1::RouterMessage* out) {
  EncodeUid(uid, out->mutable_cancel()->mutable_uid());
  out->mutable_cancel()->set_attempt(attempt);
}

void EncodeSessionHello(Incarnation router, const WorkerDescription& worker, const WireRange& own,
                        v1::SessionHello* out) {
  out->set_router_incarnation(router.value());
  out->set_worker_incarnation(worker.name.incarnation.value());
  out->set_wire_version(
      CommonWireVersion(own, {worker.fingerprint.wire_min, worker.fingerprint.wire_max}));
}

void EncodeAck(Incarnation router, std::string_view refusal, v1::RegisterAck* out) {
  out->set_router_incarnation(router.value());
  out->set_heartbeat_ms(kHeartbeatMs);
  out->set_refusal(std::string(refusal));
}

void EncodePeers(const std::vector<const WorkerDescription*>& peers, v1::PeerList* out) {
  for (const WorkerDescription* worker : peers) {
    v1::Peer* peer = out->add_peers();
    EncodeName(worker->name, peer->mutable_worker());
    peer->set_kv_address(worker->kv_address);
    peer->set_kv_unix(worker->kv_unix);
    peer->set_host_id(worker->host_id);
    v1::Fingerprint* fingerprint = peer->mutable_fingerprint();
    fingerprint->set_wire_min(worker->fingerprint.wire_min);
    fingerprint->set_wire_max(worker->fingerprint.wire_max);
    fingerprint->set_layout_id(worker->fingerprint.layout_id);
    fingerprint->set_weights_id(worker->weights_text);
    fingerprint->set_tokenizer_id(worker->fingerprint.tokenizer_id);
    fingerprint->set_numerics_id(worker->numerics_id_text);
    fingerprint->set_layout_text(worker->layout_text);
    fingerprint->set_numerics_text(worker->numerics_text);
    for (const LinkKind kind : worker->transports) {
      peer->add_transports(static_cast<v1::TransportKind>(kind));
    }
    peer->set_allow_inexact(worker->fingerprint.allow_inexact);
  }
}

}  // namespace baton::router
