// FaultTransport: a KvTransport that hands everything on to another one and, by a seed, damages
// some of the slices and control messages on their way out.
#ifndef BATON_TESTS_KVCACHE_TRANSPORT_FAULT_TRANSPORT_H_
#define BATON_TESTS_KVCACHE_TRANSPORT_FAULT_TRANSPORT_H_

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/transport/kv_transport.h"
#include "src/base/mutex.h"

namespace baton::kv {

// Share of outgoing items (0..1) that meet each fault.
struct FaultRatios {
  double drop_slice = 0;
  double duplicate_slice = 0;
  double corrupt_slice = 0;  // offered with a wrong checksum, so the receiver finds the bytes bad
  double delay_slice = 0;    // held back until the next call or Release
  double drop_control = 0;
  double duplicate_control = 0;
};

// How often each fault was done.
struct FaultCounts {
  uint64_t dropped = 0;
  uint64_t duplicated = 0;
  uint64_t corrupted = 0;
  uint64_t delayed = 0;
};

// See the file comment. Any thread. The mutex is held for dealing out faults, not while the inner
// transport is called.
class FaultTransport final : public KvTransport {
 public:
  // `inner` outlives it. Equal seeds and equal calls give equal faults.
  FaultTransport(KvTransport* inner, const FaultRatios& ratios, uint64_t seed)
      : inner_(inner), ratios_(ratios), random_(seed) {}

  Status Start(KvTransportSink* sink) override { return inner_->Start(sink); }
  void Stop() override { inner_->Stop(); }
  void CloseReceive(TransferId transfer) override { inner_->CloseReceive(transfer); }
  Status OpenReceive(ReceiveSpec spec) override { return inner_->OpenReceive(std::move(spec)); }
  TransportStats Stats() const override { return inner_->Stats(); }
  std::vector<LinkInfo> Links() const override { return inner_->Links(); }

  Status SendControl(Incarnation peer, std::string bytes) override {
    bool twice = false;
    {
      MutexLock lock(mutex_);
      if (Happens(ratios_.drop_control)) {
        ++counts_.dropped;
        return OkStatus();
      }
      twice = Happens(ratios_.duplicate_control);
      if (twice) ++counts_.duplicated;
    }
    Status status;
    if (twice) status = inner_->SendControl(peer, bytes);
    status.Update(inner_->SendControl(peer, std::move(bytes)));
    return status;
  }

  Status SendSlices(Incarnation peer, std::span<const SliceRef> slices) override {
    std::vector<SliceRef> out;
    {
      MutexLock lock(mutex_);
      TakeHeldLocked(peer, &out);
      for (const SliceRef& slice : slices) DealLocked(peer, slice, &out);
    }
    return out.empty() ? OkStatus() : inner_->SendSlices(peer, out);
  }

  void CloseSend(Incarnation peer, TransferId transfer) override {
    {
      MutexLock lock(mutex_);
      std::erase_if(held_, [&](const HeldSlice& held) {
        return held.peer == peer && held.slice.transfer == transfer;
      });
    }
    inner_->CloseSend(peer, transfer);
  }

  // Sends the slices that are held back.
  void Release() {
    std::vector<HeldSlice> slices;
    {
      MutexLock lock(mutex_);
      std::swap(slices, held_);
    }
    // A peer that is gone meanwhile gets nothing: its transfers ended with it.
    for (const HeldSlice& held : slices) {
      inner_->SendSlices(held.peer, {&held.slice, 1}).IgnoreError();
    }
  }

  FaultCounts Counts() const {
    MutexLock lock(mutex_);
    return counts_;
  }

 private:
  // A delayed slice.
  struct HeldSlice {
    Incarnation peer;
    SliceRef slice;
  };

  bool Happens(double ratio) BATON_REQUIRES(mutex_) {
    // 53 random bits, so that the draw is the same with every standard library.
    const double draw = static_cast<double>(random_() >> 11) * 0x1p-53;
    return draw < ratio;
  }

  void TakeHeldLocked(Incarnation peer, std::vector<SliceRef>* out) BATON_REQUIRES(mutex_) {
    std::erase_if(held_, [&](const HeldSlice& held) {
      if (held.peer != peer) return false;
      out->push_back(held.slice);
      return true;
    });
  }

  void DealLocked(Incarnation peer, SliceRef slice, std::vector<SliceRef>* out)
      BATON_REQUIRES(mutex_) {
    if (Happens(ratios_.drop_slice)) {
      ++counts_.dropped;
      return;
    }
    if (Happens(ratios_.delay_slice)) {
      ++counts_.delayed;
      held_.push_back({peer, slice});
      return;
    }
    if (Happens(ratios_.corrupt_slice)) {
      ++counts_.corrupted;
      slice.checksum ^= 1;  // the receiver finds bytes that do not match
    }
    out->push_back(slice);
    if (Happens(ratios_.duplicate_slice)) {
      ++counts_.duplicated;
      out->push_back(slice);
    }
  }

  KvTransport* const inner_;
  const FaultRatios ratios_;
  mutable Mutex mutex_;
  std::mt19937_64 random_ BATON_GUARDED_BY(mutex_);
  std::vector<HeldSlice> held_ BATON_GUARDED_BY(mutex_);
  FaultCounts counts_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::kv

#endif  // BATON_TESTS_KVCACHE_TRANSPORT_FAULT_TRANSPORT_H_
