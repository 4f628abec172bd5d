#include "kvcache/transport/fault_transport.h"

#include <random>
#include <utility>
#include <vector>

#include "src/base/mutex.h"

namespace baton::kv {
namespace {

// Flipped in the checksum of a corrupted slice: the receiver finds bytes that do not match.
constexpr uint64_t kChecksumDamage = 1;

// The decorator. The mutex is held for dealing out faults, not while the inner transport is called.
class FaultTransportImpl final : public FaultTransport {
 public:
  FaultTransportImpl(KvTransport* inner, const FaultRatios& ratios, uint64_t seed)
      : inner_(inner), ratios_(ratios), random_(seed) {}

  Status Start(KvTransportSink* sink) override { return inner_->Start(sink); }
  void Stop() override { inner_->Stop(); }
  void CloseReceive(TransferId transfer) override { inner_->CloseReceive(transfer); }
  Status OpenReceive(ReceiveSpec spec) override { return inner_->OpenReceive(std::move(spec)); }
  TransportStats Stats() const override { return inner_->Stats(); }
  std::vector<LinkInfo> Links() const override { return inner_->Links(); }

  Status SendControl(Incarnation peer, std::string bytes) override {
    std::vector<HeldControl> out;
    {
      MutexLock lock(mutex_);
      std::swap(out, held_controls_);
      if (Happens(ratios_.drop_control)) {
        ++counts_.dropped;
      } else if (Happens(ratios_.delay_control)) {
        ++counts_.delayed;
        held_controls_.push_back({peer, std::move(bytes)});
      } else {
        const bool twice = Happens(ratios_.duplicate_control);
        if (twice) out.push_back({peer, bytes});
        if (twice) ++counts_.duplicated;
        out.push_back({peer, std::move(bytes)});
      }
    }
    Status status;
    for (HeldControl& control : out) {
      status.Update(inner_->SendControl(control.peer, std::move(control.bytes)));
    }
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
      std::erase_if(held_slices_, [&](const HeldSlice& held) {
        return held.peer == peer && held.slice.transfer == transfer;
      });
    }
    inner_->CloseSend(peer, transfer);
  }

  void Release() override {
    std::vector<HeldControl> controls;
    std::vector<HeldSlice> slices;
    {
      MutexLock lock(mutex_);
      std::swap(controls, held_controls_);
      std::swap(slices, held_slices_);
    }
    // A peer that is gone meanwhile gets nothing: its transfers ended with it.
    for (HeldControl& control : controls) {
      inner_->SendControl(control.peer, std::move(control.bytes)).IgnoreError();
    }
    for (const HeldSlice& held : slices) {
      inner_->SendSlices(held.peer, {&held.slice, 1}).IgnoreError();
    }
  }

  FaultCounts Counts() const override {
    MutexLock lock(mutex_);
    return counts_;
  }

 private:
  // A delayed message or slice.
  struct HeldControl {
    Incarnation peer;
    std::string bytes;
  };
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
    std::erase_if(held_slices_, [&](const HeldSlice& held) {
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
      held_slices_.push_back({peer, slice});
      return;
    }
    if (Happens(ratios_.corrupt_slice)) {
      ++counts_.corrupted;
      slice.checksum ^= kChecksumDamage;
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
  std::vector<HeldControl> held_controls_ BATON_GUARDED_BY(mutex_);
  std::vector<HeldSlice> held_slices_ BATON_GUARDED_BY(mutex_);
  FaultCounts counts_ BATON_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<FaultTransport> FaultTransport::Create(KvTransport* inner,
                                                       const FaultRatios& ratios, uint64_t seed) {
  return std::make_unique<FaultTransportImpl>(inner, ratios, seed);
}

}  // namespace baton::kv
