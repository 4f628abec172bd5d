// CudaSharedMemory on a driver that is played: what crosses between processes, what is refused and
// why, and that whatever fails leaves nothing behind.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/memory_file.h"
#include "src/device/cuda/shared_memory.h"
#include "tests/count_open_files.h"
#include "tests/device/fake_vmm.h"

namespace baton::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr size_t kBytes = 3 * FakeVmm::kGranularity;
constexpr FakeVmm::Alive kNothing;
constexpr FakeVmm::Alive kOneRegion = {1, 1, 1};

std::string Message(const Status& status) { return std::string(status.message()); }

// Two processes' view of one driver.
class CudaSharedMemoryTest : public testing::Test {
 protected:
  CudaSharedMemoryTest() {
    own_ = *CudaSharedMemory::Open(FakeVmm::Table(), 0);
    peer_ = *CudaSharedMemory::Open(FakeVmm::Table(), 0);
    driver_.calls.clear();
  }
  ~CudaSharedMemoryTest() override {
    own_.reset();
    peer_.reset();
    EXPECT_EQ(driver_.alive(), kNothing);
    EXPECT_EQ(CountOpenFiles(), num_files_);
  }

  // Makes memory that the test owns, and exports it. Then it clears the list of calls, so that the
  // list holds only later calls.
  UniqueFd MakeExported(size_t size_bytes = kBytes) {
    begin_ = *own_->Allocate(size_bytes, "KV blocks");
    UniqueFd fd = *own_->Export(begin_);
    driver_.calls.clear();
    return fd;
  }

  const size_t num_files_ = CountOpenFiles();
  FakeVmm driver_;
  std::unique_ptr<CudaSharedMemory> own_;
  std::unique_ptr<CudaSharedMemory> peer_;
  std::byte* begin_ = nullptr;
};

TEST_F(CudaSharedMemoryTest, WhatIsExportedIsReadWhereItIsImported) {
  const UniqueFd fd = MakeExported();
  std::memset(begin_, 0x5A, kBytes);
  const StatusOr<const std::byte*> mapped = peer_->Import(fd, kBytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_NE(*mapped, begin_);
  EXPECT_EQ((*mapped)[kBytes - 1], std::byte{0x5A});
  begin_[7] = std::byte{1};
  EXPECT_EQ((*mapped)[7], std::byte{1}) << "the same memory, not a copy";
  EXPECT_EQ(driver_.AccessAt(begin_), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(driver_.AccessAt(*mapped), CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_TRUE(peer_->Owns(*mapped));
  EXPECT_FALSE(peer_->Owns(begin_));
  peer_->Free(*mapped);
  EXPECT_FALSE(peer_->Owns(*mapped));
  EXPECT_EQ(driver_.alive(), kOneRegion);
}

TEST_F(CudaSharedMemoryTest, WhereNothingIsReadableOnlyAnImportIsWritable) {
  const UniqueFd fd = MakeExported();
  std::memset(begin_, 0x5A, kBytes);
  driver_.refuses_read_only = true;
  const StatusOr<const std::byte*> mapped = peer_->Import(fd, kBytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ((*mapped)[kBytes - 1], std::byte{0x5A});
  EXPECT_EQ(driver_.AccessAt(*mapped), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(std::count(driver_.calls.begin(), driver_.calls.end(), "cuMemSetAccess"), 2);
  peer_->Free(*mapped);
  EXPECT_EQ(driver_.alive(), kOneRegion);
}

TEST_F(CudaSharedMemoryTest, OnlyGpusThatReachItReadAndWriteIt) {
  const int reached_by[] = {1, 3};
  begin_ = *own_->Allocate(kBytes, "KV blocks", reached_by);
  for (const int gpu : {0, 1, 3}) {
    EXPECT_EQ(driver_.AccessAt(begin_, gpu), CU_MEM_ACCESS_FLAGS_PROT_READWRITE) << gpu;
  }
  EXPECT_EQ(driver_.AccessAt(begin_, 2), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const UniqueFd fd = *own_->Export(begin_);
  const std::byte* const mapped = *peer_->Import(fd, kBytes);
  EXPECT_EQ(driver_.AccessAt(mapped, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE) << "who imports reads";
  peer_->Free(mapped);
}

TEST_F(CudaSharedMemoryTest, MemoryLivesAsLongAsAnybodyHasIt) {
  UniqueFd fd = MakeExported();
  std::memset(begin_, 0x5A, kBytes);
  own_->Free(begin_);
  EXPECT_EQ(driver_.alive(), kNothing);
  const std::byte* const mapped = *peer_->Import(fd, kBytes);
  fd.reset();
  EXPECT_EQ(mapped[kBytes - 1], std::byte{0x5A});
}

TEST_F(CudaSharedMemoryTest, SizesAreRoundedUpToWholeGranules) {
  const UniqueFd fd = MakeExported(kBytes - 1);
  std::memset(begin_, 1, kBytes);
  EXPECT_TRUE(peer_->Import(fd, kBytes - 1).ok());
  EXPECT_TRUE(peer_->Import(fd, kBytes - FakeVmm::kGranularity + 1).ok());
}

TEST_F(CudaSharedMemoryTest, MoreThanWasAllocatedIsRefused) {
  const UniqueFd fd = MakeExported();
  const Status status = peer_->Import(fd, kBytes + 1).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(Message(status), "cuMemMap: CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(driver_.alive(), kOneRegion);
}

TEST_F(CudaSharedMemoryTest, DescriptorsOfAnythingElseAreRefused) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd write_end(ends[1]);
  std::vector<UniqueFd> others;
  others.emplace_back();
  others.emplace_back(ends[0]);
  others.push_back(*CreateMemoryFile("somebody's", kBytes));
  for (const UniqueFd& other : others) {
    const Status status = peer_->Import(other, kBytes).status();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(Message(status), "cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE");
    EXPECT_EQ(driver_.alive(), kNothing);
  }
}

TEST_F(CudaSharedMemoryTest, MemoryThatIsNotAGpusIsRefused) {
  driver_.location = CU_MEM_LOCATION_TYPE_HOST;
  const UniqueFd fd = MakeExported();
  const Status status = peer_->Import(fd, kBytes).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(status), "the memory of another process is not a GPU's");
  EXPECT_EQ(driver_.alive(), kOneRegion);
}

TEST_F(CudaSharedMemoryTest, ARefusedExportLeavesTheMemoryAsItWas) {
  begin_ = *own_->Allocate(kBytes, "KV blocks");
  driver_.fails["cuMemExportToShareableHandle"] = CUDA_ERROR_NOT_PERMITTED;
  const Status status = own_->Export(begin_).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(Message(status), "cuMemExportToShareableHandle: CUDA_ERROR_NOT_PERMITTED");
  driver_.fails.clear();
  const StatusOr<UniqueFd> fd = own_->Export(begin_);
  ASSERT_TRUE(fd.ok());
  EXPECT_TRUE(peer_->Import(*fd, kBytes).ok());
  EXPECT_EQ(own_->Export(begin_ + 1).status().code(), StatusCode::kInvalidArgument);
}

// A caller that asks for such memory may go on without it. Any other failure is a fault.
TEST_F(CudaSharedMemoryTest, WhatTheDriverDoesNotHaveIsNoFault) {
  driver_.fails["cuMemCreate"] = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_EQ(own_->Allocate(kBytes, "KV blocks").status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(CudaSharedMemoryTest, MemoryThatIsShortIsSaidWithItsSizes) {
  const Status status = own_->Allocate(2 * FakeVmm::kFreeBytes, "KV blocks").status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(status), "KV blocks needs 2 GiB, GPU 0 has 1 GiB free of 2 GiB");
}

// Whichever call fails, what was done before it is undone, the last first.
struct Failure {
  const char* call;
  std::vector<std::string> undone;
};

TEST_F(CudaSharedMemoryTest, AnAllocationThatFailsIsUndone) {
  const std::vector<Failure> failures = {
      {"cuMemCreate", {}},
      {"cuMemAddressReserve", {"cuMemRelease"}},
      {"cuMemMap", {"cuMemAddressFree", "cuMemRelease"}},
      {"cuMemSetAccess", {"cuMemUnmap", "cuMemAddressFree", "cuMemRelease"}}};
  std::vector<std::string> done;
  for (const Failure& failure : failures) {
    driver_.calls.clear();
    driver_.fails = {{failure.call, CUDA_ERROR_NOT_PERMITTED}};
    const Status status = own_->Allocate(kBytes, "KV blocks").status();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(Message(status), std::string(failure.call) + ": CUDA_ERROR_NOT_PERMITTED");
    done.emplace_back(failure.call);
    std::vector<std::string> expected = done;
    expected.insert(expected.end(), failure.undone.begin(), failure.undone.end());
    EXPECT_EQ(driver_.calls, expected);
    EXPECT_EQ(driver_.alive(), kNothing) << failure.call;
  }
}

TEST_F(CudaSharedMemoryTest, AnImportThatFailsIsUndone) {
  const UniqueFd fd = MakeExported();
  const std::vector<Failure> failures = {
      {"cuMemImportFromShareableHandle", {}},
      {"cuMemGetAllocationPropertiesFromHandle", {"cuMemRelease"}},
      {"cuMemAddressReserve", {"cuMemRelease"}},
      {"cuMemMap", {"cuMemAddressFree", "cuMemRelease"}},
      // A GPU that cannot reach that memory, neither for reading nor for writing too.
      {"cuMemSetAccess", {"cuMemSetAccess", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease"}}};
  std::vector<std::string> done;
  for (const Failure& failure : failures) {
    driver_.calls.clear();
    driver_.fails = {{failure.call, CUDA_ERROR_NOT_PERMITTED}};
    const Status status = peer_->Import(fd, kBytes).status();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(Message(status), std::string(failure.call) + ": CUDA_ERROR_NOT_PERMITTED");
    done.emplace_back(failure.call);
    std::vector<std::string> expected = done;
    expected.insert(expected.end(), failure.undone.begin(), failure.undone.end());
    EXPECT_EQ(driver_.calls, expected);
    EXPECT_EQ(driver_.alive(), kOneRegion) << failure.call;
  }
  driver_.fails.clear();
  EXPECT_TRUE(peer_->Import(fd, kBytes).ok());
}

TEST_F(CudaSharedMemoryTest, FreeGoesOnWhereACallFails) {
  begin_ = *own_->Allocate(kBytes, "KV blocks");
  driver_.calls.clear();
  driver_.fails["cuMemGetInfo"] = CUDA_ERROR_UNKNOWN;  // of no concern to it
  own_->Free(begin_);
  EXPECT_THAT(driver_.calls, ElementsAre("cuMemUnmap", "cuMemAddressFree", "cuMemRelease"));
  EXPECT_EQ(driver_.alive(), kNothing);
  // A handle that the driver does not want back holds up nothing else.
  begin_ = *own_->Allocate(kBytes, "KV blocks");
  driver_.fails["cuMemRelease"] = CUDA_ERROR_UNKNOWN;
  own_->Free(begin_);
  EXPECT_EQ(driver_.alive(), (FakeVmm::Alive{.handles = 1}));
  EXPECT_FALSE(own_->Owns(begin_));
  driver_.fails.clear();
  ASSERT_EQ(FakeVmm::Table().cuMemRelease(101), CUDA_SUCCESS);
}

TEST_F(CudaSharedMemoryTest, WhatIsNotFreedIsFreedAtTheEnd) {
  std::vector<UniqueFd> exported;
  for (int i = 0; i < 3; ++i) exported.push_back(MakeExported());
  for (const UniqueFd& fd : exported) ASSERT_TRUE(peer_->Import(fd, kBytes).ok());
  EXPECT_EQ(driver_.alive(), (FakeVmm::Alive{6, 6, 6}));
  own_.reset();
  EXPECT_EQ(driver_.alive(), (FakeVmm::Alive{3, 3, 3})) << "the peer's stay";
}

// The features that a GPU or its driver may lack. A user of cuda_ipc reads the message.
TEST(CudaSharedMemoryOpenTest, AGpuWithoutItIsRefusedByTheAttributeThatItLacks) {
  FakeVmm driver;
  for (const CUdevice_attribute attribute :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    driver.lacks = {attribute};
    const Status status = CudaSharedMemory::Open(FakeVmm::Table(), 3).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(status), HasSubstr("GPU 3 has no memory that another process can map"));
    EXPECT_THAT(Message(status), HasSubstr("(attribute " + std::to_string(attribute) + ")"));
  }
  driver.lacks.clear();
  for (const char* const call : {"cuDeviceGetAttribute", "cuMemGetAllocationGranularity"}) {
    driver.fails = {{call, CUDA_ERROR_UNKNOWN}};
    const Status status = CudaSharedMemory::Open(FakeVmm::Table(), 0).status();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(Message(status), std::string(call) + ": unknown") << "the fake has no name for it";
  }
}

}  // namespace
}  // namespace baton::device
