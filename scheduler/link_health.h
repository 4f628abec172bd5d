// LinkHealth: what a router knows of the data connection of one prefill worker and one decode
// worker. It knows the link's speed and the KV under way on it. It also knows whether the link is
// left alone because hand-offs over it failed or were slow. Pure; time is an argument. The router's
// thread.
//
//   good --fault or stall--> resting 1, 2, 4, 8 s --> a probe tries it --good--> good
//                              ^---------------------fault or stall---'
//
// Invariants
//  1. A link that failed carries no client's KV until a probe over it was good. A probe is a short
//     prompt of the router's own. Where no probe finds room for kProbePatienceUs, one client's
//     hand-off tries the link.
//  2. A rest lasts at most kMaxLinkRestUs. After it, a probe or a client's hand-off tries the link
//     within kProbePatienceUs, so that a healed link is found within 10 s.
//  3. EndHandOff takes away what one BeginHandOff counted; OnBytes changes neither.
#ifndef BATON_SCHEDULER_LINK_HEALTH_H_
#define BATON_SCHEDULER_LINK_HEALTH_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace baton::scheduler {

// How long a link rests after its first bad hand-off; doubled with each further one. The longest
// rest and a placement fit in the 10 s in which a healed link has to carry KV again.
inline constexpr int64_t kFirstLinkRestUs = 1'000'000;
inline constexpr int64_t kMaxLinkRestUs = 8'000'000;
// A link without a fault for so long begins again with the first rest.
inline constexpr int64_t kLinkForgivenUs = 30'000'000;
// A measured speed is trusted for so long after it was last found. Nothing is placed on a link that
// is taken for slow, so only a probe finds out that it is fast again.
inline constexpr int64_t kSpeedTrustedUs = kMaxLinkRestUs;
// The least time between two probes of one link: the first may have found no room.
inline constexpr int64_t kProbeEveryUs = 250'000;
// After a probe whose prompt was not computed in its time, which says nothing of the link.
inline constexpr int64_t kProbePauseUs = 3'000'000;
// A client's hand-off tries a link for which no probe found room for so long. Together with the
// longest rest it is less than 10 s.
inline constexpr int64_t kProbePatienceUs = 1'500'000;

// A prompt that is computed and whose KV is not at the decode worker yet.
struct KvOnItsWay {
  uint64_t bytes_left = 0;  // its own and those of the hand-offs before it on the link
  double bytes_per_s = 0;   // of the link lately; 0 = no byte came
  double silent_s = 0;      // since a byte came over the link, or since it had any to carry
};
// When it will be there: as fast as lately; without a byte lately, as long again as none came.
double SecondsLeft(const KvOnItsWay& kv);
// Another way is worth it when it needs `other_way_s`: it would be there in less than half the
// time, and by more than kLeastGainS sooner. Both ends of a link may be late for a while without
// it being slow: they share a processor with others.
inline constexpr double kLeastGainS = 0.5;
bool IsWorthMoving(double seconds_left, double other_way_s);

// See the file comment.
class LinkHealth {
 public:
  // `num_bytes` of KV arrived at the decode worker.
  void OnBytes(uint64_t num_bytes, int64_t now_us);
  // Bytes a second of the last second, or of the part of it since `busy_us`.
  double RateSince(int64_t busy_us, int64_t now_us) const;
  int64_t last_bytes_us() const { return last_bytes_us_; }

  // A hand-off of so many bytes starts; it ended, in whatever way.
  void BeginHandOff(uint64_t num_bytes);
  void EndHandOff(uint64_t num_bytes);
  uint64_t open_bytes() const { return open_bytes_; }

  // The decode worker has all of a hand-off: `after_prompt_s` of its `seconds` came after the end
  // of the prompt's computing.
  void OnVerified(uint64_t num_bytes, double seconds, double after_prompt_s, int64_t now_us);
  // A hand-off failed; those that fail while the link rests are of the same time.
  void OnFault(int64_t now_us);
  // A hand-off was given up, or was late, at this speed (0 = not known): counted, and a fault.
  void OnStall(double bytes_per_s, int64_t now_us);
  // Another link of its prefill worker was slow: a probe tells whether this one is. No fault. A
  // link that carried bytes within the last second is not suspected.
  void Suspect(int64_t now_us);

  bool Rests(int64_t now_us) const { return now_us < rests_until_us_; }
  // No client's hand-off now: none was good since the last fault or suspicion, and a probe is on
  // its way or may still find room.
  bool IsLeftAlone(int64_t now_us) const;
  // It is left alone, and no hand-off over it has failed since one was good.
  bool IsSuspected() const { return !is_proven_ && rests_until_us_ == 0; }
  // Its speed was found long ago, or never.
  bool IsStale(int64_t now_us) const { return now_us - limit_us_ >= kSpeedTrustedUs; }
  // A probe may try it now. `is_slow`: at its measured speed, KV takes longer to cross than to
  // compute.
  bool WantsProbe(bool is_slow, int64_t now_us) const {
    const bool is_asked = !is_proven_ || (is_slow && IsStale(now_us));
    return is_asked && !Rests(now_us) && num_open_ == 0 && now_us >= next_probe_us_;
  }
  // A probe is tried now; it may find no room.
  void OnProbe(int64_t now_us);
  void OnProbeVerified(int64_t now_us) { next_probe_us_ = now_us + kSpeedTrustedUs; }
  void OnProbeUnanswered(int64_t now_us) { next_probe_us_ = now_us + kProbePauseUs; }
  // The router stood still for so long, and heard no byte of that time.
  void ForgiveSilence(int64_t late_us);
  int64_t rests_until_us() const { return rests_until_us_; }
  uint32_t num_faults() const { return num_faults_; }
  // Hand-offs that were slow, and times that one failed.
  uint64_t num_stalls() const { return num_stalls_; }
  // Over recent hand-offs; 0 = not measured.
  double average_bytes_per_s() const { return average_bytes_per_s_; }
  // Speed of the link in hand-offs that took longer than computing their prompts; 0 = none did.
  double limit_bytes_per_s() const { return limit_bytes_per_s_; }

 private:
  // Bytes by time, in a ring of eighths of a second.
  static constexpr size_t kNumSlots = 8;
  static constexpr int64_t kSlotUs = 125'000;
  bool BeginRest(int64_t now_us);  // false: it rests already
  void LearnSpeed(uint64_t num_bytes, double seconds, double after_prompt_s, int64_t now_us);

  std::array<uint64_t, kNumSlots> slots_{};
  int64_t newest_slot_ = 0;  // its number since time 0; slots_ holds it and the seven before
  int64_t last_bytes_us_ = 0;
  uint64_t open_bytes_ = 0;
  uint32_t num_open_ = 0;
  double average_bytes_per_s_ = 0;
  double limit_bytes_per_s_ = 0;
  int64_t limit_us_ = 0;     // when that was last found
  bool is_proven_ = true;    // since the last fault or suspicion; true before the first
  uint32_t num_faults_ = 0;  // without kLinkForgivenUs between two of them
  uint64_t num_stalls_ = 0;
  int64_t last_fault_us_ = 0;
  int64_t rests_until_us_ = 0;
  int64_t next_probe_us_ = 0;
  int64_t probing_since_us_ = -1;  // first try since the last fault or suspicion; -1 = none
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_LINK_HEALTH_H_
