#include "scheduler/link_health.h"

#include <algorithm>

namespace baton::scheduler {
namespace {

// Share of the newest hand-off in a link's averages: about the last ten count.
constexpr double kSpeedShare = 0.1;
// A smaller transfer is not measured: most of its time is latency.
constexpr uint64_t kMinLimitBytes = uint64_t{1} << 20;
// A link without a byte for so long may be as slow as another one of its worker.
constexpr int64_t kSuspectIdleUs = 1'000'000;
// A faster report, or one of no time at all, counts as this speed. A petabyte a second still fits
// the whole number that the topology shows.
constexpr double kMaxBytesPerS = 1e15;
// A transfer of no time at all counts as one of this time. All its slices came between two looks of
// the decode worker: the link is at least so fast.
constexpr double kUnmeasuredTransferS = 1e-3;

}  // namespace

double SecondsLeft(const KvOnItsWay& kv) {
  if (kv.bytes_per_s > 0) return static_cast<double>(kv.bytes_left) / kv.bytes_per_s;
  return kv.silent_s;
}

bool IsWorthMoving(double seconds_left, double other_way_s) {
  return seconds_left > 2 * other_way_s + kLeastGainS;
}

void LinkHealth::OnBytes(uint64_t num_bytes, int64_t now_us) {
  const int64_t slot = now_us / kSlotUs;
  const int64_t first_new = std::max(newest_slot_ + 1, slot - static_cast<int64_t>(kNumSlots) + 1);
  for (int64_t i = first_new; i <= slot; ++i) slots_[static_cast<size_t>(i) % kNumSlots] = 0;
  newest_slot_ = std::max(newest_slot_, slot);
  slots_[static_cast<size_t>(newest_slot_) % kNumSlots] += num_bytes;
  if (num_bytes > 0) last_bytes_us_ = now_us;
}

double LinkHealth::RateSince(int64_t busy_us, int64_t now_us) const {
  const int64_t now_slot = now_us / kSlotUs;
  const int64_t oldest = std::max(now_slot - static_cast<int64_t>(kNumSlots) + 1,
                                  std::max<int64_t>(busy_us, 0) / kSlotUs);
  uint64_t num_bytes = 0;
  for (int64_t i = oldest; i <= std::min(now_slot, newest_slot_); ++i) {
    const bool is_kept = i > newest_slot_ - static_cast<int64_t>(kNumSlots);
    if (is_kept) num_bytes += slots_[static_cast<size_t>(i) % kNumSlots];
  }
  const int64_t span_us = std::max(now_us - oldest * kSlotUs, kSlotUs);
  return static_cast<double>(num_bytes) * 1e6 / static_cast<double>(span_us);
}

void LinkHealth::BeginHandOff(uint64_t num_bytes) {
  open_bytes_ += num_bytes;
  ++num_open_;
}

void LinkHealth::EndHandOff(uint64_t num_bytes) {
  open_bytes_ -= std::min(open_bytes_, num_bytes);
  num_open_ -= num_open_ > 0 ? 1 : 0;
}

void LinkHealth::Suspect(int64_t now_us) {
  if (!is_proven_ || (last_bytes_us_ > 0 && now_us - last_bytes_us_ < kSuspectIdleUs)) return;
  is_proven_ = false;
  next_probe_us_ = 0;
  probing_since_us_ = -1;
}

bool LinkHealth::IsLeftAlone(int64_t now_us) const {
  if (is_proven_) return false;
  const bool no_probe_gets_room =
      probing_since_us_ >= 0 && now_us - probing_since_us_ >= kProbePatienceUs;
  return Rests(now_us) || num_open_ > 0 || !no_probe_gets_room;
}

void LinkHealth::OnProbe(int64_t now_us) {
  next_probe_us_ = now_us + kProbeEveryUs;
  if (probing_since_us_ < 0) probing_since_us_ = now_us;
}

void LinkHealth::ForgiveSilence(int64_t late_us) {
  const int64_t num_slots = late_us / kSlotUs;
  const auto shift = static_cast<std::ptrdiff_t>(num_slots % static_cast<int64_t>(kNumSlots));
  std::rotate(slots_.rbegin(), slots_.rbegin() + shift, slots_.rend());
  newest_slot_ += num_slots;
  if (last_bytes_us_ > 0) last_bytes_us_ += late_us;
}

void LinkHealth::LearnSpeed(uint64_t num_bytes, double seconds, double after_prompt_s,
                            int64_t now_us) {
  if (num_bytes == 0 || !(seconds >= 0)) return;
  if (seconds == 0) seconds = kUnmeasuredTransferS;
  const double speed = std::min(static_cast<double>(num_bytes) / seconds, kMaxBytesPerS);
  const auto learn = [speed](double* known, double share) {
    *known += *known == 0 ? speed : (speed - *known) * share;
  };
  learn(&average_bytes_per_s_, kSpeedShare);
  // KV crosses while the prompt is computed, so most samples only say what the link does at least
  // (as of a sender with little to send: Cardwell et al., "BBR", CACM 2017).
  // While a link is tried a small one has to do: else a link that is slow for large prompts would
  // be taken for healed by a small one.
  const bool is_large = num_bytes >= kMinLimitBytes || rests_until_us_ > 0;
  const bool is_limit = is_large && after_prompt_s > seconds / 2;
  const bool is_faster = limit_bytes_per_s_ > 0 && speed > limit_bytes_per_s_;
  if (!is_limit && !is_faster) return;
  learn(&limit_bytes_per_s_, IsStale(now_us) ? 1.0 : kSpeedShare);
  limit_us_ = now_us;
}

void LinkHealth::OnVerified(uint64_t num_bytes, double seconds, double after_prompt_s,
                            int64_t now_us) {
  // A speed that was measured on a bad link says nothing about a healed one.
  const bool was_bad = rests_until_us_ > 0;
  if (was_bad) average_bytes_per_s_ = limit_bytes_per_s_ = 0;
  LearnSpeed(num_bytes, seconds, after_prompt_s, now_us);
  is_proven_ = true;
  rests_until_us_ = 0;
  probing_since_us_ = -1;
  if (now_us - last_fault_us_ >= kLinkForgivenUs) num_faults_ = 0;
}

void LinkHealth::OnFault(int64_t now_us) {
  if (BeginRest(now_us)) ++num_stalls_;
}

void LinkHealth::OnStall(double bytes_per_s, int64_t now_us) {
  ++num_stalls_;
  if (bytes_per_s > 0) average_bytes_per_s_ = limit_bytes_per_s_ = bytes_per_s;
  limit_us_ = now_us;
  BeginRest(now_us);
}

bool LinkHealth::BeginRest(int64_t now_us) {
  is_proven_ = false;
  if (Rests(now_us)) return false;  // of the same time, nothing new
  if (now_us - last_fault_us_ >= kLinkForgivenUs) num_faults_ = 0;
  const int64_t rest_us = kFirstLinkRestUs << std::min(num_faults_, 10u);
  ++num_faults_;
  last_fault_us_ = now_us;
  next_probe_us_ = 0;
  probing_since_us_ = -1;
  rests_until_us_ = now_us + std::min(rest_us, kMaxLinkRestUs);
  return true;
}

}  // namespace baton::scheduler
