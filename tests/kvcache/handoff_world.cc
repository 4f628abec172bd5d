#include "tests/kvcache/handoff_world.h"

#include <algorithm>

namespace baton::kv {
namespace {

constexpr uint64_t kLayoutId = 77;
constexpr uint64_t kSliceBytes = 64;
constexpr uint32_t kBlockSize = 4;
const RequestUid kUid{11, 22};
const Incarnation kDecode{5};

std::vector<ChainLink> Chain(uint32_t num_blocks, bool wrong) {
  std::vector<TokenId> tokens(num_blocks * kBlockSize - 1, wrong ? 8 : 9);
  return ChainLinks(DeriveChainKey("s", "t"), kBlockSize, tokens);
}

SourceSpec MakeSourceSpec(const WorldShape& shape) {
  SourceSpec spec;
  spec.uid = kUid;
  spec.decode_incarnation = kDecode;
  spec.layout_id = kLayoutId;
  spec.slice_bytes = kSliceBytes;
  spec.num_blocks = shape.num_blocks;
  spec.num_layers = shape.num_layers;
  return spec;
}

DestSpec MakeDestSpec(const WorldShape& shape) {
  DestSpec spec;
  spec.key = {kUid, 1, TransferId(33)};
  spec.decode_incarnation = kDecode;
  spec.generations.assign(shape.num_blocks, 4);
  spec.layout_id = kLayoutId;
  spec.slice_bytes = kSliceBytes;
  spec.num_layers = shape.num_layers;
  spec.num_tokens = shape.num_blocks * kBlockSize - 1;
  spec.num_choices = shape.num_choices;
  spec.vocab_size = 100;
  spec.chain = Chain(shape.num_blocks, false);
  return spec;
}

// Keeps equal sets of messages equal, whatever order they were sent in.
void InsertSorted(std::vector<HandoffMessage>* box, const HandoffMessage& message) {
  const auto later = [](const HandoffMessage& a, const HandoffMessage& b) {
    return a.index() < b.index();
  };
  box->insert(std::upper_bound(box->begin(), box->end(), message, later), message);
}

void InsertSorted(std::vector<SliceId>* flight, SliceId slice) {
  const auto later = [](const SliceId& a, const SliceId& b) {
    return std::pair(a.ordinal, a.layer) < std::pair(b.ordinal, b.layer);
  };
  flight->insert(std::upper_bound(flight->begin(), flight->end(), slice, later), slice);
}

template <typename T>
T TakeAt(std::vector<T>* list, uint32_t idx) {
  T item = list->at(idx);
  list->erase(list->begin() + idx);
  return item;
}

}  // namespace

HandoffWorld::HandoffWorld(const WorldShape& shape)
    : shape_(shape),
      source_(MakeSourceSpec(shape)),
      dest_(MakeDestSpec(shape)),
      faults_left_(shape.faults),
      ticks_left_(shape.ticks),
      received_(size_t{shape.num_blocks} * shape.num_layers) {
  HandoffActions actions;
  dest_.OnStart(now_us_, &actions);
  ApplyDest(actions);
}

Seal HandoffWorld::MakeSeal() const {
  Seal seal;
  for (uint32_t i = 0; i < shape_.num_choices; ++i) seal.first_tokens.push_back({i, 7});
  seal.next_output_index = 1;
  seal.chain = Chain(shape_.num_blocks, shape_.wrong_chain);
  seal.num_tokens = shape_.num_blocks * kBlockSize - 1;
  return seal;
}

void HandoffWorld::Steps(std::vector<WorldStep>* steps) const {
  using Kind = WorldStep::Kind;
  const auto all = [steps](Kind kind, size_t count) {
    for (uint32_t i = 0; i < count; ++i) steps->push_back({kind, i});
  };
  steps->clear();
  all(Kind::kStartSource, started_ ? 0 : 1);
  const bool computes = started_ && source_holds_ && !prompt_done_;
  all(Kind::kSealNext, computes && num_sealed_ < num_slices() ? 1 : 0);
  all(Kind::kPromptDone, computes && num_sealed_ == num_slices() ? 1 : 0);
  all(Kind::kToSource, to_source_.size());
  all(Kind::kToDest, to_dest_.size());
  all(Kind::kSlice, in_flight_.size());
  all(Kind::kSendClosed, source_closing_ ? 1 : 0);
  all(Kind::kReceiveClosed, dest_closing_ ? 1 : 0);
  all(Kind::kDownAtSource, source_down_pending_ ? 1 : 0);
  all(Kind::kDownAtDest, dest_down_pending_ ? 1 : 0);
  all(Kind::kTick, ticks_left_ > 0 ? 1 : 0);
  if (faults_left_ == 0) return;
  all(Kind::kDropToSource, to_source_.size());
  all(Kind::kDropToDest, to_dest_.size());
  all(Kind::kCopyToSource, to_source_.size());
  all(Kind::kCopyToDest, to_dest_.size());
  all(Kind::kDropSlice, in_flight_.size());
  all(Kind::kDamageSlice, in_flight_.size());
  all(Kind::kCancelSource, started_ && source_ends_ == 0 ? 1 : 0);
  all(Kind::kCancelDest, dest_cancelled_ ? 0 : 1);
  all(Kind::kCutConnection, connected_ ? 1 : 0);
}

void HandoffWorld::Do(const WorldStep& step) {
  using Kind = WorldStep::Kind;
  switch (step.kind) {
    case Kind::kStartSource:
      started_ = true;
      AtSource([&](auto* out) {
        if (parked_) source_.OnGrant(*parked_, now_us_, out);
      });
      parked_.reset();
      break;
    case Kind::kSealNext: {
      const uint32_t slice = num_sealed_++;  // block by block, layer by layer
      const SliceRange range{slice / shape_.num_layers, 1, slice % shape_.num_layers, 1};
      AtSource([&](auto* out) { source_.OnLayersSealed(range, now_us_, out); });
      break;
    }
    case Kind::kPromptDone:
      prompt_done_ = true;
      AtSource([&](auto* out) { source_.OnPromptDone(MakeSeal(), now_us_, out); });
      break;
    case Kind::kToSource:
      DeliverToSource(TakeAt(&to_source_, step.idx));
      break;
    case Kind::kToDest: {
      const HandoffMessage message = TakeAt(&to_dest_, step.idx);
      AtDest([&](auto* out) { dest_.OnMessage(message, now_us_, out); });
      break;
    }
    case Kind::kSlice:
      Deliver(TakeAt(&in_flight_, step.idx), /*damaged=*/false);
      break;
    case Kind::kSendClosed:
      source_closing_ = false;
      AtSource(
          [&](auto* out) { source_.OnSendClosed(kDecode, source_.key().transfer, now_us_, out); });
      break;
    case Kind::kReceiveClosed:
      dest_closing_ = false;
      AtDest([&](auto* out) { dest_.OnReceiveClosed(now_us_, out); });
      break;
    case Kind::kDownAtSource:
      source_down_pending_ = false;
      if (started_) AtSource([&](auto* out) { source_.OnPeerDown("reset", now_us_, out); });
      parked_.reset();
      break;
    case Kind::kDownAtDest:
      dest_down_pending_ = false;
      AtDest([&](auto* out) { dest_.OnPeerDown("reset", now_us_, out); });
      break;
    case Kind::kTick:
      if (ticks_left_ > 0) --ticks_left_;
      Tick();
      break;
    default:
      --faults_left_;
      ++num_faults_;
      DoFault(step);
  }
  Check();
}

void HandoffWorld::DoFault(const WorldStep& step) {
  using Kind = WorldStep::Kind;
  switch (step.kind) {
    case Kind::kDropToSource:
      TakeAt(&to_source_, step.idx);
      break;
    case Kind::kDropToDest:
      TakeAt(&to_dest_, step.idx);
      break;
    case Kind::kCopyToSource:
      InsertSorted(&to_source_, HandoffMessage(to_source_.at(step.idx)));
      break;
    case Kind::kCopyToDest:
      InsertSorted(&to_dest_, HandoffMessage(to_dest_.at(step.idx)));
      break;
    case Kind::kDropSlice:
      TakeAt(&in_flight_, step.idx);
      break;
    case Kind::kDamageSlice:
      Deliver(TakeAt(&in_flight_, step.idx), /*damaged=*/true);
      break;
    case Kind::kCancelSource:
      ++source_ends_;
      AtSource([&](auto* out) { source_.OnCancel("the client left", now_us_, out); });
      break;
    case Kind::kCancelDest:
      dest_cancelled_ = true;
      AtDest([&](auto* out) { dest_.OnCancel("the client left", now_us_, out); });
      break;
    case Kind::kCutConnection:
      connected_ = false;
      to_source_.clear();
      to_dest_.clear();
      in_flight_.clear();
      source_down_pending_ = dest_down_pending_ = true;
      break;
    default:
      Expect(false, "a step that is no fault");
  }
}

template <typename Event>
void HandoffWorld::AtSource(Event&& event) {
  HandoffActions actions;
  event(&actions);
  ApplySource(actions);
}

template <typename Event>
void HandoffWorld::AtDest(Event&& event) {
  HandoffActions actions;
  event(&actions);
  ApplyDest(actions);
}

void HandoffWorld::DeliverToSource(const HandoffMessage& message) {
  if (started_) {
    AtSource([&](auto* out) { source_.OnMessage(message, now_us_, out); });
  } else if (const auto* grant = std::get_if<Grant>(&message)) {
    parked_ = *grant;
  } else {
    parked_.reset();  // a Revoke of what was parked
  }
}

void HandoffWorld::Tick() {
  const int64_t source_at = started_ ? source_.NextDeadlineUs() : INT64_MAX;
  const int64_t next = std::min(source_at, dest_.NextDeadlineUs());
  if (next == INT64_MAX) return;
  now_us_ = std::max(now_us_, next);
  if (started_) AtSource([&](auto* out) { source_.OnTick(now_us_, out); });
  AtDest([&](auto* out) { dest_.OnTick(now_us_, out); });
}

void HandoffWorld::Deliver(SliceId slice, bool damaged) {
  if (!dest_open_) return;  // late frames after a close are dropped by the transport
  const size_t idx = size_t{slice.ordinal} * shape_.num_layers + slice.layer;
  if (received_[idx]) return;
  // Pulled late: the prefill worker's block may belong to somebody else by now, and the checksum
  // says so.
  const bool readable = source_holds_ || pinned_ > slice.ordinal;
  if (damaged || !readable) {
    AtDest([&](auto* out) { dest_.OnBadSlice(slice, "checksum", now_us_, out); });
    return;
  }
  received_[idx] = true;
  const auto count = static_cast<uint32_t>(std::count(received_.begin(), received_.end(), true));
  AtDest([&](auto* out) { dest_.OnReceiveProgress(count, count == num_slices(), now_us_, out); });
}

void HandoffWorld::ApplySource(const HandoffActions& actions) {
  for (const HandoffAction& action : actions) {
    const SliceRange& s = action.slices;
    switch (action.kind) {
      case HandoffActionKind::kSendMessage:
        if (connected_) InsertSorted(&to_dest_, action.message);
        break;
      case HandoffActionKind::kPinBlocks:
        Expect(source_holds_ && s.first_ordinal == pinned_, "pins blocks that it does not hold");
        pinned_ += s.num_ordinals;
        break;
      case HandoffActionKind::kExportSlices:
        Expect(source_.granted(), "exports without a grant");
        Expect(source_holds_ && s.first_ordinal + s.num_ordinals <= pinned_,
               "exports blocks that are not pinned");
        Export(s);
        break;
      case HandoffActionKind::kCloseSend:
        Expect(pinned_ > 0, "closes what it never opened");
        source_closing_ = true;
        break;
      case HandoffActionKind::kUnpinBlocks:
        Expect(!source_closing_ && s.num_ordinals == pinned_,
               "unpins before the transport is done");
        pinned_ = 0;
        break;
      case HandoffActionKind::kReleaseBlocks:
        Expect(source_holds_, "releases twice");
        source_holds_ = false;
        break;
      case HandoffActionKind::kCompleteRequest:
        Expect(dest_.outcome() == HandoffOutcome::kApplied, "completes what D did not verify");
        ++source_ends_;
        break;
      case HandoffActionKind::kFailRequest:
        Expect(!action.status.ok() && !action.status.message().empty(), "fails without a reason");
        ++source_ends_;
        break;
      default:
        Expect(false, "an action of D at P");
    }
  }
}

void HandoffWorld::Export(const SliceRange& slices) {
  for (uint32_t i = 0; i < slices.num_ordinals * slices.num_layers; ++i) {
    const SliceId slice{slices.first_ordinal + i / slices.num_layers,
                        slices.first_layer + i % slices.num_layers};
    Expect(slice.ordinal * shape_.num_layers + slice.layer < num_sealed_,
           "exports an unsealed slice");
    if (connected_) InsertSorted(&in_flight_, slice);
  }
}

void HandoffWorld::ApplyDest(const HandoffActions& actions) {
  for (const HandoffAction& action : actions) {
    switch (action.kind) {
      case HandoffActionKind::kSendMessage:
        if (connected_) InsertSorted(&to_source_, action.message);
        break;
      case HandoffActionKind::kOpenReceive:
        Expect(!dest_pinned_, "opens twice");
        dest_pinned_ = dest_open_ = true;
        break;
      case HandoffActionKind::kLabelReceiving:
        Expect(dest_holds_ && dest_pinned_, "receives without blocks");
        break;
      case HandoffActionKind::kCloseReceive:
        Expect(dest_open_, "closes twice");
        dest_open_ = false;
        dest_closing_ = true;
        break;
      case HandoffActionKind::kUnpinBlocks:
        Expect(dest_pinned_ && !dest_open_ && !dest_closing_, "unpins while the transport writes");
        dest_pinned_ = false;
        break;
      case HandoffActionKind::kBindBlocks:
        Expect(dest_holds_ && !dest_pinned_, "binds blocks that the transport may write");
        Expect(std::count(received_.begin(), received_.end(), true) == int64_t{num_slices()},
               "binds with slices missing");
        Expect(!shape_.wrong_chain, "binds another prompt");
        Expect(dest_.seal().has_value(), "binds without a Seal");
        Expect(!dest_cancelled_ && !dest_failed_, "binds after its end");
        bound_ = true;
        dest_holds_ = false;
        break;
      case HandoffActionKind::kReleaseBlocks:
        Expect(dest_holds_, "releases twice");
        dest_holds_ = false;
        break;
      case HandoffActionKind::kFailRequest:
        Expect(!action.status.ok() && !action.status.message().empty(), "fails without a reason");
        Expect(!dest_failed_ && !bound_ && !dest_cancelled_, "fails after its end");
        dest_failed_ = true;
        break;
      default:
        Expect(false, "an action of P at D");
    }
  }
}

void HandoffWorld::Expect(bool condition, const char* what) {
  if (!condition && bug_.empty()) bug_ = what;
}

void HandoffWorld::Check() {
  Expect(source_ends_ <= 1 || num_faults_ > 0, "P ends twice");
  if (source_.finished()) {
    Expect(!source_holds_ && pinned_ == 0, "P is over and holds references");
    Expect(source_ends_ >= 1, "P is over and nobody was told");
  }
  if (dest_.finished()) Expect(!dest_holds_ && !dest_pinned_, "D is over and holds references");
  if (source_.outcome() == HandoffOutcome::kApplied) {
    Expect(dest_.outcome() == HandoffOutcome::kApplied, "P is applied and D is not");
  }
  const bool dest_ended = bound_ || dest_failed_ || dest_cancelled_;
  if (!dest_holds_) Expect(dest_ended, "D let go of its blocks and nobody was told");
}

bool HandoffWorld::IsOver() const {
  return source_.finished() && dest_.finished() && !source_holds_ && pinned_ == 0 && !dest_holds_ &&
         !dest_pinned_;
}

bool HandoffWorld::RunToEnd() {
  faults_left_ = ticks_left_ = 0;
  std::vector<WorldStep> steps;
  // Time only moves when nothing else can; 64 deadlines are more than all retries together.
  for (int ticks = 0; ticks < 64 && bug_.empty();) {
    Steps(&steps);
    if (steps.empty()) {
      if (IsOver()) return true;
      ++ticks;
      Tick();
      Check();
      continue;
    }
    Do(steps.front());
  }
  return IsOver();
}

std::string HandoffWorld::ToString() const {
  return fmt::format(
      "P {} ({}) holds {} pinned {}, D {} ({}) holds {} pinned {}, sealed {}, {} + {} messages, {} "
      "slices in flight, now {}, bug '{}'",
      SourceStateName(source_.state()), HandoffOutcomeName(source_.outcome()), source_holds_,
      pinned_, DestStateName(dest_.state()), HandoffOutcomeName(dest_.outcome()), dest_holds_,
      dest_pinned_, num_sealed_, to_source_.size(), to_dest_.size(), in_flight_.size(), now_us_,
      bug_);
}

}  // namespace baton::kv
