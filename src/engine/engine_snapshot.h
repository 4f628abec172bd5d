// EngineSnapshot: the engine's numbers as of its last iteration, for load reports and metrics; and
// SnapshotCell, by which one thread publishes such a value to any number of readers without a lock.
#ifndef BATON_ENGINE_ENGINE_SNAPSHOT_H_
#define BATON_ENGINE_ENGINE_SNAPSHOT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kvcache/block_pool.h"
#include "kvcache/handoff_action.h"
#include "kvcache/prefix_index.h"
#include "scheduler/scheduler.h"
#include "src/engine/engine_types.h"

namespace baton::engine {

inline constexpr size_t kNumRequestStates = static_cast<size_t>(RequestState::kCancelled) + 1;
inline constexpr size_t kNumHandoffOutcomes =
    static_cast<size_t>(kv::HandoffOutcome::kPeerGaveUp) + 1;

// Numbers of one engine; counters start at 0 with the engine and only grow.
struct EngineSnapshot {
  kv::BlockCounts blocks;
  scheduler::SchedulerLoad scheduler;
  kv::PrefixStats prefix;
  uint32_t num_requests = 0;        // live: accepted and not ended
  uint32_t num_open_transfers = 0;  // hand-offs that hold blocks
  uint32_t num_sessions = 0;        // with live requests
  bool draining = false;
  int64_t decode_step_us = 0;      // average of a decode-only step, 0 = none yet
  float prefill_tokens_per_s = 0;  // 0 = none yet
  int64_t updated_us = 0;          // when the loop last turned

  uint64_t num_events = 0;  // handled
  uint64_t num_steps = 0;
  uint64_t num_steps_ahead = 0;   // of them, begun before the one before them had ended
  uint64_t num_wasted_rows = 0;   // of those, rows of choices that had ended
  uint64_t num_late_masks = 0;    // rows computed again: the mask of their token was not there
  uint64_t proposed_tokens = 0;   // guesses that were verified
  uint64_t accepted_tokens = 0;   // of them, those that were right and saved a step
  uint64_t prompt_tokens = 0;     // accepted
  uint64_t computed_tokens = 0;   // prompt and replayed tokens computed here
  uint64_t generated_tokens = 0;  // sampled here
  uint64_t stale_events = 0;      // void messages of peers and routers
  uint64_t bad_slices = 0;        // refused: checksum or generation
  uint64_t chain_mismatches = 0;
  uint64_t kv_bytes_received = 0;  // of transfers that were bound
  uint64_t kv_bytes_sent = 0;      // of slices offered
  uint64_t exported_in_step = 0;   // slices offered while their step was still computing
  // Times of the hand-offs that a decode worker took over: from the first slice that was offered
  // until then, and the part of it after the end of the prompt.
  int64_t transfer_us = 0;
  int64_t exposed_us = 0;
  std::array<uint64_t, kNumRequestStates> states{};      // reached by requests
  std::array<uint64_t, kNumHandoffOutcomes> outcomes{};  // of hand-offs

  // Rates over the last steps; 0 = none yet.
  float decode_bytes_per_s = 0;   // weights and KV that decode-only steps had to read, a second
  float prefill_flops_per_s = 0;  // of prefill-only steps, without attention

  // The first `num_posted` events of the inbox were handled.
  bool HasTaken(uint64_t num_posted) const { return num_events >= num_posted; }
  // They were, and nothing runs or is open here.
  bool IsIdleAfter(uint64_t num_posted) const {
    return HasTaken(num_posted) && num_requests == 0 && num_open_transfers == 0;
  }
};

// A value written by one thread and read by any: a sequence lock over relaxed atomic words, so that
// the writer never waits. Readers repeat while a write is under way (well below a microsecond).
template <typename T>
class SnapshotCell {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // The one writer.
  void Publish(const T& value) {
    std::array<uint64_t, kNumWords> words{};
    std::memcpy(words.data(), &value, sizeof(T));
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Release stores instead of a fence, which ThreadSanitizer does not model: a reader that sees
    // one of these words also sees the odd version.
    for (size_t i = 0; i < kNumWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  // Any thread.
  T Read() const {
    std::array<uint64_t, kNumWords> words{};
    while (true) {
      const uint64_t before = version_.load(std::memory_order_acquire);
      for (size_t i = 0; i < kNumWords; ++i) {
        words[i] = words_[i].load(std::memory_order_acquire);
      }
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) break;
    }
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(T));
    return value;
  }

 private:
  static constexpr size_t kNumWords = (sizeof(T) + 7) / 8;
  std::atomic<uint64_t> version_{0};
  std::array<std::atomic<uint64_t>, kNumWords> words_{};
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_SNAPSHOT_H_
