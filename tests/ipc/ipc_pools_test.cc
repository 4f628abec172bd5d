// Pools that cross between workers: which descriptors are refused, what becomes of a mapping.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/memory_file.h"
#include "tests/ipc/ipc_peers.h"

namespace baton::kv::test {

using device::FakeAccelerator;
using device::LaunchGate;

namespace {

constexpr uint32_t kBlocks = 4;

uint64_t PoolBytes() { return kBlocks * SmallLayout().BlockStride(); }

UniqueFd SealedFile(uint64_t size_bytes, bool has_pages = true) {
  UniqueFd fd = *CreateMemoryFile("test-pool", size_bytes);
  const bool is_allocated = !has_pages || AllocateMemoryFile(fd.get(), 0, size_bytes).ok();
  EXPECT_TRUE(is_allocated);
  EXPECT_TRUE(SealMemoryFile(fd.get()).ok());
  return fd;
}

// A bad pool that a peer may hand over, how often, and how many blocks the peer claims for it.
struct BadPool {
  const char* name;
  UniqueFd (*make)();
  uint32_t num_blocks = kBlocks;
  uint32_t num_parts = 1;
};

// Bytes of the pool of one of two ranks.
uint64_t HalfPoolBytes() { return kBlocks * RankLayout(SmallLayout(), 2).BlockStride(); }

class BadPoolTest : public testing::TestWithParam<BadPool> {};

TEST_P(BadPoolTest, ItsConnectionIsRefusedAndNobodyElseNoticesIt) {
  Rig rig(TransportKind::kCudaIpc);
  Worker d = rig.MakeDecode("decode-0");
  std::vector<UniqueFd> parts;
  for (uint32_t i = 0; i < GetParam().num_parts; ++i) parts.push_back(GetParam().make());
  PlainPeer liar = MakePlainPeer("liar-0", std::move(parts), GetParam().num_blocks);
  Dial(liar.worker, {AddressOf(d, "decode-0")});
  ASSERT_TRUE(WaitClose(d, CloseReason::kArena, 2)) << "it dials again, with the same result";
  EXPECT_EQ(IpcOf(d)->num_mapped(), 0u);
  Worker p = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(p.sink->WaitUp(1));
  ExpectTransferWorks(&p, &d, 1);
  EXPECT_EQ(d.sink->Snapshot().ups.size(), 1u);
  EXPECT_EQ(IpcOf(d)->num_mapped(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Pools, BadPoolTest,
    testing::Values(
        BadPool{"None", [] { return UniqueFd(); }, kBlocks, 0},
        BadPool{"OneHalf", [] { return SealedFile(HalfPoolBytes()); }},
        BadPool{"TwoWholes", [] { return SealedFile(PoolBytes()); }, kBlocks, 2},
        BadPool{"ThreeParts", [] { return SealedFile(HalfPoolBytes()); }, kBlocks, 3},
        BadPool{"FourHalves", [] { return SealedFile(HalfPoolBytes()); }, kBlocks, 4},
        BadPool{"EightParts", [] { return SealedFile(HalfPoolBytes()); }, kBlocks, 8},
        BadPool{"TooSmall", [] { return SealedFile(PoolBytes() - 4096); }},
        BadPool{"TooLarge", [] { return SealedFile(PoolBytes() + 4096); }},
        BadPool{"NoPages", [] { return SealedFile(PoolBytes(), false); }},
        BadPool{"Unsealed", [] { return *CreateMemoryFile("unsealed", PoolBytes()); }},
        BadPool{"NoMemoryFile", [] { return UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)); }},
        BadPool{"Socket",
                [] {
                  int ends[2] = {-1, -1};
                  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
                  close(ends[1]);
                  return UniqueFd(ends[0]);
                }},
        BadPool{"NoBlocks", [] { return SealedFile(PoolBytes()); }, 0},
        BadPool{"MoreBlocksThanItHas", [] { return SealedFile(PoolBytes()); }, kBlocks + 1},
        BadPool{"MostBlocks", [] { return SealedFile(PoolBytes()); }, ~uint32_t{0}}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(IpcPoolsTest, AWorkerWithPoolsAndOneWithoutDoNotTakeEachOthers) {
  Rig rig(TransportKind::kCudaIpc);
  Rig shm_rig(TransportKind::kShm);
  Worker d = rig.MakeDecode("decode-0");
  Worker shm_d = shm_rig.MakeDecode("decode-1");
  Worker p = rig.MakeDecode("prefill-0");
  Worker shm_p = shm_rig.MakeDecode("prefill-1");
  Dial(shm_p, {AddressOf(d, "decode-0")});
  Dial(p, {AddressOf(shm_d, "decode-1")});
  EXPECT_TRUE(WaitClose(d, CloseReason::kArena));
  EXPECT_TRUE(WaitClose(shm_d, CloseReason::kArena));
  const auto failure = [](const Worker& worker) {
    const std::vector<LinkInfo> links = worker.transport->Links();
    return links.empty() ? std::string() : links.front().last_failure;
  };
  EXPECT_TRUE(Eventually([&] { return failure(p) == "the peer hung up: arena"; })) << failure(p);
  EXPECT_TRUE(d.sink->Snapshot().ups.empty());
  EXPECT_TRUE(shm_d.sink->Snapshot().ups.empty());
}

TEST(IpcPoolsTest, ADeviceThatCannotReachAPoolRefusesIt) {
  Rig rig(TransportKind::kCudaIpc);
  Worker d = rig.MakeDecode("decode-0");
  FakeAccelerator::refuses_imports = true;
  Worker p = rig.MakePrefill("prefill-0", {&d});
  ASSERT_TRUE(WaitClose(d, CloseReason::kArena, 2));
  EXPECT_TRUE(p.sink->Snapshot().ups.empty());
  EXPECT_FALSE(p.transport->Links().front().up);
  FakeAccelerator::refuses_imports = false;
  ASSERT_TRUE(p.sink->WaitUp(1));
  ExpectTransferWorks(&p, &d, 1);
}

TEST(IpcPoolsTest, APeerThatComesAgainLeavesOneMappingAndNoDescriptor) {
  Rig rig(TransportKind::kCudaIpc);
  Worker d = rig.MakeDecode("decode-0");
  Worker p = rig.MakePrefill("prefill-0", {&d});
  for (uint64_t round = 1; round <= 10; ++round) {
    ASSERT_TRUE(d.sink->WaitUp(round));
    ASSERT_TRUE(p.sink->WaitUp(round));
    ExpectTransferWorks(&p, &d, round);
    EXPECT_EQ(IpcOf(d)->num_mapped(), 1u);
    Dial(p, {});
    ASSERT_TRUE(d.sink->WaitDown(round));
    EXPECT_TRUE(Eventually([&] { return IpcOf(d)->num_mapped() == 0; }));
    rig.SetDecodes(&p, {&d});
  }
  EXPECT_EQ(IpcOf(p)->num_mapped(), 0u) << "only who is dialled maps";
}

TEST(IpcPoolsTest, PeersOfOtherNumbersOfRanksHandOverAtOnce) {
  Rig rig(TransportKind::kCudaIpc);
  rig.decode_ranks = 2;
  Worker d = rig.MakeDecode("decode-0");
  std::vector<Worker> senders;
  std::vector<Transfer> transfers;
  for (const uint32_t num_ranks : {1u, 2u, 4u}) {
    rig.prefill_ranks = num_ranks;
    Worker& p = senders.emplace_back(rig.MakePrefill("prefill-" + std::to_string(num_ranks), {&d}));
    ASSERT_TRUE(p.sink->WaitUp(1));
    transfers.push_back(MakeTransfer(num_ranks, 8, num_ranks, 8 * num_ranks));
    FillSource(transfers.back(), p.blocks(), num_ranks);
    ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfers.back(), p.incarnation)).ok());
  }
  ASSERT_TRUE(d.sink->WaitUp(3));
  EXPECT_EQ(IpcOf(d)->num_mapped(), 3u) << "pools of peers, whatever their parts";
  for (size_t i = 0; i < senders.size(); ++i) {
    const auto slices = SlicesOf(transfers[i], senders[i].blocks());
    ASSERT_TRUE(senders[i].transport->SendSlices(d.incarnation, slices).ok());
  }
  for (size_t i = 0; i < senders.size(); ++i) {
    ASSERT_TRUE(d.sink->WaitComplete(transfers[i].id));
    EXPECT_TRUE(Arrived(transfers[i], senders[i].blocks(), d.blocks())) << i;
  }
  EXPECT_TRUE(d.sink->Snapshot().bad_slices.empty());
}

// Two parts of a pool that another process would pass.
std::vector<UniqueFd> TwoParts() {
  std::vector<UniqueFd> parts;
  for (int i = 0; i < 2; ++i) parts.push_back(SealedFile(HalfPoolBytes()));
  return parts;
}

TEST(IpcPoolsTest, OnlyWhoMapsWaitsForTheDevice) {
  const nccl_test::KvDevice device =
      nccl_test::MakeKvDevice({.is_shared = true}, SmallLayout(), kBlocks);
  const auto pools = *DevicePools::Create(device.ranks(), device.parts.memory);
  ASSERT_TRUE(pools->Take(Incarnation(1), kBlocks, TwoParts()).ok());
  FakeAccelerator::holds_imports = true;
  const uint64_t before = FakeAccelerator::num_imports;
  std::thread taker([&] { EXPECT_TRUE(pools->Take(Incarnation(2), kBlocks, TwoParts()).ok()); });
  ASSERT_TRUE(Eventually([&] { return FakeAccelerator::num_imports > before; }));
  EXPECT_EQ(pools->num_mapped(), 1u);
  const auto first = pools->Claim(Incarnation(1));
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(pools->Claim(Incarnation(2)), nullptr) << "it is not whole";
  FakeAccelerator::holds_imports = false;
  taker.join();
  EXPECT_EQ(pools->num_mapped(), 2u);
  EXPECT_NE(pools->Claim(Incarnation(2)), nullptr) << "and unmapped here";
  EXPECT_EQ(pools->num_mapped(), 1u);
}

TEST(IpcPoolsTest, NoStepIsLaunchedWhileAPoolIsMappedOrUnmapped) {
  const nccl_test::KvDevice device =
      nccl_test::MakeKvDevice({.is_shared = true}, SmallLayout(), kBlocks);
  LaunchGate gate(/*max_hold_us=*/600'000'000);
  const auto pools = *DevicePools::Create(device.ranks(), device.parts.memory, &gate);
  FakeAccelerator::holds_imports = true;
  const uint64_t before = FakeAccelerator::num_imports;
  std::thread taker([&] { EXPECT_TRUE(pools->Take(Incarnation(1), kBlocks, TwoParts()).ok()); });
  ASSERT_TRUE(Eventually([&] { return FakeAccelerator::num_imports > before; }));
  std::atomic<bool> is_launched = false;
  std::thread engine([&] {
    const LaunchGate::Launch held(&gate);
    is_launched = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_launched.load());
  FakeAccelerator::holds_imports = false;
  taker.join();
  engine.join();
  std::thread unmapper;
  {
    const LaunchGate::Launch held(&gate);
    unmapper = std::thread([&] { EXPECT_NE(pools->Claim(Incarnation(1)), nullptr); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(pools->num_mapped(), 1u) << "it waits for the launch";
  }
  unmapper.join();
  EXPECT_EQ(pools->num_mapped(), 0u);
}

TEST(IpcPoolsTest, WhatCannotWorkIsRefusedByName) {
  KvLayout narrow = SmallLayout();
  narrow.head_dim = 2;
  narrow.num_kv_heads = 1;
  const nccl_test::KvDevice device = nccl_test::MakeKvDevice({.is_shared = true}, narrow, 4);
  IpcTransportOptions options;
  options.device = device.parts;
  EXPECT_THAT(std::string(IpcTransport::Create(options, nullptr, nullptr).status().message()),
              testing::HasSubstr("slices of 128 bytes"));
  AnyPool pool({}, 1);
  KvEndpointOptions endpoint;
  endpoint.worker_id = "a";
  endpoint.incarnation = Incarnation(1);
  endpoint.pools = &pool;
  const std::unique_ptr<KvArena> arena = MakeArena(SmallLayout(), 1);
  for (const TransportKind kind :
       {TransportKind::kAuto, TransportKind::kTcp, TransportKind::kCudaIpc}) {
    endpoint.kind = kind;
    EXPECT_EQ(KvEndpoint::Create(endpoint, arena.get()).status().code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::kv::test
