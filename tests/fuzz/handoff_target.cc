// The hand-off's two state machines and the park of early grants, driven by any sequence of
// messages and events that a peer, the network or the clock can bring. Each machine has an engine
// around it that keeps its own promises (seals in order, closes once) and checks the machine's.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "kvcache/handoff.h"
#include "src/base/wire_text.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint32_t kNumBlocks = 3;
constexpr uint32_t kNumLayers = 2;
constexpr uint32_t kNumSlices = kNumBlocks * kNumLayers;
constexpr uint64_t kSliceBytes = 64;
constexpr uint32_t kNumTokens = 40;
constexpr uint64_t kLayoutId = 11;
constexpr RequestUid kUid{1, 2};
constexpr TransferId kTransfer(5);
constexpr Incarnation kDecode(9);
constexpr TransferKey kKey{kUid, 2, kTransfer};
// Further than any deadline.
constexpr int64_t kLongUs = 100'000'000;

std::vector<ChainLink> TrueChain() { return {{1, 1}, {2, 2}, {3, 3}}; }

SourceSpec MakeSourceSpec(bool strands) {
  SourceSpec spec;
  spec.uid = kUid;
  spec.attempt = kKey.attempt;
  spec.decode_incarnation = kDecode;
  spec.layout_id = kLayoutId;
  spec.slice_bytes = kSliceBytes;
  spec.num_blocks = kNumBlocks;
  spec.num_layers = kNumLayers;
  spec.timers.strand_us = strands ? 2'000'000 : 0;
  return spec;
}

DestSpec MakeDestSpec() {
  DestSpec spec;
  spec.key = kKey;
  spec.decode_incarnation = kDecode;
  spec.generations = {7, 8, 9};
  spec.layout_id = kLayoutId;
  spec.slice_bytes = kSliceBytes;
  spec.num_layers = kNumLayers;
  spec.num_tokens = kNumTokens;
  spec.vocab_size = 100;
  spec.chain = TrueChain();
  return spec;
}

Seal MakeSeal() {
  Seal seal;
  seal.first_tokens = {{.choice = 0, .token = 42}};
  seal.next_output_index = 1;
  seal.chain = TrueChain();
  seal.num_tokens = kNumTokens;
  return seal;
}

// Mostly the right value, so that sequences get far.
template <typename T>
T Nearly(ByteSource* source, T right) {
  const uint8_t how = source->U8();
  if (how < 192) return right;
  return how < 240 ? static_cast<T>(how - 192) : source->Draw<T>();
}

TransferKey DrawKey(ByteSource* source) {
  TransferKey key = kKey;
  key.attempt = Nearly<uint32_t>(source, key.attempt);
  key.transfer = TransferId(Nearly<uint64_t>(source, kTransfer.value()));
  if (source->U8() >= 240) key.uid.lo = source->U8();
  return key;
}

std::vector<SliceId> DrawSlices(ByteSource* source) {
  std::vector<SliceId> slices(source->Below(12));
  for (SliceId& slice : slices) {
    slice = {Nearly<uint32_t>(source, source->Below(kNumBlocks)),
             Nearly<uint32_t>(source, source->Below(kNumLayers))};
  }
  return slices;
}

// The one that the request begins with, or another.
Incarnation DrawDecode(ByteSource* source) {
  const uint8_t how = source->U8();
  return Incarnation(how < 128 ? kDecode.value() : kDecode.value() + how % 4);
}

Grant DrawGrant(ByteSource* source) {
  Grant grant;
  grant.key = DrawKey(source);
  grant.decode_incarnation = DrawDecode(source);
  grant.num_held = source->Flag() ? 0 : Nearly<uint32_t>(source, 1);
  const uint32_t num_crossing = kNumBlocks - std::min(grant.num_held, kNumBlocks);
  grant.generations.resize(Nearly<uint8_t>(source, static_cast<uint8_t>(num_crossing)));
  grant.layout_id = Nearly<uint64_t>(source, kLayoutId);
  grant.expected_bytes = Nearly<uint64_t>(source, num_crossing * kNumLayers * kSliceBytes);
  grant.ttl_ms = Nearly<uint32_t>(source, 10'000);
  return grant;
}

Seal DrawSeal(ByteSource* source) {
  Seal seal = MakeSeal();
  seal.key = DrawKey(source);
  seal.num_slices = Nearly<uint32_t>(source, kNumSlices);
  seal.num_tokens = Nearly<uint32_t>(source, kNumTokens);
  seal.next_output_index = Nearly<uint32_t>(source, 1);
  seal.chain.resize(Nearly<uint8_t>(source, static_cast<uint8_t>(kNumBlocks)));
  seal.first_tokens.resize(Nearly<uint8_t>(source, 1));
  if (!seal.first_tokens.empty()) {
    seal.first_tokens[0].token = Nearly<int32_t>(source, 42);
    seal.first_tokens[0].choice = Nearly<uint32_t>(source, 0);
  }
  return seal;
}

HandoffMessage DrawMessage(ByteSource* source) {
  switch (source->Below(6)) {
    case 0:
      return DrawGrant(source);
    case 1:
      return DrawSeal(source);
    case 2:
      return Applied{DrawKey(source)};
    case 3:
      return Nack{DrawKey(source), DrawSlices(source)};
    case 4:
      return Revoke{DrawKey(source), WireText(TextOf(source->Take(source->U8()))), source->Flag(),
                    static_cast<FailedPart>(source->Below(3))};
    default:
      return Renew{DrawKey(source)};
  }
}

// The counts that both sides keep of the actions that they are told to do.
struct Tally {
  uint32_t released = 0;
  uint32_t ended = 0;  // completed, failed, or cancelled by ourselves
  uint32_t unpinned = 0;
  bool pinned = false;
};

// The prefill worker: engine, transport and checks.
class SourceSide {
 public:
  explicit SourceSide(bool strands) : machine_(MakeSourceSpec(strands)), sealed_(kNumSlices) {}

  template <typename Event>
  void Do(Event event) {
    const bool was_over = machine_.finished();
    actions_.clear();
    event(&machine_, &actions_);
    for (const HandoffAction& action : actions_) Take(action, was_over);
    Check();
  }
  // The next slice is computed, or the prompt is done.
  void Compute(int64_t now_us) {
    if (num_sealed_ == kNumSlices) {
      if (std::exchange(done_, true)) return;
      Do([now_us](HandoffSource* m, HandoffActions* a) { m->OnPromptDone(MakeSeal(), now_us, a); });
      return;
    }
    const SliceRange slice{num_sealed_ / kNumLayers, 1, num_sealed_ % kNumLayers, 1};
    sealed_[num_sealed_++] = true;
    Do([&](HandoffSource* m, HandoffActions* a) { m->OnLayersSealed(slice, now_us, a); });
  }
  void Cancel(int64_t now_us) {
    const bool was_over = IsOver();
    Do([now_us](HandoffSource* m, HandoffActions* a) { m->OnCancel("cancelled", now_us, a); });
    if (!was_over) ++tally_.ended;
  }
  void Retarget(uint32_t attempt, Incarnation decode, int64_t now_us) {
    if (!machine_.CanRetarget()) return;
    Do([&](HandoffSource* m, HandoffActions* a) { m->OnRetarget(attempt, decode, now_us, a); });
  }
  // The transport is done with one of the sends, asked or by itself.
  void CloseSend(uint32_t idx, int64_t now_us) {
    if (sends_.empty()) return;
    const SendName name = std::next(sends_.begin(), idx % sends_.size())->first;
    Do([&](HandoffSource* m, HandoffActions* a) {
      m->OnSendClosed(name.first, name.second, now_us, a);
    });
    BATON_CHECK(!sends_.contains(name), "a send is closed and still pins");
  }
  // Time runs out and the transport confirms: nothing is held then.
  void RunToEnd(int64_t now_us) {
    for (int i = 0; i < 6 && !machine_.finished(); ++i) {
      now_us += kLongUs;
      Do([now_us](HandoffSource* m, HandoffActions* a) { m->OnTick(now_us, a); });
      if (machine_.state() == SourceState::kComputing) Cancel(now_us);
      while (!sends_.empty()) CloseSend(0, now_us);
    }
    BATON_CHECK(machine_.finished(), "P stays in {}", SourceStateName(machine_.state()));
    BATON_CHECK(tally_.released == 1 && tally_.ended == 1 && sends_.empty(),
                "P released {} times, ended {} times", tally_.released, tally_.ended);
  }

  std::vector<HandoffMessage> sent;

 private:
  using SendName = std::pair<Incarnation, TransferId>;

  bool IsOver() const {
    return machine_.state() == SourceState::kDraining || machine_.state() == SourceState::kFree;
  }
  void Take(const HandoffAction& action, bool was_over) {
    using Kind = HandoffActionKind;
    BATON_CHECK(!was_over || action.kind == Kind::kSendMessage, "action {} after the end",
                static_cast<int>(action.kind));
    const SendName send{action.peer, action.transfer};
    if (action.kind == Kind::kSendMessage) sent.push_back(action.message);
    if (action.kind == Kind::kReleaseBlocks) ++tally_.released;
    if (action.kind == Kind::kCompleteRequest || action.kind == Kind::kFailRequest) ++tally_.ended;
    if (action.kind == Kind::kFailRequest || action.kind == Kind::kStranded) {
      CheckRefusal(action.status);
    }
    if (action.kind == Kind::kPinBlocks) sends_[send] += action.slices.num_ordinals;
    if (action.kind == Kind::kCloseSend) BATON_CHECK(sends_.contains(send), "nothing to close");
    if (action.kind == Kind::kUnpinBlocks) {
      BATON_CHECK(sends_.contains(send) && sends_[send] == action.slices.num_ordinals,
                  "{} blocks are unpinned", action.slices.num_ordinals);
      sends_.erase(send);
    }
    if (action.kind == Kind::kExportSlices) {
      BATON_CHECK(sends_.contains(send) && tally_.released == 0,
                  "slices leave blocks that are not held");
      CheckExport(action.slices);
    }
  }
  void CheckExport(const SliceRange& slices) const {
    BATON_CHECK(slices.first_ordinal + slices.num_ordinals <= kNumBlocks &&
                    slices.first_layer + slices.num_layers <= kNumLayers,
                "slices [{}, +{}) x [{}, +{})", slices.first_ordinal, slices.num_ordinals,
                slices.first_layer, slices.num_layers);
    for (uint32_t o = 0; o < slices.num_ordinals; ++o) {
      for (uint32_t l = 0; l < slices.num_layers; ++l) {
        const uint32_t idx = (slices.first_ordinal + o) * kNumLayers + slices.first_layer + l;
        BATON_CHECK(sealed_[idx], "slice {} leaves unsealed", idx);
      }
    }
  }
  void Check() const {
    BATON_CHECK(tally_.released <= 1 && tally_.ended <= 1, "P released {} times, ended {} times",
                tally_.released, tally_.ended);
    BATON_CHECK(!machine_.finished() || (tally_.released == 1 && sends_.empty()),
                "P is free and holds blocks");
    BATON_CHECK(HandoffSource(machine_) == machine_, "a copy is not equal");
  }

  HandoffSource machine_;
  HandoffActions actions_;
  Tally tally_;
  std::map<SendName, uint32_t> sends_;  // blocks that each pins
  std::vector<bool> sealed_;
  uint32_t num_sealed_ = 0;
  bool done_ = false;
};

// The decode worker: engine, transport and checks.
class DestSide {
 public:
  explicit DestSide(int64_t now_us) : machine_(MakeDestSpec()) {
    Do([now_us](HandoffDest* m, HandoffActions* a) { m->OnStart(now_us, a); });
  }

  template <typename Event>
  void Do(Event event) {
    const bool was_over = machine_.finished();
    actions_.clear();
    event(&machine_, &actions_);
    for (const HandoffAction& action : actions_) Take(action, was_over);
    Check();
  }
  // The transport verified so many slices more.
  void Receive(uint32_t num_more, int64_t now_us) {
    if (is_closed_ || num_received_ == kNumSlices || num_more == 0) return;
    num_received_ = std::min(num_received_ + num_more, kNumSlices);
    Do([&](HandoffDest* m, HandoffActions* a) {
      m->OnReceiveProgress(num_received_, num_received_ == kNumSlices, now_us, a);
    });
  }
  void CloseReceive(int64_t now_us) {
    if (std::exchange(is_closed_, true)) return;
    Do([now_us](HandoffDest* m, HandoffActions* a) { m->OnReceiveClosed(now_us, a); });
  }
  void Cancel(int64_t now_us) {
    Do([now_us](HandoffDest* m, HandoffActions* a) { m->OnCancel("cancelled", now_us, a); });
  }
  void RunToEnd(int64_t now_us) {
    for (int i = 0; i < 4 && !machine_.finished(); ++i) {
      now_us += kLongUs;
      Do([now_us](HandoffDest* m, HandoffActions* a) { m->OnTick(now_us, a); });
      if (closing_) CloseReceive(now_us);
    }
    BATON_CHECK(machine_.finished(), "D stays in {}", DestStateName(machine_.state()));
    BATON_CHECK(num_bound_ + tally_.released == 1 && !tally_.pinned,
                "D bound {} times, released {} times", num_bound_, tally_.released);
  }

  std::vector<HandoffMessage> sent;

 private:
  void Take(const HandoffAction& action, bool was_over) {
    using Kind = HandoffActionKind;
    BATON_CHECK(!was_over, "action {} after the end", static_cast<int>(action.kind));
    if (action.kind == Kind::kSendMessage) sent.push_back(action.message);
    if (action.kind == Kind::kOpenReceive) tally_.pinned = true;
    if (action.kind == Kind::kCloseReceive) closing_ = true;
    if (action.kind == Kind::kReleaseBlocks) ++tally_.released;
    if (action.kind == Kind::kFailRequest) {
      BATON_CHECK(num_bound_ == 0 && tally_.ended++ == 0, "failed twice, or after it was bound");
      CheckRefusal(action.status);
    }
    if (action.kind == Kind::kUnpinBlocks) {
      BATON_CHECK(is_closed_ && tally_.pinned && tally_.unpinned++ == 0,
                  "blocks are unpinned while the transport writes, or again");
      tally_.pinned = false;
    }
    if (action.kind == Kind::kBindBlocks) {
      BATON_CHECK(is_closed_ && num_received_ == kNumSlices && machine_.seal().has_value() &&
                      !tally_.pinned,
                  "bound with {} slices", num_received_);
      ++num_bound_;
    }
  }
  void Check() const {
    BATON_CHECK(num_bound_ + tally_.released <= 1, "D bound {} times, released {} times",
                num_bound_, tally_.released);
    BATON_CHECK(HandoffDest(machine_) == machine_, "a copy is not equal");
  }

  HandoffDest machine_;
  HandoffActions actions_;
  Tally tally_;
  uint32_t num_bound_ = 0;
  uint32_t num_received_ = 0;
  bool closing_ = false;
  bool is_closed_ = false;
};

// The park beside a plain count of what is in it.
class ParkSide {
 public:
  void Step(ByteSource* source, int64_t now_us) {
    Grant grant = DrawGrant(source);
    grant.key.uid.lo = source->Below(80);
    const TransferKey key = grant.key;
    const Incarnation decode = grant.decode_incarnation;
    const uint32_t before = park_.size();
    switch (source->Below(4)) {
      case 0: {
        const std::optional<Grant> taken = park_.Take(key.uid, key.attempt, decode);
        BATON_CHECK(!taken || (taken->key.uid == key.uid && taken->key.attempt == key.attempt &&
                               taken->decode_incarnation == decode),
                    "another grant than the one asked for");
        BATON_CHECK(park_.size() == before - (taken ? 1 : 0));
        break;
      }
      case 1: {
        const bool dropped = park_.Drop(key.uid, key.attempt, decode);
        BATON_CHECK(park_.size() == before - (dropped ? 1 : 0));
        break;
      }
      default: {
        const bool parked = park_.Park(std::move(grant), now_us);
        BATON_CHECK(parked || before == GrantPark::kCapacity, "refused with {} parked", before);
        BATON_CHECK(park_.size() >= before && park_.size() <= before + 1);
      }
    }
    BATON_CHECK(park_.size() <= GrantPark::kCapacity, "{} grants are parked", park_.size());
    BATON_CHECK((park_.size() == 0) == (park_.NextDeadlineUs() == INT64_MAX));
  }
  void Expire(int64_t now_us) {
    const uint32_t before = park_.size();
    std::vector<Grant> expired;
    park_.Expire(now_us, &expired);
    BATON_CHECK(expired.size() + park_.size() == before, "{} of {} grants expired, {} are left",
                expired.size(), before, park_.size());
    BATON_CHECK(park_.NextDeadlineUs() > now_us, "a deadline that has passed");
  }

 private:
  GrantPark park_;
};

// One of the messages that the other side sent, again or late or never.
const HandoffMessage* Pick(const std::vector<HandoffMessage>& sent, ByteSource* source) {
  return sent.empty() ? nullptr : &sent[source->U8() % sent.size()];
}

// Both machines, joined by a network that does what the input says.
class HandoffPlay {
 public:
  explicit HandoffPlay(bool strands) : source_(strands), dest_(now_us_) {}

  void Step(ByteSource* source) {
    const uint8_t op = source->U8();
    if (op % 16 < 8) return ByPeer(op % 8, source);
    ByOwnSide(op % 8, source);
  }
  void RunToEnd() {
    source_.RunToEnd(now_us_);
    dest_.RunToEnd(now_us_);
    park_.Expire(now_us_ + kLongUs);
  }

 private:
  // Plays what messages and connections bring.
  void ByPeer(uint32_t op, ByteSource* source) {
    const int64_t now_us = now_us_;
    if (op <= 1) return ToSource(DrawMessage(source));
    if (op <= 3) return ToDest(DrawMessage(source));
    if (op == 4) {
      if (const HandoffMessage* message = Pick(dest_.sent, source)) ToSource(*message);
    } else if (op == 5) {
      if (const HandoffMessage* message = Pick(source_.sent, source)) ToDest(*message);
    } else if (op == 6) {
      source_.Do(
          [now_us](HandoffSource* m, HandoffActions* a) { m->OnPeerDown("eof", now_us, a); });
    } else {
      dest_.Do([now_us](HandoffDest* m, HandoffActions* a) { m->OnPeerDown("eof", now_us, a); });
    }
  }
  // Plays what the engine, the transport, the router and the clock bring.
  void ByOwnSide(uint32_t op, ByteSource* source) {
    if (op <= 1) return source_.Compute(now_us_);
    if (op == 2) return dest_.Receive(source->Below(7), now_us_);
    if (op == 3) return Tick(source);
    if (op == 4) return source->Flag() ? source_.Cancel(now_us_) : dest_.Cancel(now_us_);
    if (op == 5)
      return source->Flag() ? source_.CloseSend(source->U8(), now_us_)
                            : dest_.CloseReceive(now_us_);
    if (op == 6) {
      if (source->Flag()) return park_.Step(source, now_us_);
      const uint32_t attempt = Nearly<uint32_t>(source, kKey.attempt + source->Below(4));
      return source_.Retarget(attempt, DrawDecode(source), now_us_);
    }
    const SliceId slice{source->Below(5), source->Below(4)};
    const int64_t now_us = now_us_;
    dest_.Do([&](HandoffDest* m, HandoffActions* a) { m->OnBadSlice(slice, "bad", now_us, a); });
  }
  void ToSource(const HandoffMessage& message) {
    const int64_t now_us = now_us_;
    source_.Do([&](HandoffSource* m, HandoffActions* a) { m->OnMessage(message, now_us, a); });
  }
  void ToDest(const HandoffMessage& message) {
    const int64_t now_us = now_us_;
    dest_.Do([&](HandoffDest* m, HandoffActions* a) { m->OnMessage(message, now_us, a); });
  }
  void Tick(ByteSource* source) {
    now_us_ += int64_t{source->Draw<uint16_t>()} * 256;
    const int64_t now_us = now_us_;
    source_.Do([now_us](HandoffSource* m, HandoffActions* a) { m->OnTick(now_us, a); });
    dest_.Do([now_us](HandoffDest* m, HandoffActions* a) { m->OnTick(now_us, a); });
    park_.Expire(now_us);
  }

  int64_t now_us_ = 1'000'000;
  SourceSide source_;
  DestSide dest_;
  ParkSide park_;
};

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(handoff) {
  using namespace baton::fuzz;  // NOLINT: the whole target
  ByteSource source(input);
  HandoffPlay play(source.Flag());
  for (int step = 0; step < 4096 && !source.empty(); ++step) play.Step(&source);
  play.RunToEnd();
}
