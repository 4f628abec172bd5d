// WeightUpload on a device whose copies land as late as they may.
#include "src/model/weight_upload.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "tests/device/fake_accelerator.h"
#include "tests/test_seed.h"

namespace baton::model {

using device::DeviceBuffer;
using device::FakeAccelerator;

namespace {

std::vector<std::byte> BytesOf(const DeviceBuffer& buffer) {
  return {buffer.data(), buffer.data() + buffer.size_bytes()};
}

TEST(WeightUploadTest, PiecesOfAnySizeArriveWhole) {
  FakeAccelerator device;
  for (const size_t piece_bytes : {1, 7, 64, 4096}) {
    auto upload = WeightUpload::Create(&device, piece_bytes);
    ASSERT_TRUE(upload.ok()) << upload.status();
    ASSERT_EQ(upload->piece_bytes(), piece_bytes);
    std::vector<std::byte> bytes(1009);  // prime
    TestRandom random(TestSeed());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
    const DeviceBuffer to = *DeviceBuffer::Create(&device, bytes.size(), "to");
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = std::min<size_t>(1 + random.Below(piece_bytes), bytes.size() - at);
      const auto piece = upload->Next();
      ASSERT_TRUE(piece.ok());
      std::memcpy(piece->data(), bytes.data() + at, count);
      std::byte* const place = to.data() + at;
      ASSERT_TRUE(upload->Send({&place, 1}, count).ok());
      at += count;
    }
    const auto report = upload->Finish();
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->bytes, bytes.size());
    EXPECT_GT(report->link_bytes_per_second, 0);
    EXPECT_EQ(BytesOf(to), bytes) << piece_bytes;
  }
}

// Two copies may be under way; for a third buffer the first one must be done.
TEST(WeightUploadTest, ABufferIsGivenOutOnceItsCopyIsDone) {
  FakeAccelerator device;
  auto upload = *WeightUpload::Create(&device, 16);
  const DeviceBuffer to = *DeviceBuffer::Create(&device, 3 * 16, "to");
  std::vector<std::span<std::byte>> pieces;
  const auto send = [&](int value) {
    pieces.push_back(*upload.Next());
    std::fill(pieces.back().begin(), pieces.back().end(), static_cast<std::byte>(value));
    std::byte* const place = to.data() + size_t{16} * (pieces.size() - 1);
    ASSERT_TRUE(upload.Send({&place, 1}, 16).ok());
  };
  send(1);
  send(2);
  EXPECT_NE(pieces[0].data(), pieces[1].data());
  EXPECT_EQ(to.data()[0], std::byte{0xFF});  // nothing has been waited for
  send(3);
  EXPECT_EQ(pieces[2].data(), pieces[0].data());
  EXPECT_EQ(to.data()[0], std::byte{1});
  EXPECT_EQ(to.data()[16], std::byte{0xFF});
  ASSERT_TRUE(upload.Finish().ok());
  EXPECT_EQ(to.data()[16], std::byte{2});
  EXPECT_EQ(to.data()[32], std::byte{3});
}

TEST(WeightUploadTest, CopiesLandInOrderAndInEachPlace) {
  FakeAccelerator device;
  auto upload = *WeightUpload::Create(&device, 4);
  const DeviceBuffer to = *DeviceBuffer::Create(&device, 8, "to");
  std::byte* const both[] = {to.data(), to.data() + 4};
  for (int value = 1; value <= 5; ++value) {
    const auto piece = *upload.Next();
    std::fill(piece.begin(), piece.end(), static_cast<std::byte>(value));
    ASSERT_TRUE(upload.Send(both, 4).ok());
  }
  EXPECT_EQ(upload.Finish()->bytes, 5u * 8);
  EXPECT_EQ(BytesOf(to), std::vector<std::byte>(8, std::byte{5}));
}

TEST(WeightUploadTest, TellsWhatAMemoryOrACopyRefuses) {
  FakeAccelerator device;
  device.num_host_allocations_left = 1;
  EXPECT_EQ(WeightUpload::Create(&device, 16).status().code(),
            absl::StatusCode::kResourceExhausted);
  device.num_host_allocations_left = 100;
  device.max_allocation = 15;
  EXPECT_EQ(WeightUpload::Create(&device, 16).status().code(),
            absl::StatusCode::kResourceExhausted);
  device.max_allocation = 100;
  device.num_copies_in_left = 3;  // while the link is measured
  EXPECT_EQ(WeightUpload::Create(&device, 16).status().code(), absl::StatusCode::kInternal);
  device.num_copies_in_left = 100;
  auto upload = WeightUpload::Create(&device, 16);
  ASSERT_TRUE(upload.ok());
  const DeviceBuffer to = *DeviceBuffer::Create(&device, 16, "to");
  std::byte* const place = to.data();
  ASSERT_TRUE(upload->Next().ok());
  ASSERT_TRUE(upload->Send({&place, 1}, 16).ok());
  device.num_copies_in_left = 0;
  ASSERT_TRUE(upload->Next().ok());
  EXPECT_EQ(upload->Send({&place, 1}, 16).code(), absl::StatusCode::kInternal);
  // A copy that was begun ends before its buffer goes.
  { const WeightUpload gone = *std::move(upload); }
  EXPECT_FALSE(device.IsBusy());
}

// The times are the clock's; the fake's link is measured as instant.
TEST(WeightUploadTest, WaitingIsCounted) {
  class SlowCopies final : public Clock {
   public:
    int64_t NowUs() const override { return now_us_ += 1000; }
    int64_t WallUnixMs() const override { return 0; }

   private:
    mutable int64_t now_us_ = 0;
  };
  const SlowCopies clock;
  FakeAccelerator device;
  auto upload = *WeightUpload::Create(&device, 8, clock);
  const DeviceBuffer to = *DeviceBuffer::Create(&device, 8, "to");
  std::byte* const place = to.data();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(upload.Next().ok());
    ASSERT_TRUE(upload.Send({&place, 1}, 8).ok());
  }
  const auto report = *upload.Finish();
  EXPECT_DOUBLE_EQ(report.wait_seconds, 0.004);               // three of Next, one of Finish
  EXPECT_DOUBLE_EQ(report.link_bytes_per_second, 32 / 1e-3);  // two rounds of both buffers
}

}  // namespace
}  // namespace baton::model
