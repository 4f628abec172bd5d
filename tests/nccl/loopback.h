// The loopback's own functions, beside NCCL's. libbaton_nccl_loopback.so has the symbols of
// kvcache/transport/nccl/nccl_library.h, which are found with dlsym, like NCCL's. It moves bytes
// through shared memory, between threads of a process or processes of a host, on host memory.
//
// The loopback agrees with NCCL in these points:
//   - A communicator is built while both sides poll.
//   - Sends and receives of one pair match in order.
//   - Calls return before the bytes have moved; a stream (HostStream) says when they have.
//   - An abort ends everything at once, and the other side may or may not learn of it.
// It has none of these: groups, collectives, more than two ranks, blocking communicators.
//
// Faults are drawn for each call or operation by a seed. From the environment (BATON_NCCL_LOOPBACK)
// or loopback_configure, as "key=value,key=value":
//   seed      of the draws, 1
//   version   that ncclGetVersion tells, 22809
//   delay     share of operations that begin `delay_us` (1000) late
//   error     share that end in ncclSystemError
//   hang      share that never begin
//   remote    share that end in ncclRemoteError at the other side
//   death     share that move half of their bytes; then this side of the pair does nothing more
//   corrupt   share of sends with one byte changed on the way
//   call      share of calls that return ncclInternalError and do nothing
//   init_hang, init_error   share of communicators that are never built, or end in an error
//   silent    share of aborts that the other side does not learn of
#ifndef BATON_TESTS_NCCL_LOOPBACK_H_
#define BATON_TESTS_NCCL_LOOPBACK_H_

#include <cstdint>

namespace baton::kv::nccl_test {

// The objects that exist now in this process, and the calls and faults since the last
// loopback_configure.
struct LoopbackCounts {
  uint64_t communicators = 0;  // that were neither aborted nor destroyed
  uint64_t operations = 0;     // that were put and have not ended
  uint64_t unique_ids = 0;     // that no rank of this process has used
  uint64_t made_ids = 0;       // since the last loopback_configure
  uint64_t registrations = 0;  // of buffers
  uint64_t delays = 0;
  uint64_t errors = 0;
  uint64_t hangs = 0;
  uint64_t remote_errors = 0;
  uint64_t deaths = 0;
  uint64_t corruptions = 0;
  uint64_t call_errors = 0;
  uint64_t init_hangs = 0;
  uint64_t init_errors = 0;
  uint64_t silent_aborts = 0;
  uint64_t aborts = 0;  // not injected: how often a side gave up

  uint64_t injected() const {
    return delays + errors + hangs + remote_errors + deaths + corruptions + call_errors +
           init_hangs + init_errors + silent_aborts;
  }
};

extern "C" {
// 0, or -1 for a key or value that does not exist (and then nothing changes).
int loopback_configure(const char* faults);
void loopback_counts(LoopbackCounts* counts);
}

}  // namespace baton::kv::nccl_test

#endif  // BATON_TESTS_NCCL_LOOPBACK_H_
