// Where a worker's KV lies and how it crosses, for every --transport on every device: what is made,
// and what a user is told who asked for something that cannot be.
#include "src/worker/kv_parts.h"

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/log.h"
#include "tests/kvcache/transport/test_rig.h"
#include "tests/nccl/loopback_library.h"

namespace baton::worker {

using device::DeviceKind;
using device::DeviceKindName;
using device::FakeAccelerator;
using model::CheckDeviceInBuild;
using model::ComputeDevice;
using model::OpenComputeDevice;
using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

using nccl_test::BuiltLibrary;
using nccl_test::LoopbackPath;
using test::SmallLayout;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint32_t kBlocks = 8;
constexpr uint32_t kMaxContext = 64;  // 4 blocks and one

KvNeeds NeedsOf(uint64_t incarnation = 1) {
  return {.layout = SmallLayout(),
          .max_context = kMaxContext,
          .numerics_id = "numerics",
          .incarnation = Incarnation(incarnation)};
}

WorkerConfig ConfigOf(TransportKind transport) {
  WorkerConfig config;
  config.worker_id = "decode-0";
  config.kv_memory_bytes = kBlocks * SmallLayout().BlockStride();
  config.transport = transport;
  return config;
}

ComputeDevice FakeDevice(const std::function<void(FakeAccelerator*)>& change = nullptr) {
  auto device = std::make_unique<FakeAccelerator>();
  if (change) change(device.get());
  return {std::move(device), &nccl_test::FakeKernels()};
}

std::string Sentence(const StatusOr<std::unique_ptr<KvParts>>& made) {
  return std::string(made.status().message());
}

// One combination that works.
struct Made {
  DeviceKind device;
  TransportKind transport;
  std::vector<TransportKind> kinds;
  bool listens_tcp;
  bool listens_unix;
  uint32_t num_ranks = 1;

  std::string name() const {
    return fmt::format("{}_{}_{}", DeviceKindName(device), TransportKindName(transport), num_ranks);
  }
};

class KvPartsMadeTest : public testing::TestWithParam<Made> {};

TEST_P(KvPartsMadeTest, PartsAreThoseThatTheFlagsName) {
  const Made& wanted = GetParam();
  if (!CheckDeviceInBuild(wanted.device).ok()) GTEST_SKIP() << "this build has no runner";
  const StatusOr<ComputeDevice> device = OpenComputeDevice(wanted.device);
  ASSERT_TRUE(device.ok()) << device.status();
  WorkerConfig config = ConfigOf(wanted.transport);
  config.nccl_library = LoopbackPath();
  config.num_ranks = wanted.num_ranks;
  const auto made = KvParts::Create(config, *device, NeedsOf());
  ASSERT_TRUE(made.ok()) << made.status();
  KvParts& parts = **made;
  EXPECT_EQ(parts.kinds(), wanted.kinds);
  // The context has 4 blocks; what a device uses or pins is all there from the start on.
  const uint32_t num_ready = wanted.device == DeviceKind::kCpu ? 5 : kBlocks;
  EXPECT_EQ(parts.store()->ready(), (ReadyBlocks{num_ready, kBlocks}));
  while (parts.FillNext()) {
  }
  EXPECT_EQ(parts.store()->ready(), (ReadyBlocks{kBlocks, kBlocks}));
  const bool is_nccl = wanted.transport == TransportKind::kNccl;
  const bool is_ipc = wanted.transport == TransportKind::kCudaIpc;
  EXPECT_EQ(parts.nccl() != nullptr, is_nccl);
  EXPECT_EQ(parts.ipc() != nullptr, is_ipc);
  const auto* const transport = static_cast<const KvTransport*>(parts.endpoint());
  EXPECT_EQ(transport == parts.transport(), !is_nccl && !is_ipc);
  EXPECT_EQ(!parts.endpoint()->tcp_address().empty(), wanted.listens_tcp);
  EXPECT_EQ(!parts.endpoint()->unix_name().empty(), wanted.listens_unix);
  EXPECT_EQ(parts.store()->memory().num_blocks, kBlocks);
  EXPECT_EQ(parts.store()->layout(), SmallLayout());
  EXPECT_EQ(parts.store()->memory().num_ranks(), wanted.num_ranks);
  // Blocks that a kernel of the device may write, and that this processor can look at.
  for (uint32_t block = 0; block < kBlocks; ++block) {
    test::SetBlock(parts.store()->memory(), BlockIndex(block), std::byte{7});
  }
}

constexpr auto kCpu = DeviceKind::kCpu;
constexpr auto kSimt = DeviceKind::kSimt;
constexpr auto kAuto = TransportKind::kAuto;
constexpr auto kShm = TransportKind::kShm;
constexpr auto kTcp = TransportKind::kTcp;
constexpr auto kNccl = TransportKind::kNccl;
constexpr auto kIpc = TransportKind::kCudaIpc;

INSTANTIATE_TEST_SUITE_P(All, KvPartsMadeTest,
                         testing::Values(Made{kCpu, kAuto, {kShm, kTcp}, true, true},
                                         Made{kCpu, kShm, {kShm}, false, true},
                                         Made{kCpu, kTcp, {kTcp}, true, false},
                                         Made{kSimt, kAuto, {kShm, kTcp}, true, true},
                                         Made{kSimt, kShm, {kShm}, false, true},
                                         Made{kSimt, kTcp, {kTcp}, true, false},
                                         Made{kSimt, kNccl, {kNccl}, true, false},
                                         Made{kSimt, kIpc, {kIpc}, false, true},
                                         Made{kSimt, kAuto, {kShm, kTcp}, true, true, 2},
                                         Made{kSimt, kNccl, {kNccl}, true, false, 2},
                                         Made{kSimt, kNccl, {kNccl}, true, false, 4},
                                         Made{kSimt, kIpc, {kIpc}, false, true, 2}),
                         [](const auto& param_info) { return param_info.param.name(); });

TEST(KvPartsTest, OnTheProcessorNothingMovesBetweenDevices) {
  const ComputeDevice processor;
  for (const TransportKind kind : {kNccl, kIpc}) {
    const auto made = KvParts::Create(ConfigOf(kind), processor, NeedsOf());
    EXPECT_EQ(made.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(Sentence(made),
              fmt::format("--transport {} moves KV between devices, and this worker "
                          "computes on the processor; use auto, shm or tcp",
                          TransportKindName(kind)));
  }
}

TEST(KvPartsTest, AnNcclThatIsNotThereIsNamed) {
  const ComputeDevice device = FakeDevice();
  WorkerConfig config = ConfigOf(kNccl);
  auto made = KvParts::Create(config, device, NeedsOf());
  EXPECT_EQ(made.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Sentence(made),
            "--transport nccl on the processor's runner needs a loopback: name it by "
            "--nccl-library");
  config.nccl_library = "/nobody/libnccl.so.2";
  made = KvParts::Create(config, device, NeedsOf());
  EXPECT_EQ(made.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(Sentence(made), StartsWith("--transport nccl: NCCL is missing; tried "
                                         "/nobody/libnccl.so.2 ("));
  config.nccl_library = BuiltLibrary("libbaton_nccl_partial.so");
  made = KvParts::Create(config, device, NeedsOf());
  EXPECT_EQ(made.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Sentence(made), StartsWith("--transport nccl: "));
  EXPECT_THAT(Sentence(made), HasSubstr("lacks ncclGetUniqueId"));
}

TEST(KvPartsTest, MemoryIsWhatTheFlagSaysOrTheFlagIsNamed) {
  for (const TransportKind kind : {kAuto, kIpc}) {
    const ComputeDevice device = FakeDevice();
    WorkerConfig config = ConfigOf(kind);
    config.kv_memory_bytes += SmallLayout().BlockStride() - 1;
    const auto made = KvParts::Create(config, device, NeedsOf());
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ((*made)->store()->memory().num_blocks, kBlocks);
    config.kv_memory_bytes = 4 * SmallLayout().BlockStride();
    const auto refused = KvParts::Create(config, device, NeedsOf());
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(Sentence(refused), StartsWith("--kv-memory is too small: "));
  }
}

TEST(KvPartsTest, ADeviceWithoutRoomIsSaidWithTheFlagThatAsksForLess) {
  const ComputeDevice device =
      FakeDevice([](FakeAccelerator* fake) { fake->max_allocation = 4096; });
  for (const TransportKind kind : {kAuto, kShm, kTcp, kNccl, kIpc}) {
    WorkerConfig config = ConfigOf(kind);
    config.nccl_library = LoopbackPath();
    const auto made = KvParts::Create(config, device, NeedsOf());
    EXPECT_EQ(made.status().code(), StatusCode::kResourceExhausted) << TransportKindName(kind);
    const char* const flag = kind == kIpc ? "--transport cuda_ipc, --kv-memory" : "--kv-memory";
    EXPECT_EQ(Sentence(made), fmt::format("{}: KV blocks needs {}, the fake has 4096", flag,
                                          config.kv_memory_bytes));
  }
}

TEST(KvPartsTest, ADeviceWhoseMemoryCannotBeSharedIsRefusedForCudaIpcOnly) {
  const ComputeDevice device =
      FakeDevice([](FakeAccelerator* fake) { fake->shares_memory = false; });
  const auto made = KvParts::Create(ConfigOf(kIpc), device, NeedsOf());
  EXPECT_EQ(made.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Sentence(made), "--transport cuda_ipc, --kv-memory: the fake has no memory to share");
  EXPECT_TRUE(KvParts::Create(ConfigOf(kAuto), device, NeedsOf()).ok());
}

TEST(KvPartsTest, SlicesThatNoKernelTakesAreRefusedByTheTransportThatNeedsThem) {
  KvNeeds needs = NeedsOf();
  needs.layout.num_kv_heads = 1;
  needs.layout.head_dim = 2;
  const ComputeDevice device = FakeDevice();
  for (const TransportKind kind : {kNccl, kIpc}) {
    WorkerConfig config = ConfigOf(kind);
    config.nccl_library = LoopbackPath();
    const auto made = KvParts::Create(config, device, needs);
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(Sentence(made), StartsWith(fmt::format("--transport {}: slices of 128 bytes are no "
                                                       "multiple of 64 in [",
                                                       TransportKindName(kind))));
  }
  EXPECT_TRUE(KvParts::Create(ConfigOf(kTcp), device, needs).ok());
}

TEST(KvPartsTest, HeadsThatRanksCannotShareAreRefusedByTheTransportThatMovesThem) {
  const ComputeDevice device = FakeDevice();
  for (const TransportKind kind : {kNccl, kIpc}) {
    WorkerConfig config = ConfigOf(kind);
    config.nccl_library = LoopbackPath();
    config.num_ranks = 8;
    const auto made = KvParts::Create(config, device, NeedsOf());
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(Sentence(made), fmt::format("--transport {}: slices of 4096 bytes and 4 KV heads "
                                          "cannot be divided among 8 ranks",
                                          TransportKindName(kind)));
  }
}

TEST(KvPartsTest, AnAddressThatCannotBeListenedOnIsNamed) {
  WorkerConfig config = ConfigOf(kTcp);
  config.kv_listen = "127.0.0.1:99999";
  EXPECT_THAT(Sentence(KvParts::Create(config, ComputeDevice{}, NeedsOf())),
              AllOf(StartsWith("--kv-listen: "), HasSubstr("127.0.0.1:99999")));
  config.kv_listen.clear();
  config.listen = "192.0.2.1:0";  // an address of no machine
  EXPECT_THAT(Sentence(KvParts::Create(config, ComputeDevice{}, NeedsOf())),
              AllOf(StartsWith("--kv-listen (the host of --listen): "), HasSubstr("192.0.2.1")));
}

// Parts of two workers on one device find each other, and the log says what crosses how.
class KvPartsPairTest : public testing::TestWithParam<TransportKind> {
 protected:
  static std::string LogOfPair(TransportKind kind) {
    const std::string path = testing::TempDir() + "/kv_parts_test.log";
    std::remove(path.c_str());
    EXPECT_TRUE(InitLog({.file = path}).ok());
    WorkerConfig config = ConfigOf(kind);
    config.nccl_library = LoopbackPath();
    const ComputeDevice device = FakeDevice();
    const auto decode = KvParts::Create(config, device, NeedsOf(1));
    config.worker_id = "prefill-0";
    const auto prefill = KvParts::Create(config, device, NeedsOf(2));
    EXPECT_TRUE(decode.ok() && prefill.ok());
    test::RecordingSink sinks[2];
    EXPECT_TRUE((*decode)->transport()->Start(&sinks[0]).ok());
    EXPECT_TRUE((*prefill)->transport()->Start(&sinks[1]).ok());
    const KvEndpoint& listener = *(*decode)->endpoint();
    const PeerAddress peer = {.worker_id = "decode-0",
                              .incarnation = Incarnation(1),
                              .host_id = HostId(),
                              .tcp = listener.tcp_address(),
                              .unix_name = listener.unix_name()};
    EXPECT_TRUE((*prefill)->endpoint()->SetPeers({&peer, 1}).ok());
    EXPECT_TRUE(sinks[0].WaitUp(1) && sinks[1].WaitUp(1));
    EXPECT_EQ(sinks[1].Snapshot().ups[0].kind, kind == kAuto ? kShm : kind);
    (*prefill)->transport()->Stop();
    (*decode)->transport()->Stop();
    FlushLog();
    EXPECT_TRUE(InitLog({}).ok());
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
};

TEST_P(KvPartsPairTest, TheLogSaysWhatCrossesHow) {
  const std::string log = LogOfPair(GetParam());
  switch (GetParam()) {
    case kNccl:
      EXPECT_THAT(log, HasSubstr("data connection with decode-0 over tcp (words; KV by nccl)"));
      EXPECT_THAT(log, HasSubstr("KV crosses by NCCL 2.28.9"));
      // Eight buffers as large as the pool, which is smaller than 32 MiB.
      EXPECT_THAT(log, HasSubstr(", 768 KiB of staging beside the pool"));
      break;
    case kIpc:
      EXPECT_THAT(log, HasSubstr("data connection with decode-0 over shm (words; KV by cuda_ipc)"));
      EXPECT_THAT(log, HasSubstr("KV is pulled from pool to pool on devices"));
      break;
    default:
      EXPECT_THAT(log, HasSubstr("data connection with decode-0 over shm"));
      EXPECT_EQ(log.find("KV by"), std::string::npos) << log;
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvPartsPairTest, testing::Values(kAuto, kNccl, kIpc),
                         [](const auto& param_info) {
                           return std::string(TransportKindName(param_info.param));
                         });

}  // namespace
}  // namespace baton::worker
