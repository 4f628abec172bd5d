// Two ranks of the loopback in one process, for its own tests.
#ifndef BATON_TESTS_NCCL_LOOPBACK_PAIR_H_
#define BATON_TESTS_NCCL_LOOPBACK_PAIR_H_

#include <chrono>
#include <thread>
#include <vector>

#include "src/device/host_stream.h"
#include "tests/nccl/loopback_library.h"
#include "tests/patience.h"

namespace baton::kv::nccl_test {

// Asks until `condition` holds; false after a limit that only a broken test reaches.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20) * kPatienceFactor;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

inline nccl::Result PollOnce(nccl::Comm* comm) {
  nccl::Result result = nccl::kInternalError;
  const nccl::Result call = LoopbackTable().ncclCommGetAsyncError(comm, &result);
  return call == nccl::kSuccess ? result : call;
}

inline nccl::Config NonBlocking() {
  nccl::Config config;
  config.blocking = 0;
  return config;
}

// Rank 0 sends, rank 1 receives.
struct Pair {
  nccl::Comm* ranks[2] = {nullptr, nullptr};
  device::HostStream streams[2];

  // Starts both sides; the caller polls.
  nccl::Result Start() {
    nccl::UniqueId id;
    nccl::Config config = NonBlocking();
    nccl::Result result = LoopbackTable().ncclGetUniqueId(&id);
    for (int rank = 0; rank < 2 && (result == nccl::kSuccess || result == nccl::kInProgress);
         ++rank) {
      result = LoopbackTable().ncclCommInitRankConfig(&ranks[rank], 2, id, rank, &config);
    }
    return result;
  }
  bool WaitBuilt() const {
    return Eventually([&] {
      return PollOnce(ranks[0]) == nccl::kSuccess && PollOnce(ranks[1]) == nccl::kSuccess;
    });
  }
  nccl::Result Send(const std::vector<std::byte>& bytes) {
    return LoopbackTable().ncclSend(bytes.data(), bytes.size(), nccl::kUint8, 1, ranks[0],
                                    &streams[0]);
  }
  nccl::Result Receive(std::vector<std::byte>* bytes) {
    return LoopbackTable().ncclRecv(bytes->data(), bytes->size(), nccl::kUint8, 0, ranks[1],
                                    &streams[1]);
  }
  bool IsDone(int rank) const {
    return streams[rank].num_done.load() == streams[rank].num_put.load();
  }
  void Abort(int rank) {
    if (ranks[rank] != nullptr) LoopbackTable().ncclCommAbort(ranks[rank]);
    ranks[rank] = nullptr;
  }
};

}  // namespace baton::kv::nccl_test

#endif  // BATON_TESTS_NCCL_LOOPBACK_PAIR_H_
