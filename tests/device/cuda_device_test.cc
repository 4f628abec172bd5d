// CudaDevice on a runtime that is played. A thing that a machine lacks or refuses gives one line of
// the right kind (FailedPrecondition = `--device auto` computes on the processor instead). Nothing
// is leaked, and an error that is not sticky does not stay.
#include "src/device/cuda/cuda_device.h"

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/check.h"
#include "src/device/gpu_code.h"
#include "tests/device/fake_cudart.h"
#include "tests/device/fake_green_driver.h"

namespace baton::device {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;

absl::Status HasCode() { return OkStatus(); }
absl::Status HasNoCode() { return FailedPrecondition("no kernel image is there"); }

class CudaDeviceTest : public ::testing::Test {
 protected:
  ~CudaDeviceTest() override {
    EXPECT_EQ(machine_.num_streams, 0);
    EXPECT_EQ(machine_.num_events, 0);
    EXPECT_EQ(machine_.num_graphs, 0);
    EXPECT_EQ(machine_.num_registered, 0);
    EXPECT_EQ(machine_.allocated_bytes(), 0u);
    EXPECT_TRUE(machine_.pinned.empty());
    EXPECT_EQ(machine_.last_error, cudaSuccess) << "whoever asks next would find it";
  }

  static std::unique_ptr<CudaDevice> Opened(int ordinal = 0) {
    auto device = CudaDevice::Open(ordinal, HasCode);
    BATON_CHECK(device.ok(), "{}", std::string(device.status().message()));
    return *std::move(device);
  }
  static void ExpectRefused(absl::StatusCode code, const std::string& words,
                            CudaDevice::CodeCheck check = HasCode, int ordinal = 0) {
    const absl::Status status = CudaDevice::Open(ordinal, check).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(status.message(), words);
  }

  FakeCudart machine_;
};

TEST_F(CudaDeviceTest, AMachineThatHasNoneSaysWhatIsMissing) {
  constexpr auto kMissing = absl::StatusCode::kFailedPrecondition;
  machine_.count_error = cudaErrorNoDevice;
  ExpectRefused(kMissing, "no GPU can be used: no CUDA-capable device is detected");
  machine_.driver_version = 12040;
  machine_.count_error = cudaErrorInsufficientDriver;
  ExpectRefused(kMissing, "no GPU can be used: the driver is for CUDA 12.4, older than CUDA 13.0");
  // The runtime calls the absence of a driver by the same name.
  machine_.driver_version = 0;
  ExpectRefused(kMissing, "no GPU can be used: there is no CUDA driver");
}

TEST_F(CudaDeviceTest, WhatItCannotComputeOnIsNamed) {
  constexpr auto kMissing = absl::StatusCode::kFailedPrecondition;
  ExpectRefused(kMissing, "GPU 2: there are 2", HasCode, 2);
  machine_.major = 7;
  const absl::Status status = CudaDevice::Open(0, HasNoCode).status();
  EXPECT_EQ(status.code(), kMissing);
  EXPECT_THAT(std::string(status.message()), HasSubstr("GPU 0 (Fake) is sm_70; this build has"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no kernel image is there"));
}

TEST_F(CudaDeviceTest, AKindOfGpuThatNobodyCheckedIsNamedInTheLog) {
  for (const int major : {9, 12}) {
    machine_.major = major;
    testing::internal::CaptureStderr();
    EXPECT_EQ(Opened()->arithmetic(), GpuArithmetic({major, 0}));
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string line = "GPU 0 (Fake) is sm_120, of which none has run scripts/gpu_check.sh";
    EXPECT_EQ(log.find(line) != log.npos, major == 12) << log;
  }
}

// A GPU that is there and fails must not pass for one that is absent.
TEST_F(CudaDeviceTest, AGpuThatFailsIsNoMissingOne) {
  machine_.count_error = cudaErrorInitializationError;
  ExpectRefused(absl::StatusCode::kInternal, "cudaGetDeviceCount: another error, what it means");
  machine_.count_error = cudaSuccess;
  // Exclusive mode, and another process has it.
  machine_.set_device_error = cudaErrorDevicesUnavailable;
  ExpectRefused(absl::StatusCode::kInternal,
                "cudaSetDevice: cudaErrorDevicesUnavailable, what it means");
  machine_.set_device_error = cudaSuccess;
  constexpr auto fails = [] { return Internal("the code cannot be asked for"); };
  ExpectRefused(absl::StatusCode::kInternal, "the code cannot be asked for", fails);
}

TEST_F(CudaDeviceTest, MemoryThatIsShortSaysWhatIsNeededAndWhatIsThere) {
  machine_.memory_bytes = 1000 << 10;
  machine_.max_host_bytes = 10 << 10;
  const auto device = Opened();
  EXPECT_EQ(device->Describe(), "GPU 0 (Fake, 1000 KiB)");
  const auto most = device->Allocate(900 << 10, "weights");
  ASSERT_TRUE(most.ok()) << most.status();
  const absl::Status status = device->Allocate(200 << 10, "the KV pool").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "the KV pool needs 200 KiB, GPU 0 (Fake, 1000 KiB) has 100 KiB free of 1000 KiB "
            "(cudaErrorMemoryAllocation)");
  EXPECT_EQ(machine_.last_error, cudaSuccess);
  const auto nothing = device->Allocate(0, "nothing");
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  device->Free(*nothing);
  device->Free(*most);

  const absl::Status pinned = device->AllocateHost(11 << 10, "the ring").status();
  EXPECT_EQ(pinned.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pinned.message(),
            "the ring needs 11 KiB of pinned memory of the host: cudaErrorMemoryAllocation");
  const auto host = device->AllocateHost(10 << 10, "the ring");
  ASSERT_TRUE(host.ok()) << host.status();
  device->FreeHost(*host);
}

TEST_F(CudaDeviceTest, AFailureWhereMemoryIsAskedForIsNoShortage) {
  const auto device = Opened();
  machine_.malloc_error = cudaErrorIllegalAddress;
  for (const absl::Status& status :
       {device->Allocate(1, "memory").status(), device->AllocateHost(1, "memory").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("cudaErrorIllegalAddress"));
  }
}

TEST_F(CudaDeviceTest, MemoryThatCannotBePinnedIsRefusedAndNothingMore) {
  const auto device = Opened();
  std::byte memory[64];
  machine_.pin_error = cudaErrorMemoryAllocation;
  const absl::Status status = device->PinHost(memory, sizeof(memory));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "cudaHostRegister of 64 B: cudaErrorMemoryAllocation");
  EXPECT_EQ(machine_.last_error, cudaSuccess);
  machine_.pin_error = cudaSuccess;
  ASSERT_TRUE(device->PinHost(memory, sizeof(memory)).ok());
  device->UnpinHost(memory);
}

TEST_F(CudaDeviceTest, APeerThatCannotBeReachedIsNamed) {
  const auto first = Opened(0);
  const auto second = Opened(1);
  machine_.peers_reach = false;
  const absl::Status apart = first->ReachMemoryOf(*second);
  EXPECT_EQ(apart.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(apart.message(), "GPU 0 cannot reach the memory of GPU 1: no NVLink and no PCIe path");
  machine_.peers_reach = true;
  machine_.enable_peer_error = cudaErrorTooManyPeers;
  const absl::Status refused = first->ReachMemoryOf(*second);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(refused.message(), "cudaDeviceEnablePeerAccess: cudaErrorTooManyPeers, what it means");
  machine_.enable_peer_error = cudaSuccess;
  // By the GPU that reaches, whichever was current.
  EXPECT_TRUE(first->ReachMemoryOf(*second).ok());
  EXPECT_THAT(machine_.reached, ::testing::ElementsAre(Pair(0, 1)));
  machine_.enable_peer_error = cudaErrorPeerAccessAlreadyEnabled;
  EXPECT_TRUE(first->ReachMemoryOf(*second).ok());
  EXPECT_TRUE(first->ReachMemoryOf(*first).ok());
}

TEST_F(CudaDeviceTest, AStickyErrorIsToldByEveryWait) {
  const auto device = Opened();
  const auto memory = device->Allocate(8, "memory");
  ASSERT_TRUE(memory.ok());
  const auto event = device->CreateEvent();
  ASSERT_TRUE(event.ok());
  const uint64_t value = 42;
  uint64_t back = 0;
  ASSERT_TRUE(device->CopyIn(*memory, &value, 8).ok());
  ASSERT_TRUE(device->CopyOut(&back, *memory, 8).ok());
  ASSERT_TRUE(device->Record(*event, device->stream()).ok());
  EXPECT_TRUE(*device->Query(*event));
  EXPECT_EQ(back, value);

  machine_.work_error = cudaErrorNotReady;
  EXPECT_FALSE(*device->Query(*event));
  machine_.work_error = cudaErrorIllegalAddress;
  const std::string words = "cudaErrorIllegalAddress, what it means";
  for (const absl::Status& status :
       {device->Wait(), device->WaitFor(*event), device->Query(*event).status(),
        device->Record(*event, device->stream()), device->CopyIn(*memory, &value, 8),
        device->CopyOut(&back, *memory, 8), device->CopyWithin(*memory, *memory, 0)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
  device->DestroyEvent(*event);
  device->Free(*memory);
}

TEST_F(CudaDeviceTest, ARecordingThatFailsLeavesNoGraph) {
  const auto device = Opened();
  for (cudaError_t FakeCudart::*const step :
       {&FakeCudart::end_capture_error, &FakeCudart::instantiate_error,
        &FakeCudart::upload_error}) {
    machine_.*step = cudaErrorMemoryAllocation;
    ASSERT_TRUE(device->BeginRecording().ok());
    EXPECT_EQ(device->EndRecording().status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(machine_.num_graphs, 0);
    EXPECT_EQ(machine_.last_error, cudaSuccess);
    machine_.*step = cudaSuccess;
  }
  ASSERT_TRUE(device->BeginRecording().ok());
  const auto graph = device->EndRecording();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(machine_.num_graphs, 1) << "what was recorded is not kept beside it";
  EXPECT_TRUE(device->LaunchGraph(*graph).ok());
  device->DestroyGraph(*graph);
}

// A driver without green contexts and without shared memory, as the played one is.
TEST_F(CudaDeviceTest, WhatTheDriverLacksIsDoneWithoutOrNamed) {
  const auto device = Opened();
  const auto other = device->Split();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE((*other)->stream(), device->stream());
  EXPECT_EQ((*other)->num_sms(), device->num_sms());
  const absl::Status shared = device->AllocateShared(4096, "the KV pool").status();
  EXPECT_EQ(shared.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shared.message()), HasSubstr("the CUDA driver has no cu"));
}

template <typename Function>
void* Pointer(Function* function) {
  return reinterpret_cast<void*>(function);
}

// A driver that divides its GPU, but whose streams of a part take no events of others, as its
// manual says: then nothing is divided.
TEST_F(CudaDeviceTest, APartWithoutEventsIsNoPart) {
  fake_green::FakeGpu gpu;
  fake_green::gpu = &gpu;
  const GreenTable driver = fake_green::Driver();
#define BATON_GIVE(name) machine_.driver[#name] = Pointer(driver.name);
  BATON_GREEN_FUNCTIONS(BATON_GIVE)
#undef BATON_GIVE
  for (const bool takes_events : {false, true}) {
    machine_.record_error = takes_events ? cudaSuccess : cudaErrorInvalidResourceHandle;
    const auto device = Opened();
    const auto other = device->Split();
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(device->num_sms(), takes_events ? 132u - 32 : 132u);
    EXPECT_EQ((*other)->num_sms(), takes_events ? 32u : 132u);
    EXPECT_EQ(gpu.streams.size(), takes_events ? 2u : 0u);
    EXPECT_EQ(gpu.contexts.size(), takes_events ? 2u : 0u);
    EXPECT_EQ(machine_.num_events, 0);
    EXPECT_EQ(machine_.last_error, cudaSuccess);
  }
  EXPECT_TRUE(gpu.streams.empty() && gpu.contexts.empty());
  fake_green::gpu = nullptr;
}

// Such a GPU reads a pageable source when it comes to it, and the caller may have freed it.
TEST_F(CudaDeviceTest, AGpuThatReadsPageableMemoryIsWaitedFor) {
  for (const bool reads_pageable : {false, true}) {
    machine_.reads_pageable = reads_pageable;
    const auto device = Opened();
    std::byte* const memory = device->Allocate(64, "memory").value();
    std::byte* const pinned = device->AllocateHost(64, "pinned").value();
    std::array<std::byte, 64> pageable{};
    const CopyShape rows{.num_rows = 2, .row_bytes = 8, .device_pitch = 8, .host_pitch = 16};
    machine_.num_waits = 0;
    EXPECT_TRUE(device->CopyIn(memory, pinned + 8, 8).ok());
    EXPECT_TRUE(device->CopyRowsOut(pinned, memory, rows).ok());
    EXPECT_EQ(machine_.num_waits, 0);
    EXPECT_TRUE(device->CopyIn(memory, pageable.data(), 64).ok());
    EXPECT_TRUE(device->CopyOut(pageable.data(), memory, 64).ok());
    EXPECT_TRUE(device->CopyRowsIn(memory, pageable.data(), rows).ok());
    EXPECT_TRUE(device->CopyRowsOut(pageable.data(), memory, rows).ok());
    EXPECT_EQ(machine_.num_waits, reads_pageable ? 4 : 0);
    device->FreeHost(pinned);
    device->Free(memory);
  }
}

}  // namespace
}  // namespace baton::device
