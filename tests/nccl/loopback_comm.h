// One side of a pair of the loopback: its shared memory and its operations. The loopback's mutex
// guards everything but the shared memory.
#ifndef BATON_TESTS_NCCL_LOOPBACK_COMM_H_
#define BATON_TESTS_NCCL_LOOPBACK_COMM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "kvcache/transport/nccl/nccl_api.h"
#include "src/base/unique_fd.h"
#include "src/device/host_stream.h"

namespace baton::kv::nccl_test {

// The memory that both sides map: a stream of bytes each way. `put` and `taken` only grow.
struct Segment {
  static constexpr size_t kRingBytes = size_t{1} << 20;
  // The bytes that one rank sends.
  struct Channel {
    std::atomic<uint64_t> put;
    std::atomic<uint64_t> taken;
    std::byte ring[kRingBytes];
  };

  uint64_t cookie;  // of the unique id
  std::atomic<uint32_t> joined[2];
  std::atomic<uint32_t> told_remote_error[2];  // to rank i
  Channel channels[2];                         // of what rank i sends
};

// A send or a receive that has not ended.
struct Operation {
  std::byte* memory = nullptr;
  size_t size = 0;
  size_t done = 0;
  device::HostStream* stream = nullptr;
  int64_t not_before_us = 0;
  size_t stop_at = ~size_t{0};  // moves no further
  bool corrupts = false;
};

}  // namespace baton::kv::nccl_test

namespace baton::kv::nccl {

// The object that the opaque handle points to.
struct Comm {
  UniqueFd file;
  nccl_test::Segment* segment = nullptr;
  int rank = 0;
  bool never_built = false;
  uint32_t num_registered = 0;
  Result error = kSuccess;
  std::deque<nccl_test::Operation> sends;
  std::deque<nccl_test::Operation> receives;

  // Moves what can be moved now; true when something was.
  bool Progress(int64_t now_us);
  // The stream does not wait for what is left.
  void DropOperations();
  Result Poll() const;
  // NCCL refuses a communicator that is asked for something before it is ready. That is then the
  // communicator's error.
  Result Refuse() {
    if (error == kSuccess) error = kInvalidArgument;
    return kInvalidArgument;
  }
  bool IsActive() const { return !sends.empty() || !receives.empty(); }

 private:
  bool MoveFront(std::deque<nccl_test::Operation>* operations, bool sends, int64_t now_us);
};

}  // namespace baton::kv::nccl

#endif  // BATON_TESTS_NCCL_LOOPBACK_COMM_H_
