// ClusterWorld: routers, one prefill worker (P) and some decode workers (D) as one copyable value.
// It has the shipped state machines and naive engines, transports and block ledgers. Every order of
// its events can be explored to the end.
//
// The network is a set: what was sent once on a connection may be delivered now, later, again or
// never, in any order, until the connection ends. So loss, duplication and reordering have no
// limit. Clocks are not compared: any armed timer may fire at any moment (of one machine the
// shorter one first). Crashes, cuts of a connection and cancels draw on one budget.
//
// After each event the world checks what must never happen; Bug() names the first.
//   one writer       a block that a transport may write or read is pinned, of its generation, and
//                    in the hands of no other request
//   conservation     the references of each block are those of its holders
//   verified         D binds only what arrived whole, of the sealed prompt, after the close
//   one end          the client, and each worker's request, end exactly once
//   fenced           P applies only what D verified of the same attempt
//   state            its blocks cross once they are final, and D moves it on alone
// A side whose router died is cancelled at its worker. At rest nothing is held.
#ifndef BATON_TESTS_KVCACHE_CLUSTER_WORLD_H_
#define BATON_TESTS_KVCACHE_CLUSTER_WORLD_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/handoff.h"
#include "tests/kvcache/cluster_parts.h"

namespace baton::kv {

// One thing that may happen now.
struct ClusterStep {
  enum class Kind : uint8_t {
    kCommand,     // a = request, b = worker: its oldest command arrives
    kNotice,      // a = request, b = worker: its oldest notice arrives
    kPacket,      // a = index of the packet
    kCompute,     // a = index of the source: the next slice, then the prompt's end
    kSendClosed,  // a = source, b = send
    kSourceDown,  // a = source: the end of the connection is noticed
    kSourceTick,
    kExpireParked,   // a = index of the parked grant
    kReceiveClosed,  // a = index of the destination
    kDestDown,
    kDestTick,
    kDecode,      // the bound sequence runs to its end
    kRouterGone,  // a = request, b = worker
    kDamage,      // from here on: faults. a = index of the packet
    kCrashPrefill,
    kCrashDecode,  // a = decode worker
    kCrashRouter,  // a = request
    kCut,          // a = decode worker
    kCancel,       // a = request
  };
  Kind kind = Kind::kCommand;
  uint8_t a = 0;
  uint8_t b = 0;

  bool is_fault() const { return kind >= Kind::kDamage; }
};

// See the file comment.
class ClusterWorld {
 public:
  explicit ClusterWorld(const ClusterShape* shape);

  void Steps(std::vector<ClusterStep>* steps) const;
  void Do(const ClusterStep& step);
  const std::string& Bug() const { return bug_; }
  // Nothing is held anywhere, nobody waits for anything.
  bool IsAtRest() const;
  // All clients got their whole answers.
  bool IsDone() const;
  // The fingerprint of the state. Names of blocks and requests make no difference.
  void Fingerprint(std::string* scratch, Hash128* out) const;
  std::string ToString() const;

 private:
  // The prefill worker's use of blocks for one grant.
  struct SendSide {
    Incarnation peer;
    TransferId transfer;
    uint8_t first = 0;
    uint8_t count = 0;
    uint8_t posted = 0;  // slices given to the transport, a bit each
    bool closing = false;
    bool confirmed = false;
  };
  // The prefill worker's engine around one machine.
  struct SourceSide {
    explicit SourceSide(const SourceSpec& spec) : machine(spec) {}
    HandoffSource machine;
    int64_t now_us = 1'000'000;
    uint8_t request = 0;
    uint8_t num_sealed = 0;
    bool prompt_done = false;
    bool allocated = false;
    bool holds = false;  // request references
    bool released = false;
    bool down_pending = false;
    uint8_t num_ends = 0;
    std::array<LedgerHandle, kMaxPromptBlocks> blocks = {};
    std::vector<SendSide> sends;
  };
  // The decode worker's engine around one machine.
  struct DestSide {
    explicit DestSide(DestSpec spec) : machine(std::move(spec)) {}
    HandoffDest machine;
    int64_t now_us = 1'000'000;
    uint8_t request = 0;
    uint8_t decode = 0;
    uint8_t attempt = 0;
    uint8_t received = 0;  // a bit a slice
    bool holds = true;
    bool pinned = false;
    bool open = false;
    bool closing = false;
    bool bound = false;
    bool told_verified = false;
    bool down_pending = false;
    uint8_t num_ends = 0;  // bound, failed or cancelled
    std::array<LedgerHandle, kMaxCrossingBlocks> blocks = {};
  };
  // The router's part of one request. Worker 0 is the prefill worker, 1 + i is decode worker i.
  struct RouterSide {
    HandoffRequest machine;
    bool alive = true;
    bool prefill_live = false;
    bool decode_live = false;
    uint8_t decode = 0;
    uint8_t known = 0;  // tokens
    uint8_t num_told = 0;
    uint8_t gone_pending = 0;  // a bit a worker: the router died and the worker does not know
    std::array<std::vector<Command>, 3> commands;
    std::array<std::vector<Notice>, 3> notices;
  };

  // cluster_router.cc
  void Place(uint8_t request);
  void OnCommandAtPrefill(uint8_t request, const Command& command);
  void OnCommandAtDecode(uint8_t request, const Command& command);
  void OnNotice(uint8_t request, uint8_t worker, const Notice& notice);
  void Lose(uint8_t request, const RecoverDecision& decision);
  void Finish(uint8_t request, const RequestOrders& orders);
  void Release(uint8_t request, bool keep_prefill);
  void DoFault(const ClusterStep& step);
  void CrashPrefill();
  void CrashDecode(uint8_t decode);
  void CutConnection(uint8_t decode);
  void OnRouterGone(uint8_t request, uint8_t worker);
  void Tell(uint8_t request, uint8_t worker, Notice notice);
  void ClearPackets(std::optional<uint8_t> decode);

  // cluster_world.cc, and from Tick on cluster_check.cc
  void AddPacketSteps(std::vector<ClusterStep>* steps) const;
  void AddFaultSteps(std::vector<ClusterStep>* steps) const;
  // Runs one event of a machine and does its actions.
  template <typename Event>
  void At(SourceSide& side, Event&& event) {
    HandoffActions actions;
    event(&actions);
    for (const HandoffAction& action : actions) ApplySource(side, action);
  }
  template <typename Event>
  void At(DestSide& side, Event&& event) {
    HandoffActions actions;
    event(&actions);
    for (const HandoffAction& action : actions) ApplyDest(side, action);
  }
  void ApplySource(SourceSide& side, const HandoffAction& action);
  void ApplyDest(DestSide& side, const HandoffAction& action);
  void Pin(SourceSide& side, const HandoffAction& action);
  void Export(SourceSide& side, const HandoffAction& action);
  void Unpin(SourceSide& side, const HandoffAction& action);
  void Bind(DestSide& side);
  void DropBlocks(DestSide& side);
  void DoAtDest(const ClusterStep& step);
  void Compute(SourceSide& side);
  void StartSource(uint8_t request, const Command& command);
  void StartDest(uint8_t request, uint8_t decode, const Command& command);
  void CancelSource(SourceSide& side);
  void CancelDest(DestSide& side);
  void Deliver(const Packet& packet);
  void DeliverToPrefill(const Packet& packet);
  void DeliverToDecode(const Packet& packet);
  void DeliverSlice(const Packet& packet, bool damaged);
  void Send(const Packet& packet);
  void RefuseUnknown(const Packet& packet);
  Packet Encode(const HandoffMessage& message, uint8_t request, uint8_t decode, bool to_prefill);
  HandoffMessage Decode(const Packet& packet) const;
  template <typename Side>
  void Tick(Side& side);
  const SourceSide* FindSource(uint8_t request, uint32_t attempt) const;
  SourceSide* FindSource(uint8_t request, uint32_t attempt);
  const DestSide* FindDest(uint8_t request, uint8_t decode, uint32_t attempt) const;
  DestSide* FindDest(uint8_t request, uint8_t decode, uint32_t attempt);
  std::optional<uint8_t> DecodeOf(Incarnation life) const;
  Incarnation LifeOf(uint8_t decode) const;
  void EraseFinished();
  void DropDeadPackets();
  // Something may still come of messages of this attempt.
  bool IsRelevant(uint8_t request, uint8_t attempt) const;
  bool WillStart(uint8_t request, uint8_t attempt) const;
  bool IsDead(const Packet& packet) const;
  void Check();
  void CheckSides();
  void CheckLedgers();
  void Expect(bool condition, const char* what);
  void AppendRequest(uint8_t request, std::string* out) const;

  const ClusterShape* shape_;
  uint8_t faults_left_ = 0;
  uint8_t prefill_life_ = 0;
  std::array<uint8_t, 2> decode_life_ = {};
  Ledger prefill_ledger_;
  std::array<Ledger, 2> decode_ledgers_;
  std::vector<RouterSide> routers_;  // by request
  std::vector<SourceSide> sources_;
  std::vector<DestSide> dests_;
  std::vector<Packet> packets_;  // sorted
  std::vector<Packet> parked_;   // grants at the prefill worker before their request
  // A bit an attempt: the decode worker verified it.
  std::array<uint8_t, 2> verified_ = {};
  std::string bug_;
};

}  // namespace baton::kv

#endif  // BATON_TESTS_KVCACHE_CLUSTER_WORLD_H_
