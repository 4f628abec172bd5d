#include "src/device/aligned_buffer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

namespace baton::device {
namespace {

TEST(AlignedBuffer, IsAlignedAndZero) {
  for (size_t size : {size_t{1}, size_t{63}, size_t{4096}, size_t{3} * 1024 * 1024 + 1}) {
    AlignedBuffer buffer = AlignedBuffer::Allocate(size).value();
    ASSERT_EQ(buffer.size(), size);
    const auto address = reinterpret_cast<uintptr_t>(buffer.data());
    EXPECT_EQ(address % AlignedBuffer::kAlignment, 0u);
    if (size >= AlignedBuffer::kHugePageBytes) {
      EXPECT_EQ(address % AlignedBuffer::kHugePageBytes, 0u);
    }
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + size,
                            [](std::byte b) { return b == std::byte{0}; }));
    buffer.data()[size - 1] = std::byte{7};
  }
}

TEST(AlignedBuffer, MovesItsMemory) {
  AlignedBuffer first = AlignedBuffer::Allocate(100).value();
  std::byte* const data = first.data();
  AlignedBuffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): the moved-from state
  EXPECT_EQ(first.size(), 0u);
  first = std::move(second);
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(first.size(), 100u);
}

TEST(AlignedBuffer, RefusesWhatCannotBe) {
  EXPECT_EQ(AlignedBuffer::Allocate(SIZE_MAX).status().code(), StatusCode::kResourceExhausted);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_EQ(AlignedBuffer::Allocate(size_t{1} << 60).status().code(),
            StatusCode::kResourceExhausted);
#endif
  EXPECT_EQ(AlignedBuffer::Allocate(0).value().data(), nullptr);
}

}  // namespace
}  // namespace baton::device
