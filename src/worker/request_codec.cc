#include "src/worker/request_codec.h"

#include <algorithm>
#include <memory>

#include "src/base/limits.h"
#include "src/base/priority.h"
#include "src/base/wire_text.h"

namespace baton::worker {

using engine::RequestKey;
using engine::RequestKind;
using engine::RequestSpec;
using engine::RequestState;
using engine::RequestStatus;
using engine::TokenEvent;
using kv::TransportKind;
using limits::kMaxGrammarBytes;
using limits::kMaxLogitBiases;
using limits::kMaxStopTokens;
using scheduler::FinishReason;
using wire::AnswerGrammar;
using wire::GrammarKind;
using wire::GrammarStart;
using wire::kNumGrammarKinds;
using wire::kNumGrammarStarts;
using wire::LogitBias;
using wire::SamplingParams;
using wire::SharedGrammar;
using wire::ValidateSamplingParams;

namespace {

Status GrammarFromProto(const v1::AnswerGrammar& m, SharedGrammar* out) {
  const auto kind = static_cast<uint32_t>(m.kind());
  if (kind - 1 >= kNumGrammarKinds) {
    return InvalidArgument("sampling.grammar.kind {} is outside [1, {}]", kind, kNumGrammarKinds);
  }
  const auto start = static_cast<uint32_t>(m.start());
  if (start - 1 >= kNumGrammarStarts) {
    return InvalidArgument("sampling.grammar.start {} is outside [1, {}]", start,
                           kNumGrammarStarts);
  }
  if (m.text().size() > kMaxGrammarBytes) {
    return InvalidArgument("sampling.grammar.text has {} bytes, at most {}", m.text().size(),
                           kMaxGrammarBytes);
  }
  *out =
      std::make_shared<AnswerGrammar>(AnswerGrammar{.kind = static_cast<GrammarKind>(kind - 1),
                                                    .start = static_cast<GrammarStart>(start - 1),
                                                    .text = m.text()});
  return OkStatus();
}

Status SamplingFromProto(const v1::SamplingParams& m, const SessionLimits& limits,
                         SamplingParams* out) {
  SamplingParams& p = *out;
  p.temperature = m.temperature();
  p.top_k = m.top_k();
  p.top_p = m.top_p();
  p.min_p = m.min_p();
  p.repetition_penalty = m.repetition_penalty();
  p.presence_penalty = m.presence_penalty();
  p.frequency_penalty = m.frequency_penalty();
  p.seed = m.seed();
  p.min_tokens = m.min_tokens();
  p.logprobs = m.logprobs();
  p.top_logprobs = m.top_logprobs();
  if (m.logit_bias_size() > static_cast<int>(kMaxLogitBiases)) {
    return InvalidArgument("sampling.logit_bias has {} entries, at most {}", m.logit_bias_size(),
                           kMaxLogitBiases);
  }
  for (const auto& [token, bias] : m.logit_bias()) {
    if (token >= limits.vocab_size) {
      return InvalidArgument("sampling.logit_bias: token {} is outside [0, {})", token,
                             limits.vocab_size);
    }
    p.logit_bias.push_back({.token = static_cast<TokenId>(token), .bias = bias});
  }
  // A map has no order; the sampler's bits must not depend on a hash seed.
  std::sort(p.logit_bias.begin(), p.logit_bias.end(),
            [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  if (m.stop_token_ids_size() > static_cast<int>(kMaxStopTokens)) {
    return InvalidArgument("sampling.stop_token_ids has {} entries, at most {}",
                           m.stop_token_ids_size(), kMaxStopTokens);
  }
  for (const uint32_t token : m.stop_token_ids()) {
    if (token >= limits.vocab_size) continue;  // can never be sampled
    p.stop_token_ids.push_back(static_cast<TokenId>(token));
  }
  p.max_tokens = m.max_tokens();
  p.ignore_eos = m.ignore_eos();
  if (m.has_prompt_logprobs()) p.prompt_logprobs = m.prompt_logprobs();
  if (m.has_grammar()) BATON_RETURN_IF_ERROR(GrammarFromProto(m.grammar(), &p.grammar));
  return ValidateSamplingParams(p, limits.vocab_size);
}

Status SpecFromProto(const v1::RequestSpec& m, const SessionLimits& limits, RequestSpec* out) {
  out->key.uid = RequestUid{.hi = m.uid().hi(), .lo = m.uid().lo()};
  out->key.attempt = m.attempt();
  if (out->key.uid == RequestUid{}) return InvalidArgument("uid is zero");
  if (m.attempt() == 0) return InvalidArgument("attempt is 0, must be >= 1");
  if (m.tokens_size() < 1 || static_cast<uint32_t>(m.tokens_size()) > limits.max_context) {
    return InvalidArgument("{} tokens, allowed are [1, {}]", m.tokens_size(), limits.max_context);
  }
  out->tokens.reserve(m.tokens_size());
  for (const uint32_t token : m.tokens()) {
    if (token >= limits.vocab_size) {
      return InvalidArgument("token {} is outside [0, {})", token, limits.vocab_size);
    }
    out->tokens.push_back(static_cast<TokenId>(token));
  }
  // 0 = a router that sends no replayed output.
  out->num_prompt_tokens =
      m.num_prompt_tokens() == 0 ? static_cast<uint32_t>(m.tokens_size()) : m.num_prompt_tokens();
  out->num_choices = m.n();
  out->deadline_us = int64_t{m.deadline_ms()} * 1000;
  out->tenant = m.tenant();
  out->is_cacheable = !m.not_cacheable();
  if (m.priority() < kMinPriority || m.priority() > kMaxPriority) {
    return InvalidArgument("priority {} is outside [{}, {}]", m.priority(), kMinPriority,
                           kMaxPriority);
  }
  out->priority = m.priority();
  out->reports_progress = m.reports_progress();
  return SamplingFromProto(m.sampling(), limits, &out->sampling);
}

v1::RequestState ToProto(RequestState state) {
  switch (state) {
    case RequestState::kAccepted:
      break;
    case RequestState::kReserved:
      return v1::REQUEST_STATE_RESERVED;
    case RequestState::kPrefillStarted:
      return v1::REQUEST_STATE_PREFILL_STARTED;
    case RequestState::kPrefillDone:
      return v1::REQUEST_STATE_PREFILL_DONE;
    case RequestState::kGranted:
      return v1::REQUEST_STATE_GRANTED;
    case RequestState::kVerified:
      return v1::REQUEST_STATE_VERIFIED;
    case RequestState::kDecodeStarted:
      return v1::REQUEST_STATE_DECODE_STARTED;
    case RequestState::kFirstStepDone:
      return v1::REQUEST_STATE_FIRST_STEP_DONE;
    case RequestState::kStranded:
      return v1::REQUEST_STATE_STRANDED;
    case RequestState::kHandedOff:
      return v1::REQUEST_STATE_HANDED_OFF;
    case RequestState::kFinished:
      return v1::REQUEST_STATE_FINISHED;
    case RequestState::kRejected:
      return v1::REQUEST_STATE_REJECTED;
    case RequestState::kFailed:
      return v1::REQUEST_STATE_FAILED;
    case RequestState::kCancelled:
      return v1::REQUEST_STATE_CANCELLED;
  }
  return v1::REQUEST_STATE_UNSPECIFIED;
}

void SetUid(const RequestUid& uid, v1::RequestUid* out) {
  out->set_hi(uid.hi);
  out->set_lo(uid.lo);
}

}  // namespace

v1::TransportKind ToProto(TransportKind kind) {
  switch (kind) {
    case TransportKind::kAuto:
      break;
    case TransportKind::kLocal:
      return v1::TRANSPORT_KIND_LOCAL;
    case TransportKind::kShm:
      return v1::TRANSPORT_KIND_SHM;
    case TransportKind::kTcp:
      return v1::TRANSPORT_KIND_TCP;
    case TransportKind::kNccl:
      return v1::TRANSPORT_KIND_NCCL;
    case TransportKind::kCudaIpc:
      return v1::TRANSPORT_KIND_CUDA_IPC;
  }
  return v1::TRANSPORT_KIND_UNSPECIFIED;
}

Status CheckSessionHello(const v1::SessionHello& hello, const SessionLimits& limits) {
  // Before anything else: what the rest means is the version's to say.
  if (!limits.wire.Holds(hello.wire_version())) {
    return FailedPrecondition("wire version {} is not spoken here, only {}", hello.wire_version(),
                              ToString(limits.wire));
  }
  if (Incarnation(hello.worker_incarnation()) != limits.incarnation) {
    return FailedPrecondition("the session is for incarnation {:016x}, this one is {:016x}",
                              hello.worker_incarnation(), limits.incarnation.value());
  }
  return OkStatus();
}

Status RequestSpecFromProto(const v1::RouterMessage& message, const SessionLimits& limits,
                            RequestSpec* out) {
  if (message.has_start_prefill()) {
    const v1::StartPrefill& start = message.start_prefill();
    out->kind = RequestKind::kSource;
    out->peer = Incarnation(start.decode().incarnation());
    BATON_RETURN_IF_ERROR(SpecFromProto(start.spec(), limits, out));
    if (out->peer.value() == 0) return InvalidArgument("start_prefill.decode has no incarnation");
    return OkStatus();
  }
  if (message.has_start_embedding()) {
    out->kind = RequestKind::kEmbed;
    return SpecFromProto(message.start_embedding().spec(), limits, out);
  }
  const v1::StartDecode& start = message.start_decode();
  out->kind = start.local() ? RequestKind::kLocal : RequestKind::kDest;
  out->peer = start.local() ? Incarnation() : Incarnation(start.prefill().incarnation());
  BATON_RETURN_IF_ERROR(SpecFromProto(start.spec(), limits, out));
  if (limits.prefill) return FailedPrecondition("StartDecode came to a prefill worker");
  if (!start.local() && out->peer.value() == 0) {
    return InvalidArgument("start_decode.prefill has no incarnation");
  }
  return OkStatus();
}

SpanIds SpanIdsFromProto(const v1::RouterMessage& start) {
  const v1::RequestSpec& spec = start.has_start_prefill()     ? start.start_prefill().spec()
                                : start.has_start_embedding() ? start.start_embedding().spec()
                                                              : start.start_decode().spec();
  const v1::TraceSpan& span = spec.span();
  return {.trace_hi = span.trace_hi(),
          .trace_lo = span.trace_lo(),
          .span_id = span.span_id(),
          .sampled = spec.has_span()};
}

RequestKey RequestKeyFromProto(const v1::CancelRequest& cancel) {
  return RequestKey{.uid = RequestUid{.hi = cancel.uid().hi(), .lo = cancel.uid().lo()},
                    .attempt = cancel.attempt()};
}

void ToProto(const TokenEvent& event, v1::TokenEvent* out) {
  SetUid(event.key.uid, out->mutable_uid());
  out->set_attempt(event.key.attempt);
  out->set_choice(event.choice);
  out->set_index(event.index);
  out->set_token(static_cast<uint32_t>(event.token));
  if (event.has_logprob) {
    out->set_logprob(event.logprob);
    for (const TokenLogprob& top : event.top_logprobs) {
      v1::WorkerTokenLogprob* entry = out->add_top_logprobs();
      entry->set_token(static_cast<uint32_t>(top.token));
      entry->set_logprob(top.logprob);
    }
  }
  out->set_step_us(event.step_us);
  out->set_prompt_pos(event.prompt_pos);
  out->set_rank(event.rank);
  if (event.progress.num_tokens > 0) {
    v1::PrefillProgress* const progress = out->mutable_progress();
    progress->set_num_tokens(event.progress.num_tokens);
    progress->set_num_cached(event.progress.num_cached);
    progress->set_elapsed_us(static_cast<uint64_t>(event.progress.elapsed_us));
  }
  out->mutable_embedding()->Add(event.embedding.begin(), event.embedding.end());
  out->set_proposed(event.num_proposed);
  out->set_step_row(event.step_row);
  out->set_guess_state(static_cast<v1::GuessState>(event.guess_state));
  if (event.finish == FinishReason::kStop) out->set_finish(v1::WORKER_FINISH_STOP);
  if (event.finish == FinishReason::kLength) out->set_finish(v1::WORKER_FINISH_LENGTH);
}

void ToProto(const RequestStatus& status, v1::RequestStatus* out) {
  SetUid(status.key.uid, out->mutable_uid());
  out->set_attempt(status.key.attempt);
  out->set_state(ToProto(status.state));
  out->set_code(static_cast<uint32_t>(status.status.code()));
  out->set_message(WireText(std::string(status.status.message())));
  out->set_failed_part(static_cast<v1::FailedPart>(status.failed_part));
  out->set_cached_tokens(status.cached_tokens);
  out->set_retargeted(status.retargeted);
  out->set_kv_bytes(status.kv_bytes);
  out->set_kv_total_bytes(status.kv_total_bytes);
  out->set_transport(ToProto(status.transport));
  out->set_transfer_seconds(static_cast<float>(static_cast<double>(status.transfer_us) * 1e-6));
  out->set_retry_after_ms(status.retry_after_ms);
}

}  // namespace baton::worker
