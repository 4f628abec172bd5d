// The runner as an accelerator: memory, files that kernels reach, launches of several devices.
#include "kernels/simt/simt_device.h"

#include <fcntl.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/kernel_table.h"
#include "src/base/memory_file.h"
#include "src/base/unique_fd.h"
#include "src/device/device_graph.h"
#include "src/device/device_stream.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::simt {

using namespace device;  // NOLINT(google-build-using-namespace)

namespace {

using simt_test::RandomBf16;
using testing::HasSubstr;

constexpr uint32_t kRows = 3;
constexpr uint32_t kDim = 64;
constexpr size_t kBytes = size_t{kRows} * kDim * sizeof(Bf16);

DeviceBuffer Create(SimtDevice* device, size_t size_bytes) {
  return *DeviceBuffer::Create(device, size_bytes, "test");
}

// Gathers the rows of `table` in reverse.
absl::Status GatherReversed(SimtDevice* device, const Bf16* table, const DeviceBuffer& out) {
  const std::vector<uint32_t> ids = {2, 1, 0};
  const DeviceBuffer device_ids = Create(device, sizeof(uint32_t) * ids.size());
  BATON_RETURN_IF_ERROR(device->CopyIn(device_ids.data(), ids.data(), device_ids.size_bytes()));
  return cuda::runner::Kernels().embed({.table = table,
                                        .ids = device_ids.as<uint32_t>(),
                                        .out = out.as<Bf16>(),
                                        .num_rows = kRows,
                                        .num_ids = kRows,
                                        .dim = kDim},
                                       device->stream());
}

void ExpectReversed(SimtDevice* device, const std::vector<Bf16>& values, const DeviceBuffer& out) {
  std::vector<Bf16> got(values.size());
  ASSERT_TRUE(device->CopyOut(got.data(), out.data(), kBytes).ok());
  ASSERT_TRUE(device->Wait().ok());
  for (uint32_t row = 0; row < kRows; ++row) {
    const size_t row_bytes = kDim * sizeof(Bf16);
    EXPECT_EQ(
        std::memcmp(got.data() + row * kDim, values.data() + (kRows - 1 - row) * kDim, row_bytes),
        0);
  }
}

TEST(SimtDeviceTest, AKernelReadsWhatWasCopiedIn) {
  SimtDevice device({});
  device.MakeCurrent();
  const std::vector<Bf16> values = RandomBf16(size_t{kRows} * kDim, 1);
  const DeviceBuffer table = Create(&device, kBytes);
  const DeviceBuffer out = Create(&device, kBytes);
  ASSERT_TRUE(device.CopyIn(table.data(), values.data(), kBytes).ok());
  ASSERT_TRUE(GatherReversed(&device, table.as<Bf16>(), out).ok());
  ExpectReversed(&device, values, out);
}

TEST(SimtDeviceTest, ARecordedKernelReadsWhatIsThereWhenItsGraphIsLaunched) {
  SimtDevice device({});
  device.MakeCurrent();
  const DeviceBuffer table = Create(&device, kBytes);
  const DeviceBuffer out = Create(&device, kBytes);
  const std::vector<uint32_t> ids = {2, 1, 0};
  const DeviceBuffer device_ids = Create(&device, sizeof(uint32_t) * ids.size());
  ASSERT_TRUE(device.CopyIn(device_ids.data(), ids.data(), device_ids.size_bytes()).ok());
  const auto gather = [&] {
    return cuda::runner::Kernels().embed({.table = table.as<Bf16>(),
                                          .ids = device_ids.as<uint32_t>(),
                                          .out = out.as<Bf16>(),
                                          .num_rows = kRows,
                                          .num_ids = kRows,
                                          .dim = kDim},
                                         device.stream());
  };
  const uint64_t before = TotalRunStats().num_launches;
  Accelerator* const devices[] = {&device};
  const auto graph = DeviceGraph::Record(devices, gather);
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(graph->size(), 1u);
  EXPECT_EQ(TotalRunStats().num_launches, before) << "nothing ran yet";
  for (const uint64_t seed : {1, 2}) {
    const std::vector<Bf16> values = RandomBf16(size_t{kRows} * kDim, seed);
    ASSERT_TRUE(device.CopyIn(table.data(), values.data(), kBytes).ok());
    ASSERT_TRUE(graph->front().Launch().ok());
    ExpectReversed(&device, values, out);
  }
  EXPECT_EQ(TotalRunStats().num_launches, before + 2);
}

// A call that fails in the middle ends the recording, and launches run again.
TEST(SimtDeviceTest, AGraphHoldsKernelsOnly) {
  SimtDevice device({});
  device.MakeCurrent();
  const DeviceBuffer memory = Create(&device, kBytes);
  std::vector<std::byte> host(kBytes);
  Accelerator* const devices[] = {&device};
  const auto record = [&devices](const auto& put) {
    return DeviceGraph::Record(devices, put).status().code();
  };
  EXPECT_EQ(record([&] { return device.CopyIn(memory.data(), host.data(), kBytes); }),
            absl::StatusCode::kInternal);
  EXPECT_EQ(record([&] { return device.CopyOut(host.data(), memory.data(), kBytes); }),
            absl::StatusCode::kInternal);
  EXPECT_EQ(record([&] { return device.Wait(); }), absl::StatusCode::kInternal);
  EXPECT_EQ(record([&] { return device.BeginRecording(); }), absl::StatusCode::kInternal);
  EXPECT_EQ(device.EndRecording().status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(device.CopyIn(memory.data(), host.data(), kBytes).ok());
}

TEST(SimtDeviceTest, AnAccessOutsideABufferIsInternalAndNamesIt) {
  SimtDevice device({});
  device.MakeCurrent();
  const DeviceBuffer table = Create(&device, kBytes - 16);
  const DeviceBuffer out = Create(&device, kBytes);
  const absl::Status status = GatherReversed(&device, table.as<Bf16>(), out);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bounds"));
}

// A served model launches millions of kernels: shared memory must not use up the addresses.
TEST(SimtDeviceTest, LaunchesUseNoMoreAddressesOverTime) {
  SimtDevice device({.detect_races = false});
  device.MakeCurrent();
  const DeviceBuffer x = Create(&device, kBytes);
  const DeviceBuffer residual = Create(&device, kBytes);
  const DeviceBuffer weight = Create(&device, kBytes);
  const DeviceBuffer out = Create(&device, kBytes);
  const auto normalise = [&] {
    return cuda::runner::Kernels().rms_norm({.x = x.as<Bf16>(),
                                             .residual = residual.as<Bf16>(),
                                             .weight = weight.as<Bf16>(),
                                             .out = out.as<Bf16>(),
                                             .num_rows = kRows,
                                             .dim = kDim,
                                             .eps = 1e-5f},
                                            device.stream());
  };
  ASSERT_TRUE(normalise().ok());
  const std::byte* const before = Create(&device, 16).data();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(normalise().ok());
  const std::byte* const after = Create(&device, 16).data();
  EXPECT_LT(after - before, 4 * static_cast<ptrdiff_t>(Arena::kPageBytes));
}

TEST(SimtDeviceTest, AnEventStandsBehindWhatOthersPutIntoAStream) {
  SimtDevice device({});
  device.MakeCurrent();
  const DeviceStream stream = *DeviceStream::Create(&device);
  DeviceEvent event = *DeviceEvent::Create(&device);
  EXPECT_TRUE(*event.Query()) << "never recorded";
  auto* const counts = static_cast<HostStream*>(stream.get());
  counts->num_put = 2;
  ASSERT_TRUE(event.Record(stream.get()).ok());
  counts->num_put = 3;
  EXPECT_FALSE(*event.Query());
  counts->num_done = 1;
  EXPECT_FALSE(*event.Query());
  counts->num_done = 2;
  EXPECT_TRUE(*event.Query()) << "the third came later";
  // The device's own work is done when a call returns.
  ASSERT_TRUE(event.Record(device.stream()).ok());
  EXPECT_TRUE(*event.Query());
}

// As an engine and a transport use one device: each thread launches, allocates and frees, and reads
// what the other has written.
TEST(SimtDeviceTest, TwoThreadsShareTheMemoryOfOneDevice) {
  SimtDevice device({.detect_races = false});
  device.MakeCurrent();
  const std::vector<Bf16> values = RandomBf16(size_t{kRows} * kDim, 1);
  const DeviceBuffer table = Create(&device, kBytes);
  const DeviceBuffer turned = Create(&device, kBytes);
  ASSERT_TRUE(device.CopyIn(table.data(), values.data(), kBytes).ok());
  ASSERT_TRUE(GatherReversed(&device, table.as<Bf16>(), turned).ok());
  const std::unique_ptr<Accelerator> shared = *device.Share();
  EXPECT_EQ(shared->kind(), device.kind());
  EXPECT_EQ(shared->arithmetic(), device.arithmetic());
  std::thread other([&] {
    auto* const own = static_cast<SimtDevice*>(shared.get());
    own->MakeCurrent();
    for (int i = 0; i < 50; ++i) {
      // Turned twice is as it was.
      const DeviceBuffer out = Create(own, kBytes);
      ASSERT_TRUE(GatherReversed(own, turned.as<Bf16>(), out).ok());
      std::vector<Bf16> got(values.size());
      ASSERT_TRUE(own->CopyOut(got.data(), out.data(), kBytes).ok());
      ASSERT_EQ(std::memcmp(got.data(), values.data(), kBytes), 0);
    }
  });
  for (int i = 0; i < 50; ++i) {
    const DeviceBuffer out = Create(&device, kBytes);
    ASSERT_TRUE(GatherReversed(&device, table.as<Bf16>(), out).ok());
    ExpectReversed(&device, values, out);
  }
  other.join();
}

// Two devices of one process stand for those of two: nothing but the descriptor joins them.
TEST(SimtDeviceTest, AnotherDeviceReadsSharedMemoryAsItChanges) {
  SimtDevice owner({});
  owner.MakeCurrent();
  const std::vector<Bf16> values = RandomBf16(size_t{kRows} * kDim, 1);
  auto table = std::make_unique<DeviceBuffer>(*CreateSharedBuffer(&owner, kBytes, "pool"));
  const UniqueFd fd = *owner.ExportShared(table->data());
  SimtDevice reader({});
  reader.MakeCurrent();
  const std::byte* const mapped = *reader.ImportShared(fd, kBytes);
  EXPECT_NE(mapped, table->data());
  EXPECT_EQ(mapped[0], std::byte{0xFF}) << "new memory is poisoned as any other";
  ASSERT_TRUE(owner.CopyIn(table->data(), values.data(), kBytes).ok());
  const DeviceBuffer out = Create(&reader, kBytes);
  const auto* const rows = reinterpret_cast<const Bf16*>(mapped);
  ASSERT_TRUE(GatherReversed(&reader, rows, out).ok());
  ExpectReversed(&reader, values, out);
  // The buffer that owned the memory may be gone.
  table.reset();
  reader.MakeCurrent();
  ASSERT_TRUE(GatherReversed(&reader, rows, out).ok());
  ExpectReversed(&reader, values, out);
  reader.ReleaseShared(mapped);
  EXPECT_EQ(GatherReversed(&reader, rows, out).code(), absl::StatusCode::kInternal);
}

TEST(SimtDeviceTest, AKernelThatWritesToImportedMemoryIsReported) {
  SimtDevice owner({});
  owner.MakeCurrent();
  const DeviceBuffer pool = *CreateSharedBuffer(&owner, kBytes, "pool");
  const UniqueFd fd = *owner.ExportShared(pool.data());
  SimtDevice reader({});
  reader.MakeCurrent();
  const std::byte* const mapped = *reader.ImportShared(fd, kBytes);
  const std::vector<uint32_t> ids = {0};
  const DeviceBuffer device_ids = Create(&reader, sizeof(uint32_t));
  ASSERT_TRUE(reader.CopyIn(device_ids.data(), ids.data(), sizeof(uint32_t)).ok());
  const DeviceBuffer table = Create(&reader, kBytes);
  const auto* const out = reinterpret_cast<const Bf16*>(mapped);
  const absl::Status status = cuda::runner::Kernels().embed({.table = table.as<Bf16>(),
                                                             .ids = device_ids.as<uint32_t>(),
                                                             .out = const_cast<Bf16*>(out),
                                                             .num_rows = kRows,
                                                             .num_ids = 1,
                                                             .dim = kDim},
                                                            reader.stream());
  EXPECT_THAT(std::string(status.message()), HasSubstr("which others own"));
  reader.ReleaseShared(mapped);
}

TEST(SimtDeviceTest, ImportTakesOnlyWhatWasExportedWithThatSize) {
  SimtDevice owner({});
  owner.MakeCurrent();
  constexpr size_t kSize = 3 * Arena::kPageBytes;
  const DeviceBuffer pool = *CreateSharedBuffer(&owner, kSize, "pool");
  const DeviceBuffer plain = Create(&owner, kSize);
  EXPECT_EQ(owner.ExportShared(plain.data()).status().code(), absl::StatusCode::kInvalidArgument);
  const UniqueFd fd = *owner.ExportShared(pool.data());
  const auto reason = [&](const UniqueFd& file, size_t size) {
    return std::string(owner.ImportShared(file, size).status().message());
  };
  EXPECT_THAT(reason(fd, kSize + 1), HasSubstr("has 12288 bytes, needs 16384"));
  EXPECT_THAT(reason(fd, Arena::kPageBytes), HasSubstr("has 12288 bytes, needs 4096"));
  EXPECT_THAT(reason(fd, 0), HasSubstr("0 bytes"));
  EXPECT_THAT(reason(fd, ~size_t{0}), HasSubstr("bytes"));
  EXPECT_THAT(reason(UniqueFd(), kSize), HasSubstr("no memory file"));
  EXPECT_THAT(reason(UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)), kSize),
              HasSubstr("no memory file"));
  EXPECT_THAT(reason(*CreateMemoryFile("unsealed", kSize), kSize), HasSubstr("seals"));
  const UniqueFd hollow = *CreateMemoryFile("hollow", kSize);
  ASSERT_TRUE(SealMemoryFile(hollow.get()).ok());
  EXPECT_THAT(reason(hollow, kSize), HasSubstr("only 0 of its 12288 bytes"));
  EXPECT_EQ(CreateSharedBuffer(&owner, 0, "pool").status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A peer that comes back again and again must not use up the addresses.
TEST(SimtDeviceTest, ImportsUseNoMoreAddressesOverTime) {
  SimtDevice device({});
  device.MakeCurrent();
  const DeviceBuffer pool = *CreateSharedBuffer(&device, kBytes, "pool");
  const UniqueFd fd = *device.ExportShared(pool.data());
  const std::byte* const first = *device.ImportShared(fd, kBytes);
  device.ReleaseShared(first);
  for (int i = 0; i < 100; ++i) {
    const std::byte* const again = *device.ImportShared(fd, kBytes);
    EXPECT_EQ(again, first);
    device.ReleaseShared(again);
  }
}

TEST(SimtDeviceTest, DevicesOfSeveralThreadsTakeTurns) {
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([seed] {
      SimtDevice device({.detect_races = false});
      device.MakeCurrent();
      const std::vector<Bf16> values = RandomBf16(size_t{kRows} * kDim, seed);
      const DeviceBuffer table = Create(&device, kBytes);
      const DeviceBuffer out = Create(&device, kBytes);
      ASSERT_TRUE(device.CopyIn(table.data(), values.data(), kBytes).ok());
      for (int i = 0; i < 50; ++i) {
        ASSERT_TRUE(GatherReversed(&device, table.as<Bf16>(), out).ok());
        ExpectReversed(&device, values, out);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace baton::kernels::simt
