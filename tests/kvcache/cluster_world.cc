#include "tests/kvcache/cluster_world.h"

#include <algorithm>
#include <utility>

namespace baton::kv {
namespace {

constexpr uint64_t kLayoutId = 77;
constexpr uint64_t kSliceBytes = 64;

RequestUid UidOf(uint8_t request) { return {11, request + 1u}; }
// The id is equal for all requests, so that worlds which differ in the names of requests look
// alike.
TransferId TransferOf(uint32_t attempt) { return TransferId(10 + attempt); }

// Links of the blocks of tokens; a state has none.
const std::vector<ChainLink>& ChainOf(const ClusterShape& shape, bool wrong) {
  const auto make = [](uint32_t blocks, TokenId token) {
    const std::vector<TokenId> tokens(blocks * kClusterBlockSize - 1, token);
    return ChainLinks(DeriveChainKey("s", "t"), kClusterBlockSize, tokens);
  };
  static const std::vector<ChainLink> kChains[2][2] = {{make(1, 9), make(1, 8)},
                                                       {make(2, 9), make(2, 8)}};
  return kChains[shape.num_blocks - shape.num_state - 1][wrong ? 1 : 0];
}

HandoffTimers TimersOf(const ClusterShape& shape) {
  HandoffTimers timers;
  timers.max_nacks = 1;
  timers.strand_us = shape.strand_us;
  return timers;
}

Seal SealOf(const ClusterShape& shape) {
  Seal seal;
  seal.first_tokens.push_back({0, 7});
  seal.next_output_index = 1;
  seal.chain = ChainOf(shape, shape.mixed_up);
  seal.num_tokens = shape.num_tokens();
  return seal;
}

template <typename T>
void InsertSorted(std::vector<T>* list, const T& item) {
  const auto at = std::lower_bound(list->begin(), list->end(), item);
  if (at == list->end() || *at != item) list->insert(at, item);
}

}  // namespace

ClusterWorld::ClusterWorld(const ClusterShape* shape)
    : shape_(shape), faults_left_(static_cast<uint8_t>(shape->faults)) {
  prefill_ledger_.num_blocks = static_cast<uint8_t>(shape->pool_blocks);
  for (Ledger& ledger : decode_ledgers_) ledger = prefill_ledger_;
  routers_.resize(shape->num_requests);
  for (uint8_t r = 0; r < routers_.size(); ++r) {
    routers_[r].machine.OnValidated();
    Place(r);
  }
}

// ---- What may happen.

void ClusterWorld::Steps(std::vector<ClusterStep>* steps) const {
  using Kind = ClusterStep::Kind;
  steps->clear();
  const auto add = [steps](bool may, Kind kind, size_t a, size_t b = 0) {
    if (may) steps->push_back({kind, static_cast<uint8_t>(a), static_cast<uint8_t>(b)});
  };
  for (size_t r = 0; r < routers_.size(); ++r) {
    for (size_t w = 0; w <= shape_->num_decodes; ++w) {
      add(!routers_[r].commands[w].empty(), Kind::kCommand, r, w);
      add(!routers_[r].notices[w].empty(), Kind::kNotice, r, w);
      add((routers_[r].gone_pending >> w & 1) != 0, Kind::kRouterGone, r, w);
    }
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    const SourceSide& side = sources_[i];
    const bool room = side.allocated || prefill_ledger_.NumFree() >= shape_->num_blocks;
    add(!side.prompt_done && side.machine.CanRetarget() && room, Kind::kCompute, i);
    for (size_t s = 0; s < side.sends.size(); ++s) {
      add(side.sends[s].closing, Kind::kSendClosed, i, s);
    }
    add(side.down_pending, Kind::kSourceDown, i);
    add(side.machine.NextDeadlineUs() != INT64_MAX, Kind::kSourceTick, i);
  }
  for (size_t i = 0; i < dests_.size(); ++i) {
    const DestSide& side = dests_[i];
    add(side.closing, Kind::kReceiveClosed, i);
    add(side.down_pending, Kind::kDestDown, i);
    add(side.machine.NextDeadlineUs() != INT64_MAX, Kind::kDestTick, i);
    add(side.bound && side.holds, Kind::kDecode, i);
  }
  for (size_t i = 0; i < parked_.size(); ++i) add(true, Kind::kExpireParked, i);
  AddPacketSteps(steps);
  AddFaultSteps(steps);
}

// A side that has not noticed the end of its connection hears nothing of the next one.
void ClusterWorld::AddPacketSteps(std::vector<ClusterStep>* steps) const {
  using Kind = ClusterStep::Kind;
  for (size_t i = 0; i < packets_.size(); ++i) {
    const Packet& packet = packets_[i];
    const auto idx = static_cast<uint8_t>(i);
    if (packet.to_prefill) {
      const SourceSide* side = FindSource(packet.request, packet.attempt);
      if (side == nullptr || !side->down_pending) steps->push_back({Kind::kPacket, idx});
      continue;
    }
    const DestSide* side = FindDest(packet.request, packet.decode, packet.attempt);
    if (side != nullptr && side->down_pending) continue;
    if (packet.kind != Packet::Kind::kSlice) {
      steps->push_back({Kind::kPacket, idx});
      continue;
    }
    // Late slices are dropped by the transport.
    if (side == nullptr || !side->open || (side->received >> packet.ordinal & 1) != 0) continue;
    steps->push_back({Kind::kPacket, idx});
    if (shape_->damage) steps->push_back({Kind::kDamage, idx});
  }
}

void ClusterWorld::AddFaultSteps(std::vector<ClusterStep>* steps) const {
  using Kind = ClusterStep::Kind;
  if (faults_left_ == 0) return;
  if (shape_->crash_prefill) steps->push_back({Kind::kCrashPrefill});
  for (uint8_t d = 0; d < shape_->num_decodes; ++d) {
    if (shape_->crash_decode) steps->push_back({Kind::kCrashDecode, d});
    if (shape_->cut) steps->push_back({Kind::kCut, d});
  }
  for (uint8_t r = 0; r < routers_.size(); ++r) {
    const bool alive = routers_[r].alive;
    const bool has_own = shape_->router_each || r == 0;
    if (shape_->crash_router && alive && has_own) steps->push_back({Kind::kCrashRouter, r});
    if (shape_->cancel && alive && !routers_[r].machine.finished()) {
      steps->push_back({Kind::kCancel, r});
    }
  }
}

void ClusterWorld::Do(const ClusterStep& step) {
  using Kind = ClusterStep::Kind;
  switch (step.kind) {
    case Kind::kCommand: {
      auto& queue = routers_[step.a].commands[step.b];
      const Command command = queue.front();
      queue.erase(queue.begin());
      if (step.b == 0) {
        OnCommandAtPrefill(step.a, command);
      } else {
        OnCommandAtDecode(step.a, command);
      }
      break;
    }
    case Kind::kNotice: {
      auto& queue = routers_[step.a].notices[step.b];
      const Notice notice = queue.front();
      queue.erase(queue.begin());
      OnNotice(step.a, step.b, notice);
      break;
    }
    case Kind::kPacket:
      Deliver(Packet(packets_[step.a]));
      break;
    case Kind::kDamage:
      DeliverSlice(Packet(packets_[step.a]), /*damaged=*/true);
      break;
    case Kind::kCompute:
      Compute(sources_[step.a]);
      break;
    case Kind::kSendClosed: {
      SourceSide& side = sources_[step.a];
      side.sends[step.b].confirmed = true;
      const SendSide send = side.sends[step.b];
      At(side,
         [&](auto* out) { side.machine.OnSendClosed(send.peer, send.transfer, side.now_us, out); });
      break;
    }
    case Kind::kSourceDown: {
      SourceSide& side = sources_[step.a];
      side.down_pending = false;
      At(side, [&](auto* out) { side.machine.OnPeerDown("reset", side.now_us, out); });
      break;
    }
    case Kind::kSourceTick:
      Tick(sources_[step.a]);
      break;
    case Kind::kDestTick:
      Tick(dests_[step.a]);
      break;
    case Kind::kExpireParked: {
      const Packet packet = parked_[step.a];
      parked_.erase(parked_.begin() + step.a);
      RefuseUnknown(packet);
      break;
    }
    default:
      DoAtDest(step);
  }
  EraseFinished();
  DropDeadPackets();
  Check();
}

void ClusterWorld::DoAtDest(const ClusterStep& step) {
  using Kind = ClusterStep::Kind;
  if (step.kind == Kind::kRouterGone) return OnRouterGone(step.a, step.b);
  if (step.is_fault()) return DoFault(step);
  DestSide& side = dests_[step.a];
  switch (step.kind) {
    case Kind::kReceiveClosed:
      side.closing = false;
      return At(side, [&](auto* out) { side.machine.OnReceiveClosed(side.now_us, out); });
    case Kind::kDestDown:
      side.down_pending = false;
      return At(side, [&](auto* out) { side.machine.OnPeerDown("reset", side.now_us, out); });
    case Kind::kDecode:
      Expect(shape_->num_state == 0 || !(side.pinned || side.open || side.closing),
             "D moves on a state that a transport may write");
      Tell(side.request, static_cast<uint8_t>(1 + side.decode),
           {Notice::Kind::kLastToken, side.attempt});
      return DropBlocks(side);
    default:
      Expect(false, "a step that nobody does");
  }
}

// ---- The prefill worker's engine.

void ClusterWorld::StartSource(uint8_t request, const Command& command) {
  const Incarnation peer(100u * (command.decode + 1u) + command.life);
  SourceSide* side = nullptr;
  for (SourceSide& s : sources_) {
    if (s.request == request && s.machine.CanRetarget()) side = &s;
  }
  if (side != nullptr) {
    // The end of the old connection has no meaning any more, unless the same decode worker is
    // meant.
    if (side->machine.spec().decode_incarnation != peer) side->down_pending = false;
    At(*side,
       [&](auto* out) { side->machine.OnRetarget(command.attempt, peer, side->now_us, out); });
  } else {
    SourceSpec spec;
    spec.uid = UidOf(request);
    spec.attempt = command.attempt;
    spec.decode_incarnation = peer;
    spec.layout_id = kLayoutId;
    spec.slice_bytes = kSliceBytes;
    spec.num_blocks = shape_->num_blocks;
    spec.num_layers = 1;
    spec.timers = TimersOf(*shape_);
    side = &sources_.emplace_back(spec);
    side->request = request;
  }
  const auto parked = std::find_if(parked_.begin(), parked_.end(), [&](const Packet& p) {
    return p.request == request && p.attempt == command.attempt;
  });
  if (parked == parked_.end()) return;
  const Packet grant = *parked;
  parked_.erase(parked);
  const HandoffMessage message = Decode(grant);
  At(*side, [&](auto* out) { side->machine.OnMessage(message, side->now_us, out); });
}

void ClusterWorld::CancelSource(SourceSide& side) {
  if (side.machine.HoldsBlocks()) ++side.num_ends;
  At(side, [&](auto* out) { side.machine.OnCancel("cancelled", side.now_us, out); });
}

// A state is the last to be sealed: until then each step writes it.
void ClusterWorld::Compute(SourceSide& side) {
  if (!side.allocated) {
    for (uint32_t i = 0; i < shape_->num_blocks; ++i) side.blocks[i] = prefill_ledger_.Allocate();
    side.allocated = side.holds = true;
  }
  if (side.num_sealed < shape_->num_blocks) {
    const SliceRange slice{side.num_sealed++, 1, 0, 1};
    return At(side, [&](auto* out) { side.machine.OnLayersSealed(slice, side.now_us, out); });
  }
  side.prompt_done = true;
  const auto attempt = static_cast<uint8_t>(side.machine.spec().attempt);
  Tell(side.request, 0, {Notice::Kind::kFirstToken, attempt});
  At(side, [&](auto* out) { side.machine.OnPromptDone(SealOf(*shape_), side.now_us, out); });
}

void ClusterWorld::ApplySource(SourceSide& side, const HandoffAction& action) {
  const auto attempt = static_cast<uint8_t>(side.machine.spec().attempt);
  const auto send = std::find_if(side.sends.begin(), side.sends.end(), [&](const SendSide& s) {
    return s.peer == action.peer && s.transfer == action.transfer;
  });
  switch (action.kind) {
    case HandoffActionKind::kSendMessage:
      if (const auto decode = DecodeOf(action.peer); decode && !side.down_pending) {
        Send(Encode(action.message, side.request, *decode, /*to_prefill=*/false));
      }
      return;
    case HandoffActionKind::kPinBlocks:
      return Pin(side, action);
    case HandoffActionKind::kExportSlices:
      return Export(side, action);
    case HandoffActionKind::kCloseSend:
      Expect(send != side.sends.end() && !send->closing, "closes what is not open");
      if (send != side.sends.end()) send->closing = true;
      return;
    case HandoffActionKind::kUnpinBlocks:
      return Unpin(side, action);
    case HandoffActionKind::kReleaseBlocks:
      Expect(!side.released, "P releases twice");
      side.released = true;
      for (const LedgerHandle block : side.blocks) {
        if (side.holds && block.generation != 0) --prefill_ledger_.Of(block).request_refs;
      }
      side.holds = false;
      return;
    case HandoffActionKind::kCompleteRequest:
      Expect((verified_[side.request] >> attempt & 1) != 0, "P completes what D did not verify");
      ++side.num_ends;
      return Tell(side.request, 0, {Notice::Kind::kHandedOff, attempt});
    case HandoffActionKind::kFailRequest:
      Expect(!action.status.ok() && !action.status.message().empty(), "P fails without a reason");
      ++side.num_ends;
      return Tell(side.request, 0, {Notice::Kind::kFailed, attempt});
    case HandoffActionKind::kStranded:
      Expect(!action.status.ok() && !action.status.message().empty(), "stranded without a reason");
      Expect(side.machine.state() == SourceState::kStranded, "stranded in another state");
      return Tell(side.request, 0, {Notice::Kind::kStranded, attempt});
    default:
      Expect(false, "an action of D at P");
  }
}

void ClusterWorld::Pin(SourceSide& side, const HandoffAction& action) {
  const SliceRange& s = action.slices;
  auto send = std::find_if(side.sends.begin(), side.sends.end(), [&](const SendSide& other) {
    return other.peer == action.peer && other.transfer == action.transfer;
  });
  if (send == side.sends.end()) {
    SendSide fresh;
    fresh.peer = action.peer;
    fresh.transfer = action.transfer;
    fresh.first = static_cast<uint8_t>(s.first_ordinal);
    send = side.sends.insert(send, fresh);
  }
  const bool fits = side.holds && s.first_ordinal == send->first + send->count &&
                    s.first_ordinal + s.num_ordinals <= shape_->num_blocks && !send->closing;
  if (!fits) return Expect(false, "pins blocks that it does not hold");
  for (uint32_t i = 0; i < s.num_ordinals; ++i) {
    ++prefill_ledger_.Of(side.blocks[s.first_ordinal + i]).transfer_refs;
  }
  send->count = static_cast<uint8_t>(send->count + s.num_ordinals);
}

void ClusterWorld::Export(SourceSide& side, const HandoffAction& action) {
  const SliceRange& s = action.slices;
  const auto send = std::find_if(side.sends.begin(), side.sends.end(), [&](const SendSide& other) {
    return other.peer == action.peer && other.transfer == action.transfer;
  });
  const HandoffSource& machine = side.machine;
  const bool fits = send != side.sends.end() && !send->closing && side.holds && machine.granted() &&
                    machine.key().transfer == action.transfer &&
                    machine.spec().decode_incarnation == action.peer &&
                    s.first_ordinal + s.num_ordinals <= uint32_t{send->first} + send->count;
  if (!fits) return Expect(false, "exports blocks that are not pinned for this grant");
  Expect(s.first_ordinal + s.num_ordinals <= side.num_sealed, "exports what is not sealed");
  const auto decode = DecodeOf(action.peer);
  for (uint32_t i = 0; i < s.num_ordinals; ++i) {
    const uint32_t ordinal = s.first_ordinal + i;
    Packet packet;
    packet.kind = Packet::Kind::kSlice;
    packet.request = side.request;
    packet.attempt = static_cast<uint8_t>(machine.spec().attempt);
    packet.ordinal = static_cast<uint8_t>(ordinal - machine.num_held());
    packet.generations[0] = static_cast<uint8_t>(machine.generations()[packet.ordinal]);
    if (!decode || side.down_pending) continue;
    packet.decode = *decode;
    Send(packet);
  }
}

void ClusterWorld::Unpin(SourceSide& side, const HandoffAction& action) {
  const SliceRange& s = action.slices;
  const auto send = std::find_if(side.sends.begin(), side.sends.end(), [&](const SendSide& other) {
    return other.peer == action.peer && other.transfer == action.transfer;
  });
  const bool fits = send != side.sends.end() && send->confirmed && s.first_ordinal == send->first &&
                    s.num_ordinals == send->count;
  if (!fits) return Expect(false, "unpins before the transport is done, or other blocks");
  for (uint32_t i = 0; i < s.num_ordinals; ++i) {
    --prefill_ledger_.Of(side.blocks[s.first_ordinal + i]).transfer_refs;
  }
  side.sends.erase(send);
}

// ---- The decode worker's engine.

void ClusterWorld::StartDest(uint8_t request, uint8_t decode, const Command& command) {
  Ledger& ledger = decode_ledgers_[decode];
  const auto worker = static_cast<uint8_t>(1 + decode);
  if (ledger.NumFree() < shape_->num_crossing()) {
    return Tell(request, worker, {Notice::Kind::kRejected, command.attempt});
  }
  DestSpec spec;
  spec.key = {UidOf(request), command.attempt, TransferOf(command.attempt)};
  spec.decode_incarnation = LifeOf(decode);
  spec.layout_id = kLayoutId;
  spec.slice_bytes = kSliceBytes;
  spec.num_layers = 1;
  spec.num_tokens = shape_->num_tokens();
  spec.num_held = shape_->num_unseen;
  spec.num_state = shape_->num_state;
  spec.vocab_size = 100;
  spec.chain = ChainOf(*shape_, false);
  spec.timers = TimersOf(*shape_);
  std::array<LedgerHandle, kMaxCrossingBlocks> blocks = {};
  for (uint32_t i = 0; i < shape_->num_crossing(); ++i) {
    blocks[i] = ledger.Allocate();
    spec.generations.push_back(blocks[i].generation);
  }
  DestSide& side = dests_.emplace_back(std::move(spec));
  side.blocks = blocks;
  side.request = request;
  side.decode = decode;
  side.attempt = command.attempt;
  At(side, [&](auto* out) { side.machine.OnStart(side.now_us, out); });
}

void ClusterWorld::CancelDest(DestSide& side) {
  const DestState state = side.machine.state();
  if (state < DestState::kBound) ++side.num_ends;
  if (side.bound && side.holds) DropBlocks(side);
  At(side, [&](auto* out) { side.machine.OnCancel("cancelled", side.now_us, out); });
}

void ClusterWorld::DropBlocks(DestSide& side) {
  Expect(side.holds, "D releases twice");
  for (const LedgerHandle block : side.blocks) {
    if (side.holds && block.generation != 0) {
      --decode_ledgers_[side.decode].Of(block).request_refs;
    }
  }
  side.holds = false;
}

void ClusterWorld::ApplyDest(DestSide& side, const HandoffAction& action) {
  Ledger& ledger = decode_ledgers_[side.decode];
  const auto worker = static_cast<uint8_t>(1 + side.decode);
  switch (action.kind) {
    case HandoffActionKind::kSendMessage:
      if (side.down_pending) return;
      return Send(Encode(action.message, side.request, side.decode, /*to_prefill=*/true));
    case HandoffActionKind::kOpenReceive:
      Expect(side.holds && !side.pinned, "opens twice, or without blocks");
      side.pinned = side.open = true;
      for (uint32_t i = 0; i < shape_->num_crossing(); ++i) {
        ++ledger.Of(side.blocks[i]).transfer_refs;
      }
      return;
    case HandoffActionKind::kLabelReceiving:
      return Expect(side.holds && side.pinned && !side.bound, "receives without blocks");
    case HandoffActionKind::kCloseReceive:
      Expect(side.open, "closes twice");
      side.open = false;
      side.closing = true;
      if (side.machine.outcome() != HandoffOutcome::kApplied) return;
      verified_[side.request] = static_cast<uint8_t>(verified_[side.request] | 1u << side.attempt);
      return Tell(side.request, worker, {Notice::Kind::kVerified, side.attempt});
    case HandoffActionKind::kUnpinBlocks:
      if (!side.pinned || side.open || side.closing) {
        return Expect(false, "unpins while the transport writes");
      }
      side.pinned = false;
      for (uint32_t i = 0; i < shape_->num_crossing(); ++i) {
        --ledger.Of(side.blocks[i]).transfer_refs;
      }
      return;
    case HandoffActionKind::kBindBlocks:
      return Bind(side);
    case HandoffActionKind::kReleaseBlocks:
      Expect(!side.bound, "releases what the sequences own");
      return DropBlocks(side);
    case HandoffActionKind::kFailRequest:
      Expect(!action.status.ok() && !action.status.message().empty(), "D fails without a reason");
      ++side.num_ends;
      return Tell(side.request, worker, {Notice::Kind::kFailed, side.attempt});
    default:
      Expect(false, "an action of P at D");
  }
}

void ClusterWorld::Bind(DestSide& side) {
  Expect(side.holds && !side.pinned, "binds blocks that the transport may write");
  Expect(side.received == (1u << shape_->num_crossing()) - 1, "binds with slices missing");
  Expect(!shape_->mixed_up, "binds another prompt");
  Expect(side.machine.seal().has_value(), "binds without a Seal");
  side.bound = true;
  ++side.num_ends;
}

// ---- The network.

void ClusterWorld::Deliver(const Packet& packet) {
  if (packet.kind == Packet::Kind::kSlice) return DeliverSlice(packet, /*damaged=*/false);
  if (packet.to_prefill) return DeliverToPrefill(packet);
  DeliverToDecode(packet);
}

void ClusterWorld::DeliverToPrefill(const Packet& packet) {
  SourceSide* const side = FindSource(packet.request, packet.attempt);
  if (side != nullptr) {
    if (side->machine.spec().decode_incarnation != LifeOf(packet.decode)) return;
    const HandoffMessage message = Decode(packet);
    return At(*side, [&](auto* out) { side->machine.OnMessage(message, side->now_us, out); });
  }
  if (packet.kind == Packet::Kind::kGrant) return InsertSorted(&parked_, packet);
  if (packet.kind != Packet::Kind::kRevoke) return RefuseUnknown(packet);
  std::erase_if(parked_, [&](const Packet& grant) {
    return grant.request == packet.request && grant.attempt == packet.attempt;
  });
}

void ClusterWorld::DeliverToDecode(const Packet& packet) {
  DestSide* const side = FindDest(packet.request, packet.decode, packet.attempt);
  if (side != nullptr && !side->machine.finished()) {
    const HandoffMessage message = Decode(packet);
    return At(*side, [&](auto* out) { side->machine.OnMessage(message, side->now_us, out); });
  }
  if (packet.kind != Packet::Kind::kRevoke) RefuseUnknown(packet);
}

void ClusterWorld::DeliverSlice(const Packet& packet, bool damaged) {
  DestSide* const side = FindDest(packet.request, packet.decode, packet.attempt);
  if (side == nullptr || !side->open) return;
  const bool is_current = side->blocks[packet.ordinal].generation == packet.generations[0];
  Expect(is_current, "a slice of another generation");
  if (damaged || !is_current) {
    return At(*side, [&](auto* out) {
      side->machine.OnBadSlice({packet.ordinal, 0}, "checksum", side->now_us, out);
    });
  }
  side->received = static_cast<uint8_t>(side->received | 1u << packet.ordinal);
  const uint32_t all = (1u << shape_->num_crossing()) - 1;
  const auto count = static_cast<uint32_t>(__builtin_popcount(side->received));
  At(*side, [&](auto* out) {
    side->machine.OnReceiveProgress(count, side->received == all, side->now_us, out);
  });
}

void ClusterWorld::Send(const Packet& packet) { InsertSorted(&packets_, packet); }

// The answer to a message of a transfer that is not known; as the engines give it.
void ClusterWorld::RefuseUnknown(const Packet& packet) {
  TransferKey key{UidOf(packet.request), packet.attempt, TransferId()};
  if (packet.has_transfer) key.transfer = TransferOf(packet.attempt);
  const bool from_decode = !packet.to_prefill;
  Send(Encode(RevokeUnknown(key, from_decode), packet.request, packet.decode, from_decode));
}

Packet ClusterWorld::Encode(const HandoffMessage& message, uint8_t request, uint8_t decode,
                            bool to_prefill) {
  const TransferKey& key = KeyOf(message);
  Packet packet;
  packet.to_prefill = to_prefill;
  packet.request = request;
  packet.decode = decode;
  packet.attempt = static_cast<uint8_t>(key.attempt);
  packet.has_transfer = key.transfer != TransferId();
  if (const auto* grant = std::get_if<Grant>(&message)) {
    packet.kind = Packet::Kind::kGrant;
    packet.life = decode_life_[decode];
    for (size_t i = 0; i < grant->generations.size(); ++i) {
      packet.generations[i] = static_cast<uint8_t>(grant->generations[i]);
    }
  } else if (const auto* nack = std::get_if<Nack>(&message)) {
    packet.kind = nack->slices.empty() ? Packet::Kind::kNackAll : Packet::Kind::kNackSlice;
    if (!nack->slices.empty()) packet.ordinal = static_cast<uint8_t>(nack->slices[0].ordinal);
  } else if (std::holds_alternative<Seal>(message)) {
    packet.kind = Packet::Kind::kSeal;
  } else if (std::holds_alternative<Applied>(message)) {
    packet.kind = Packet::Kind::kApplied;
  } else if (std::holds_alternative<Renew>(message)) {
    packet.kind = Packet::Kind::kRenew;
  } else {
    packet.kind = Packet::Kind::kRevoke;
    Expect(std::get<Revoke>(message).from_decode == to_prefill, "a Revoke in the wrong direction");
    return packet;
  }
  Expect(Decode(packet) == message, "a message with values that nobody expects");
  return packet;
}

HandoffMessage ClusterWorld::Decode(const Packet& packet) const {
  TransferKey key{UidOf(packet.request), packet.attempt, TransferId()};
  if (packet.has_transfer) key.transfer = TransferOf(packet.attempt);
  switch (packet.kind) {
    case Packet::Kind::kGrant: {
      const uint64_t bytes = shape_->num_crossing() * kSliceBytes;
      const Incarnation life(100u * (packet.decode + 1u) + packet.life);
      Grant grant{key, life, {}, kLayoutId, bytes, TimersOf(*shape_).ttl_ms, shape_->num_unseen};
      grant.generations.assign(packet.generations.begin(),
                               packet.generations.begin() + shape_->num_crossing());
      return grant;
    }
    case Packet::Kind::kSeal: {
      Seal seal = SealOf(*shape_);
      seal.key = key;
      seal.num_slices = shape_->num_crossing();
      return seal;
    }
    case Packet::Kind::kApplied:
      return Applied{key};
    case Packet::Kind::kNackAll:
      return Nack{key, {}};
    case Packet::Kind::kNackSlice:
      return Nack{key, {SliceId{packet.ordinal, 0}}};
    case Packet::Kind::kRenew:
      return Renew{key};
    case Packet::Kind::kRevoke:
    case Packet::Kind::kSlice:
      return Revoke{key, "over", packet.to_prefill};
  }
  return Applied{key};
}

}  // namespace baton::kv
