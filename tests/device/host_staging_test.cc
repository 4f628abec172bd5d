// Copies to the host that no GPU would wait for, and what HostStaging makes of them.
#include "src/device/host_staging.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "tests/device/fake_accelerator.h"

namespace baton::device {
namespace {

constexpr size_t kBytes = 1000;

// A device whose memory holds bytes that differ.
class HostStagingTest : public testing::Test {
 protected:
  HostStagingTest() : memory_(*DeviceBuffer::Create(&device_, kBytes, "test")), host_(kBytes) {
    std::vector<uint8_t> bytes(kBytes);
    std::iota(bytes.begin(), bytes.end(), uint8_t{1});
    EXPECT_TRUE(device_.CopyIn(memory_.data(), bytes.data(), kBytes).ok());
    EXPECT_TRUE(device_.Wait().ok());
  }
  bool HasBytes(size_t first, size_t count) const {
    return std::memcmp(host_.data() + first, memory_.data() + first, count) == 0;
  }
  void Copy(HostStaging* staging, size_t first, size_t count) {
    ASSERT_TRUE(staging->CopyOut(host_.data() + first, memory_.data() + first, count).ok());
  }

  FakeAccelerator device_;
  DeviceBuffer memory_;
  std::vector<std::byte> host_;
  const uint64_t waits_before_ = FakeAccelerator::num_waits();
};

TEST_F(HostStagingTest, ACopyToAnyOtherMemoryIsNoted) {
  const HostBuffer buffer = *HostBuffer::Create(&device_, kBytes, "test");
  EXPECT_EQ(buffer.size_bytes(), kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
  ASSERT_TRUE(device_.CopyOut(buffer.data() + 1, memory_.data(), kBytes - 1).ok());
  EXPECT_EQ(FakeAccelerator::num_waits(), waits_before_);
  ASSERT_TRUE(device_.CopyOut(buffer.data() + 1, memory_.data(), kBytes).ok()) << "one byte more";
  EXPECT_EQ(FakeAccelerator::num_waits(), waits_before_ + 1);
  ASSERT_TRUE(device_.CopyOut(host_.data(), memory_.data(), 1).ok());
  EXPECT_EQ(FakeAccelerator::num_waits(), waits_before_ + 2);
}

// As a GPU does: other memory may be changed when the call returns, pinned memory when the copy is
// done.
TEST_F(HostStagingTest, ACopyFromPinnedMemoryReadsItLate) {
  const HostBuffer pinned = *HostBuffer::Create(&device_, 1, "test");
  *pinned.data() = std::byte{7};
  host_[0] = std::byte{7};
  const uint64_t staged_before = FakeAccelerator::num_staged();
  ASSERT_TRUE(device_.CopyIn(memory_.data(), pinned.data(), 1).ok());
  EXPECT_EQ(FakeAccelerator::num_staged(), staged_before);
  ASSERT_TRUE(device_.CopyIn(memory_.data() + 1, host_.data(), 1).ok());
  EXPECT_EQ(FakeAccelerator::num_staged(), staged_before + 1);
  *pinned.data() = std::byte{8};
  host_[0] = std::byte{8};
  ASSERT_TRUE(device_.Wait().ok());
  EXPECT_EQ(memory_.data()[0], std::byte{8});
  EXPECT_EQ(memory_.data()[1], std::byte{7});
}

TEST_F(HostStagingTest, NothingArrivesBeforeFinishAndEverythingWithIt) {
  const auto staging = *HostStaging::Create(&device_, kBytes, "test");
  Copy(staging.get(), 10, 20);
  Copy(staging.get(), 500, 1);
  Copy(staging.get(), 600, 0);
  EXPECT_FALSE(HasBytes(10, 20));
  ASSERT_TRUE(staging->Finish().ok());
  EXPECT_TRUE(HasBytes(10, 20));
  EXPECT_TRUE(HasBytes(500, 1));
  EXPECT_FALSE(HasBytes(501, 1));
  ASSERT_TRUE(staging->Finish().ok()) << "with nothing to do";
  EXPECT_EQ(FakeAccelerator::num_waits(), waits_before_);
}

TEST_F(HostStagingTest, MoreThanTheBufferHoldsCrossesInTurns) {
  const auto staging = *HostStaging::Create(&device_, 64, "test");
  Copy(staging.get(), 0, 40);
  Copy(staging.get(), 40, 40);
  Copy(staging.get(), 80, kBytes - 80);
  ASSERT_TRUE(staging->Finish().ok());
  EXPECT_TRUE(HasBytes(0, kBytes));
  EXPECT_EQ(FakeAccelerator::num_waits(), waits_before_);
}

TEST_F(HostStagingTest, MoreCopiesThanItsListHoldsCrossInTurns) {
  static_assert(kBytes > HostStaging::kMaxCopies);
  const auto staging = *HostStaging::Create(&device_, kBytes, "test");
  for (size_t i = 0; i < kBytes; ++i) Copy(staging.get(), i, 1);
  ASSERT_TRUE(staging->Finish().ok());
  EXPECT_TRUE(HasBytes(0, kBytes));
}

TEST_F(HostStagingTest, MemoryThatCannotBeHadIsRefusedByName) {
  const auto staging = HostStaging::Create(&device_, ~size_t{0} / 2, "answers");
  EXPECT_EQ(staging.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(staging.status().message().find("answers: "), 0u) << staging.status();
}

}  // namespace
}  // namespace baton::device
