// CommEnder: ends communicators, each in a thread of its own ("kv-nccl-end"). NCCL's abort and
// destroy wait: for its own threads, for kernels, for memory that is freed, perhaps for the other
// side. The thread that serves all peers must not wait, and no end may wait for another.
//
// Owned by one thread. Invariants
//  1. NCCL touches no memory of ours for a communicator once its End says so.
//  2. One that ends in agreement with the other side has kFinishTime for it; then it is aborted.
//  3. Communicators whose end is not over are counted (num_ending). The caller bounds the ends:
//     there are no more than communicators of the device, and one of a peer and direction.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_COMM_ENDER_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_COMM_ENDER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache/transport/nccl/nccl_comm.h"
#include "src/base/thread.h"
#include "src/device/accelerator.h"

namespace baton::kv {

// See the file comment.
class CommEnder {
 public:
  // The end of one communicator. A default one has no communicator and is over.
  class End {
   public:
    End() = default;
    bool IsOver() const { return is_over_ == nullptr || is_over_->load(std::memory_order_acquire); }

   private:
    friend class CommEnder;
    explicit End(std::shared_ptr<const std::atomic<bool>> is_over) : is_over_(std::move(is_over)) {}
    std::shared_ptr<const std::atomic<bool>> is_over_;
  };

  // `device` outlives it.
  explicit CommEnder(device::Accelerator* device) : device_(device) {}
  // Stops.
  ~CommEnder() { Stop(); }
  CommEnder(const CommEnder&) = delete;
  CommEnder& operator=(const CommEnder&) = delete;

  // Nothing of it is waited for; `comm` may be null.
  End Abort(std::unique_ptr<NcclComm> comm) { return Add(std::move(comm), /*agrees=*/false); }
  // Nothing is under way over `comm`.
  End Finish(std::unique_ptr<NcclComm> comm) { return Add(std::move(comm), /*agrees=*/true); }
  // Any thread.
  uint32_t num_ending() const { return num_ending_.load(std::memory_order_acquire); }
  // Number of communicators that have ended so far, which only grows.
  uint64_t num_ended() const { return num_ended_.load(std::memory_order_acquire); }
  // Aborts what is left and waits until it is gone. Idempotent; nothing may be added after it.
  void Stop();

 private:
  static constexpr std::chrono::microseconds kFinishTime{1'000'000};
  // Between two looks at what ends in agreement.
  static constexpr std::chrono::milliseconds kPause{1};

  // A thread that ends one communicator, or has.
  struct Ending {
    End end;
    Thread thread;
  };

  End Add(std::unique_ptr<NcclComm> comm, bool agrees);
  void Run(std::unique_ptr<NcclComm> comm, bool agrees);

  device::Accelerator* const device_;
  std::atomic<uint32_t> num_ending_ = 0;
  std::atomic<uint64_t> num_ended_ = 0;
  std::atomic<bool> stops_ = false;
  std::vector<Ending> endings_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_COMM_ENDER_H_
