// NcclTransport of a divided model: whatever NCCL may do on a device, no exchange is launched
// beside it (LaunchGate), for as long as that is bounded. The loopback stands behind a table that
// looks whether one is.
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "gtest/gtest.h"

#include "src/device/launch_gate.h"
#include "tests/kvcache/transport/test_rig.h"
#include "tests/loop_thread.h"
#include "tests/nccl/loopback_library.h"
#include "tests/patience.h"

namespace baton::kv::test {

using device::LaunchGate;

namespace {

using nccl::Comm;
using nccl::Result;

// The calls of the watched worker's NCCL, and the launches of its engine; one worker at a time.
struct Watch {
  std::atomic<bool> is_launching = false;
  std::atomic<uint64_t> num_calls = 0;
  std::atomic<uint64_t> num_beside = 0;  // calls and launches that found the other
  std::mutex mutex;
  std::set<const Comm*> unsettled;  // are being built, or have an operation that is not taken yet

  void NoteCall() {
    ++num_calls;
    if (is_launching.load()) ++num_beside;
  }
  void Begin(const Comm* comm) {
    NoteCall();
    std::lock_guard lock(mutex);
    unsettled.insert(comm);
  }
  void Settle(const Comm* comm) {
    std::lock_guard lock(mutex);
    unsettled.erase(comm);
  }
  void NoteLaunch() {
    is_launching = true;
    {
      std::lock_guard lock(mutex);
      if (!unsettled.empty()) ++num_beside;
    }
    std::this_thread::yield();
    is_launching = false;
  }
};
Watch& Watched() {
  static Watch watch;
  return watch;
}

const nccl::NcclTable& Loopback() { return nccl_test::LoopbackTable(); }

// The loopback, watched.
const nccl::NcclTable& WatchedTable() {
  static const nccl::NcclTable table = [] {
    nccl::NcclTable watched = Loopback();
    watched.ncclGetUniqueId = [](nccl::UniqueId* id) {
      Watched().NoteCall();
      return Loopback().ncclGetUniqueId(id);
    };
    watched.ncclCommInitRankConfig = [](Comm** comm, int num_ranks, nccl::UniqueId id, int rank,
                                        nccl::Config* config) {
      const Result result = Loopback().ncclCommInitRankConfig(comm, num_ranks, id, rank, config);
      Watched().Begin(*comm);
      return result;
    };
    watched.ncclCommGetAsyncError = [](Comm* comm, Result* state) {
      const Result result = Loopback().ncclCommGetAsyncError(comm, state);
      if (*state != nccl::kInProgress) Watched().Settle(comm);
      return result;
    };
    watched.ncclSend = [](const void* from, size_t count, nccl::DataType type, int peer, Comm* comm,
                          nccl::Stream stream) {
      Watched().Begin(comm);
      return Loopback().ncclSend(from, count, type, peer, comm, stream);
    };
    watched.ncclRecv = [](void* to, size_t count, nccl::DataType type, int peer, Comm* comm,
                          nccl::Stream stream) {
      Watched().Begin(comm);
      return Loopback().ncclRecv(to, count, type, peer, comm, stream);
    };
    watched.ncclCommRegister = [](Comm* comm, void* buffer, size_t size, void** handle) {
      Watched().NoteCall();
      return Loopback().ncclCommRegister(comm, buffer, size, handle);
    };
    watched.ncclCommDeregister = [](Comm* comm, void* handle) {
      Watched().NoteCall();
      return Loopback().ncclCommDeregister(comm, handle);
    };
    watched.ncclCommFinalize = [](Comm* comm) {
      Watched().Begin(comm);
      return Loopback().ncclCommFinalize(comm);
    };
    watched.ncclCommDestroy = [](Comm* comm) {
      Watched().NoteCall();
      return Loopback().ncclCommDestroy(comm);
    };
    watched.ncclCommAbort = [](Comm* comm) {
      Watched().NoteCall();
      const Result result = Loopback().ncclCommAbort(comm);
      Watched().Settle(comm);
      return result;
    };
    return watched;
  }();
  return table;
}

// An engine that launches exchanges without a pause.
auto LaunchesUnder(LaunchGate* gate) {
  return [gate] {
    const LaunchGate::Launch held(gate);
    Watched().NoteLaunch();
  };
}

class NcclGateTest : public testing::Test {
 protected:
  void SetUp() override {
    nccl_test::Configure("");
    Watched().num_calls = 0;
    Watched().num_beside = 0;
  }
  // The workers made from now on have the gate, or not.
  void Watch(LaunchGate* gate) {
    rig_.tweak_nccl = [this, gate](NcclTransportOptions* options) {
      options->timers.build_us = build_us_;
      options->timers.backoff_min_us = 1000;
      options->timers.backoff_max_us = 5000;
      options->limits.max_links = max_links_;
      options->limits.max_failures = ~uint32_t{0};
      if (gate == nullptr) return;
      options->device.gate = gate;
      options->table = &WatchedTable();
    };
  }

  // A sender that is watched, connected with a receiver that is not.
  struct WatchedSender {
    WatchedSender(NcclGateTest* test, LaunchGate* gate)
        : d(test->MakeDecode(nullptr)), p(test->MakePrefill(gate, &d)) {
      EXPECT_TRUE(p.sink->WaitUp(1));
      EXPECT_TRUE(d.sink->WaitUp(1));
    }
    Worker d;
    Worker p;
  };
  Worker MakeDecode(LaunchGate* gate) {
    Watch(gate);
    return rig_.MakeDecode("decode-0");
  }
  Worker MakePrefill(LaunchGate* gate, Worker* d) {
    Watch(gate);
    return rig_.MakePrefill("prefill-0", {d});
  }

  int64_t build_us_ = 20'000'000;
  uint32_t max_links_ = 16;
  Rig rig_{TransportKind::kNccl};
};

TEST_F(NcclGateTest, NoExchangeIsLaunchedWhileNcclMayUseADevice) {
  // One place: two peers by turns evict one another's communicator.
  for (const bool watches_sender : {true, false}) {
    LaunchGate gate(/*max_hold_us=*/600'000'000);
    max_links_ = 1;
    Watch(watches_sender ? nullptr : &gate);
    Worker d = rig_.MakeDecode("decode-0");
    max_links_ = 16;
    Watch(nullptr);
    Worker other = rig_.MakeDecode("decode-1");
    max_links_ = watches_sender ? 1 : 16;
    Watch(watches_sender ? &gate : nullptr);
    Worker p = rig_.MakePrefill("prefill-0", {&d, &other});
    ASSERT_TRUE(p.sink->WaitUp(2));
    const LoopThread engine(LaunchesUnder(&gate));
    for (uint64_t id = 1; id <= 12; ++id) {
      ExpectTransferWorks(&p, watches_sender && id % 2 == 0 ? &other : &d, id);
    }
    EXPECT_GT(engine.num_rounds(), 0u);
    EXPECT_GT(Watched().num_calls.load(), 12u);
    p.transport.reset();
    d.transport.reset();
    EXPECT_EQ(Watched().num_beside.load(), 0u) << "sender: " << watches_sender;
    EXPECT_EQ(gate.num_overruns(), 0u);
  }
}

// An operation that was begun may use the device until the abort is over.
TEST_F(NcclGateTest, NoExchangeIsLaunchedBetweenASetUpThatHangsAndItsAbort) {
  LaunchGate gate(/*max_hold_us=*/600'000'000);
  build_us_ = 50'000;
  WatchedSender workers(this, &gate);
  auto& [d, p] = workers;
  const LoopThread engine(LaunchesUnder(&gate));
  const nccl_test::ScopedFaults faults("init_hang=1");
  const Transfer transfer = MakeTransfer(1, 4, 0, 8);
  FillSource(transfer, p.blocks(), 1);
  ASSERT_TRUE(p.transport->SendSlices(d.incarnation, SlicesOf(transfer, p.blocks())).ok());
  ASSERT_TRUE(Eventually([] { return nccl_test::Counts().aborts >= 6; }));
  EXPECT_TRUE(Eventually([&] { return engine.num_rounds() > 0; }));
  p.transport.reset();
  EXPECT_EQ(Watched().num_beside.load(), 0u);
}

TEST_F(NcclGateTest, ASetUpThatHangsLetsTheEngineGoOnAfterTheBound) {
  LaunchGate gate(/*max_hold_us=*/20'000);
  build_us_ = 200'000 * kPatienceFactor;
  WatchedSender workers(this, &gate);
  auto& [d, p] = workers;
  const LoopThread engine(LaunchesUnder(&gate));
  const Transfer transfer = MakeTransfer(1, 4, 0, 8);
  {
    const nccl_test::ScopedFaults faults("init_hang=1");
    FillSource(transfer, p.blocks(), 1);
    ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, p.incarnation)).ok());
    ASSERT_TRUE(p.transport->SendSlices(d.incarnation, SlicesOf(transfer, p.blocks())).ok());
    for (uint64_t i = 1; i <= 3; ++i) {
      ASSERT_TRUE(Eventually([&] { return gate.num_overruns() >= i; }));
      const uint64_t before = engine.num_rounds();
      ASSERT_TRUE(Eventually([&] { return engine.num_rounds() >= before + 10; }));
    }
  }
  ASSERT_TRUE(d.sink->WaitComplete(transfer.id)) << "the next set-up does not hang";
  EXPECT_TRUE(Arrived(transfer, p.blocks(), d.blocks()));
}

}  // namespace
}  // namespace baton::kv::test
