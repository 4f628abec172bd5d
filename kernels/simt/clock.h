// Vector clocks of simulated threads. Within a cta a clock has one entry for each slot: its
// threads, the asynchronous copies of each thread (they happen on their own), its mbarriers (on
// which bulk copies land), and the products of its warpgroups. The knowledge of other ctas is kept
// per cta, and there is usually none. Owned by one run.
#ifndef BATON_KERNELS_SIMT_CLOCK_H_
#define BATON_KERNELS_SIMT_CLOCK_H_

#include <cstdint>
#include <vector>

namespace baton::kernels::simt {
inline namespace runner {

inline constexpr uint32_t kMaxMbarriers = 64;

inline constexpr uint32_t kMaxWarpgroups = 8;

// Slots of a cta with n threads: [0, n) threads, [n, 2n) their copies, then the mbarriers, then the
// warpgroups.
constexpr uint32_t FirstWarpgroupSlot(uint32_t num_threads) {
  return 2 * num_threads + kMaxMbarriers;
}
constexpr uint32_t NumSlots(uint32_t num_threads) {
  return FirstWarpgroupSlot(num_threads) + kMaxWarpgroups;
}

// A moment of one slot: [cta 20][slot 12][clock 30][atomic 1][0]. Zero is "never".
struct Epoch {
  uint64_t bits = 0;

  static Epoch Of(uint32_t cta, uint32_t slot, uint32_t clock, bool atomic) {
    return {uint64_t{cta} << 44 | uint64_t{slot} << 32 | uint64_t{clock} << 2 |
            (atomic ? uint64_t{2} : 0)};
  }
  uint32_t cta() const { return static_cast<uint32_t>(bits >> 44); }
  uint32_t slot() const { return static_cast<uint32_t>(bits >> 32) & 0xFFFu; }
  uint32_t clock() const { return static_cast<uint32_t>(bits) >> 2; }
  bool atomic() const { return (bits & 2) != 0; }
  bool IsSet() const { return bits != 0; }
};

// The events that one thread knows to have happened, or that a release published.
class VectorClock {
 public:
  VectorClock() = default;
  VectorClock(uint32_t cta, uint32_t num_slots) : cta_(cta), local_(num_slots, 0) {}

  uint32_t Local(uint32_t slot) const { return slot < local_.size() ? local_[slot] : 0; }
  void Raise(uint32_t slot, uint32_t clock) {
    if (local_[slot] < clock) local_[slot] = clock;
  }
  void Tick(uint32_t slot) { ++local_[slot]; }
  // True when what `epoch` names is known here.
  bool Knows(Epoch epoch) const {
    if (epoch.cta() == cta_) return Local(epoch.slot()) >= epoch.clock();
    return KnowsForeign(epoch);
  }
  // Afterwards everything that `other` knows is known here. A default clock knows nothing and
  // becomes a copy.
  void Join(const VectorClock& other);
  // Afterwards only what both know of their cta is known here; nothing of other ctas.
  void Meet(const VectorClock& other);

 private:
  // The events that are known of another cta.
  struct Foreign {
    uint32_t cta;
    std::vector<uint32_t> slots;
  };
  bool KnowsForeign(Epoch epoch) const;
  void JoinCta(uint32_t cta, const std::vector<uint32_t>& slots);

  uint32_t cta_ = 0;
  std::vector<uint32_t> local_;
  std::vector<Foreign> foreign_;
};

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_CLOCK_H_
