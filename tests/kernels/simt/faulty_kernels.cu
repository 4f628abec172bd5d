#include "kernels/simt/device.h"
#include "tests/kernels/simt/faulty_kernels.h"

namespace baton::kernels::simt_test {
namespace {

using namespace simt;  // NOLINT: the primitives are the language here

constexpr uint32_t kThreads = 64;

// A structure too large for one register move.
struct Wide {
  uint32_t words[10];
};

// Room for every fault that needs shared memory.
struct FaultShared {
  Vec16 lines[kThreads];
  Wide wide;
  Mbarrier barrier;
  uint32_t words[kThreads];
};

// The fault of a kernel, and its parameters.
struct Faulty {
  Fault fault;
  FaultyParams io;
};

BATON_DEVICE void Meetings(const Faulty& run, FaultShared& memory) {
  uint32_t* out = reinterpret_cast<uint32_t*>(run.io.out);
  switch (run.fault) {
    case Fault::kBarrierMissedByWarp:  // warp 1 leaves early
      if (warp() == 1) return;
      sync_block();
      return;
    case Fault::kBarriersAtTwoPlaces:
      if (warp() == 0) {
        sync_block();
      } else {
        sync_block();
      }
      return;
    case Fault::kShuffleWithoutLane:  // lane 7 leaves early
      if (lane() == 7) return;
      out[thread()] = shfl_xor(thread(), 1);
      return;
    case Fault::kTwoWarpOps:
      if (lane() < 16) {
        sync_warp();
      } else {
        out[thread()] = shfl_xor(thread(), 1);
      }
      return;
    case Fault::kSpinForever:  // nobody writes the word
      while (load_acquire(out) != 12345) spin_pause();
      return;
    case Fault::kLoopForever:
      for (uint32_t i = 0; guard(i < 0xFFFFFFFFu); ++i) {
      }
      return;
    case Fault::kMbarrierNeverFull:  // 65 arrivals are expected of 64 threads
      if (thread() == 0) mbar_init(&memory.barrier, kThreads + 1);
      sync_block();
      mbar_arrive(&memory.barrier);
      mbar_wait(&memory.barrier, 0);
      return;
    case Fault::kTooManyArrivals:
      if (thread() == 0) {
        mbar_init(&memory.barrier, 1);
        mbar_arrive_expect(&memory.barrier, 16);  // the bytes never come
        mbar_arrive(&memory.barrier);
      }
      return;
    default:
      return;
  }
}

// Every frame is larger than the last one could stay.
uint32_t Deep(uint32_t depth, volatile uint32_t* sink) {
  volatile uint32_t frame[256];
  for (uint32_t i = 0; i < 256; ++i) frame[i] = depth + i;
  *sink = frame[depth % 256];
  return depth == 0 ? frame[1] : Deep(depth - 1, sink) + frame[depth % 256];
}

BATON_DEVICE void Bounds(const Faulty& run, FaultShared& memory) {
  volatile unsigned char* in = run.io.in;
  volatile unsigned char* out = run.io.out;
  const uint32_t bytes = run.io.bytes;
  if (thread() != 0) return;
  switch (run.fault) {
    case Fault::kReadPastEnd:
      out[0] = in[bytes];
      return;
    case Fault::kWritePastEnd:
      out[bytes] = 1;
      return;
    case Fault::kReadBeforeBegin:
      out[0] = in[-1];
      return;
    case Fault::kCopyPastEnd:
      cp_async16(&memory.lines[0], run.io.in + bytes / 16 * 16);
      cp_async_commit();
      cp_async_wait<0>();
      return;
    case Fault::kHostMemory: {
      [[maybe_unused]] static volatile uint32_t host_word;
      host_word = 1;
      return;
    }
    case Fault::kNullPointer:
      *reinterpret_cast<volatile uint32_t*>(static_cast<uintptr_t>(bytes)) = 1;
      return;
    case Fault::kStackOverflow: {
      uint32_t sink = 0;
      out[0] = static_cast<unsigned char>(Deep(1000, &sink));
      return;
    }
    case Fault::kSharedPastEnd:
      out[0] = static_cast<unsigned char>((&memory.words[0])[kThreads + bytes]);
      return;
    case Fault::kCopyNotWaited:
      cp_async16(&memory.lines[0], run.io.in);
      cp_async_commit();
      return;
    case Fault::kCopyMisaligned:
      cp_async16(&memory.words[1], run.io.in);
      return;
    case Fault::kBulkWithoutFence:
    case Fault::kBulkAtExit:
      mbar_init(&memory.barrier, 1);
      if (run.fault == Fault::kBulkAtExit) mbar_fence_init();
      mbar_arrive_expect(&memory.barrier, 64);
      bulk_copy(&memory.lines[0], run.io.in, 64, &memory.barrier);
      return;
    default:
      return;
  }
}

// Each thread writes its own element, and reads its neighbour's with no barrier between.
template <typename T>
BATON_DEVICE void NeighbourRace(T* mine, T* out) {
  mine[thread()] = T{};
  out[thread()] = mine[(thread() + 1) % kThreads];
}

BATON_DEVICE void SharedRaces(const Faulty& run, FaultShared& memory) {
  switch (run.fault) {
    case Fault::kRaceShared:
      NeighbourRace(memory.words, reinterpret_cast<uint32_t*>(run.io.out));
      return;
    case Fault::kRaceSharedRead:  // the barrier between reading and writing again is missing
      memory.words[thread()] = thread();
      sync_block();
      reinterpret_cast<uint32_t*>(run.io.out)[thread()] = memory.words[thread() ^ 32];
      memory.words[thread()] = 0;
      return;
    case Fault::kRaceByte:
      NeighbourRace(reinterpret_cast<unsigned char*>(memory.words), run.io.out);
      return;
    case Fault::kRaceHalf:
      NeighbourRace(reinterpret_cast<uint16_t*>(memory.words),
                    reinterpret_cast<uint16_t*>(run.io.out));
      return;
    case Fault::kRaceDouble:
      NeighbourRace(reinterpret_cast<double*>(memory.lines), reinterpret_cast<double*>(run.io.out));
      return;
    case Fault::kRaceVector:
      NeighbourRace(memory.lines, reinterpret_cast<Vec16*>(run.io.out));
      return;
    case Fault::kRaceStruct: {
      const Wide mine = {{thread()}};
      memory.wide = mine;
      return;
    }
    case Fault::kShuffleOrdersNothing:  // a shuffle is no sync_warp
      memory.words[thread()] = thread();
      shfl_xor(thread(), 1);
      reinterpret_cast<uint32_t*>(run.io.out)[thread()] = memory.words[thread() ^ 1];
      return;
    default:
      return;
  }
}

BATON_DEVICE void OtherRaces(const Faulty& run, FaultShared& memory) {
  uint32_t* out = reinterpret_cast<uint32_t*>(run.io.out);
  switch (run.fault) {
    case Fault::kRaceBetweenCtas:  // both ctas write the same words
      out[thread()] = block().x;
      return;
    case Fault::kRaceWithCopy:  // the wait covers the own copy, not the neighbour's
      cp_async16(&memory.lines[thread()], run.io.in + 16 * thread());
      cp_async_commit();
      cp_async_wait<0>();
      out[thread()] = memory.lines[thread() ^ 1].words[0];
      return;
    case Fault::kRaceCopySource:  // the source is written while the copy is under way
      if (thread() != 0) return;
      cp_async16(&memory.lines[0], run.io.in);
      cp_async_commit();
      run.io.in[3] = 1;
      cp_async_wait<0>();
      return;
    case Fault::kArriveBeforeReads:  // the slot is given back before it was read
      if (thread() == 0) mbar_init(&memory.barrier, kWarpSize);
      memory.words[thread()] = thread();
      sync_block();
      if (warp() == 0) {
        mbar_arrive(&memory.barrier);
        out[thread()] = memory.words[thread() + 32];
      } else {
        mbar_wait(&memory.barrier, 0);
        memory.words[thread()] = 7;
      }
      return;
    case Fault::kRelaxedFlag:  // the fence before the flag is missing
      if (block().x == 0 && thread() == 0) {
        out[1] = 42;
        atomic_exchange(out, 1);
      } else if (block().x == 1 && thread() == 0) {
        while (load_acquire(out) != 1) spin_pause();
        out[2] = out[1];
      }
      return;
    default:
      return;
  }
}

BATON_KERNEL(kThreads) FaultyKernel(Faulty run) {
  auto& memory = shared<FaultShared>();
  Meetings(run, memory);
  Bounds(run, memory);
  SharedRaces(run, memory);
  OtherRaces(run, memory);
}

// Nothing here is ever written.
struct FreshShared {
  uint32_t words[3];
};

BATON_KERNEL(1) FreshKernel(uint32_t* out) {
  const auto& memory = shared<FreshShared>();
  for (uint32_t i = 0; i < 3; ++i) out[i] = memory.words[i];
}

bool NeedsTwoCtas(Fault fault) {
  return fault == Fault::kRaceBetweenCtas || fault == Fault::kRelaxedFlag;
}

}  // namespace

absl::Status RunFaulty(Fault fault, const FaultyParams& params) {
  const uint32_t shared_bytes = fault == Fault::kSharedTooSmall ? 16 : sizeof(FaultShared);
  return launch({.name = "Faulty",
                 .grid = {NeedsTwoCtas(fault) ? 2u : 1u, 1, 1},
                 .num_threads = kThreads,
                 .shared_bytes = shared_bytes,
                 .cooperative = NeedsTwoCtas(fault)},
                FaultyKernel, {fault, params});
}

absl::Status ReadFreshShared(uint32_t* out) {
  return launch({.name = "Fresh", .num_threads = 1, .shared_bytes = sizeof(FreshShared)},
                FreshKernel, out);
}

absl::Status LaunchTooManyThreads() {
  return launch({.name = "Fresh", .num_threads = kMaxThreads + 1}, FreshKernel, nullptr);
}

absl::Status LaunchEmptyGrid() {
  return launch({.name = "Fresh", .grid = {0, 1, 1}}, FreshKernel, nullptr);
}

}  // namespace baton::kernels::simt_test
