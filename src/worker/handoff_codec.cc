#include "src/worker/handoff_codec.h"

#include <utility>

#include "baton/v1/handoff.pb.h"
#include "kvcache/transport/transport_types.h"
#include "src/base/limits.h"
#include "src/base/wire_text.h"

namespace baton::worker {

using kv::Applied;
using kv::ChainFromBytes;
using kv::ChainToBytes;
using kv::FirstToken;
using kv::Grant;
using kv::HandoffMessage;
using kv::Nack;
using kv::Renew;
using kv::Revoke;
using kv::Seal;
using kv::SliceId;
using kv::TransferKey;
using limits::kMaxBlocksPerTransfer;
using limits::kMaxChoices;
using limits::kMaxControlBytes;
using limits::kMaxNackSlices;
using limits::kMaxSlicesPerTransfer;
using limits::kMaxTopLogprobs;

namespace {

void ToProto(const TransferKey& key, v1::TransferKey* out) {
  out->mutable_uid()->set_hi(key.uid.hi);
  out->mutable_uid()->set_lo(key.uid.lo);
  out->set_attempt(key.attempt);
  out->set_transfer_id(key.transfer.value());
}

void ToProto(const Grant& grant, v1::HandoffMessage* out) {
  v1::Grant* m = out->mutable_grant();
  ToProto(grant.key, m->mutable_key());
  m->set_decode_incarnation(grant.decode_incarnation.value());
  m->mutable_generations()->Assign(grant.generations.begin(), grant.generations.end());
  m->set_layout_id(grant.layout_id);
  m->set_expected_bytes(grant.expected_bytes);
  m->set_ttl_ms(grant.ttl_ms);
  m->set_held_blocks(grant.num_held);
}

void ToProto(const Seal& seal, v1::HandoffMessage* out) {
  v1::Seal* m = out->mutable_seal();
  ToProto(seal.key, m->mutable_key());
  for (const FirstToken& first : seal.first_tokens) {
    v1::FirstToken* token = m->add_first_tokens();
    token->set_choice(first.choice);
    token->set_token(static_cast<uint32_t>(first.token));
    if (first.logprob) token->set_logprob(*first.logprob);
    for (const TokenLogprob& top : first.top_logprobs) {
      v1::WorkerTokenLogprob* entry = token->add_top_logprobs();
      entry->set_token(static_cast<uint32_t>(top.token));
      entry->set_logprob(top.logprob);
    }
  }
  m->set_next_output_index(seal.next_output_index);
  m->set_hash_chain(ChainToBytes(seal.chain));
  m->set_num_slices(seal.num_slices);
  m->set_num_tokens(seal.num_tokens);
  m->set_cached_tokens(seal.num_cached);
}

void ToProto(const Applied& applied, v1::HandoffMessage* out) {
  ToProto(applied.key, out->mutable_applied()->mutable_key());
}

void ToProto(const Nack& nack, v1::HandoffMessage* out) {
  v1::Nack* m = out->mutable_nack();
  ToProto(nack.key, m->mutable_key());
  if (nack.slices.size() > kMaxNackSlices) return;  // none named = all
  for (const SliceId& slice : nack.slices) {
    m->add_ordinals(slice.ordinal);
    m->add_layers(slice.layer);
  }
}

void ToProto(const Revoke& revoke, v1::HandoffMessage* out) {
  v1::Revoke* m = out->mutable_revoke();
  ToProto(revoke.key, m->mutable_key());
  m->set_reason(WireText(revoke.reason));
  m->set_from_decode(revoke.from_decode);
  m->set_failed_part(static_cast<v1::FailedPart>(revoke.failed_part));
}

void ToProto(const Renew& renew, v1::HandoffMessage* out) {
  ToProto(renew.key, out->mutable_renew()->mutable_key());
}

StatusOr<TransferKey> FromProto(const v1::TransferKey& m) {
  TransferKey key;
  key.uid = RequestUid{.hi = m.uid().hi(), .lo = m.uid().lo()};
  key.attempt = m.attempt();
  key.transfer = TransferId(m.transfer_id());
  if (key.uid == RequestUid{}) return InvalidArgument("key.uid is zero");
  if (key.attempt == 0) return InvalidArgument("key.attempt is 0, must be >= 1");
  return key;
}

StatusOr<HandoffMessage> FromProto(const v1::Grant& m) {
  Grant grant;
  BATON_ASSIGN_OR_RETURN(grant.key, FromProto(m.key()));
  if (m.generations_size() < 1 ||
      static_cast<uint32_t>(m.generations_size()) > kMaxBlocksPerTransfer) {
    return InvalidArgument("grant.generations has {} entries, allowed are [1, {}]",
                           m.generations_size(), kMaxBlocksPerTransfer);
  }
  if (m.ttl_ms() == 0) return InvalidArgument("grant.ttl_ms is 0");
  if (m.held_blocks() > kMaxBlocksPerTransfer) {
    return InvalidArgument("grant.held_blocks {} is above {}", m.held_blocks(),
                           kMaxBlocksPerTransfer);
  }
  grant.decode_incarnation = Incarnation(m.decode_incarnation());
  grant.generations.assign(m.generations().begin(), m.generations().end());
  grant.layout_id = m.layout_id();
  grant.expected_bytes = m.expected_bytes();
  grant.ttl_ms = m.ttl_ms();
  grant.num_held = m.held_blocks();
  return HandoffMessage(std::move(grant));
}

StatusOr<FirstToken> FromProto(const v1::FirstToken& m) {
  if (m.choice() >= kMaxChoices || m.token() > INT32_MAX) {
    return InvalidArgument("seal.first_tokens: choice {} or token {} out of range", m.choice(),
                           m.token());
  }
  if (static_cast<uint32_t>(m.top_logprobs_size()) > kMaxTopLogprobs) {
    return InvalidArgument("seal.first_tokens: {} top_logprobs", m.top_logprobs_size());
  }
  FirstToken first{.choice = m.choice(), .token = static_cast<TokenId>(m.token())};
  if (m.has_logprob()) first.logprob = m.logprob();
  for (const v1::WorkerTokenLogprob& top : m.top_logprobs()) {
    if (top.token() > INT32_MAX) return InvalidArgument("seal: token {}", top.token());
    first.top_logprobs.push_back(
        {.token = static_cast<TokenId>(top.token()), .logprob = top.logprob()});
  }
  return first;
}

StatusOr<HandoffMessage> FromProto(const v1::Seal& m) {
  Seal seal;
  BATON_ASSIGN_OR_RETURN(seal.key, FromProto(m.key()));
  if (m.first_tokens_size() < 1 || static_cast<uint32_t>(m.first_tokens_size()) > kMaxChoices) {
    return InvalidArgument("seal.first_tokens has {} entries, allowed are [1, {}]",
                           m.first_tokens_size(), kMaxChoices);
  }
  for (const v1::FirstToken& token : m.first_tokens()) {
    BATON_ASSIGN_OR_RETURN(FirstToken first, FromProto(token));
    if (first.choice != seal.first_tokens.size()) {
      return InvalidArgument("seal.first_tokens are not ascending by choice");
    }
    seal.first_tokens.push_back(std::move(first));
  }
  BATON_ASSIGN_OR_RETURN(seal.chain, ChainFromBytes(m.hash_chain()));
  if (m.num_slices() > kMaxSlicesPerTransfer) {
    return InvalidArgument("seal.num_slices is {}", m.num_slices());
  }
  seal.next_output_index = m.next_output_index();
  seal.num_slices = m.num_slices();
  seal.num_tokens = m.num_tokens();
  seal.num_cached = m.cached_tokens();
  return HandoffMessage(std::move(seal));
}

StatusOr<HandoffMessage> FromProto(const v1::Nack& m) {
  Nack nack;
  BATON_ASSIGN_OR_RETURN(nack.key, FromProto(m.key()));
  if (m.ordinals_size() != m.layers_size() ||
      m.ordinals_size() > static_cast<int>(kMaxNackSlices)) {
    return InvalidArgument("nack has {} ordinals and {} layers, at most {} of each and equal",
                           m.ordinals_size(), m.layers_size(), kMaxNackSlices);
  }
  for (int i = 0; i < m.ordinals_size(); ++i) {
    nack.slices.push_back({.ordinal = m.ordinals(i), .layer = m.layers(i)});
  }
  return HandoffMessage(std::move(nack));
}

StatusOr<HandoffMessage> FromProto(const v1::Revoke& m) {
  Revoke revoke;
  BATON_ASSIGN_OR_RETURN(revoke.key, FromProto(m.key()));
  revoke.reason = WireText(m.reason());
  revoke.from_decode = m.from_decode();
  // A part that only a newer worker names counts as not told.
  if (m.failed_part() == v1::FAILED_PART_HAND_OFF) revoke.failed_part = FailedPart::kHandOff;
  if (m.failed_part() == v1::FAILED_PART_COMPUTATION) {
    revoke.failed_part = FailedPart::kComputation;
  }
  return HandoffMessage(std::move(revoke));
}

}  // namespace

std::string ProtoHandoffWire::Encode(const HandoffMessage& message) const {
  v1::HandoffMessage out;
  std::visit([&out](const auto& m) { ToProto(m, &out); }, message);
  return out.SerializeAsString();
}

StatusOr<HandoffMessage> ProtoHandoffWire::Decode(std::string_view bytes) const {
  v1::HandoffMessage m;
  if (bytes.size() > kMaxControlBytes ||
      !m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument("{} bytes are no HandoffMessage", bytes.size());
  }
  switch (m.kind_case()) {
    case v1::HandoffMessage::kGrant:
      return FromProto(m.grant());
    case v1::HandoffMessage::kSeal:
      return FromProto(m.seal());
    case v1::HandoffMessage::kApplied: {
      BATON_ASSIGN_OR_RETURN(const TransferKey key, FromProto(m.applied().key()));
      return HandoffMessage(Applied{.key = key});
    }
    case v1::HandoffMessage::kNack:
      return FromProto(m.nack());
    case v1::HandoffMessage::kRevoke:
      return FromProto(m.revoke());
    case v1::HandoffMessage::kRenew: {
      BATON_ASSIGN_OR_RETURN(const TransferKey key, FromProto(m.renew().key()));
      return HandoffMessage(Renew{.key = key});
    }
    case v1::HandoffMessage::KIND_NOT_SET:
      break;
  }
  return Unimplemented("a HandoffMessage of a kind that this version does not know");
}

}  // namespace baton::worker
