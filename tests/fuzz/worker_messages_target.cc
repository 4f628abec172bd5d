// Messages between router and workers (worker.proto, handoff.proto): the codecs of both sides on
// any bytes. The first byte says which message the rest is.
#include <cmath>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"

#include "baton/v1/worker.pb.h"
#include "src/base/limits.h"
#include "src/base/wire_text.h"
#include "src/router/worker_codec.h"
#include "src/worker/handoff_codec.h"
#include "src/worker/request_codec.h"
#include "src/worker/session_service.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using engine::RequestKind;
using engine::RequestSpec;
using kv::Revoke;
using limits::kMaxPrefixChanges;
using limits::kMaxStopTokens;
using router::DecodeHello;
using router::DecodeLoad;
using router::DecodePrefix;
using router::DecodeStatus;
using router::DecodeStep;
using router::EncodePeers;
using router::EncodeStartDecode;
using router::EncodeStartPrefill;
using router::LinkView;
using router::PlacementSpec;
using router::WorkerLoadReport;
using router::WorkerName;
using router::WorkerRequestState;
using router::WorkerRequestStatus;
using router::WorkerToken;
using wire::SamplingParams;
using wire::ValidateSamplingParams;
using worker::ProtoHandoffWire;
using worker::RequestKeyFromProto;
using worker::RequestSpecFromProto;
using worker::SessionLimits;

namespace {

constexpr uint32_t kVocab = 300;
constexpr uint32_t kContext = 512;
// The longest name or text that a peer may have here, in bytes.
constexpr size_t kLongestText = 4096;

SessionLimits Limits(bool prefill) {
  return {.incarnation = Incarnation(1),
          .prefill = prefill,
          .vocab_size = kVocab,
          .max_context = kContext};
}

template <typename Message>
bool Parse(Input input, Message* message) {
  return message->ParseFromArray(input.data(), static_cast<int>(input.size()));
}

void CheckHello(Input input) {
  v1::WorkerHello hello;
  if (!Parse(input, &hello)) return;
  const auto worker = DecodeHello(hello);
  if (!worker.ok()) return CheckRefusal(worker.status());
  BATON_CHECK(!worker->name.worker_id.empty() && worker->name.worker_id.size() <= 64 &&
                  worker->name.incarnation.value() != 0,
              "a worker without a name");
  BATON_CHECK(worker->block_size >= 1 && worker->num_blocks >= 1 && worker->max_context >= 1 &&
                  worker->max_running >= 1,
              "{} blocks of {} tokens", worker->num_blocks, worker->block_size);
  for (const std::string* text :
       {&worker->weights_text, &worker->layout_text, &worker->numerics_id_text,
        &worker->numerics_text, &worker->grpc_address, &worker->admin_address, &worker->kv_address,
        &worker->kv_unix, &worker->host_id}) {
    BATON_CHECK(text->size() <= kLongestText, "a text of {} bytes is kept", text->size());
  }
  BATON_CHECK(worker->transports.size() <= 8, "{} transports", worker->transports.size());
  // Other workers are told this about the worker.
  v1::PeerList peers;
  EncodePeers({&*worker}, &peers);
  v1::PeerList sent;
  BATON_CHECK(sent.ParseFromString(peers.SerializeAsString()) && sent.peers_size() == 1);
  BATON_CHECK(sent.peers(0).worker().worker_id() == worker->name.worker_id &&
                  sent.peers(0).kv_address() == worker->kv_address,
              "a peer changed on its way");
}

void CheckLoad(Input input) {
  v1::WorkerLoad load;
  if (!Parse(input, &load)) return;
  const WorkerLoadReport report = DecodeLoad(load);
  BATON_CHECK(std::isfinite(report.prefill_tokens_per_s) && report.prefill_tokens_per_s >= 0,
              "{} tokens a second", report.prefill_tokens_per_s);
  BATON_CHECK(report.links.size() <= 1024, "{} links", report.links.size());
  for (const LinkView& link : report.links) {
    BATON_CHECK(link.to.size() <= 64, "a link to a name of {} bytes", link.to.size());
    BATON_CHECK(link.why == WireText(link.why), "a reason of bytes that nobody can print");
  }
}

void CheckPrefix(Input input) {
  v1::PrefixEvents events;
  if (!Parse(input, &events)) return;
  const auto batch = DecodePrefix(events);
  if (!batch.ok()) return CheckRefusal(batch.status());
  BATON_CHECK(batch->changes.size() <= kMaxPrefixChanges, "{} changes", batch->changes.size());
}

void CheckStep(Input input) {
  v1::StepEvents step;
  if (!Parse(input, &step)) return;
  const std::vector<WorkerToken> tokens = DecodeStep(step);
  BATON_CHECK(tokens.size() == static_cast<size_t>(step.events_size()), "{} of {} tokens",
              tokens.size(), step.events_size());
  for (const WorkerToken& token : tokens) {
    BATON_CHECK(token.top_logprobs.size() <= 20, "{} alternatives", token.top_logprobs.size());
  }
}

// A peer's words may not write lines of our log.
void CheckForLog(std::string_view text) {
  BATON_CHECK(text.size() <= kLongestText, "{} bytes for the log", text.size());
  for (const char c : text) {
    BATON_CHECK(c >= 0x20 && c <= 0x7e, "byte {} for the log", static_cast<int>(c));
  }
}

void CheckStatus(Input input) {
  v1::RequestStatus status;
  if (!Parse(input, &status)) return;
  const WorkerRequestStatus decoded = DecodeStatus(status);
  BATON_CHECK(decoded.state <= WorkerRequestState::kStranded, "state {}",
              static_cast<int>(decoded.state));
  BATON_CHECK(static_cast<int>(decoded.code) >= 0 && static_cast<int>(decoded.code) <= 16);
  BATON_CHECK(std::isfinite(decoded.transfer_seconds) && decoded.transfer_seconds >= 0,
              "a transfer of {} s", decoded.transfer_seconds);
  BATON_CHECK(decoded.retry_after_ms <= 60'000, "{} ms", decoded.retry_after_ms);
  CheckForLog(decoded.message);
}

void CheckTokens(const std::vector<TokenId>& tokens) {
  for (const TokenId token : tokens) {
    BATON_CHECK(token >= 0 && static_cast<uint32_t>(token) < kVocab, "token {}", token);
  }
}

void CheckRouterMessage(Input input) {
  v1::RouterMessage message;
  if (!Parse(input, &message)) return;
  if (message.has_cancel()) (void)RequestKeyFromProto(message.cancel());
  if (!message.has_start_prefill() && !message.has_start_decode()) return;
  for (const bool prefill : {false, true}) {
    RequestSpec spec;
    const Status status = RequestSpecFromProto(message, Limits(prefill), &spec);
    if (!status.ok()) {
      CheckRefusal(status);
      continue;
    }
    // A decode worker may be asked to compute a prompt for another one.
    BATON_CHECK(!prefill || message.has_start_prefill(), "StartDecode came to a prefill worker");
    BATON_CHECK(!spec.tokens.empty() && spec.tokens.size() <= kContext, "{} tokens",
                spec.tokens.size());
    BATON_CHECK(spec.key.attempt >= 1 && spec.key.uid != RequestUid{}, "a request without a key");
    CheckTokens(spec.tokens);
    CheckTokens(spec.sampling.stop_token_ids);
    BATON_CHECK(spec.sampling.stop_token_ids.size() <= kMaxStopTokens, "{} stop tokens",
                spec.sampling.stop_token_ids.size());
    BATON_CHECK(ValidateSamplingParams(spec.sampling, kVocab).ok());
    BATON_CHECK((spec.peer.value() != 0) == (spec.kind != RequestKind::kLocal), "peer {}",
                spec.peer.value());
  }
}

void CheckHandoffMessage(Input input) {
  const ProtoHandoffWire wire;
  const auto message = wire.Decode(TextOf(input));
  if (!message.ok()) return CheckRefusal(message.status());
  const std::string bytes = wire.Encode(*message);
  const auto again = wire.Decode(bytes);
  BATON_CHECK(again.ok(), "what was taken is refused: {}", again.status().ToString());
  if (const auto* revoke = std::get_if<Revoke>(&*message)) CheckForLog(revoke->reason);
  BATON_CHECK(again->index() == message->index() && wire.Encode(*again) == bytes,
              "a message changed on its way");
}

// A request that a router would send arrives as it was.
void CheckPlacement(ByteSource source) {
  std::vector<TokenId> tokens(1 + source.Below(40));
  for (TokenId& token : tokens) token = static_cast<TokenId>(source.Below(256));
  const wire::Prompt prompt = tokens;
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(source.Below(200)) / 100.0f;
  sampling.top_p = 0.5f;
  sampling.top_k = source.Below(100);
  sampling.min_p = 0.25f;
  sampling.repetition_penalty = 1.5f;
  sampling.presence_penalty = -0.5f;
  sampling.frequency_penalty = 2.5f;
  sampling.seed = source.U64();
  sampling.max_tokens = 1 + source.Below(100);
  sampling.min_tokens = sampling.max_tokens / 2;
  sampling.ignore_eos = true;
  sampling.logprobs = source.Flag();
  sampling.top_logprobs = sampling.logprobs ? source.Below(21) : 0;
  sampling.logit_bias = {{static_cast<TokenId>(source.Below(256)), -1.5f}};
  sampling.stop_token_ids = {static_cast<TokenId>(source.Below(256))};
  PlacementSpec spec;
  spec.uid = {source.U64(), source.U64() | 1};
  spec.attempt = 1 + source.Below(5);
  spec.num_choices = 1 + source.Below(8);
  spec.deadline_ms = 1 + source.U8();
  spec.prompt = &prompt;
  spec.sampling = &sampling;
  const WorkerName peer{"peer-0", Incarnation(5)};
  const bool prefill = source.Flag();
  v1::RouterMessage message;
  if (prefill) EncodeStartPrefill(spec, peer, &message);
  if (!prefill) EncodeStartDecode(spec, source.Flag() ? &peer : nullptr, &message);
  v1::RouterMessage sent;
  BATON_CHECK(sent.ParseFromString(message.SerializeAsString()));
  RequestSpec decoded;
  const Status status = RequestSpecFromProto(sent, Limits(prefill), &decoded);
  BATON_CHECK(status.ok(), "{}", status.ToString());
  BATON_CHECK(decoded.tokens == tokens && decoded.key.uid == spec.uid &&
                  decoded.key.attempt == spec.attempt && decoded.num_choices == spec.num_choices &&
                  decoded.sampling == sampling,
              "a request changed on its way");
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(worker_messages) {
  using namespace baton::fuzz;  // NOLINT: the whole target
  // Its line for each text that is no UTF-8 would bury a finding.
  google::protobuf::SetLogHandler(nullptr);
  ByteSource source(input);
  switch (source.Below(8)) {
    case 0:
      return CheckHello(source.rest());
    case 1:
      return CheckLoad(source.rest());
    case 2:
      return CheckPrefix(source.rest());
    case 3:
      return CheckStep(source.rest());
    case 4:
      return CheckStatus(source.rest());
    case 5:
      return CheckRouterMessage(source.rest());
    case 6:
      return CheckHandoffMessage(source.rest());
    default:
      return CheckPlacement(source);
  }
}
