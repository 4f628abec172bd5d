// The form that messages between transports of device memory share: heads, slices, and the owner's
// messages that look like them. Each transport's own messages have tests beside them.
#include "kvcache/transport/slice_message.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/ipc/ipc_message.h"
#include "kvcache/transport/nccl/nccl_message.h"

namespace baton::kv {
namespace {

class SliceMessageTest : public testing::TestWithParam<SliceMessageForm> {
 protected:
  const SliceMessageForm& form() const { return GetParam(); }
};

SliceRef ASlice() {
  return {.transfer = TransferId(7),
          .attempt = 2,
          .ordinal = 3,
          .layer = 4,
          .generation = 5,
          .source = BlockIndex(6),
          .checksum = 0xABCDEF0123456789};
}

TEST_P(SliceMessageTest, AHeadIsReadAsItWasWrittenAndLeavesThePayload) {
  const SliceMessageHead written = {.kind = 3,
                                    .flag = 9,
                                    .number = 77,
                                    .link = form().has_links ? 0x1122334455667788u : 0,
                                    .batch = 0x99AABBCCDDEEFF00};
  const std::string bytes = EncodeSliceHead(form(), written) + "payload";
  EXPECT_TRUE(IsSliceMessage(form(), bytes));
  std::string_view rest = bytes;
  const StatusOr<SliceMessageHead> read = DecodeSliceHead(form(), &rest);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(rest, "payload");
  EXPECT_EQ(EncodeSliceHead(form(), *read) + "payload", bytes);
  EXPECT_EQ(read->kind, written.kind);
  EXPECT_EQ(read->flag, written.flag);
  EXPECT_EQ(read->number, written.number);
  EXPECT_EQ(read->link, written.link);
  EXPECT_EQ(read->batch, written.batch);
}

TEST_P(SliceMessageTest, SlicesHaveTheirSourceWhereTheFormHasIt) {
  std::string bytes;
  AppendSlices(form(), std::vector<SliceRef>(2, ASlice()), &bytes);
  EXPECT_EQ(bytes.size(), form().has_sources ? 80u : 64u);
  const auto slices = DecodeSlices(form(), bytes);
  ASSERT_TRUE(slices.ok()) << slices.status();
  ASSERT_EQ(slices->size(), 2u);
  for (const SliceRef& slice : *slices) {
    EXPECT_EQ(slice.source, BlockIndex(form().has_sources ? 6 : 0));
    EXPECT_EQ(slice.transfer, ASlice().transfer);
    EXPECT_EQ(slice.attempt, ASlice().attempt);
    EXPECT_EQ(slice.ordinal, ASlice().ordinal);
    EXPECT_EQ(slice.layer, ASlice().layer);
    EXPECT_EQ(slice.generation, ASlice().generation);
    EXPECT_EQ(slice.checksum, ASlice().checksum);
  }
  EXPECT_FALSE(DecodeSlices(form(), "").ok());
  EXPECT_FALSE(DecodeSlices(form(), bytes.substr(1)).ok());
  AppendSlices(form(), std::vector<SliceRef>(form().max_slices - 1, ASlice()), &bytes);
  EXPECT_EQ(DecodeSlices(form(), bytes).status().code(), StatusCode::kDataLoss);
}

TEST_P(SliceMessageTest, WhatIsWrappedComesOutAndNothingElseDoes) {
  for (const std::string& inner : {std::string(), std::string("anything"),
                                   WrapMessage(form(), "twice"), std::string(form().magic)}) {
    const std::string bytes = WrapMessage(form(), inner);
    EXPECT_TRUE(IsSliceMessage(form(), bytes));
    EXPECT_EQ(UnwrapMessage(form(), bytes), inner);
  }
  const std::string head = WrapMessage(form(), "");
  for (size_t at = 0; at < head.size(); ++at) {
    std::string damaged = head + "anything";
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_EQ(UnwrapMessage(form(), damaged), std::nullopt) << "byte " << at;
    EXPECT_EQ(UnwrapMessage(form(), head.substr(0, at)), std::nullopt) << at;
    std::string_view cut = std::string_view(head).substr(0, at);
    EXPECT_FALSE(DecodeSliceHead(form(), &cut).ok()) << at;
  }
  for (const std::string& other : {std::string(), std::string("a"), std::string("BTKV")}) {
    EXPECT_FALSE(IsSliceMessage(form(), other));
    EXPECT_EQ(UnwrapMessage(form(), other), std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, SliceMessageTest, testing::Values(kIpcForm, kNcclForm),
                         [](const auto& info) { return info.index == 0 ? "Ipc" : "Nccl"; });

}  // namespace
}  // namespace baton::kv
