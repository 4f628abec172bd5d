// HandoffWorld: one HandoffSource, one HandoffDest, their transports and a lossy network as one
// copyable value, so that tests can walk every order of events or random ones. The transports are
// naive models of KvTransport's promises (pull: a slice is read when it is delivered).
//
// After every event the world checks what must never happen (Bug() names it).
#ifndef BATON_TESTS_KVCACHE_HANDOFF_WORLD_H_
#define BATON_TESTS_KVCACHE_HANDOFF_WORLD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/handoff.h"

namespace baton::kv {

// Size and fault budgets of a world.
struct WorldShape {
  uint32_t num_blocks = 1;
  uint32_t num_layers = 1;
  uint32_t num_choices = 1;
  uint32_t faults = 0;       // drops, duplicates, damages, cancels, connection losses
  uint32_t ticks = 0;        // jumps of time to the next deadline
  bool wrong_chain = false;  // the prefill worker computes another prompt

  friend bool operator==(const WorldShape&, const WorldShape&) = default;
};

// One thing that may happen now.
struct WorldStep {
  enum class Kind : uint8_t {
    kStartSource,  // the router's StartPrefill reaches the prefill worker
    kSealNext,     // the prefill worker computes the next slice
    kPromptDone,
    kToSource,  // deliver message `idx`
    kToDest,
    kSlice,  // deliver slice `idx`
    kSendClosed,
    kReceiveClosed,
    kDropToSource,  // from here on: faults
    kDropToDest,
    kCopyToSource,
    kCopyToDest,
    kDropSlice,
    kDamageSlice,
    kCancelSource,
    kCancelDest,
    kCutConnection,
    kDownAtSource,  // the cut is noticed
    kDownAtDest,
    kTick,
  };
  Kind kind = Kind::kTick;
  uint32_t idx = 0;
};

// See the file comment.
class HandoffWorld {
 public:
  explicit HandoffWorld(const WorldShape& shape);

  // Everything that may happen now, within the budgets.
  void Steps(std::vector<WorldStep>* steps) const;
  void Do(const WorldStep& step);
  // Ends all faults and lets everything run to its end; false when it does not come to one.
  bool RunToEnd();

  const std::string& bug() const { return bug_; }
  // Both sides are over and hold nothing.
  bool IsOver() const;
  bool WasBound() const { return bound_; }
  // Whatever was lost, damaged or repeated so far, the protocol can mend it.
  bool repairable() const { return source_ends_ == 0 && !dest_cancelled_ && connected_; }
  const HandoffSource& source() const { return source_; }
  const HandoffDest& dest() const { return dest_; }
  std::string ToString() const;

  friend bool operator==(const HandoffWorld&, const HandoffWorld&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const HandoffWorld& w) {
    return H::combine(std::move(state), w.source_, w.dest_, w.in_flight_.size(),
                      w.to_source_.size(), w.to_dest_.size(), w.received_, w.num_faults_,
                      w.faults_left_, w.ticks_left_, w.now_us_, w.started_, w.source_closing_,
                      w.dest_closing_);
  }

 private:
  void DoFault(const WorldStep& step);
  // Runs one event of a machine and does its actions.
  template <typename Event>
  void AtSource(Event&& event);
  template <typename Event>
  void AtDest(Event&& event);
  void ApplySource(const HandoffActions& actions);
  void ApplyDest(const HandoffActions& actions);
  void Export(const SliceRange& slices);
  void DeliverToSource(const HandoffMessage& message);
  void Deliver(SliceId slice, bool damaged);
  void Tick();
  void Check();
  void Expect(bool condition, const char* what);
  uint32_t num_slices() const { return shape_.num_blocks * shape_.num_layers; }
  Seal MakeSeal() const;

  WorldShape shape_;
  HandoffSource source_;
  HandoffDest dest_;
  int64_t now_us_ = 1'000'000;
  uint32_t faults_left_ = 0;
  uint32_t ticks_left_ = 0;
  uint32_t num_faults_ = 0;
  std::string bug_;
  // The prefill worker's engine and transport.
  bool started_ = false;
  std::optional<Grant> parked_;
  uint32_t num_sealed_ = 0;
  bool prompt_done_ = false;
  bool source_holds_ = true;  // the request's references
  uint32_t pinned_ = 0;       // transfer references
  bool source_closing_ = false;
  uint32_t source_ends_ = 0;  // CompleteRequest, FailRequest, own cancel
  bool source_down_pending_ = false;
  // The decode worker's engine and transport.
  bool dest_holds_ = true;
  bool dest_pinned_ = false;
  bool dest_open_ = false;  // frames are taken
  bool dest_closing_ = false;
  bool bound_ = false;
  bool dest_failed_ = false;
  bool dest_cancelled_ = false;
  bool dest_down_pending_ = false;
  std::vector<bool> received_;  // [block][layer], verified
  // The network.
  bool connected_ = true;
  std::vector<HandoffMessage> to_source_;
  std::vector<HandoffMessage> to_dest_;
  std::vector<SliceId> in_flight_;
};

}  // namespace baton::kv

#endif  // BATON_TESTS_KVCACHE_HANDOFF_WORLD_H_
