// ClusterWorld: timers, look-up, what must never happen, and how a state is named.
#include <algorithm>
#include <utility>

#include "src/base/xxh3.h"
#include "tests/kvcache/cluster_world.h"
#include "tests/kvcache/state_bytes.h"

namespace baton::kv {

// Time goes on at this machine until something comes of it: a repeated Grant that is on its way
// already is nothing new.
template <typename Side>
void ClusterWorld::Tick(Side& side) {
  std::string before;
  std::string after;
  StateBytes::Append(&before, side.machine);
  const size_t num_packets = packets_.size();
  for (int i = 0; i < 16 && side.machine.NextDeadlineUs() != INT64_MAX; ++i) {
    side.now_us = std::max(side.now_us, side.machine.NextDeadlineUs());
    At(side, [&](auto* out) { side.machine.OnTick(side.now_us, out); });
    after.clear();
    StateBytes::Append(&after, side.machine);
    if (after != before || packets_.size() != num_packets) return;
  }
}

template void ClusterWorld::Tick(SourceSide& side);
template void ClusterWorld::Tick(DestSide& side);

const ClusterWorld::SourceSide* ClusterWorld::FindSource(uint8_t request, uint32_t attempt) const {
  for (const SourceSide& side : sources_) {
    if (side.request == request && side.machine.spec().attempt == attempt) return &side;
  }
  return nullptr;
}

ClusterWorld::SourceSide* ClusterWorld::FindSource(uint8_t request, uint32_t attempt) {
  return const_cast<SourceSide*>(std::as_const(*this).FindSource(request, attempt));
}

const ClusterWorld::DestSide* ClusterWorld::FindDest(uint8_t request, uint8_t decode,
                                                     uint32_t attempt) const {
  for (const DestSide& side : dests_) {
    if (side.request == request && side.decode == decode && side.attempt == attempt) return &side;
  }
  return nullptr;
}

ClusterWorld::DestSide* ClusterWorld::FindDest(uint8_t request, uint8_t decode, uint32_t attempt) {
  return const_cast<DestSide*>(std::as_const(*this).FindDest(request, decode, attempt));
}

Incarnation ClusterWorld::LifeOf(uint8_t decode) const {
  return Incarnation(100u * (decode + 1u) + decode_life_[decode]);
}

std::optional<uint8_t> ClusterWorld::DecodeOf(Incarnation life) const {
  for (uint8_t d = 0; d < shape_->num_decodes; ++d) {
    if (LifeOf(d) == life) return d;
  }
  return std::nullopt;
}

void ClusterWorld::EraseFinished() {
  std::erase_if(sources_, [this](const SourceSide& side) {
    if (!side.machine.finished()) return false;
    Expect(side.released && side.sends.empty(), "P is over and holds references");
    Expect(side.num_ends == 1, "P is over and did not end exactly once");
    return true;
  });
  std::erase_if(dests_, [this](const DestSide& side) {
    if (!side.machine.finished() || (side.bound && side.holds)) return false;
    Expect(!side.holds && !side.pinned, "D is over and holds references");
    Expect(side.num_ends == 1, "D is over and did not end exactly once");
    return true;
  });
}

bool ClusterWorld::IsRelevant(uint8_t request, uint8_t attempt) const {
  if (FindSource(request, attempt) != nullptr) return true;
  for (uint8_t d = 0; d < shape_->num_decodes; ++d) {
    if (FindDest(request, d, attempt) != nullptr) return true;
  }
  return WillStart(request, attempt);
}

bool ClusterWorld::WillStart(uint8_t request, uint8_t attempt) const {
  for (const auto& queue : routers_[request].commands) {
    for (const Command& command : queue) {
      if (command.kind == Command::Kind::kStart && command.attempt == attempt) return true;
    }
  }
  return false;
}

// A packet is forgotten when it can have no effect any more, whenever it is delivered. It may be of
// an attempt that nobody knows. It may be a slice that is here or that the decode worker takes no
// more. It may only lead to a Revoke that nobody minds.
bool ClusterWorld::IsDead(const Packet& packet) const {
  if (!IsRelevant(packet.request, packet.attempt)) return true;
  const SourceSide* source = FindSource(packet.request, packet.attempt);
  const DestSide* dest = FindDest(packet.request, packet.decode, packet.attempt);
  const bool dest_open = dest != nullptr && dest->machine.state() <= DestState::kReceiving;
  const bool source_open = source != nullptr && source->machine.CanRetarget();
  if (packet.kind == Packet::Kind::kSlice) {
    return !dest_open || (dest->received >> packet.ordinal & 1) != 0;
  }
  const bool starts = WillStart(packet.request, packet.attempt);
  if (packet.to_prefill) return !dest_open && !source_open && !starts;
  if (packet.kind == Packet::Kind::kRevoke) return !dest_open && !starts;
  return !dest_open && !source_open && !starts;
}

void ClusterWorld::DropDeadPackets() {
  std::erase_if(packets_, [this](const Packet& p) { return IsDead(p); });
}

void ClusterWorld::Expect(bool condition, const char* what) {
  if (!condition && bug_.empty()) bug_ = what;
}

void ClusterWorld::Check() {
  for (const RouterSide& router : routers_) {
    Expect(router.num_told <= 1, "the client is told twice");
    Expect(router.machine.finished() == (router.num_told == 1), "an end that nobody is told of");
    // A token before its prompt was verified could be another request's.
    Expect(router.machine.state() != HandoffRequestState::kDone || !shape_->mixed_up,
           "an answer to another prompt");
  }
  CheckSides();
  CheckLedgers();
}

void ClusterWorld::CheckSides() {
  for (const SourceSide& side : sources_) {
    const bool over = !side.machine.HoldsBlocks();
    Expect(over || !side.released, "P released what it may still send");
    Expect(over == (side.num_ends == 1), "P ended and nobody was told, or the other way round");
    Expect(!over || !side.holds, "P is over and holds its blocks");
    for (const SendSide& send : side.sends) {
      const bool current = send.peer == side.machine.spec().decode_incarnation &&
                           send.transfer == side.machine.key().transfer;
      Expect(send.closing || (current && !over), "P forgot to close a send");
    }
  }
  for (const DestSide& side : dests_) {
    Expect(side.num_ends <= 1, "D ends twice");
    Expect(!(side.open || side.closing) || side.pinned, "a transport writes what is not pinned");
    const bool let_go = !side.holds && !side.bound;
    Expect(!let_go || side.num_ends == 1, "D let go of its blocks and nobody was told");
  }
}

// Every block's references are those of its holders, and one request's at a time.
void ClusterWorld::CheckLedgers() {
  Ledger prefill;
  std::array<Ledger, 2> decode;
  const auto count = [this](Ledger* counted, const Ledger& ledger, LedgerHandle block,
                            uint32_t request_refs, uint32_t transfer_refs) {
    if (request_refs + transfer_refs == 0) return;
    Expect(ledger.IsCurrent(block), "a block is used by another request already");
    Ledger::Block& entry = counted->blocks[block.index];
    Expect(entry.request_refs + entry.transfer_refs == 0, "two requests use one block");
    entry.request_refs = static_cast<uint8_t>(request_refs);
    entry.transfer_refs = static_cast<uint8_t>(transfer_refs);
  };
  for (const SourceSide& side : sources_) {
    for (uint32_t i = 0; i < shape_->num_blocks; ++i) {
      uint32_t transfers = 0;
      for (const SendSide& send : side.sends) {
        if (i >= send.first && i < uint32_t{send.first} + send.count) ++transfers;
      }
      count(&prefill, prefill_ledger_, side.blocks[i], side.holds ? 1 : 0, transfers);
    }
  }
  for (const DestSide& side : dests_) {
    for (uint32_t i = 0; i < shape_->num_crossing(); ++i) {
      count(&decode[side.decode], decode_ledgers_[side.decode], side.blocks[i], side.holds ? 1 : 0,
            side.pinned ? 1 : 0);
    }
  }
  for (uint32_t i = 0; i < shape_->pool_blocks; ++i) {
    const auto same = [i](const Ledger& a, const Ledger& b) {
      return a.blocks[i].request_refs == b.blocks[i].request_refs &&
             a.blocks[i].transfer_refs == b.blocks[i].transfer_refs;
    };
    Expect(same(prefill, prefill_ledger_), "P's references are not those of its holders");
    Expect(same(decode[0], decode_ledgers_[0]) && same(decode[1], decode_ledgers_[1]),
           "D's references are not those of its holders");
  }
}

bool ClusterWorld::IsAtRest() const {
  if (!sources_.empty() || !dests_.empty() || !parked_.empty()) return false;
  return std::all_of(routers_.begin(), routers_.end(), [](const RouterSide& router) {
    const bool commands = std::any_of(router.commands.begin(), router.commands.end(),
                                      [](const auto& queue) { return !queue.empty(); });
    return (!router.alive || router.machine.finished()) && !commands && router.gone_pending == 0;
  });
}

bool ClusterWorld::IsDone() const {
  return std::all_of(routers_.begin(), routers_.end(), [](const RouterSide& router) {
    return router.machine.state() == HandoffRequestState::kDone;
  });
}

// All of one request, without its name and without those of its blocks: which ones they are makes
// no difference as long as the ledgers are right, and Check has seen to that.
void ClusterWorld::AppendRequest(uint8_t request, std::string* out) const {
  const auto put = [out](auto... values) { (out->push_back(static_cast<char>(values)), ...); };
  const RouterSide& router = routers_[request];
  StateBytes::Append(out, router.machine);
  put(router.alive, router.prefill_live, router.decode_live, router.decode, router.known,
      router.num_told, router.gone_pending, verified_[request]);
  for (size_t w = 0; w <= shape_->num_decodes; ++w) {
    StateBytes::Append(out, router.commands[w]);
    StateBytes::Append(out, router.notices[w]);
  }
  for (const SourceSide& side : sources_) {
    if (side.request != request) continue;
    put('S', side.num_sealed, side.prompt_done, side.allocated, side.holds, side.released,
        side.down_pending, side.num_ends, side.sends.size());
    StateBytes::Append(out, side.machine);
    for (const SendSide& send : side.sends) {
      StateBytes::Append(out, send.peer);
      StateBytes::Append(out, send.transfer);
      put(send.first, send.count, send.closing);
    }
  }
  for (const DestSide& side : dests_) {
    if (side.request != request) continue;
    put('D', side.decode, side.attempt, side.received, side.holds, side.pinned, side.open,
        side.closing, side.bound, side.down_pending, side.num_ends);
    StateBytes::Append(out, side.machine);
  }
  for (const auto* list : {&packets_, &parked_}) {
    put('P');
    for (const Packet& p : *list) {
      if (p.request != request) continue;
      put(static_cast<int>(p.kind) * 2 + (p.to_prefill ? 1 : 0),
          p.attempt * 8 + p.decode * 4 + p.ordinal * 2 + (p.has_transfer ? 1 : 0));
      const bool of_former_life = p.life != decode_life_[p.decode];
      if (p.kind == Packet::Kind::kGrant) put(of_former_life);
    }
  }
}

void ClusterWorld::Fingerprint(std::string* scratch, Hash128* out) const {
  scratch->clear();
  if (routers_.size() == 1) {
    AppendRequest(0, scratch);
  } else {
    std::vector<std::string> parts(routers_.size());
    for (uint8_t r = 0; r < routers_.size(); ++r) AppendRequest(r, &parts[r]);
    std::sort(parts.begin(), parts.end());
    for (const std::string& part : parts) scratch->append(part + "/");
  }
  scratch->push_back(static_cast<char>(faults_left_));
  for (uint32_t d = 0; d < shape_->num_decodes; ++d) {
    scratch->push_back(static_cast<char>(decode_life_[d]));
  }
  *out = Xxh3Hash128(*scratch);
}

std::string ClusterWorld::ToString() const {
  std::string text;
  for (size_t r = 0; r < routers_.size(); ++r) {
    text += fmt::format("request {} {} attempt {} told {}{}; ", r,
                        HandoffRequestStateName(routers_[r].machine.state()),
                        routers_[r].machine.attempt(), routers_[r].num_told,
                        routers_[r].alive ? "" : " (router dead)");
  }
  for (const SourceSide& side : sources_) {
    text += fmt::format("P {}.{} {} holds {} sends {} ends {}; ", side.request,
                        side.machine.spec().attempt, SourceStateName(side.machine.state()),
                        side.holds, side.sends.size(), side.num_ends);
  }
  for (const DestSide& side : dests_) {
    text += fmt::format("D{} {}.{} {} holds {} pinned {} received {:b}; ", side.decode,
                        side.request, side.attempt, DestStateName(side.machine.state()), side.holds,
                        side.pinned, side.received);
  }
  return text + fmt::format("{} packets, {} parked, {} faults left, bug '{}'", packets_.size(),
                            parked_.size(), faults_left_, bug_);
}

}  // namespace baton::kv
